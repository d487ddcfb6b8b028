"""Conditions in the status of objects (Kubernetes: "API conventions", "Typical status properties").

Pure. A condition is a mapping of meta/v1 Condition: ``type``, ``status``, ``reason``, ``message``,
``lastTransitionTime``, and ``observedGeneration``: the generation of the object that it is about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from webop.aio.clock import now
from webop.objects.fields import ensure, resolve

_PATH = ("status", "conditions")
_STATUSES = {True: "True", False: "False", None: "Unknown"}

# Patterns, and limits of characters, as in the schema of meta/v1 Condition.
TYPE = (
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])"
)
REASON = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
TYPE_LIMIT, REASON_LIMIT, MESSAGE_LIMIT = 316, 1024, 32768

VALID = "Valid"  # the type of the condition that says whether an object fits its model
_MISFIT, _FITS = "DoesNotFit", "Fits"


def build_condition(
    type: str,  # noqa: A002 - its name in the API
    status: bool | None,  # noqa: FBT001 - it reads as in the API
    reason: str,
    message: str,
    generation: int | None,
) -> dict[str, Any]:
    """Build a condition, without the time of its last transition.

    Raises:
        ValueError: API servers would refuse it.
    """
    if not re.fullmatch(TYPE, type) or len(type) > TYPE_LIMIT:
        raise ValueError(f"The type of a condition must be a word such as 'Ready', got {type!r}.")
    if status not in _STATUSES:
        raise ValueError(f"The status of a condition must be True, False or None, got {status!r}.")
    if not re.fullmatch(REASON, reason) or len(reason) > REASON_LIMIT:
        raise ValueError(f"reason= must be a word such as 'PodsStarting', got {reason!r}.")
    condition: dict[str, Any] = {"type": type, "status": _STATUSES[status], "reason": reason}
    condition["message"] = message[:MESSAGE_LIMIT]
    if generation is not None:
        condition["observedGeneration"] = generation
    return condition


def put_condition(body: Any, condition: Mapping[str, Any]) -> None:
    """Put a condition into a raw object; the transition is now if its status changes."""
    conditions = resolve(body, _PATH)
    if not isinstance(conditions, list):
        ensure(body, _PATH, conditions := [])
    present = find_condition(body, condition["type"])
    if present is None:
        conditions.append(present := {})
    moment = present.get("lastTransitionTime")
    if moment is None or present.get("status") != condition["status"]:
        moment = now().strftime("%Y-%m-%dT%H:%M:%SZ")
    present.update(condition, lastTransitionTime=moment)


def find_condition(body: Mapping[str, Any], name: str) -> Any:
    """Return the condition of a type; None if the object has none."""
    conditions = resolve(body, _PATH)
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, dict) and condition.get("type") == name:
            return condition
    return None


def is_outdated(body: Mapping[str, Any], condition: Mapping[str, Any]) -> bool:
    """Return whether a condition, or the whole status, is about a former generation."""
    generation = resolve(body, ("metadata", "generation")) or 0
    whole = resolve(body, ("status", "observedGeneration"))
    found = (condition.get("observedGeneration"), whole)
    return any(isinstance(observed, int) and observed < generation for observed in found)


def meets(obj: Mapping[str, Any], wish: str) -> bool:
    """Return whether a condition in the status holds, such as "Ready" or "Ready=False"."""
    name, _, status = wish.partition("=")
    condition = find_condition(obj, name) or {}
    expected = (status or "True").lower()
    return str(condition.get("status")).lower() == expected and not is_outdated(obj, condition)


def is_marked_unfit(raw: Any) -> bool:
    """Return whether an object has the condition of an object that did not fit its model."""
    found = find_condition(raw, VALID)
    return bool(found) and found.get("status") == "False" and found.get("reason") == _MISFIT


def build_validity(problem: str | None, generation: int | None) -> dict[str, Any]:
    """Return the condition that says whether an object fits its model."""
    reason = _FITS if problem is None else _MISFIT
    return build_condition(VALID, problem is None, reason, problem or "", generation)
