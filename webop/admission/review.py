"""Admission reviews as values: from parsed JSON to a :class:`Review`, from verdicts to a response.

Pure. The formats are those of the Kubernetes API, admission.k8s.io/v1 (and the equal v1beta1).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from webop.errors import AdmissionError, PermanentError, ReviewError, TemporaryError

_API_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
_OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")
_RANKING = (AdmissionError, PermanentError, TemporaryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """A request for admission, checked.

    Attributes:
        api_version: of the review itself; the response has the same.
        uid: of the request; the response has the same.
        group: of the resource, with ``version`` and ``plural``, as the webhook's rule named it.
        kind: the kind of the object.
        operation: CREATE, UPDATE, DELETE or CONNECT.
        subresource: such as "status"; None for the object itself.
        object: the new state; None on deletion.
        old_object: the state before; None on creation.
        userinfo: who has sent the request to the API server.
        dryrun: whether nothing is going to be stored.
    """

    api_version: str
    uid: str
    group: str
    version: str
    plural: str
    kind: str
    operation: str
    subresource: str | None
    object: dict[str, Any] | None
    old_object: dict[str, Any] | None
    userinfo: Mapping[str, Any]
    dryrun: bool

    @property
    def body(self) -> dict[str, Any]:
        """The object that the request is about: as it is to be, or as it was if it is to go."""
        body = self.old_object if self.object is None else self.object
        return {} if body is None else body


def parse_review(payload: Mapping[str, Any]) -> Review:
    """Check an AdmissionReview with a request.

    Raises:
        ReviewError: it is not one; the message names the field.
    """
    if payload.get("kind") != "AdmissionReview":
        raise ReviewError(f"kind must be 'AdmissionReview', not {payload.get('kind')!r}.")
    api_version = payload.get("apiVersion")
    if api_version not in _API_VERSIONS:
        known = " or ".join(_API_VERSIONS)
        raise ReviewError(f"apiVersion must be {known}, not {api_version!r}.")
    request = _get(payload, "request", dict)
    resource = _get(request, "resource", dict, "request.")
    kind = _get(request, "kind", dict, "request.")
    operation = _get(request, "operation", str, "request.")
    if operation not in _OPERATIONS:
        raise ReviewError(f"request.operation {operation!r} is not one of {_OPERATIONS}.")
    new = _get(request, "object", dict, "request.", is_optional=True)
    old = _get(request, "oldObject", dict, "request.", is_optional=True)
    if new is None and old is None and operation != "CONNECT":
        raise ReviewError(f"request.object or request.oldObject is needed for {operation}.")
    _check_metadata(new, "request.object.")
    _check_metadata(old, "request.oldObject.")
    return Review(
        api_version=api_version,
        uid=_get(request, "uid", str, "request."),
        group=_get(resource, "group", str, "request.resource.", is_optional=True) or "",
        version=_get(resource, "version", str, "request.resource."),
        plural=_get(resource, "resource", str, "request.resource."),
        kind=_get(kind, "kind", str, "request.kind."),
        operation=operation,
        subresource=_get(request, "subResource", str, "request.", is_optional=True) or None,
        object=new,
        old_object=old,
        userinfo=_get(request, "userInfo", dict, "request.", is_optional=True) or {},
        dryrun=_get(request, "dryRun", bool, "request.", is_optional=True) or False,
    )


def rank_errors(errors: Sequence[Exception]) -> Exception | None:
    """Return the one error to tell of, the most telling first (ADM-06); None if there is none."""
    for family in _RANKING:
        for error in errors:
            if isinstance(error, family):
                return error
    return errors[0] if errors else None


def build_response(
    review: Review,
    *,
    warnings: Sequence[str],
    patch_ops: Sequence[Mapping[str, Any]],
    error: Exception | None,
) -> dict[str, Any]:
    """Return the AdmissionReview with the response (ADM-03 to 05, 07, 09, 29).

    Args:
        review: the request.
        warnings: what the one who has sent the request to the API server is to be told.
        patch_ops: the changes of the object, as a JSON patch; a refusal carries none (D-63).
        error: why it is refused; None if it is allowed.
    """
    response: dict[str, Any] = {"uid": review.uid, "allowed": error is None}
    if warnings:
        response["warnings"] = [str(warning) for warning in warnings]
    if error is not None:
        code = error.code if isinstance(error, AdmissionError) else 500
        response["status"] = {"message": str(error) or repr(error), "code": code}
    elif patch_ops:
        response["patch"] = base64.b64encode(orjson.dumps(list(patch_ops))).decode("ascii")
        response["patchType"] = "JSONPatch"
    return {"apiVersion": review.api_version, "kind": "AdmissionReview", "response": response}


def _get(
    mapping: Mapping[str, Any],
    key: str,
    expected: type,
    where: str = "",
    *,
    is_optional: bool = False,
) -> Any:
    value = mapping.get(key)
    if value is None and is_optional:
        return None
    if not isinstance(value, expected):
        what = "is missing" if value is None else f"must be {_NAMES[expected]}"
        raise ReviewError(f"{where}{key} {what}.")
    return value


_NAMES = {dict: "an object", str: "a string", bool: "true or false"}


def _check_metadata(body: Mapping[str, Any] | None, where: str) -> None:
    """Check what handlers and filters rely on: the rest of the object is for the API server."""
    if body is None:
        return
    metadata = _get(body, "metadata", dict, where, is_optional=True) or {}
    for stanza in ("labels", "annotations"):
        _get(metadata, stanza, dict, f"{where}metadata.", is_optional=True)
