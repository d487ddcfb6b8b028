"""The condition that says whether an object fits its model. Pure.

It does not import :mod:`webop.models.condition_fields`, which is slow, and which most operators do
not need.
"""

from __future__ import annotations

from typing import Any

from webop.objects.status_conditions import build_condition, find_condition

VALID = "Valid"
_MISFIT, _FITS = "DoesNotFit", "Fits"


def is_marked_unfit(raw: Any) -> bool:
    """Return whether an object has the condition of an object that did not fit its model."""
    found = find_condition(raw, VALID)
    return bool(found) and found.get("status") == "False" and found.get("reason") == _MISFIT


def build_validity(problem: str | None, generation: int | None) -> dict[str, Any]:
    """Return the condition that says whether an object fits its model."""
    reason = _FITS if problem is None else _MISFIT
    return build_condition(VALID, problem is None, reason, problem or "", generation)
