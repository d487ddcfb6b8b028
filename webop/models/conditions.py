"""Conditions as the type of a field (Kubernetes: "Typical status properties").

::

    class DatabaseStatus(webop.Struct):
        conditions: webop.Conditions = pydantic.Field(default_factory=webop.Conditions)

    @webop.on.create(Database)
    async def create(status: DatabaseStatus, body: Database, **_) -> DatabaseStatus:
        status.conditions.set("Ready", True, "Created", generation=body.metadata.generation)
        return status
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

import pydantic
from pydantic import ConfigDict, Field

from webop.models.model import Column, Struct, split_optional
from webop.models.rules import LIST_KEYS, LIST_TYPE
from webop.objects.conditions import build_condition, find_condition, put_condition

VALID = "Valid"
_MISFIT, _FITS = "DoesNotFit", "Fits"


class Condition(Struct):
    """One condition (meta/v1 Condition)."""

    type: str = Field(max_length=316)
    status: Literal["True", "False", "Unknown"]
    reason: str = Field("", max_length=1024)
    message: str = Field("", max_length=32768)
    last_transition_time: dt.datetime | None = None
    observed_generation: int | None = None


class Conditions(pydantic.RootModel[list[Condition]]):
    """The conditions of an object, one for each type."""

    model_config = ConfigDict(
        defer_build=True, json_schema_extra={LIST_TYPE: "map", LIST_KEYS: ["type"]}
    )

    root: list[Condition] = Field(default_factory=list)

    def set(
        self,
        type: str,  # noqa: A002 - its name in the API
        status: bool | None,  # noqa: FBT001 - it reads as in the API
        reason: str,
        message: str = "",
        *,
        generation: int | None = None,
    ) -> None:
        """Set a condition; the time of its last transition changes if its status does.

        Args:
            type: such as "Ready".
            status: True, False, or None for "Unknown".
            reason: one word for programs, such as "PodsStarting".
            message: a sentence for people.
            generation: of the object that the condition is about.

        Raises:
            ValueError: API servers would refuse it.
        """
        raw = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        body = {"status": {"conditions": raw}}
        put_condition(body, build_condition(type, status, reason, message, generation))
        self.root = [Condition.model_validate(each) for each in body["status"]["conditions"]]

    def get(self, type: str) -> Condition | None:  # noqa: A002
        """Return the condition of a type; None if there is none."""
        return next((each for each in self.root if each.type == type), None)

    def is_true(self, type: str) -> bool:  # noqa: A002
        """Return whether a condition is there and true."""
        found = self.get(type)
        return found is not None and found.status == "True"

    def __iter__(self) -> Iterator[Condition]:  # type: ignore[override]  # as of a list
        return iter(self.root)

    def __len__(self) -> int:
        return len(self.root)

    @staticmethod
    def column(type: str, *, priority: int = 0) -> Column:  # noqa: A002
        """Return the column of ``kubectl get`` for a condition: ``columns={"Ready": …}``."""
        path = f'.status.conditions[?(@.type=="{type}")].status'
        return Column(path, "string", priority)


@cache
def has_conditions(model: type[pydantic.BaseModel]) -> bool:
    """Return whether the status of a model has conditions."""
    info = model.model_fields.get("status")
    status = None if info is None else split_optional(info.annotation)[0]
    if not (isinstance(status, type) and issubclass(status, pydantic.BaseModel)):
        return False
    field = status.model_fields.get("conditions")
    return field is not None and split_optional(field.annotation)[0] is Conditions


def is_marked_unfit(raw: Any) -> bool:
    """Return whether an object has the condition of an object that did not fit its model."""
    found = find_condition(raw, VALID)
    return bool(found) and found.get("status") == "False" and found.get("reason") == _MISFIT


def build_validity(problem: str | None, generation: int | None) -> dict[str, Any]:
    """Return the condition that says whether an object fits its model."""
    reason = _FITS if problem is None else _MISFIT
    return build_condition(VALID, problem is None, reason, problem or "", generation)
