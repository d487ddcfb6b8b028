"""Reconcilers on the client with an API server in memory."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from tests.kit.lamps import Lamp, LampSpec, LampStatus, build_lamp
from webop.testing import FakeClient

Json = dict[str, Any]
PARENT: Json = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "site", "namespace": "team"},
    "data": {"pages": "home news"},
}


def build_page(name: str, page: str) -> Json:
    head = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{name}-{page}"}}
    return {**head, "stringData": {"page": page}}


async def do_nothing(**_: Any) -> None: ...


def declare(fn: Any) -> Any:
    return webop.reconcile("v1", "configmaps", owns=["secrets"])(fn)


async def test_children_are_applied_and_pruned_from_call_to_call() -> None:
    client = FakeClient(PARENT)

    @declare
    async def build(pages: list[str], children: webop.Children, **_: Any) -> list[str]:
        for page in pages:
            await children.apply(build_page("site", page))
        return await children.prune()

    @declare
    async def build_again(body: webop.Body, children: webop.Children, **_: Any) -> None:
        await build(body["data"]["pages"].split(), children)

    async def list_names() -> list[str]:
        found = await client.list("secrets", namespace="team")
        return sorted(one["metadata"]["name"] for one in found)

    for pages, gone in ((["home", "news"], []), (["home"], ["site-news"]), (["home"], [])):
        children = await client.children(PARENT, build)
        assert await build(pages, children) == gone
        assert await list_names() == [f"site-{page}" for page in pages]
    await client.reconcile(build_again, PARENT)
    assert await list_names() == ["site-home", "site-news"]
    await client.patch("configmaps", "site", {"data": {"pages": "home"}}, namespace="team")
    await client.reconcile(build_again, PARENT)
    assert await list_names() == ["site-home"]


def test_functions_that_are_not_async_get_children_without_await() -> None:
    client = FakeClient(PARENT)

    @declare
    def build(children: webop.SyncChildren, **_: Any) -> None:
        children.apply(build_page("site", "home"))
        assert not children.apply(build_page("site", "home"), adopt=True)
        assert [one["metadata"]["name"] for one in children.list("secrets")] == ["site-home"]
        assert not children.ready("secrets")
        assert children.get("secrets", "site-home")
        assert children.prune() == []
        assert children.delete_all() == ["site-home"]

    build(client.sync.wait(client.children(PARENT, build)))
    assert client.sync.list("secrets", namespace="team") == []


async def test_what_is_no_reconciler_is_told_with_where_it_was_searched() -> None:
    webop.reconcile("v1", "configmaps", registry=webop.OperatorRegistry())(do_nothing)
    text = r"do_nothing\(\) is no .* in the default registry. Pass registry="
    with pytest.raises(TypeError, match=text):
        await FakeClient(PARENT).reconcile(do_nothing, PARENT)
    with pytest.raises(TypeError, match="is no function with @webop"):
        await FakeClient(PARENT).children(PARENT, print)


LAMP = build_lamp(watts=7)


@pytest.mark.parametrize("is_async", [True, False])
async def test_reconcile_passes_all_arguments_and_writes_the_patch_and_the_status(
    is_async: bool,
) -> None:
    client = FakeClient(Lamp, LAMP)
    seen: Json = {}

    def note(patch: webop.Patch, spec: LampSpec, **more: Any) -> LampStatus:
        seen.update(more)
        patch.status.set_condition("Ready", True, reason="Lit")
        patch.metadata.labels["seen"] = "yes"
        return LampStatus(phase="On", watts=spec.watts)

    async def light(lamp: Lamp, spec: LampSpec, **more: Any) -> LampStatus:
        return note(lamp=lamp, spec=spec, **more)

    def light_in_thread(lamp: Lamp, spec: LampSpec, **more: Any) -> LampStatus:
        return note(lamp=lamp, spec=spec, **more)

    fn = light if is_async else light_in_thread
    webop.reconcile(Lamp, param=5)(fn)
    given = await client.reconcile(fn, LAMP, because=["changed"], indexes={"by_room": {"hall": []}})
    assert given.phase == "On"
    names = {
        *("name", "namespace", "uid", "meta", "labels", "annotations", "body", "status", "logger"),
        *("memo", "retry", "started", "runtime", "client", "param", "children", "because", "lamp"),
        *("resource", "by_room"),
    }
    assert seen.keys() == names
    assert (seen["name"], seen["namespace"], seen["because"]) == ("one", "default", ("changed",))
    assert (seen["retry"], seen["param"], seen["labels"]["room"]) == (0, 5, "hall")
    assert isinstance(seen["client"], webop.AsyncClient if is_async else webop.SyncClient)
    lamp = await client.get(Lamp, "one", namespace="default")
    assert (lamp.status.phase, lamp.status.watts) == ("On", 7)
    assert lamp.status.conditions.get("Ready")
    assert lamp.metadata.labels == {"room": "hall", "seen": "yes"}
    with pytest.raises(LookupError):
        webop.client.current()


async def test_reconcile_returns_again_and_does_not_write_it() -> None:
    client = FakeClient(PARENT)

    @declare
    async def build(memo: webop.Memo, **_: Any) -> Any:
        memo["calls"] = memo.get("calls", 0) + 1
        return webop.again(after=10, reason=f"call {memo['calls']}")

    before = await client.get("configmaps", "site", namespace="team")
    found = [await client.reconcile(build, PARENT) for _ in range(2)]
    assert [one.reason for one in found] == ["call 1", "call 2"]
    assert await client.get("configmaps", "site", namespace="team") == before


async def test_reconcile_raises_the_error_of_the_function_and_writes_its_patch() -> None:
    client = FakeClient(PARENT)

    @declare
    async def build(patch: webop.Patch, **_: Any) -> None:
        patch.metadata.annotations["tried"] = "yes"
        raise webop.TemporaryError("not yet", delay=90)

    webop.reconcile("v1", "configmaps", timeout=30)(build)
    with pytest.raises(webop.TemporaryError, match="not yet"):
        await client.reconcile(build, PARENT)
    found = await client.get("configmaps", "site", namespace="team")
    assert found["metadata"]["annotations"] == {"tried": "yes"}


def test_a_kind_cannot_be_owned_and_formerly_owned() -> None:
    kinds: Json = {"owns": ["secrets"], "formerly_owns": ["secrets"]}
    with pytest.raises(TypeError, match="formerly_owns= has secrets, which is in owns="):
        webop.reconcile("v1", "configmaps", **kinds)


async def test_a_kind_that_is_not_owned_is_refused_instead_of_being_empty() -> None:
    client = FakeClient(PARENT)
    children: Any = await client.children(PARENT, declare(do_nothing))
    calls = children.get("pods", "a"), children.list("pods"), children.ready("pods")
    for call in (*calls, children.delete("pods", "a")):
        with pytest.raises(webop.ConfigurationError, match="not in owns= of"):
            await call
    assert await children.get("secrets", "a") is None


class Key(webop.Struct):
    value: str
    is_secret: bool | None = None


async def test_models_can_be_parts_of_a_child_and_what_json_lacks_is_named() -> None:
    client = FakeClient(PARENT)
    children: Any = await client.children(PARENT, declare(do_nothing))
    page = build_page("site", "home")
    await children.apply({**page, "stringData": Key(value="x")})
    found = await client.get("secrets", "site-home", namespace="team")
    assert list(found["stringData"] if "stringData" in found else found["data"]) == ["value"]
    await children.apply(
        {**page, "metadata": webop.Metadata(name="b"), "stringData": {8080: "web"}}
    )
    assert await client.get("secrets", "b", namespace="team")
    with pytest.raises(ValueError, match=r"stringData\.page"):
        await children.apply({**page, "stringData": {"page": {1, 2}}})
