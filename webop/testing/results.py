"""What comes of admission, as tests look at it; with the JSON patches of the webhooks applied.

JSON patches (RFC 6902) are applied as API servers do it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import httpx
import orjson

from webop.errors import AdmissionError, WebopError
from webop.objects.fields import clone
from webop.verdicts import AdmissionCause, parse_causes

Json = dict[str, Any]

_INDEX = re.compile(r"0|[1-9][0-9]*").fullmatch
Document = Any
Parts = list[str]


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


def apply_json_patch(document: Any, operations: Iterable[Mapping[str, Any]]) -> Any:
    """Return what a JSON patch makes of a document, which stays as it is.

    Args:
        document: any JSON.
        operations: ``add``, ``remove``, ``replace``, ``move``, ``copy``, ``test``.

    Raises:
        WebopError: an operation cannot be applied; the message says which one, and why.
    """
    result = clone(document)
    for operation in operations:
        try:
            result = _apply(result, operation)
        except (KeyError, IndexError, TypeError, ValueError) as exc:
            why = f"{exc.args[0]!r} is missing" if isinstance(exc, KeyError) else exc
            raise WebopError(f"{dict(operation)} cannot be applied: {why}.") from None
    return result


def _apply(document: Document, operation: Mapping[str, Any]) -> Document:
    name, path = operation["op"], _split(operation["path"])
    match name:
        case "add":
            return _insert(document, path, clone(operation["value"]))
        case "remove":
            return _delete(document, path)
        case "replace":
            value = clone(operation["value"])
            _resolve(document, path)
            if not path:
                return value
            parent = _resolve(document, path[:-1])
            parent[_to_key(parent, path[-1])] = value
            return document
        case "move":
            source = _split(operation["from"])
            if source != path and path[: len(source)] == source:
                raise ValueError("a value cannot be moved into itself")
            value = _resolve(document, source)
            return _insert(_delete(document, source), path, value)
        case "copy":
            return _insert(document, path, clone(_resolve(document, _split(operation["from"]))))
        case "test":
            found = _resolve(document, path)
            if not _is_equal(found, operation["value"]):
                raise ValueError(f"there is {found!r}")
            return document
    raise KeyError(name)


def _split(pointer: str) -> Parts:
    """Return the parts of a JSON pointer (RFC 6901); none for the whole document."""
    if not pointer:
        return []
    if not pointer.startswith("/"):
        raise ValueError(f"{pointer!r} is not a JSON pointer, which begins with a slash")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")]


def _resolve(document: Document, parts: Parts) -> Document:
    for part in parts:
        document = document[_to_key(document, part)]
    return document


def _insert(document: Document, parts: Parts, value: Any) -> Document:
    if not parts:
        return value
    parent = _resolve(document, parts[:-1])
    if not isinstance(parent, list):
        parent[_to_key(parent, parts[-1])] = value
        return document
    index = len(parent) if parts[-1] == "-" else int(_to_key(parent, parts[-1]))
    if index > len(parent):
        raise IndexError(f"the list ends before {index}")
    parent.insert(index, value)
    return document


def _delete(document: Document, parts: Parts) -> Document:
    if not parts:
        return None
    parent = _resolve(document, parts[:-1])
    del parent[_to_key(parent, parts[-1])]
    return document


def _to_key(parent: Document, part: str) -> str | int:
    if isinstance(parent, dict):
        return part
    if not isinstance(parent, list):
        raise TypeError(f"{part!r} is not in a list or a mapping, but in {parent!r}")
    if not _INDEX(part):
        raise ValueError(f"{part!r} is no index of a list")
    return int(part)


def _is_equal(one: Any, other: Any) -> bool:
    """Compare as JSON does: numbers by their values, and true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    return bool(one == other)
