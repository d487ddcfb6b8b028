"""Who is called for which objects: filters as they are declared, against states of objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import webop
from tests.kit.causes import (
    build_body,
    build_change,
    build_event,
    is_in_scope,
    select_event_ids,
    select_ids,
)
from tests.kit.rows import rows
from webop import ABSENT, PRESENT

Json = dict[str, Any]
Decorator = Callable[..., Any]

ABSENTEE = object()


def fn(**_: Any) -> None:
    pass


def is_v(value: Any, **_: Any) -> bool:
    return bool(value == "v")


def is_none(value: Any, **_: Any) -> bool:
    return value is None


def build_value_body(value: Any) -> Json:
    """An object with a value of spec.field; without the field, for ABSENTEE."""
    return build_body({"other": 1} if value is ABSENTEE else {"other": 1, "field": value})


def is_called(decorator: Decorator, options: Json, new: Json, old: Json | None = None) -> bool:
    registry = webop.OperatorRegistry()
    decorator("kopfexamples", registry=registry, id="fn", **options)(fn)
    if decorator is webop.on.event:
        return bool(select_event_ids(registry, build_event(new)))
    initial = decorator is webop.on.resume
    return bool(select_ids(registry, build_change(new, old, initial=initial)))


@pytest.mark.feature("FLT-03", "FLT-04", "FLT-05", "FLT-18", "D-11")
@rows("family", ["labels", "annotations"])
@rows(
    ("criteria", "values", "expected"),
    [
        ({"k": "v"}, {"k": "v", "other": "x"}, True),
        ({"k": "v"}, {"k": "w"}, False),
        ({"k": "v"}, None, False),
        ({"k": PRESENT}, {"k": ""}, True),
        ({"k": ABSENT}, None, True),
        ({"k": ABSENT}, {"k": ""}, False),
        ({"k": is_v}, {"k": "v"}, True),
        ({"k": is_v}, {"k": "w"}, False),
        ({"k": is_none}, {}, True),
        ({"k": "v", "l": PRESENT}, {"k": "v", "l": "x"}, True),
        ({"k": "v", "l": PRESENT}, {"k": "v"}, False),
    ],
)
@rows("decorator", [webop.on.create, webop.on.event])
def test_labels_and_annotations_are_matched(
    decorator: Decorator, family: str, criteria: Json, values: Json | None, expected: bool
) -> None:
    new = build_body({}, **{family: values})
    assert is_called(decorator, {family: criteria}, new) is expected


@pytest.mark.feature("FLT-02", "FLT-06", "FLT-07", "FLT-08", "FLT-11", "D-11", "D-49")
@rows(
    ("options", "value", "expected"),
    [
        ({"value": "v"}, "v", True),
        ({"value": "v"}, "w", False),
        ({"value": "v"}, ABSENTEE, False),
        ({"value": PRESENT}, 0, True),
        ({"value": PRESENT}, ABSENTEE, False),
        ({"value": ABSENT}, ABSENTEE, True),
        ({"value": ABSENT}, None, True),
        ({"value": ABSENT}, "", False),
        ({}, "anything", True),
        ({}, ABSENTEE, False),
        ({"value": is_v}, "v", True),
        ({"value": is_none}, ABSENTEE, True),
        ({"value": [1, 2]}, [1, 2], True),
    ],
)
@rows("decorator", [webop.on.create, webop.on.resume, webop.on.event])
def test_the_present_value_of_a_field_is_matched(
    decorator: Decorator, options: Json, value: Any, expected: bool
) -> None:
    new = build_value_body(value)
    old = new if decorator is webop.on.resume else None
    assert is_called(decorator, {"field": "spec.field", **options}, new, old) is expected


@pytest.mark.feature("D-59")
@rows("spec", [{"field": "text"}, {"field": None}, {"field": [1]}, "text", []])
def test_a_path_through_something_that_is_not_a_mapping_is_absent(spec: Any) -> None:
    new = build_body(spec)
    for decorator in (webop.on.create, webop.on.event):
        assert is_called(decorator, {"field": "spec.field.sub", "value": ABSENT}, new)
        assert not is_called(decorator, {"field": "spec.field.sub"}, new)
    old = build_body({"field": {"sub": 1}})
    assert is_called(webop.on.update, {"field": "spec.field.sub", "new": ABSENT}, new, old)


@pytest.mark.feature(
    "FLT-08", "FLT-09", "FLT-10", "FLT-12", "FLT-13", "FLT-14", "FLT-15", "FLT-18", "HND-24", "D-11"
)
@rows(
    ("options", "before", "after", "expected"),
    [
        # Others are compared with Kopf: tests/kopf/test_filters_beside_kopf.py
        ({}, "a", "b", True),
        ({}, "a", "a", False),
        ({"value": "v"}, "v", "v", False),
        ({"value": is_v}, "w", "v", True),
        ({"value": is_none}, ABSENTEE, "b", True),
        ({"old": "a"}, "x", "a", False),
        ({"old": is_none}, ABSENTEE, "b", True),
        ({"new": is_v}, "a", "w", False),
    ],
)
@rows("decorator", [webop.on.update, webop.on.field])
def test_a_change_of_a_field_is_matched(
    decorator: Decorator, options: Json, before: Any, after: Any, expected: bool
) -> None:
    # Something else changes too, so that there is an update to begin with.
    old = build_value_body(before)
    new = {**build_value_body(after), "extra": "changed"}
    assert is_called(decorator, {"field": "spec.field", **options}, new, old) is expected


@pytest.mark.feature("FLT-09")
@rows("field", ["spec", "spec.field", "spec.field.sub", ("spec", "field")])
def test_a_change_within_a_field_or_around_it_is_a_change_of_it(field: Any) -> None:
    old, new = build_body({"field": {"sub": 1}}), build_body({"field": {"sub": 2}})
    without = build_body({})
    for before, after in ((old, new), (without, new), (old, without)):
        assert is_called(webop.on.update, {"field": field}, after, before)


@pytest.mark.feature("HND-25", "D-10")
@rows(
    ("options", "value", "expected"),
    [
        ({}, "v", True),
        ({}, ABSENTEE, False),
        ({"value": "v"}, "v", True),
        ({"value": "v"}, "w", False),
        ({"old": ABSENT, "new": "v"}, "v", True),
        ({"old": PRESENT}, "v", False),
    ],
)
def test_a_field_handler_is_called_at_creation_if_the_field_appears_and_not_for_a_deletion(
    options: Json, value: Any, expected: bool
) -> None:
    new = build_value_body(value)
    options = {"field": "spec.field", **options}
    assert is_called(webop.on.field, options, new) is expected
    deleted = build_body(new["spec"], metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert not is_called(webop.on.field, options, deleted, new)


FIELD = {"field": "spec.field"}
LABELLED = {**FIELD, "labels": {"k": "v"}}


@pytest.mark.feature("FLT-08", "FLT-10", "FLT-11", "FLT-12", "FLT-25", "FLT-27", "D-37", "D-66")
@rows(
    ("decorator", "options", "before", "after", "expected"),
    [
        # What has been, and what it becomes, does not decide.
        (webop.on.update, {**FIELD, "old": "a", "new": "b"}, None, "a", True),
        (webop.on.field, {**FIELD, "old": "a", "new": "b"}, None, "a", True),
        (webop.on.field, {**FIELD, "new": is_v}, "a", ABSENTEE, True),
        (webop.on.field, {**FIELD, "old": "a", "new": "b"}, None, ABSENTEE, False),
        # The value does, and for changes also that of before.
        (webop.on.update, {**FIELD, "value": "a"}, "b", "c", False),
        (webop.on.update, FIELD, "a", ABSENTEE, True),
        (webop.on.create, FIELD, "a", ABSENTEE, False),
        (webop.on.resume, {**FIELD, "value": "a"}, "a", "b", False),
        (webop.on.delete, {**FIELD, "value": ABSENT}, None, "a", False),
        # A field handler without any other filter is for all objects.
        (webop.on.field, FIELD, None, ABSENTEE, True),
        (webop.on.field, LABELLED, None, "a", True),
        (webop.on.field, LABELLED, None, ABSENTEE, False),
        (webop.on.field, {**FIELD, "when": lambda **_: True}, None, ABSENTEE, False),
    ],
)
def test_the_state_of_an_object_is_stored_if_it_fits_a_handler_whatever_has_changed(
    decorator: Decorator, options: Json, before: Any, after: Any, expected: bool
) -> None:
    registry = webop.OperatorRegistry()
    decorator("kopfexamples", registry=registry, **options)(fn)
    old = None if before is None else build_value_body(before)
    new = {**build_value_body(after), "metadata": {"name": "kex", "labels": {"k": "v"}}}
    assert is_in_scope(registry, build_change(new, old)) is expected


@pytest.mark.feature("FLT-01")
def test_all_criteria_must_be_met() -> None:
    options = {**LABELLED, "when": lambda spec, **_: "veto" not in spec}
    for labels, spec, expected in (
        ({"k": "v"}, {"field": 1}, True),
        ({}, {"field": 1}, False),
        ({"k": "v"}, {}, False),
        ({"k": "v"}, {"field": 1, "veto": True}, False),
    ):
        assert is_called(webop.on.create, options, build_body(spec, labels=labels)) is expected


@pytest.mark.feature("FLT-18", "FLT-19")
def test_callbacks_get_the_arguments_of_the_handlers() -> None:
    seen: list[Json] = []

    def watch(value: Any = ..., **kwargs: Any) -> bool:
        seen.append({"value": value, **kwargs})
        return True

    options = {**FIELD, "value": watch, "labels": {"k": watch}, "when": watch}
    assert is_called(webop.on.create, options, build_body({"field": 5}))
    assert [call["value"] for call in seen] == [None, 5, ...]
    facts = {"name": "kex", "namespace": "ns", "spec": {"field": 5}, "reason": "create"}
    states = {"old": None, "new": {"spec": {"field": 5}}}
    for call in seen:
        assert call == {**call, **facts, **states}
        assert {"memo", "logger", "patch", "diff", "body", "meta", "status", "uid"} <= call.keys()


def yes(*_: Any, **__: Any) -> bool:
    return True


def no(*_: Any, **__: Any) -> bool:
    return False


@pytest.mark.feature("FLT-20", "FLT-21", "FLT-22", "FLT-23", "FLT-24")
@rows(
    ("predicate", "expected"),
    [
        (webop.not_(no), True),
        (webop.not_(yes), False),
        (webop.any_([no, yes]), True),
        (webop.any_([no, no]), False),
        (webop.all_([yes, yes]), True),
        (webop.all_([yes, no]), False),
        (webop.none_([no, no]), True),
        (webop.all_([webop.not_(no), webop.any_([yes])]), True),
    ],
)
def test_predicates_combine_for_whole_objects_and_for_values(
    predicate: Callable[..., bool], expected: bool
) -> None:
    new = build_body({"field": 1}, labels={"k": "v"})
    assert is_called(webop.on.create, {"when": predicate}, new) is expected
    assert is_called(webop.on.create, {"labels": {"k": predicate}}, new) is expected
    value = {"field": "spec.field", "value": predicate}
    assert is_called(webop.on.create, value, new) is expected


@pytest.mark.feature("FLT-24")
def test_combined_predicates_pass_the_value_and_the_arguments_on() -> None:
    seen: list[tuple[Any, Any]] = []

    def note(value: Any, name: str, **_: Any) -> bool:
        seen.append((value, name))
        return False

    options = {"labels": {"k": webop.not_(webop.any_([note, note]))}}
    assert is_called(webop.on.create, options, build_body({}, labels={"k": "v"}))
    assert seen == [("v", "kex"), ("v", "kex")]
