"""Conditions in the status, by the API conventions of Kubernetes."""

from __future__ import annotations

import copy
import datetime as dt
from typing import Any

import pytest

import webop
from tests.kit.rows import rows

Json = dict[str, Any]

LONG_AGO = "2020-01-01T00:00:00Z"
BODY: Json = {
    "metadata": {"name": "one", "generation": 7},
    "status": {
        "phase": "kept",
        "conditions": [
            {"type": "Other", "status": "True"},
            {
                "type": "Ready",
                "status": "True",
                "reason": "Fine",
                "message": "",
                "observedGeneration": 7,
                "lastTransitionTime": LONG_AGO,
            },
        ],
    },
}


def apply(body: Json, *conditions: tuple[str, bool | None, str, str]) -> Json:
    """Set conditions in a patch for an object, and return what becomes of the object."""
    patch = webop.Patch(body=body)
    for name, status, reason, message in conditions:
        patch.status.set_condition(name, status, reason=reason, message=message)
    changed = copy.deepcopy(body)
    for fn in patch.fns:
        fn(changed)  # type: ignore[arg-type]
    return changed


def get_age(condition: Json) -> float:
    moment = dt.datetime.fromisoformat(condition["lastTransitionTime"])
    return (dt.datetime.now(dt.UTC) - moment).total_seconds()


@rows("status", [{}, {"status": None}, {"status": {"conditions": None}}])
def test_a_condition_is_added_where_there_is_none(status: Json) -> None:
    changed = apply({"metadata": {}, **status}, ("Ready", None, "Starting", "Wait."))
    [condition] = changed["status"]["conditions"]
    assert get_age(condition) < 60
    assert condition == {
        "type": "Ready",
        "status": "Unknown",
        "reason": "Starting",
        "message": "Wait.",
        "lastTransitionTime": condition["lastTransitionTime"],
    }


def test_the_time_of_the_transition_changes_with_the_status_only() -> None:
    body = copy.deepcopy(BODY)
    body["metadata"]["generation"] = 8
    other, ready = apply(body, ("Ready", True, "Better", "As before."))["status"]["conditions"]
    assert ready["lastTransitionTime"] == LONG_AGO
    assert (ready["reason"], ready["message"]) == ("Better", "As before.")
    assert ready["observedGeneration"] == 8
    assert other == BODY["status"]["conditions"][0]
    _, failed = apply(body, ("Ready", False, "Worse", ""))["status"]["conditions"]
    assert get_age(failed) < 60


def test_what_is_as_it_should_be_is_not_written() -> None:
    patch = webop.Patch(body=BODY)
    patch.status.set_condition("Ready", True, reason="Fine")
    assert patch.as_json_patch() == []
    patch.status.set_condition("Ready", False, reason="Broken")
    assert [op["path"] for op in patch.as_json_patch()] == ["/status/conditions"]


@rows(
    ("name", "status", "reason", "message"),
    [
        ("not a type", True, "Fine", "type of a condition"),
        ("", True, "Fine", "type of a condition"),
        ("Ready", "True", "Fine", "True, False or None"),
        ("Ready", True, "", "reason= must be a word"),
        ("Ready", True, "two words", "reason= must be a word"),
        ("Ready", True, "Ends:", "reason= must be a word"),
        ("x" * 317, True, "Fine", "type of a condition"),
        ("Ready", True, "x" * 1025, "reason= must be a word"),
    ],
)
def test_what_api_servers_would_refuse_is_refused_at_once(
    name: str, status: Any, reason: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        webop.Patch(body=BODY).status.set_condition(name, status, reason=reason)
    webop.Patch(body=BODY).status.set_condition("example.com/Ready-1", True, reason="A_b,c:d1")


def test_longer_messages_than_api_servers_take_are_cut() -> None:
    changed = apply({"metadata": {}}, ("Ready", False, "Long", "x" * 40_000))
    assert len(changed["status"]["conditions"][0]["message"]) == 32_768
