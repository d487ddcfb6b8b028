"""An operator in Go is replaced: its children and its finalizer are taken over."""

from __future__ import annotations

from typing import Any

import webop
from tests.cluster.reconcilers.conftest import Maps, build_map
from tests.kit.operators import Objects, RunOperator, build_settings, is_no_fence
from tests.kit.waiting import eventually

_FINALIZER = "example.com/cleanup"  # as of controllerutil.AddFinalizer


async def test_children_and_the_finalizer_of_another_controller_are_taken_over(
    objects: Objects, maps: Maps, run_operator: RunOperator
) -> None:
    deleted = []

    @webop.reconcile("widgets", owns=["configmaps"], when=is_no_fence)
    async def build(children: webop.Children, name: str, spec: webop.Spec, **_: Any) -> None:
        await children.apply(build_map(name, {"text": spec["text"]}))
        await children.prune()

    @webop.on.delete("widgets", when=is_no_fence)
    async def clean(name: str, **_: Any) -> None:
        deleted.append(name)

    made = await objects.create("site", {"text": "new"}, finalizers=[_FINALIZER])
    reference = {
        "apiVersion": made["apiVersion"],
        "kind": made["kind"],
        "name": "site",
        "uid": made["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    for name in ("site", "unwanted"):
        await maps.create(name, {"text": "old"}, ownerReferences=[reference])
    await objects.create("gone", {"text": "new"}, finalizers=[_FINALIZER])
    await objects.delete("gone")  # while no operator runs
    async with run_operator(build_settings(persistence={"finalizer": _FINALIZER})):
        await objects.wait_gone("gone")
        await maps.wait("site", lambda found: found and found["data"] == {"text": "new"})
        await objects.pass_fence()
        assert await maps.find("unwanted")  # it lacks the labels of children
        found = await objects.get("site")
        assert found["metadata"]["finalizers"] == [_FINALIZER]
        await objects.remove("site")
    await eventually(lambda: sorted(deleted) == ["gone", "site"], "the deletion handler")
