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
    children = client.sync.wait(client.children(PARENT, build, registry=registry))
    build(children.sync)
    assert client.sync.list("secrets", namespace="team") == []


async def test_other_functions_have_no_children() -> None:
    with pytest.raises(TypeError, match="is no function with @webop"):
        await FakeClient(PARENT).children(PARENT, print, registry=webop.OperatorRegistry())
