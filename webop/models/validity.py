"""The condition that says whether an object fits its model. Pure.

It does not import :mod:`webop.models.conditions`, which is slow and not needed by most operators.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pydantic

from webop.models.model import split_optional
from webop.objects.conditions import build_condition, find_condition

VALID = "Valid"
_MISFIT, _FITS = "DoesNotFit", "Fits"


@cache
def has_conditions(model: type[pydantic.BaseModel]) -> bool:
    """Return whether the status of a model has conditions."""
    info = model.model_fields.get("status")
    status = None if info is None else split_optional(info.annotation)[0]
    if not (isinstance(status, type) and issubclass(status, pydantic.BaseModel)):
        return False
    field = status.model_fields.get("conditions")
    kind = None if field is None else split_optional(field.annotation)[0]
    return bool(getattr(kind, "has_conditions", False))


def is_marked_unfit(raw: Any) -> bool:
    """Return whether an object has the condition of an object that did not fit its model."""
    found = find_condition(raw, VALID)
    return bool(found) and found.get("status") == "False" and found.get("reason") == _MISFIT


def build_validity(problem: str | None, generation: int | None) -> dict[str, Any]:
    """Return the condition that says whether an object fits its model."""
    reason = _FITS if problem is None else _MISFIT
    return build_condition(VALID, problem is None, reason, problem or "", generation)
