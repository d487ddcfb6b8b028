"""What the events of a child mean for its parent."""

from __future__ import annotations

from typing import Any

import pytest

from webop.context.child_store import (
    Child,
    ChildStore,
    Names,
    Place,
    build_seal,
    name_manager,
)
from webop.handlers.model import ReconcileHandler

Json = dict[str, Any]
NAMES = Names.build(None, "webop")


DIGEST = f"{build_seal(Place('configmaps', 'ns', 'child'), 'p1')}.d"


def build(version: int, *, fields: Json | None = None, **meta: Any) -> Json:
    manager = f"webop{name_manager('build', 'p1')}"
    entry = {"manager": manager, "operation": "Apply", "fieldsV1": fields or {"f:data": {}}}
    return {
        "metadata": {
            "name": "child",
            "namespace": "ns",
            "uid": "c1",
            "resourceVersion": str(version),
            "labels": {NAMES.owner: "p1", NAMES.reconciler: "build", NAMES.operator: "webop"},
            "annotations": {NAMES.digest: DIGEST},
            "managedFields": [entry],
            **meta,
        }
    }


class Parent:
    def __init__(self) -> None:
        self.uid, self.name = "p1", "parent"
        self.namespace: str | None = "ns"
        self.calls: list[str] = []

    def call_again(self, handler_id: str, because: str) -> None:
        self.calls.append(f"{handler_id} {because}")


class Scene:
    """A store with a parent, and its child."""

    def __init__(self) -> None:
        self.store, self.parent = ChildStore(), Parent()
        self.place = Place("configmaps", "ns", "child")
        handler = ReconcileHandler(id="build", fn=print, selector=None)
        self.store.register(self.parent, handler)

    def note(self, event_type: str | None, raw: Json, *, is_read: bool = False) -> int:
        """Show an event; return how often it has called the parent."""
        before = len(self.parent.calls)
        self.store.note("configmaps", event_type, raw, NAMES, is_read=is_read)
        return len(self.parent.calls) - before

    def find(self) -> Child:
        child = self.store.find(self.place)
        assert child is not None
        return child


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_a_change_of_somebody_else_during_an_apply_is_not_lost(scene: Scene) -> None:
    async with scene.store.applying(scene.place):
        assert scene.note("MODIFIED", build(7, fields={"f:other": {}})) == 0
        scene.store.note_applied(scene.place, build(6), NAMES, is_read=False)
    assert scene.parent.calls == ["build configmaps"]
    assert not scene.find().has(DIGEST, {"metadata": {"name": "child"}, "data": {"a": "1"}})


async def test_a_deletion_before_an_apply_that_creates_the_child_again_does_not_hide_it(
    scene: Scene,
) -> None:
    scene.note("ADDED", build(5))
    async with scene.store.applying(scene.place):
        scene.note("DELETED", build(6))
        scene.store.note_applied(scene.place, build(7, uid="c2"), NAMES, is_read=False)
    assert scene.find().uid == "c2"


@pytest.mark.parametrize("uid", ["c0", "c1"])
@pytest.mark.parametrize("event_type", [None, "MODIFIED"])
async def test_a_list_or_an_event_from_before_an_own_apply_does_not_hide_it(
    scene: Scene, event_type: str | None, uid: str
) -> None:
    scene.note("ADDED", build(4, uid=uid))
    async with scene.store.applying(scene.place):
        scene.store.note_applied(scene.place, build(7), NAMES, is_read=False)
    assert scene.note(event_type, build(5, uid=uid)) == 0
    assert (scene.find().uid, scene.find().version) == ("c1", "7")
    scene.note("MODIFIED", build(7))
    scene.note(None, build(5))  # a restored backup
    assert scene.find().version == "5"
