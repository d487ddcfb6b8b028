"""What has happened to an object, and what handlers get to know of it."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from tests.kit.causes import RESOURCE, build_body, build_change, build_event
from tests.kit.rows import rows

BODY = build_body({"a": 2}, labels={"l": "1"}, annotations={"n": "2"}, status={"s": 1})
COMMON = {
    *("logger", "memo", "resource", "patch", "body", "spec", "meta", "status", "uid", "name"),
    *("namespace", "labels", "annotations"),
}


@pytest.mark.feature(
    "KWA-06", "KWA-07", "KWA-08", "KWA-09", "KWA-11", "KWA-12", "KWA-15", "KWA-18", "D-34"
)
def test_handlers_of_changes_get_the_object_and_the_change() -> None:
    kwargs = build_change(BODY, build_body({"a": 1})).kwargs
    assert kwargs.keys() == COMMON | {"reason", "old", "new", "diff"}
    assert kwargs["resource"] is RESOURCE
    assert kwargs["body"] == BODY
    assert kwargs["spec"] == {"a": 2}
    assert kwargs["meta"]["name"] == kwargs["meta"].name == kwargs["name"] == "kex"
    assert kwargs["namespace"] == "ns"
    assert kwargs["uid"] == "u1"
    assert kwargs["status"] == {"s": 1}
    assert kwargs["labels"] == {"l": "1"}
    assert kwargs["annotations"] == {"n": "2"}
    assert kwargs["reason"] == "update"
    assert kwargs["old"] == {"spec": {"a": 1}}
    assert kwargs["new"] == {
        "spec": {"a": 2},
        "metadata": {"labels": {"l": "1"}, "annotations": {"n": "2"}},
    }
    assert ("change", ("spec", "a"), 1, 2) in kwargs["diff"]
    assert isinstance(kwargs["patch"], webop.Patch)


@pytest.mark.feature("EVT-01", "EVT-03", "KWA-14")
def test_handlers_of_events_get_the_event() -> None:
    kwargs = build_event(BODY).kwargs
    assert kwargs.keys() == COMMON | {"type", "event"}
    assert kwargs["type"] == "MODIFIED"
    assert kwargs["event"] == {"type": "MODIFIED", "object": BODY}


@pytest.mark.feature("EVT-15", "EVT-16")
@rows(
    ("old", "new", "field", "expected"),
    [
        (
            {"f": {"x": 1}, "o": 1},
            {"f": {"x": 2}, "o": 2},
            ("spec", "f"),
            {"old": {"x": 1}, "new": {"x": 2}, "diff": (("change", ("x",), 1, 2),)},
        ),
        ({}, {"f": 1}, ("spec", "f"), {"old": None, "new": 1, "diff": (("add", (), None, 1),)}),
        ({"f": 1}, {}, ("spec", "f"), {"old": 1, "new": None, "diff": (("remove", (), 1, None),)}),
        (None, {"f": 1}, ("spec", "f"), {"old": None, "new": 1, "diff": (("add", (), None, 1),)}),
    ],
)
def test_a_handler_of_a_field_gets_the_field_only(
    old: Any, new: Any, field: tuple[str, ...], expected: Any
) -> None:
    before = None if old is None else build_body(old)
    cause = build_change(build_body(new), before)
    assert cause.build_field_kwargs(field) == expected
