"""What comes of admission, as tests look at it."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import httpx
import orjson

from webop.errors import AdmissionError, WebopError
from webop.testing.patches import apply_json_patch
from webop.verdicts import AdmissionCause, parse_causes

Json = dict[str, Any]


@dataclass(frozen=True, repr=False)
class AdmissionResult:
    """What has come of a request.

    Attributes:
        allowed: whether the request is admitted. A request that no handler is for is, as in a
            cluster: to be sure, look at ``webhooks``.
        webhooks: the ids of the handlers that were called, in order.
        message: why the request is refused.
        code: the HTTP status of the refusal.
        reason: the machine-readable reason of the refusal, if there is one.
        causes: what is wrong with which fields, if that is told.
        warnings: what the user is told.
        patch: the operations of the JSON patches of all mutating handlers.
        object: the object with these patches applied; None on deletions.
        audit_annotations: what is added to the audit log, by the names that handlers give.
    """

    allowed: bool
    webhooks: tuple[str, ...] = ()
    message: str = ""
    code: int | None = None
    reason: str = ""
    causes: tuple[AdmissionCause, ...] = ()
    warnings: list[str] = field(default_factory=list)
    patch: list[Json] = field(default_factory=list)
    object: Json | None = None
    audit_annotations: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        verdict = "allowed" if self.allowed else f"refused ({self.code}): {self.message!r}"
        parts = [verdict, f"webhooks={', '.join(self.webhooks) or 'none'}"]
        names = ("reason", "causes", "warnings", "patch", "audit_annotations")
        parts += [f"{name}={value!r}" for name in names if (value := getattr(self, name))]
        return f"<{type(self).__name__} {'; '.join(parts)}>"

    def raise_for_denial(self) -> Self:
        """Return the result itself if the request is admitted.

        Raises:
            AdmissionError: it is refused; with all that the refusal tells.
        """
        if not self.allowed:
            raise AdmissionError(
                self.message, self.code, reason=self.reason or None, causes=self.causes
            )
        return self

    def followed_by(self, later: AdmissionResult) -> AdmissionResult:
        """Return the result of two webhooks, the former of which has admitted the request."""
        return replace(
            later,
            webhooks=tuple(dict.fromkeys((*self.webhooks, *later.webhooks))),
            warnings=self.warnings + later.warnings,
            patch=self.patch + later.patch,
            audit_annotations=self.audit_annotations | later.audit_annotations,
        )


def read_reason(answer: httpx.Response) -> str:
    """Return what an answer that is not a review says (Kubernetes API, meta/v1 Status)."""
    try:
        message = answer.json().get("message")
    except (ValueError, AttributeError):
        message = None
    return str(message or answer.text or f"HTTP status {answer.status_code}")


def read_result(
    request: Mapping[str, Any], response: Mapping[str, Any], calls: Iterable[str]
) -> AdmissionResult:
    """Return what an answer means.

    Args:
        request: the review.
        response: the part of the answer that API servers go by.
        calls: the ids of the handlers that were called.

    Raises:
        WebopError: the patch does not fit the object, or there is none that could be patched.
    """
    status = response.get("status") or {}
    operations = orjson.loads(base64.b64decode(response.get("patch") or "W10="))
    body = request["request"].get("object")
    if operations and body is None:
        raise WebopError(f"There is no object to be patched, but a patch: {operations}.")
    return AdmissionResult(
        allowed=response["allowed"],
        webhooks=tuple(calls),
        message=status.get("message", ""),
        code=status.get("code"),
        reason=status.get("reason", ""),
        causes=tuple(parse_causes((status.get("details") or {}).get("causes") or ())),
        warnings=list(response.get("warnings") or ()),
        patch=operations,
        object=apply_json_patch(body, operations) if operations else body,
        audit_annotations=dict(response.get("auditAnnotations") or {}),
    )
