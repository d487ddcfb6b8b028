"""Children of several operators: each keeps its own, and notices another one of its name."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import webop
from tests.cluster.reconcilers.conftest import Builder, Maps, build_map
from tests.cluster.reconcilers.test_children import has
from tests.kit.operators import Objects, build_settings, is_no_fence, operate
from tests.kit.processes import Command, Workshop
from webop.client.auth.vault import ConnectionInfo

Json = dict[str, Any]

_CODE = """
import webop

@webop.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False

@webop.reconcile('widgets', owns=['configmaps'])
async def build(name, spec, children, **_):
    metadata = {'name': f'{name}-OWN'}
    data = {'text': spec['text']}
    head = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': metadata}
    await children.apply({**head, 'data': data})
    await children.prune()
"""


@contextlib.asynccontextmanager
async def run_both(
    workshop: Workshop, namespace: str, first: str, second: str
) -> AsyncIterator[tuple[Command, Command]]:
    """Run two files with the same function name and children of other names."""
    async with contextlib.AsyncExitStack() as stack:
        for number, file in enumerate((first, second)):
            path = workshop.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_CODE.replace("OWN", f"child{number}"))
        started = [
            await workshop.spawn(
                ("webop", "run"), "--standalone", "-n", namespace, file, log=f"{number}.log"
            )
            for number, file in enumerate((first, second))
        ]
        for each in started:
            stack.push_async_callback(each.kill)
        yield started[0], started[1]


async def check_that_both_stay(objects: Objects, maps: Maps) -> None:
    """Check that both operators follow changes, and that no child is replaced."""
    found = [await maps.find(f"site-child{number}") or {} for number in range(2)]
    for text in "234":
        await objects.patch("site", {"spec": {"text": text}})
        for one in found:
            now = await maps.wait(one["metadata"]["name"], has(text))
            assert now is not None
            assert now["metadata"]["uid"] == one["metadata"]["uid"]


async def test_two_operators_with_one_function_name_do_not_delete_each_others_children(
    connected: Workshop, objects: Objects, maps: Maps
) -> None:
    async with run_both(connected, objects.namespace, "shop.py", "stock.py") as both:
        await objects.create("site", {"text": "1"})
        for number in range(2):
            await maps.wait(f"site-child{number}", bool)
        await check_that_both_stay(objects, maps)
    first = await maps.find("site-child0")
    assert first is not None
    assert first["metadata"]["labels"]["webop.dev/operator"] == "shop"
    assert not any("Another operator" in one.output for one in both)


async def test_two_operators_of_one_name_notice_each_other_and_stop_pruning(
    connected: Workshop, objects: Objects, maps: Maps
) -> None:
    files = "one/team/handlers.py", "two/team/handlers.py"
    async with run_both(connected, objects.namespace, *files) as both:
        await objects.create("site", {"text": "1"})
        for each in both:
            await each.wait_for("Another operator has the name 'team', too")
        for number in range(2):
            await maps.wait(f"site-child{number}", bool)
        await check_that_both_stay(objects, maps)
    for each in both:
        assert each.output.count("Another operator has the name") == 1
        assert "(field managers: team.build." in each.output


@contextlib.asynccontextmanager
async def run_named(
    info: ConnectionInfo, objects: Objects, name: str, fn: Any, **options: Any
) -> AsyncIterator[None]:
    """Run an operator of a name with a reconciler, which others can have, too."""
    registry = webop.OperatorRegistry()
    options = {"owns": ["configmaps"], "id": "build", "when": is_no_fence, **options}
    webop.reconcile("widgets", registry=registry, **options)(fn)
    settings = build_settings(operator={"name": name})
    scope: Json = {"namespaces": [objects.namespace], "beside": True}
    async with operate(info, registry, settings, **scope):
        yield


async def test_two_operators_of_one_name_that_want_other_contents_write_ever_more_rarely(
    info: ConnectionInfo, objects: Objects, maps: Maps, caplog: pytest.LogCaptureFixture
) -> None:
    loop, written, enough = asyncio.get_running_loop(), list[float](), asyncio.Event()

    def want(text: str) -> Any:
        async def build(name: str, children: webop.Children, **_: Any) -> None:
            if await children.apply(build_map(name, {"text": text})):
                written.append(loop.time())
                if len(written) == 9:
                    enough.set()

        return build

    async with (
        run_named(info, objects, "shop", want("a")),
        run_named(info, objects, "shop", want("b")),
    ):
        await objects.create("site")
        await asyncio.wait_for(enough.wait(), 60)
    assert written[8] - written[4] > 3.5
    assert caplog.text.count("Another operator has the name 'shop', too") == 2


async def test_a_user_who_edits_the_digest_is_not_taken_for_another_operator(
    builder: Builder,
    info: ConnectionInfo,
    objects: Objects,
    maps: Maps,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with run_named(info, objects, "shop", builder.build):
        await objects.create("site", {"pages": {"home": "1", "news": "2"}})
        await maps.wait("site-news", bool)
        made = await maps.wait("site-home", bool) or {}
        digest = made["metadata"]["annotations"]["webop.dev/digest"]
        for number in range(3):
            edited = {"annotations": {"webop.dev/digest": f"{digest}{number}"}}
            await maps.patch("site-home", {"metadata": edited})
            await maps.wait(
                "site-home",
                lambda now: now and now["metadata"]["annotations"]["webop.dev/digest"] == digest,
            )
        await objects.patch("site", {"spec": {"pages": {"news": None}}})
        await maps.wait("site-news", lambda found: found is None)
    assert "Another operator" not in caplog.text


async def test_a_user_who_edits_the_label_of_the_operator_does_not_stop_its_reconciler(
    builder: Builder, info: ConnectionInfo, objects: Objects, maps: Maps
) -> None:
    async with run_named(info, objects, "shop", builder.build):
        await objects.create("site", {"pages": {"home": "1"}})
        await maps.wait("site-home", bool)
        await maps.patch("site-home", {"metadata": {"labels": {"webop.dev/operator": "other"}}})
        await objects.patch("site", {"spec": {"pages": {"home": "2"}}})
        found = await maps.wait("site-home", has("2")) or {}
    assert found["metadata"]["labels"]["webop.dev/operator"] == "shop"


async def test_a_child_of_another_operator_is_refused_with_its_name_until_one_continues_as_it(
    builder: Builder,
    info: ConnectionInfo,
    objects: Objects,
    maps: Maps,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await objects.create("site", {"pages": {"home": "1"}})
    async with run_named(info, objects, "shop", builder.build):
        await maps.wait("site-home", bool)
    async with run_named(info, objects, "stock", builder.build):
        await builder.until_called("site", "failed")
    assert "it is the child of another operator, 'shop'" in caplog.text
    assert "set settings.operator.name = 'shop'" in caplog.text
    await objects.patch("site", {"spec": {"pages": {"home": None, "news": "2"}}})
    async with run_named(info, objects, "shop", builder.build):
        await maps.wait("site-home", lambda found: found is None)


async def test_children_from_before_operators_had_names_are_kept_and_taken_over(
    builder: Builder, info: ConnectionInfo, objects: Objects, maps: Maps
) -> None:
    await objects.create("site", {"pages": {"home": "1", "news": "2"}})
    kept, read = [], list[Any]()
    async with run_named(info, objects, "webop", builder.build):
        for page in ("home", "news"):
            kept.append(await maps.wait(f"site-{page}", bool) or {})
            await maps.patch(f"site-{page}", {"data": {page: "from a user"}})
    for page in ("home", "news"):
        await maps.patch(f"site-{page}", {"metadata": {"labels": {"webop.dev/operator": None}}})

    async def build(name: str, children: webop.Children, **_: Any) -> None:
        read.append((await children.get("configmaps", f"{name}-home") or {})["data"]["text"])
        read.append(len(await children.list("configmaps")))
        await children.apply(build_map(f"{name}-home", {"title": "new"}))
        await children.prune()

    async with run_named(info, objects, "shop", build):
        home = await maps.wait("site-home", lambda found: found and "title" in found["data"])
        await objects.pass_fence()
    assert read[:2] == ["1", 2]  # such as a password that was made once
    assert home is not None
    assert home["metadata"]["uid"] == kept[0]["metadata"]["uid"]
    assert home["data"] == {"title": "new", "home": "from a user"}
    assert home["metadata"]["labels"]["webop.dev/operator"] == "shop"
    news = await maps.find("site-news")  # it could be the child of another operator
    assert news is not None
    assert news["metadata"]["uid"] == kept[1]["metadata"]["uid"]


async def test_a_child_that_another_reconciler_of_the_operator_applies_is_refused_with_its_id(
    objects: Objects, maps: Maps, info: ConnectionInfo, caplog: pytest.LogCaptureFixture
) -> None:
    registry = webop.OperatorRegistry()
    for name in ("make", "build"):
        builder = Builder()
        options: Json = {"registry": registry, "id": name, "when": is_no_fence}
        webop.reconcile("widgets", owns=["configmaps"], **options)(builder.build)
    async with operate(info, registry, namespaces=[objects.namespace]):
        await objects.create("site", {"pages": {"home": "1"}})
        await builder.until_called("site", "failed")
    assert "it is the child of another reconciler of this object, 'make'" in caplog.text


@pytest.mark.parametrize("way", ["prune", "delete_all"])
async def test_children_of_a_kind_that_owns_no_longer_has_go_with_those_of_the_others(
    info: ConnectionInfo,
    objects: Objects,
    maps: Maps,
    caplog: pytest.LogCaptureFixture,
    way: str,
) -> None:
    caplog.set_level("INFO")
    builder = Builder()
    await objects.create("site", {"pages": {"home": "1"}})
    async with run_named(info, objects, "shop", builder.build):
        await maps.wait("site-home", bool)

    async def build(children: webop.Children, **_: Any) -> None:
        await children.list("configmaps")
        if way == "prune":
            await children.prune()

    registry = webop.OperatorRegistry()
    options: Json = {"registry": registry, "when": is_no_fence}
    kinds: Json = {"owns": ["services"], "formerly_owns": ["configmaps"]}
    webop.reconcile("widgets", id="build", **kinds, **options)(build)
    if way == "delete_all":

        @webop.on.delete("widgets", **options)
        async def clean(children: webop.Children, **_: Any) -> None:
            await children.delete_all(wait=20)

    settings = build_settings(operator={"name": "shop"})
    async with operate(info, registry, settings, namespaces=[objects.namespace]):
        await objects.pass_fence()
        if way == "delete_all":
            assert await maps.find("site-home")
            await objects.remove("site")
        await maps.wait("site-home", lambda found: found is None)
    where = f"configmaps.v1 in {objects.namespace}"
    assert f"1 children of the former kind {where} are left (reconciler: build)" in caplog.text
