"""The progress of handlers, and where it is kept."""

from __future__ import annotations

import copy
from types import MappingProxyType
from typing import Any

import pytest

from tests.kit.merge_patches import merge
from tests.kit.rows import rows
from webop import (
    AnnotationsProgressStorage,
    Body,
    MultiProgressStorage,
    Patch,
    ProgressRecord,
    ProgressStorage,
    SmartProgressStorage,
    StatusDiffBaseStorage,
    StatusProgressStorage,
)

RECORD = ProgressRecord(
    started="2020-01-01T00:00:00.000000+00:00",
    stopped=None,
    delayed=None,
    purpose="create",
    retries=1,
    success=False,
    failure=False,
    message='oops "q"',
    subrefs=["create_fn/sub/x"],
)
CONTENT = {key: value for key, value in RECORD.items() if value is not None}


STORAGES = [
    AnnotationsProgressStorage(),
    AnnotationsProgressStorage(prefix="op.example.com"),
    AnnotationsProgressStorage(prefix="op.example.com", v1=False),
    AnnotationsProgressStorage(verbose=True),
    StatusProgressStorage(),
    StatusProgressStorage(name="op"),
    StatusProgressStorage(field="status.my-operator", touch_field="status.my-dummy"),
    StatusProgressStorage(field=("spec", "a.b")),
    MultiProgressStorage([AnnotationsProgressStorage(), StatusProgressStorage()]),
    SmartProgressStorage(),
]


@pytest.mark.feature("CFG-68")
@rows("storage", STORAGES)
@rows(("size", "kept"), [(1000, 1000), (1001, 1001), (2_000_000, 1001)])
def test_the_text_of_an_error_is_kept_up_to_a_limit(
    storage: ProgressStorage, size: int, kept: int
) -> None:
    record: Any = {**RECORD, "message": "ж" * size}
    for _ in range(2):  # what was cut is stored again as it is
        patch = Patch()
        storage.store(key="fn", record=record, body=Body({}), patch=patch)
        record = storage.fetch(key="fn", body=Body(merge({}, patch)))
        assert record is not None
        assert len(record["message"]) == kept
        assert record["message"].endswith("ж" if size <= 1000 else "ж…")


LIMIT = 262_144  # bytes; of all annotations of an object (Kubernetes API, meta/v1 ObjectMeta)


def fill(
    storage: ProgressStorage, count: int, message: str, others: int, *, stored: int = 0
) -> tuple[dict[str, Any], Patch]:
    """Return an object and a complete patch for it: so many records, so many bytes of others'."""
    annotations = {"other": "x" * (others - len("other")), "kopf.zalando.org/note": '{"message":1}'}
    raw: dict[str, Any] = {"metadata": {"annotations": annotations}}
    record: Any = {**RECORD, "message": message}
    for number in range(stored):
        patch = Patch()
        storage.store(key=f"stored-{number}", record=record, body=Body(raw), patch=patch)
        raw = merge(raw, patch)
    patch = Patch({"metadata": {"labels": {"a": "b"}}})
    for number in range(count):
        storage.store(key=f"{'f' * 60}-{number}", record=record, body=Body(raw), patch=patch)
    return raw, patch


@pytest.mark.feature("CFG-68")
@rows("storage", [AnnotationsProgressStorage(), SmartProgressStorage()])
@rows(
    ("count", "stored", "letter", "others", "kept"),
    [
        (90, 0, "x", 0, 1000),  # each has two names
        (90, 0, "ж", 0, 200),
        (200, 0, "\x00", 0, 50),  # six characters each in JSON
        (200, 0, "x", 162_000, 0),
        (20, 190, "x", 0, 200),  # those that are stored make room, too
        (5, 0, "x", LIMIT, 0),  # there is no room for anything
    ],
)
def test_messages_are_the_shorter_the_less_room_there_is(
    storage: ProgressStorage, count: int, stored: int, letter: str, others: int, kept: int
) -> None:
    raw, patch = fill(storage, count, letter * 1000, max(others, 10), stored=stored)
    before = copy.deepcopy(raw)
    shared = patch["metadata"]
    original = copy.deepcopy(patch)

    storage.fit(body=Body(raw), patch=patch)

    assert raw == before
    assert shared == original["metadata"]  # it may be a part of the patch of the handlers
    fitted = merge(raw, patch)
    annotations = fitted["metadata"].pop("annotations")
    assert fitted == {"metadata": {"labels": {"a": "b"}}}
    assert annotations["kopf.zalando.org/note"] == '{"message":1}'
    total = sum(len(key.encode()) + len(text.encode()) for key, text in annotations.items())
    assert total <= LIMIT or others == LIMIT
    keys = [f"{'f' * 60}-{number}" for number in range(count)]
    keys += [f"stored-{number}" for number in range(stored)]
    body = Body({"metadata": {"annotations": annotations}})
    records: list[Any] = [storage.fetch(key=key, body=body) for key in keys]
    messages = {record.pop("message", None) for record in records}
    shortened = letter * kept + ("…" if 0 < kept < 1000 else "")
    assert messages == {shortened or None}
    assert all({**record, "message": CONTENT["message"]} == CONTENT for record in records)


@pytest.mark.feature("D-59")
@rows("text", ["", "{", "[1]", '"text"', pytest.param("[" * 100_000, id="deep"), 5])
def test_a_text_that_is_not_readable_is_nothing_and_logged_with_its_place(
    text: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    body = Body({"kind": "Sample", "metadata": {"name": "ex", "annotations": {"x/y": text}}})
    assert AnnotationsProgressStorage(prefix="x").fetch(key="y", body=body) is None
    assert "Ignored the damaged state in the annotation x/y of Sample ex: not a " in caplog.text


@pytest.mark.feature("D-59")
@rows("junk", ["text", None, [], {"progress": "text"}, {"progress": {"fn": 1}}])
def test_a_status_that_is_not_readable_has_no_state(junk: Any) -> None:
    assert StatusProgressStorage().fetch(key="fn", body=Body({"status": {"kopf": junk}})) is None
    assert StatusDiffBaseStorage(field="status").fetch(body=Body({"status": "{broken"})) is None


@pytest.mark.feature("D-28", "CFG-67")
def test_a_prefix_is_needed_and_leaves_room_for_names() -> None:
    with pytest.raises(ValueError, match="needs a prefix"):
        AnnotationsProgressStorage(prefix="")
    AnnotationsProgressStorage(prefix="x" * 189)
    with pytest.warns(UserWarning, match="can have 189 at most"):
        AnnotationsProgressStorage(prefix="x" * 190)


@rows(
    ("value", "text"),
    [(2**70, f"{2**70}"), (MappingProxyType({"y": {"b", "a"}}), '{"y":["a","b"]}')],
)
def test_values_of_other_types_are_stored_if_json_can_hold_them(value: Any, text: str) -> None:
    storage, patch, record = AnnotationsProgressStorage(prefix="p"), Patch(), {"subrefs": value}
    storage.store(key="k", record=record, body=Body({}), patch=patch)  # type: ignore[arg-type]
    assert patch.meta.annotations["p/k"] == f'{{"subrefs":{text}}}'
    with pytest.raises(TypeError, match="object cannot be stored"):
        storage.store(key="k", record={"subrefs": object()}, body=Body({}), patch=patch)  # type: ignore[typeddict-item]
