"""Conditions as the type of a field (Kubernetes: "Typical status properties").

::

    class DatabaseStatus(Struct):
        conditions: Conditions = pydantic.Field(default_factory=Conditions)

    @webop.on.create(Database)
    async def create(status: DatabaseStatus, body: Database, **_) -> DatabaseStatus:
        status.conditions.set("Ready", True, "Created", generation=body.metadata.generation)
        return status
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import ClassVar, Literal

import pydantic
from pydantic import ConfigDict, Field

from webop.models.cel_rules import Int64
from webop.models.definitions import Column
from webop.models.keywords import LIST_KEYS, LIST_TYPE
from webop.models.model import Struct
from webop.objects import status_conditions as conditions


class Condition(Struct):
    """One condition (meta/v1 Condition)."""

    type: str = Field(max_length=conditions.TYPE_LIMIT, pattern=f"^{conditions.TYPE}$")
    status: Literal["True", "False", "Unknown"]
    reason: str = Field(
        min_length=1, max_length=conditions.REASON_LIMIT, pattern=f"^{conditions.REASON}$"
    )
    message: str = Field(max_length=conditions.MESSAGE_LIMIT)
    last_transition_time: dt.datetime
    observed_generation: Int64 | None = Field(None, ge=0)


class Conditions(pydantic.RootModel[list[Condition]]):
    """The conditions of an object, one for each type: a field of the class of a status.

    ::

        status.conditions.set("Ready", True, "Created")
        status.conditions.is_true("Ready")

    See docs/howto/models.md#conditions.
    """

    model_config = ConfigDict(
        defer_build=True,
        json_schema_extra={
            "description": "The conditions of an object, one for each type.",
            LIST_TYPE: "map",
            LIST_KEYS: ["type"],
        },
    )

    has_conditions: ClassVar = True

    root: list[Condition] = Field(default_factory=list)

    def set(
        self,
        type: str,  # noqa: A002 - its name in the API
        status: bool | None,  # noqa: FBT001 - it reads as in the API
        reason: str,
        message: str = "",
        *,
        generation: int | None = None,
    ) -> bool:
        """Set a condition, and return whether it differs from before.

        The time of its last transition changes only if its status does.

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
        before = self.get(type)
        found = conditions.build_condition(type, status, reason, message, generation)
        conditions.put_condition(body, found)
        self.root = [Condition.model_validate(each) for each in body["status"]["conditions"]]
        return self.get(type) != before

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
