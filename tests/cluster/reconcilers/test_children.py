"""Children of reconcilers: applied, kept right, pruned, and written only if necessary."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

import webop
from tests.cluster.reconcilers.conftest import Builder, Maps, build_map
from tests.kit.http_relay import Relay
from tests.kit.operators import Json, Objects, RunOperator, is_no_fence, operate
from tests.kit.waiting import eventually


def has(text: str | None) -> Any:
    """Return a condition: that a ConfigMap has a text, or is gone."""
    return lambda found: (found or {}).get("data", {}).get("text") == text


async def test_children_follow_the_object_come_back_if_spoilt_and_go_before_it(
    builder: Builder,
    objects: Objects,
    maps: Maps,
    run_operator: RunOperator,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    pages = {"one": "1", "two": "2", "three": "3", "four": "4"}

    @webop.on.delete("widgets", labels={"ordered": "yes"})
    async def clean(children: webop.Children, **_: Any) -> None:
        gone = await children.delete_all(wait=20)
        assert sorted(gone) == sorted(f"site-{page}" for page in pages)

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
        await objects.pass_fence()
        spec = {"pages": {**pages, "one": "Hello", "news": "None"}}
        made = await objects.create("site", spec, labels={"ordered": "yes"})
        one = await maps.wait("site-one", has("Hello")) or {}
        (owner,) = one["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (made["metadata"]["uid"], True)
        await maps.wait("site-news", has("None"))
        await objects.patch("site", {"spec": {"pages": {"one": "1", "news": None}}})
        for page, text in pages.items():
            await maps.wait(f"site-{page}", has(text))
        await maps.wait("site-news", lambda found: found is None)
        assert builder.pruned == ["site-news"]
        assert builder.why("site")[:2] == [("created",), ("changed",)]
        await spoil()
        await check()
    await spoil()  # while no operator runs
    async with run_operator():
        await check()
        await objects.remove("site")
        assert await maps.find("site-one") is None
    assert "Taking back what was changed in 'site-two' of configmaps" in caplog.text


SERVICES = webop.Resource("", "v1", "services", kind="Service", namespaced=True)


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
    assert "annotations" not in (await objects.get("site"))["metadata"]
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


async def test_nothing_of_others_is_taken_over_or_pruned_unless_the_reconciler_adopts_it(
    builder: Builder,
    objects: Objects,
    maps: Maps,
    run_operator: RunOperator,
    caplog: pytest.LogCaptureFixture,
) -> None:
    @webop.reconcile("widgets", id="adopt", owns=["configmaps"], labels={"adopt": "yes"})
    async def build(children: webop.Children, name: str, spec: webop.Spec, **_: Any) -> None:
        await children.apply(build_map(name, {"more": "yes"}), adopt=spec.get("adopt", False))

    for name in ("site-home", "site-else", "one"):
        await maps.create(name, {"text": "mine"})
    async with run_operator():
        await objects.create("site", {"pages": {"home": "Hello"}})
        await eventually(lambda: "it is nobody's child" in caplog.text, "the error")
        await maps.delete("site-home")
        await objects.patch("site", {"spec": {"more": 1}})  # it is tried at once
        await maps.wait("site-home", has("Hello"))
        await objects.create("other-site", {"pages": {}})
        await builder.until_called("other-site", "created")
        await objects.create("one", labels={"adopt": "yes"})
        await objects.pass_fence()
        assert (await maps.find("one") or {})["data"] == {"text": "mine"}
        await objects.patch("one", {"spec": {"adopt": True}})
        found = await maps.wait("one", lambda one: one and one["data"].get("more")) or {}
    assert found["data"] == {"text": "mine", "more": "yes"}
    assert builder.pruned == []
    assert await maps.find("site-else")


async def test_a_child_of_another_object_is_refused_and_one_that_is_applied_twice_is_told(
    objects: Objects, maps: Maps, run_operator: RunOperator, caplog: pytest.LogCaptureFixture
) -> None:
    @webop.reconcile("widgets", owns=["configmaps"], when=is_no_fence)
    async def build(children: webop.Children, name: str, **_: Any) -> None:
        await children.apply(build_map("shared", {"text": name}))
        await children.apply(build_map("shared", {"text": f"{name} again"}))

    async with run_operator():
        await objects.create("one")
        await maps.wait("shared", has("one again"))
        assert "applies 'shared' of configmaps" in caplog.text
        assert "twice in one call" in caplog.text
        await objects.create("two")
        await eventually(lambda: "it is the child of another object" in caplog.text, "the error")
        await objects.delete("one")
        await maps.delete("shared")  # in place of the garbage collector
        await objects.patch("two", {"spec": {"more": 1}})
        await maps.wait("shared", has("two again"))


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
            await eventually(look, f"the service {name}", ignoring=webop.APINotFoundError)
        await maps.client.patch(SERVICES, maps.namespace, "site", status, "status")
        await maps.client.delete(SERVICES, maps.namespace, "other")
        await eventually(lambda: "other" in called, "a call for the later event")
        if reads:
            await eventually(lambda: "site" in called, "a call for the status")
    assert ("site" in called) == bool(reads)


ACROSS: Json = {"across_namespaces": True}
AUTOSCALER: Json = {"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler"}
SCALERS = "horizontalpodautoscalers"


async def test_a_child_that_no_watch_would_show_is_refused_with_the_remedy(
    objects: Objects, run_operator: RunOperator, caplog: pytest.LogCaptureFixture
) -> None:
    def declare(owned: str, child: Json, where: str | None = None, **options: Any) -> None:
        @webop.reconcile("widgets", id=f"build-{len(cases)}", owns=[owned], **options)
        def build(children: webop.SyncChildren, **_: Any) -> None:
            children.apply(child, namespace=where)

    cases: list[str] = []
    for text, owned, child, where, options in (
        ("Its kind is not in owns= of the reconciler", "services", {}, None, {}),
        ("say across_namespaces=True", "configmaps", {}, "default", {}),
        ("does not serve its namespace", "configmaps", {}, "elsewhere", ACROSS),
        (
            f"owns= has its kind in v2: apply that, or own '{SCALERS}.v1.autoscaling'.",
            *(f"{SCALERS}.v2.autoscaling", AUTOSCALER, None, {}),
        ),
    ):
        declare(owned, {**build_map("one", {}), **child}, where, **options)
        cases.append(text)
    async with run_operator():
        await objects.create("one")
        for text in cases:
            await eventually(lambda text=text: text in caplog.text, text)  # type: ignore[misc]


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


async def test_the_children_of_a_reconciler_that_was_renamed_are_still_its_own(
    objects: Objects, maps: Maps, info: webop.ConnectionInfo
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
