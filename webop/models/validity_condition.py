"""The condition that says whether an object fits its model. Pure.

It does not import :mod:`webop.models.condition_fields`, which is slow, and which most operators do
not need.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pydantic

from webop.models.annotations import iterate_classes
from webop.objects.status_conditions import build_condition, find_condition

VALID = "Valid"
_MISFIT, _FITS = "DoesNotFit", "Fits"


@cache
def has_conditions(model: type[pydantic.BaseModel]) -> bool:
    """Return whether the status of a model has conditions."""
    info = model.model_fields.get("status")
    statuses = [] if info is None else iterate_classes(info.annotation)
    fields = [each.model_fields.get("conditions") for each in statuses]
    kinds = (each for field in fields if field for each in iterate_classes(field.annotation))
    return any(getattr(each, "has_conditions", False) for each in kinds)


def is_marked_unfit(raw: Any) -> bool:
    """Return whether an object has the condition of an object that did not fit its model."""
    found = find_condition(raw, VALID)
    return bool(found) and found.get("status") == "False" and found.get("reason") == _MISFIT


def build_validity(problem: str | None, generation: int | None) -> dict[str, Any]:
    """Return the condition that says whether an object fits its model."""
    reason = _FITS if problem is None else _MISFIT
    return build_condition(VALID, problem is None, reason, problem or "", generation)
