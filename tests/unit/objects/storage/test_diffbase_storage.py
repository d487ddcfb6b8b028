"""The essence of an object, and where it is kept."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from webop import (
    AnnotationsDiffBaseStorage,
    Body,
    BodyEssence,
    DiffBaseStorage,
    MultiDiffBaseStorage,
    Patch,
    StatusDiffBaseStorage,
)
from webop.objects.patch import apply_merge_patch

KEY = "kopf.zalando.org/last-handled-configuration"


def build_raw(**changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kopf.dev/v1",
        "kind": "KopfExample",
        "metadata": {
            "name": "ex",
            "namespace": "ns",
            "uid": "u1",
            "resourceVersion": "42",
            "generation": 1,
            "creationTimestamp": "2020-01-01T00:00:00Z",
            "finalizers": ["f"],
            "labels": {"a": "b"},
            "annotations": {
                "note": "n",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
                "kopf.zalando.org/create_fn": "{}",
                "sub.kopf.zalando.org/x": "y",
            },
        },
        "spec": {"z": 1, "a": [1, {"b": None}], "t": 'x"y'},
        "status": {"s": 1},
        **changes,
    }


ESSENCE = {
    "spec": {"z": 1, "a": [1, {"b": None}], "t": 'x"y'},
    "metadata": {"labels": {"a": "b"}, "annotations": {"note": "n"}},
}


def store_and_apply(storage: DiffBaseStorage, raw: dict[str, Any]) -> dict[str, Any]:
    body, patch = Body(raw), Patch()
    storage.store(body=body, patch=patch, essence=storage.build(body=body))
    return apply_merge_patch(raw, patch)


STORAGES = [
    AnnotationsDiffBaseStorage(),
    AnnotationsDiffBaseStorage(prefix="op.example.com", key="state"),
    AnnotationsDiffBaseStorage(prefix="op.example.com", key="k" * 60),
    StatusDiffBaseStorage(),
    StatusDiffBaseStorage(field="status.diff-base"),
    StatusDiffBaseStorage(name="my-op"),
    MultiDiffBaseStorage([StatusDiffBaseStorage(), AnnotationsDiffBaseStorage(prefix="kopf.dev")]),
]


@pytest.mark.feature("CFG-38", "CFG-64", "CFG-65", "REF-51", "REF-52", "REF-53", "REF-54")
@pytest.mark.parametrize("storage", STORAGES)
def test_what_is_stored_is_found_again_and_is_no_change_itself(storage: DiffBaseStorage) -> None:
    raw = build_raw()
    assert storage.fetch(body=Body(raw)) is None

    stored = Body(store_and_apply(storage, raw))

    assert storage.fetch(body=stored) == ESSENCE
    assert storage.build(body=stored, extra_fields=["status"])["status"] == {"s": 1}
    assert storage.build(body=stored) == ESSENCE


@pytest.mark.feature("HND-31")
def test_fields_of_handlers_that_are_not_there_are_not_essential() -> None:
    raw = build_raw()
    original = copy.deepcopy(raw)
    fields = ["status.absent", "status.s.deeper", "absent.x"]
    assert AnnotationsDiffBaseStorage().build(body=Body(raw), extra_fields=fields) == ESSENCE
    assert raw == original


class Stripping(AnnotationsDiffBaseStorage):
    """A storage as users write them: what it gets from its parent, it changes in place."""

    def build(self, *, body: Body, extra_fields: Any = None) -> BodyEssence:
        essence = super().build(body=body, extra_fields=extra_fields)
        essence["spec"].pop("z")
        essence["metadata"]["labels"].clear()
        return essence


@pytest.mark.feature("REF-51")
def test_storages_of_users_can_change_the_essence_in_place() -> None:
    raw = build_raw()
    original = copy.deepcopy(raw)

    essence = Stripping().build(body=Body(raw))

    assert essence["spec"] == {"a": [1, {"b": None}], "t": 'x"y'}
    assert essence["metadata"]["labels"] == {}
    assert raw == original
