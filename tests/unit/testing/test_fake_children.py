"""Reconcilers on the client with an API server in memory."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from webop.testing import FakeClient

Json = dict[str, Any]
PARENT: Json = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "site", "namespace": "team"},
    "data": {"pages": "home news"},
}


def build_page(name: str, page: str) -> Json:
    metadata = {"name": f"{name}-{page}"}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "stringData": {"page": page},
    }


def declare(registry: webop.OperatorRegistry, fn: Any) -> Any:
    return webop.reconcile("v1", "configmaps", owns=["secrets"], registry=registry)(fn)


async def test_children_are_applied_and_pruned_from_call_to_call() -> None:
    registry, client = webop.OperatorRegistry(), FakeClient(PARENT)

    async def build(pages: list[str], children: webop.Children, **_: Any) -> list[str]:
        for page in pages:
            await children.apply(build_page("site", page))
        return await children.prune()

    declare(registry, build)
    for pages, gone in ((["home", "news"], []), (["home"], ["site-news"]), (["home"], [])):
        children = await client.children(PARENT, build, registry=registry)
        assert await build(pages, children) == gone
        found = await client.list("secrets", namespace="team")
        assert sorted(one["metadata"]["name"] for one in found) == sorted(
            f"site-{page}" for page in pages
        )


def test_functions_that_are_not_async_get_children_without_await() -> None:
    registry, client = webop.OperatorRegistry(), FakeClient(PARENT)

    def build(children: webop.SyncChildren, **_: Any) -> None:
        children.apply(build_page("site", "home"))
        assert not children.apply(build_page("site", "home"), adopt=True)
        assert [one["metadata"]["name"] for one in children.list("secrets")] == ["site-home"]
        assert not children.ready("secrets")
        assert children.get("secrets", "site-home")
        assert children.prune() == []
        assert children.delete_all() == ["site-home"]

    declare(registry, build)
    build(client.sync.wait(client.children(PARENT, build, registry=registry)))
    assert client.sync.list("secrets", namespace="team") == []


async def test_in_async_tests_sync_reconcilers_write_without_await() -> None:
    registry, client = webop.OperatorRegistry(), FakeClient(PARENT)

    def build(children: webop.SyncChildren, **_: Any) -> None:
        children.apply(build_page("site", "home"))

    declare(registry, build)
    build(children=await client.children(PARENT, build, registry=registry))
    assert [one["metadata"]["name"] for one in await client.list("secrets")] == ["site-home"]
    await client.reconcile(build, PARENT, registry=registry)


async def test_other_functions_have_no_children() -> None:
    with pytest.raises(TypeError, match="is no function with @webop"):
        await FakeClient(PARENT).children(PARENT, print, registry=webop.OperatorRegistry())


async def test_a_reconciler_of_another_registry_is_told_with_where_it_was_searched() -> None:
    def build(**_: Any) -> None: ...

    declare(webop.OperatorRegistry(), build)
    with pytest.raises(
        TypeError, match=r"build\(\) is no .* in the default registry. Pass registry="
    ):
        await FakeClient(PARENT).reconcile(build, PARENT)


class LampSpec(webop.Struct):
    watts: int = 5


class LampStatus(webop.Struct):
    phase: str | None = None
    watts: int | None = None
    conditions: webop.Conditions = webop.Conditions()


@webop.resource("lamps.webop.dev", "v1")
class Lamp(webop.Model):
    spec: LampSpec
    status: LampStatus = LampStatus()


LAMP = Lamp(metadata=webop.Metadata(name="one", labels={"room": "hall"}), spec=LampSpec(watts=7))


@pytest.mark.parametrize("is_async", [True, False])
async def test_reconcile_passes_all_arguments_and_writes_the_patch_and_the_status(
    is_async: bool,
) -> None:
    registry, client = webop.OperatorRegistry(), FakeClient(Lamp, LAMP)
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
    webop.reconcile(Lamp, registry=registry, param=5)(fn)
    given = await client.reconcile(
        fn, LAMP, because=["changed"], indexes={"by_room": {"hall": []}}, registry=registry
    )
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
    registry, client = webop.OperatorRegistry(), FakeClient(PARENT)

    async def build(memo: webop.Memo, **_: Any) -> Any:
        memo["calls"] = memo.get("calls", 0) + 1
        return webop.again(after=10, reason=f"call {memo['calls']}")

    declare(registry, build)
    before = await client.get("configmaps", "site", namespace="team")
    found = [await client.reconcile(build, PARENT, registry=registry) for _ in range(2)]
    assert [one.reason for one in found] == ["call 1", "call 2"]
    assert await client.get("configmaps", "site", namespace="team") == before


async def test_reconcile_raises_the_error_of_the_function_and_writes_its_patch() -> None:
    registry, client = webop.OperatorRegistry(), FakeClient(PARENT)

    async def build(patch: webop.Patch, **_: Any) -> None:
        patch.metadata.annotations["tried"] = "yes"
        raise webop.TemporaryError("not yet", delay=90)

    webop.reconcile("v1", "configmaps", registry=registry, timeout=30)(build)
    with pytest.raises(webop.TemporaryError, match="not yet"):
        await client.reconcile(build, PARENT, registry=registry)
    found = await client.get("configmaps", "site", namespace="team")
    assert found["metadata"]["annotations"] == {"tried": "yes"}


async def test_a_pruned_child_is_gone_after_reconcile() -> None:
    registry, client = webop.OperatorRegistry(), FakeClient(PARENT)

    async def build(body: webop.Body, children: webop.Children, **_: Any) -> None:
        for page in body["data"]["pages"].split():
            await children.apply(build_page("site", page))
        await children.prune()

    declare(registry, build)
    await client.reconcile(build, PARENT, registry=registry)
    assert await client.get("secrets", "site-news", namespace="team")
    await client.patch("configmaps", "site", {"data": {"pages": "home"}}, namespace="team")
    await client.reconcile(build, PARENT, registry=registry)
    with pytest.raises(webop.APINotFoundError):
        await client.get("secrets", "site-news", namespace="team")


async def test_reconcile_of_an_object_that_the_function_deletes_writes_nothing() -> None:
    registry, client = webop.OperatorRegistry(), FakeClient(PARENT)

    async def build(
        client: webop.AsyncClient, patch: webop.Patch, name: str, namespace: str, **_: Any
    ) -> None:
        patch.metadata.labels["a"] = "b"
        await client.delete("configmaps", name, namespace=namespace)

    declare(registry, build)
    await client.reconcile(build, PARENT, registry=registry)


def test_a_kind_cannot_be_owned_and_formerly_owned() -> None:
    kinds: Json = {"owns": ["secrets"], "formerly_owns": ["secrets"]}
    with pytest.raises(TypeError, match="formerly_owns= has secrets, which is in owns="):
        webop.reconcile("v1", "configmaps", **kinds)


async def test_a_kind_that_is_not_owned_is_refused_instead_of_being_empty() -> None:
    registry, client = webop.OperatorRegistry(), FakeClient(PARENT)

    async def build(**_: Any) -> None: ...

    children: Any = await client.children(PARENT, declare(registry, build), registry=registry)
    calls = children.get("pods", "a"), children.list("pods"), children.ready("pods")
    for call in (*calls, children.delete("pods", "a")):
        with pytest.raises(webop.ConfigurationError, match="not in owns= of"):
            await call
    assert await children.get("secrets", "a") is None


class Key(webop.Struct):
    value: str
    is_secret: bool | None = None


async def test_models_can_be_parts_of_a_child_and_what_json_lacks_is_named() -> None:
    registry, client = webop.OperatorRegistry(), FakeClient(PARENT)

    async def build(**_: Any) -> None: ...

    children: Any = await client.children(PARENT, declare(registry, build), registry=registry)
    page = build_page("site", "home")
    await children.apply({**page, "stringData": Key(value="x")})
    found = await client.get("secrets", "site-home", namespace="team")
    assert list(found["stringData"] if "stringData" in found else found["data"]) == ["value"]
    with pytest.raises(ValueError, match=r"stringData\.page"):
        await children.apply({**page, "stringData": {"page": {1, 2}}})


async def test_an_apply_that_changes_nothing_is_no_write_even_if_the_same_was_not_known() -> None:
    registry, client = webop.OperatorRegistry(), FakeClient(PARENT)
    seen: list[bool] = []

    async def build(children: webop.Children, **_: Any) -> None:
        seen.append(bool(await children.apply(build_page("site", "home"))))

    declare(registry, build)
    for _ in range(2):
        await client.reconcile(build, PARENT, registry=registry)
    assert seen == [True, False]
