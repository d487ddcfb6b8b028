"""The results of admission for tests, with the patches of the webhooks applied."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import orjson

from webop.errors import AdmissionError
from webop.objects.field_errors import AdmissionCause, parse_causes
from webop.objects.fields import Json
from webop.testing.apiserver.patches import apply_json_patch


@dataclass(frozen=True, repr=False)
class AdmissionResult:
    """The result of a request."""

    allowed: bool  # also true if no handler matches: check the webhooks
    webhooks: tuple[str, ...] = ()  # the ids of the handlers that were called, in order
    message: str = ""  # why the request is denied
    code: int | None = None  # the HTTP status of the denial
    reason: str = ""  # the machine-readable reason of the denial
    causes: tuple[AdmissionCause, ...] = ()  # the invalid fields
    warnings: list[str] = field(default_factory=list)  # shown to the user
    patch: list[Json] = field(default_factory=list)  # the JSON patches of all mutating handlers
    object: Json | None = None  # with these patches applied; None on deletions
    audit_annotations: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        decision = "allowed" if self.allowed else f"denied ({self.code}): {self.message!r}"
        parts = [decision, f"webhooks={', '.join(self.webhooks) or 'none'}"]
        names = ("reason", "causes", "warnings", "patch", "audit_annotations")
        parts += [f"{name}={value!r}" for name in names if (value := getattr(self, name))]
        return f"<{type(self).__name__} {'; '.join(parts)}>"

    def raise_for_denial(self) -> Self:
        """Return the result itself if the request is allowed.

        Raises:
            AdmissionError: the request is denied.
        """
        if not self.allowed:
            raise AdmissionError(
                self.message, self.code, reason=self.reason or None, causes=self.causes
            )
        return self

    def followed_by(self, later: AdmissionResult) -> AdmissionResult:
        """Return the combined result of two webhooks; the first one has allowed the request."""
        return replace(
            later,
            webhooks=tuple(dict.fromkeys((*self.webhooks, *later.webhooks))),
            warnings=self.warnings + later.warnings,
            patch=self.patch + later.patch,
            audit_annotations=self.audit_annotations | later.audit_annotations,
        )


def read_result(
    request: Mapping[str, Any], response: Mapping[str, Any], calls: Iterable[str]
) -> AdmissionResult:
    """Return the result in the response to a review."""
    status = response.get("status") or {}
    operations = orjson.loads(base64.b64decode(response.get("patch") or "W10="))
    body = request["request"].get("object")
    return AdmissionResult(
        allowed=response["allowed"],
        webhooks=tuple(calls),
        message=status.get("message", ""),
        code=status.get("code"),
        reason=status.get("reason", ""),
        causes=tuple(parse_causes((status.get("details") or {}).get("causes") or ())),
        warnings=list(response.get("warnings") or ()),
        patch=operations,
        object=apply_json_patch(body, operations) if body else body,
        audit_annotations=dict(response.get("auditAnnotations") or {}),
    )
