"""Children of reconcilers: applied, kept right, pruned, and written only if necessary."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

import webop
from tests.cluster.reconcilers.conftest import Builder, Maps, build_map
from tests.kit.http_relay import Relay
from tests.kit.operators import Objects, RunOperator, is_no_fence, operate
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo
from webop.errors import APIError, APINotFoundError

Json = dict[str, Any]


def has(text: str | None) -> Any:
    """Return a condition: that a ConfigMap has a text, or is gone."""
    return lambda found: (found or {}).get("data", {}).get("text") == text


async def test_children_follow_the_object_and_are_pruned_when_it_no_longer_wants_them(
    builder: Builder, objects: Objects, maps: Maps, run_operator: RunOperator
) -> None:
    async with run_operator():
        await objects.pass_fence()
        made = await objects.create("site", {"pages": {"home": "Hello", "news": "None"}})
        home = await maps.wait("site-home", has("Hello"))
        assert home is not None
        (owner,) = home["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (made["metadata"]["uid"], True)
        await maps.wait("site-news", has("None"))
        await objects.patch("site", {"spec": {"pages": {"home": "Hi", "news": None}}})
        await maps.wait("site-home", has("Hi"))
        await maps.wait("site-news", lambda found: found is None)
    assert builder.pruned == ["site-news"]
    assert builder.why("site")[:2] == [("created",), ("changed",)]
    assert "annotations" not in (await objects.get("site"))["metadata"]


@pytest.mark.parametrize("is_running", [True, False])
async def test_children_that_are_deleted_edited_or_orphaned_by_hand_come_back(
    builder: Builder,
    objects: Objects,
    maps: Maps,
    run_operator: RunOperator,
    caplog: pytest.LogCaptureFixture,
    is_running: bool,
) -> None:
    caplog.set_level("INFO")
    pages = {"one": "1", "two": "2", "three": "3", "four": "4"}

    async def spoil() -> None:
        await maps.delete("site-one")
        await maps.patch("site-two", {"data": {"text": "other"}})
        await maps.patch("site-three", {"metadata": {"ownerReferences": None}})
        await maps.patch("site-four", {"metadata": {"labels": None}})

    async def check() -> None:
        await maps.wait("site-one", has("1"))
        await maps.wait("site-two", has("2"))
        await maps.wait("site-three", lambda one: one and one["metadata"].get("ownerReferences"))
        await maps.wait("site-four", lambda one: one and one["metadata"].get("labels"))

    async with run_operator():
        await objects.create("site", {"pages": pages})
        for page, text in pages.items():
            await maps.wait(f"site-{page}", has(text))
        if is_running:
            await spoil()
            await check()
    if not is_running:
        await spoil()
        async with run_operator():
            await check()
    assert "Taking back what was changed in 'site-two' of configmaps" in caplog.text


async def test_a_child_that_is_applied_twice_in_one_call_is_told(
    objects: Objects, maps: Maps, run_operator: RunOperator, caplog: pytest.LogCaptureFixture
) -> None:
    @webop.reconcile("widgets", owns=["configmaps"], when=is_no_fence)
    async def build(children: webop.Children, name: str, **_: Any) -> None:
        await children.apply(build_map(name, {"text": "one"}))
        await children.apply(build_map(name, {"text": "two"}))

    async with run_operator():
        await objects.create("site")
        await maps.wait("site", has("two"))
    assert "applies 'site' of configmaps" in caplog.text
    assert "twice in one call" in caplog.text


SERVICES = webop.Resource("", "v1", "services", kind="Service", namespaced=True)


async def test_an_item_of_a_list_that_was_renamed_by_hand_is_taken_back(
    objects: Objects, client: Client, run_operator: RunOperator
) -> None:
    @webop.reconcile("widgets", owns=["services"], when=is_no_fence)
    async def build(children: webop.Children, name: str, **_: Any) -> None:
        ports = [{"port": 80}]
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}}
        await children.apply({**service, "spec": {"selector": {"app": name}, "ports": ports}})

    async def list_ports() -> list[int]:
        found = await client.get(SERVICES, objects.namespace, "site")
        return [one["port"] for one in found["spec"]["ports"]]

    async def edit(number: int) -> None:
        patch = [{"op": "replace", "path": "/spec/ports/0/port", "value": number}]
        await client.patch(SERVICES, objects.namespace, "site", patch)

    async def is_right() -> bool:
        return await list_ports() == [80]

    async with run_operator():
        await objects.create("site")
        await eventually(lambda: client.get(SERVICES, objects.namespace, "site"), ignoring=APIError)
        await edit(8080)
        await eventually(is_right)
    await edit(8081)
    async with run_operator():
        await eventually(is_right)


async def test_fields_that_a_former_parent_has_applied_go_when_they_are_left_out(
    objects: Objects, maps: Maps, run_operator: RunOperator
) -> None:
    @webop.reconcile("widgets", owns=["configmaps"], when=is_no_fence)
    async def build(children: webop.Children, spec: webop.Spec, name: str, **_: Any) -> None:
        await children.apply(build_map(name, dict(spec)))

    async with run_operator():
        await objects.create("site", {"color": "red", "size": "L"})
        await maps.wait("site", lambda found: found)
        await maps.patch("site", {"metadata": {"ownerReferences": None}})  # --cascade=orphan
        await objects.delete("site")
    await maps.patch("site", {"metadata": {"ownerReferences": None}})
    async with run_operator():
        made = await objects.create("site", {"color": "red", "size": "L"})
        await maps.wait(
            "site",
            lambda found: (
                found and found["metadata"]["labels"]["webop.dev/owner"] == made["metadata"]["uid"]
            ),
        )
        await objects.patch("site", {"spec": {"color": None}})
        await maps.wait("site", lambda found: found and found["data"] == {"size": "L"})


async def test_a_war_with_another_writer_of_the_same_field_is_fought_once_a_second(
    builder: Builder, objects: Objects, maps: Maps, run_operator: RunOperator
) -> None:
    loop = asyncio.get_running_loop()

    async def fight() -> None:
        """Change the child whenever it is as webop wants it, like another operator."""
        while True:
            await maps.wait("site-home", has("Hello"))
            await maps.patch("site-home", {"data": {"text": "Mine"}})

    async with run_operator():
        await objects.create("site", {"pages": {"home": "Hello"}})
        await maps.wait("site-home", has("Hello"))
        builder.written.clear()
        began, enemy = loop.time(), asyncio.create_task(fight())
        await eventually(lambda: len(builder.written) >= 5)
        assert loop.time() - began >= 3
        enemy.cancel()
        await objects.create("other", {"pages": {"home": "Hello"}})
        await maps.wait("other-home", has("Hello"))
        await maps.wait("site-home", has("Hello"))


async def test_a_restart_and_foreign_fields_lead_to_no_write(
    builder: Builder, objects: Objects, maps: Maps, relayed: Relay, run_relayed: RunOperator
) -> None:
    await objects.create("site", {"pages": {"home": "Hello", "news": "None"}})
    async with run_relayed():
        await builder.until_called("site", "resumed")
        await eventually(lambda: sorted(builder.written) == ["site-home", "site-news"])
        await maps.patch("site-home", {"data": {"more": "yes"}})
        await objects.pass_fence()
    home = await maps.find("site-home")
    assert home is not None
    assert home["data"] == {"text": "Hello", "more": "yes"}
    builder.reasons.clear()
    builder.written.clear()
    relayed.requests.clear()
    async with run_relayed():
        await builder.until_called("site", "resumed")
        await objects.pass_fence()
    assert builder.why("site") == [("resumed",)]
    assert builder.written == []
    assert [
        one for one in relayed.requests if one.method == "PATCH" and "site-" in str(one.url)
    ] == []


async def test_nothing_of_others_is_taken_over_or_pruned(
    builder: Builder,
    objects: Objects,
    maps: Maps,
    run_operator: RunOperator,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await maps.create("site-home", {"text": "mine"})
    await maps.create("site-else", {"text": "mine"})
    async with run_operator():
        await objects.create("site", {"pages": {"home": "Hello"}})
        await eventually(lambda: "it is nobody's child" in caplog.text, "the error")
        await maps.delete("site-home")
        await objects.patch("site", {"spec": {"more": 1}})  # it is tried at once
        await maps.wait("site-home", has("Hello"))
        await objects.create("other-site", {"pages": {}})
        await builder.until_called("other-site", "created")
    assert builder.pruned == []
    assert await maps.find("site-else")


async def test_a_child_of_another_object_is_refused(
    objects: Objects, maps: Maps, run_operator: RunOperator, caplog: pytest.LogCaptureFixture
) -> None:
    @webop.reconcile("widgets", owns=["configmaps"], when=is_no_fence)
    async def build(children: webop.Children, name: str, **_: Any) -> None:
        await children.apply(build_map("shared", {"text": name}))

    async with run_operator():
        await objects.create("one")
        await maps.wait("shared", has("one"))
        await objects.create("two")
        await eventually(lambda: "it is the child of another object" in caplog.text, "the error")
        await objects.delete("one")
        await maps.delete("shared")  # in place of the garbage collector
        await objects.patch("two", {"spec": {"more": 1}})
        await maps.wait("shared", has("two"))


async def test_children_are_read_from_memory_and_are_never_older_than_own_writes(
    objects: Objects, maps: Maps, relayed: Relay, run_relayed: RunOperator
) -> None:
    seen: list[Any] = []

    @webop.reconcile("widgets", owns=["configmaps"], reads=["configmaps"], when=is_no_fence)
    async def build(children: webop.Children, spec: webop.Spec, **_: Any) -> None:
        await children.apply(build_map("a", {"text": spec["text"]}))
        await children.apply(build_map("b", {"text": "b"}))
        found = await children.get("configmaps", "a")
        assert found is not None
        assert found["data"]["text"] == spec["text"]
        seen.append([one["metadata"]["name"] for one in await children.list("configmaps")])
        assert await children.get("configmaps", "absent") is None
        assert not await children.ready("configmaps")

    async with run_relayed():
        for text in ("1", "2", "3"):
            if text == "1":
                await objects.create("one", {"text": text})
            else:
                await objects.patch("one", {"spec": {"text": text}})
            await maps.wait("a", has(text))
        await eventually(lambda: len(seen) >= 3, "the reads")
    assert seen[0] == ["a", "b"]
    assert len(relayed.list_requests("GET", "a")) == 1  # whether it was there before


async def test_children_can_be_deleted_in_order_before_the_object_is_gone(
    builder: Builder, objects: Objects, maps: Maps, run_operator: RunOperator
) -> None:
    @webop.on.delete("widgets", when=is_no_fence)
    async def clean(children: webop.Children, **_: Any) -> None:
        assert await children.delete_all(wait=20) == ["site-home"]

    async with run_operator():
        await objects.create("site", {"pages": {"home": "Hello"}})
        await maps.wait("site-home", has("Hello"))
        await objects.remove("site")
        assert await maps.find("site-home") is None


@pytest.mark.parametrize("reads", [[], ["services"]])
async def test_the_status_of_a_child_calls_the_reconciler_only_if_its_kind_is_read(
    objects: Objects, maps: Maps, run_operator: RunOperator, reads: list[str]
) -> None:
    called = []

    @webop.reconcile("widgets", owns=["services"], reads=reads, when=is_no_fence)
    async def build(
        children: webop.Children, because: tuple[str, ...], name: str, **_: Any
    ) -> None:
        called.extend([name] if "services" in because else [])
        meta, spec = {"name": name}, {"ports": [{"port": 80}]}
        await children.apply(
            {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}
        )

    ready = {"type": "Ready", "status": "True", "reason": "Up", "message": ""}
    ready["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    status = {"status": {"conditions": [ready]}}
    async with run_operator():
        for name in ("site", "other"):
            await objects.create(name)
            look = functools.partial(maps.client.get, SERVICES, maps.namespace, name)
            await eventually(look, f"the service {name}", ignoring=APINotFoundError)
        await maps.client.patch(SERVICES, maps.namespace, "site", status, "status")
        await maps.client.delete(SERVICES, maps.namespace, "other")
        await eventually(lambda: "other" in called, "a call for the later event")
        if reads:
            await eventually(lambda: "site" in called, "a call for the status")
    assert ("site" in called) == bool(reads)


async def test_mapped_objects_of_other_kinds_call_the_reconciler(
    objects: Objects, maps: Maps, run_operator: RunOperator
) -> None:
    calls = Builder()

    def users(labels: Any, **_: Any) -> list[str]:
        return [labels["used-by"]] if "used-by" in labels else []

    decorate = webop.reconcile("widgets", watches={"configmaps": users}, when=is_no_fence)
    decorate(calls.build)
    async with run_operator():
        await objects.pass_fence()
        await objects.create("site")
        await calls.until_called("site", "created")
        await maps.create("settings", {"a": "1"}, labels={"used-by": "site"})
        await calls.until_called("site", "configmaps")
        before = len(calls.reasons)
        await maps.delete("settings")
        await eventually(lambda: len(calls.reasons) > before, "a call for the deletion")


async def test_an_object_is_adopted_only_if_the_reconciler_says_so(
    objects: Objects, maps: Maps, run_operator: RunOperator
) -> None:
    @webop.reconcile("widgets", owns=["configmaps"], when=is_no_fence)
    async def build(children: webop.Children, name: str, spec: webop.Spec, **_: Any) -> None:
        await children.apply(build_map(name, {"more": "yes"}), adopt=spec.get("adopt", False))

    await maps.create("one", {"text": "mine"})
    async with run_operator():
        await objects.create("one")
        await objects.pass_fence()
        assert (await maps.find("one") or {})["data"] == {"text": "mine"}
        await objects.patch("one", {"spec": {"adopt": True}})
        found = await maps.wait("one", lambda one: one and one["data"].get("more"))
    assert found is not None
    assert found["data"] == {"text": "mine", "more": "yes"}


async def test_the_children_of_a_reconciler_that_was_renamed_are_still_its_own(
    objects: Objects, maps: Maps, info: ConnectionInfo
) -> None:
    builder = Builder()
    await objects.create("site", {"pages": {"home": "1"}})
    for number, name in enumerate(("build", "make"), start=1):
        registry = webop.OperatorRegistry()
        options: Json = {"registry": registry, "id": name, "when": is_no_fence}
        webop.reconcile("widgets", owns=["configmaps"], **options)(builder.build)
        await objects.patch("site", {"spec": {"pages": {"home": str(number)}}})
        async with operate(info, registry, namespaces=[objects.namespace], beside=True):
            await maps.wait("site-home", has(str(number)))


AUTOSCALER: Json = {"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler"}
SCALERS = "horizontalpodautoscalers"


@pytest.mark.parametrize(
    ("options", "where", "text"),
    [
        ({"owns": ["services"]}, None, "Its kind is not in owns= of the reconciler"),
        ({"owns": ["configmaps"]}, "default", "say across_namespaces=True"),
        (
            {"owns": ["configmaps"], "across_namespaces": True},
            "elsewhere",
            "does not serve its namespace",
        ),
        (
            {"owns": [f"{SCALERS}.v2.autoscaling"]},
            None,
            f"owns= has its kind in v2: apply that, or own '{SCALERS}.v1.autoscaling'.",
        ),
    ],
)
async def test_a_child_that_no_watch_would_show_is_refused_with_the_remedy(
    objects: Objects,
    run_operator: RunOperator,
    caplog: pytest.LogCaptureFixture,
    options: Json,
    where: str | None,
    text: str,
) -> None:
    head = AUTOSCALER if SCALERS in options["owns"][0] else {}

    @webop.reconcile("widgets", when=is_no_fence, **options)
    def build(children: webop.SyncChildren, **_: Any) -> None:
        children.apply({**build_map("one", {}), **head}, namespace=where)

    async with run_operator():
        await objects.create("one")
        await eventually(lambda: text in caplog.text, "the error")
