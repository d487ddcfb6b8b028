"""The target of a request, and the refusals that name it."""

from __future__ import annotations

from dataclasses import dataclass

from .kinds import Kind
from .messages import Json, Refusal, Request
from .store import Table


@dataclass(frozen=True, slots=True)
class Target:
    """The object or the collection that a request is about."""

    kind: Kind
    table: Table
    namespace: str
    name: str
    subresource: str
    request: Request

    @property
    def key(self) -> str:
        """Where the object is in its table."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def is_dry(self) -> bool:
        """Whether nothing must be stored."""
        return self.request.query.get("dryRun") == "All"

    def build_details(self, *, kind: str | None = None, name: str | None = None) -> Json:
        """Return the details of a Status."""
        details: Json = {
            "name": name or self.name,
            "group": self.kind.group,
            "kind": kind or self.kind.plural,
        }
        return {field: value for field, value in details.items() if value}

    def refuse_absent(self) -> Refusal:
        """Return the refusal if there is no such object."""
        message = f'{self.kind.resource} "{self.name}" not found'
        return Refusal(404, "NotFound", message, self.build_details())

    def refuse_conflict(self, problem: str, kind: str | None = None) -> Refusal:
        """Return the refusal of a write that is based on another state."""
        message = f'Operation cannot be fulfilled on {self.kind.resource} "{self.name}": {problem}'
        return Refusal(409, "Conflict", message, self.build_details(kind=kind))

    def refuse_invalid(self, *faults: str, kind: str | None = None, name: str = "") -> Refusal:
        """Return the refusal of an object that is not as it must be."""
        kind = kind or self.kind.kind
        text = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
        message = f'{kind} "{name or self.name}" is invalid: {text}'
        parts = [fault.partition(": ") for fault in faults]
        causes = [
            {"reason": "FieldValueInvalid", "message": said, "field": field}
            for field, _, said in parts
        ]
        details = {**self.build_details(kind=kind, name=name), "causes": causes}
        return Refusal(422, "Invalid", message, details)
