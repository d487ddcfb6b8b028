"""The essence of an object, and where it is kept."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from webop.objects.body import Body, BodyEssence
from webop.objects.fields import FieldSpec
from webop.objects.patch import Patch, apply_merge_patch
from webop.objects.storage.diffbase import (
    AnnotationsDiffBaseStorage,
    DiffBaseStorage,
    MultiDiffBaseStorage,
    StatusDiffBaseStorage,
)

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


@pytest.mark.feature("HND-29", "HND-30", "D-45", "CFG-65", "CFG-66", "CFG-72")
@pytest.mark.parametrize("storage", STORAGES)
def test_the_essence_is_what_users_write_and_handlers_care_for(storage: DiffBaseStorage) -> None:
    raw = build_raw()
    original = copy.deepcopy(raw)

    assert storage.build(body=Body(raw)) == ESSENCE
    assert raw == original


@pytest.mark.feature("CFG-38", "CFG-64", "CFG-65", "REF-51", "REF-52", "REF-53", "REF-54")
@pytest.mark.parametrize("storage", STORAGES)
def test_what_is_stored_is_found_again_and_is_no_change_itself(storage: DiffBaseStorage) -> None:
    raw = build_raw()
    assert storage.fetch(body=Body(raw)) is None

    stored = Body(store_and_apply(storage, raw))

    assert storage.fetch(body=stored) == ESSENCE
    assert storage.build(body=stored, extra_fields=["status"])["status"] == {"s": 1}
    assert storage.build(body=stored) == ESSENCE


@pytest.mark.feature("CFG-66", "D-61")
def test_a_prefix_of_ones_own_is_marked_and_then_ignored_by_others() -> None:
    own = AnnotationsDiffBaseStorage(prefix="op.example.com")
    stored = store_and_apply(own, build_raw())

    assert stored["metadata"]["annotations"]["op.example.com/kopf-managed"] == "yes"
    for other in (
        AnnotationsDiffBaseStorage(),
        AnnotationsDiffBaseStorage(prefix="op2.example.com"),
    ):
        assert other.build(body=Body(stored)) == ESSENCE
        assert other.fetch(body=Body(stored)) is None


@pytest.mark.feature("CFG-67")
@pytest.mark.parametrize(("v1", "count"), [(True, 2), (False, 1)])
def test_the_older_name_is_written_read_and_ignored_if_wanted(v1: bool, count: int) -> None:
    storage = AnnotationsDiffBaseStorage(prefix="kopf.dev", key="k" * 60, v1=v1)
    stored = store_and_apply(storage, {"spec": {"x": 1}})
    names = sorted(stored["metadata"]["annotations"], key=len)

    assert len(names) == count
    stored["metadata"]["annotations"] = {names[0]: stored["metadata"]["annotations"][names[0]]}
    assert storage.fetch(body=Body(stored)) == {"spec": {"x": 1}}
    assert storage.build(body=Body(stored)) == {"spec": {"x": 1}}


@pytest.mark.feature("HND-30", "CFG-72")
@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, {}),
        ({"labels": {}, "annotations": {}}, {}),
        ({"annotations": {KEY: "{}"}}, {}),
        ({"labels": None, "annotations": None}, {}),
        ({"labels": {"a": "b"}, "name": "n"}, {"metadata": {"labels": {"a": "b"}}}),
    ],
)
def test_stanzas_of_metadata_that_are_empty_are_left_out(metadata: Any, expected: Any) -> None:
    body = Body({"metadata": metadata, "status": {}})

    assert AnnotationsDiffBaseStorage().build(body=body) == expected


@pytest.mark.feature("HND-31")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["status"], {"status": {"s": 1, "t": {"u": 2, "v": 3}}}),
        (["status.s"], {"status": {"s": 1}}),
        (["status.t.u"], {"status": {"t": {"u": 2}}}),
        (["status.t.u", "status.t"], {"status": {"t": {"u": 2, "v": 3}}}),
        (["status.t", "status.t.u"], {"status": {"t": {"u": 2, "v": 3}}}),
        (["status.t.u", "status.t.v"], {"status": {"t": {"u": 2, "v": 3}}}),
        (["status.absent", "status.s.deeper", "absent.x"], {}),
        (["spec.z", ()], {}),
    ],
)
def test_fields_of_handlers_are_essential_wherever_they_are(
    fields: list[FieldSpec], expected: Any
) -> None:
    raw = build_raw(status={"s": 1, "t": {"u": 2, "v": 3}})
    original = copy.deepcopy(raw)

    essence = AnnotationsDiffBaseStorage().build(body=Body(raw), extra_fields=fields)

    assert essence == {**ESSENCE, **expected}
    assert raw == original


@pytest.mark.feature("HND-31")
def test_metadata_as_a_whole_is_essential_but_for_what_changes_with_each_write() -> None:
    raw = store_and_apply(AnnotationsDiffBaseStorage(), build_raw())
    newer = copy.deepcopy(raw)
    newer["metadata"]["resourceVersion"] = "43"
    storage = AnnotationsDiffBaseStorage()

    essence = storage.build(body=Body(raw), extra_fields=["metadata"])

    assert essence["metadata"]["name"] == "ex"  # type: ignore[typeddict-item]
    assert KEY not in essence["metadata"]["annotations"]
    assert essence == storage.build(body=Body(newer), extra_fields=["metadata"])


@pytest.mark.parametrize(
    ("ignored", "expected"),
    [
        (["spec.z"], {**ESSENCE, "spec": {"a": [1, {"b": None}], "t": 'x"y'}}),
        (["spec"], {"metadata": ESSENCE["metadata"]}),
        (["metadata.labels", "metadata.annotations.note"], {"spec": ESSENCE["spec"]}),
        (["spec.absent", "spec.t.deeper", ("a", "b")], ESSENCE),
    ],
)
def test_ignored_fields_are_left_out(ignored: list[FieldSpec], expected: Any) -> None:
    raw = build_raw()
    original = copy.deepcopy(raw)

    for storage in (
        AnnotationsDiffBaseStorage(ignored_fields=ignored),
        StatusDiffBaseStorage(ignored_fields=iter(ignored)),
        MultiDiffBaseStorage([AnnotationsDiffBaseStorage(ignored_fields=ignored)]),
    ):
        assert storage.build(body=Body(raw)) == expected
    assert raw == original


@pytest.mark.feature("CFG-64", "REF-54")
def test_of_several_storages_all_are_written_and_the_first_is_believed() -> None:
    first = StatusDiffBaseStorage(field="status.diff-base")
    second = AnnotationsDiffBaseStorage()
    multi = MultiDiffBaseStorage([first, second])
    old, new = {"spec": {"x": 1}}, {"spec": {"x": 2}}
    patch = Patch()

    multi.store(body=Body(old), patch=patch, essence=multi.build(body=Body(old)))
    both = apply_merge_patch({}, patch)
    assert first.fetch(body=Body(both)) == second.fetch(body=Body(both)) == old

    patch.clear()
    second.store(body=Body(new), patch=patch, essence=second.build(body=Body(new)))
    assert multi.fetch(body=Body(apply_merge_patch({}, patch))) == new
    assert multi.fetch(body=Body(apply_merge_patch(both, patch))) == old


@pytest.mark.feature("CFG-71")
@pytest.mark.parametrize("is_multi", [False, True])
def test_replica_sets_of_deployments_have_a_state_of_their_own(is_multi: bool) -> None:
    plain: DiffBaseStorage = AnnotationsDiffBaseStorage(prefix="kopf.dev")
    storage = MultiDiffBaseStorage([plain]) if is_multi else plain
    raw = {
        "kind": "ReplicaSet",
        "metadata": {"name": "n", "ownerReferences": [{"kind": "Deployment"}]},
        "spec": {"x": 1},
    }

    stored = store_and_apply(storage, raw)

    assert list(stored["metadata"]["annotations"]) == ["kopf.dev/last-handled-configuration-ofDRS"]
    assert storage.fetch(body=Body(stored)) == {"spec": {"x": 1}}
    assert storage.build(body=Body(stored)) == {"spec": {"x": 1}}


@pytest.mark.parametrize("text", ["{broken", "[]", "null"])
def test_a_state_that_is_not_readable_is_as_good_as_none(text: str) -> None:
    raw = {"metadata": {"annotations": {KEY: text}}, "status": {"diff-base": text}}

    assert AnnotationsDiffBaseStorage().fetch(body=Body(raw)) is None
    assert StatusDiffBaseStorage(field="status.diff-base").fetch(body=Body(raw)) is None


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
