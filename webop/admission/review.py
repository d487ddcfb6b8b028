"""Admission reviews as values: from parsed JSON to a :class:`Review`, from verdicts to a response.

Pure, and on the hot path: the checks are tables of fields, not a schema library. The formats are
those of the Kubernetes API, admission.k8s.io/v1 (and v1beta1, which has the same fields).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from webop.errors import AdmissionError, PermanentError, ReviewError, TemporaryError

_API_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
_OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")
_RANKING = (AdmissionError, PermanentError, TemporaryError)

# The types of the fields by their names, and whether they are needed.
_REVIEW_FIELDS = (("request", dict, True),)
_REQUEST_FIELDS = (
    ("uid", str, True),
    ("operation", str, True),
    ("resource", dict, True),
    ("kind", dict, True),
    ("userInfo", dict, True),
    ("namespace", str, False),
    ("name", str, False),
    ("subResource", str, False),
    ("object", dict, False),
    ("oldObject", dict, False),
    ("dryRun", bool, False),
)
_RESOURCE_FIELDS = (("group", str, False), ("version", str, True), ("resource", str, True))
_KIND_FIELDS = (("kind", str, True),)
# What handlers and filters rely on; the rest of the object is checked by the API server.
_OBJECT_FIELDS = (("metadata", dict, False),)
_METADATA_FIELDS = (
    ("name", str, False),
    ("namespace", str, False),
    ("uid", str, False),
    ("labels", dict, False),
    ("annotations", dict, False),
)

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_TYPES = {dict: "an object", str: "a string", bool: "true or false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """A request for admission, checked.

    Attributes:
        api_version: of the review itself; the response has the same.
        uid: of the request; the response has the same.
        group: of the resource, with ``version`` and ``plural``, as the webhook's rule named it.
        kind: the kind of the object.
        namespace: of the object; None if it is cluster-wide.
        name: of the object; None if it is going to be generated.
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
    namespace: str | None
    name: str | None
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
    _check_head(payload)
    request = payload["request"]
    _check_request(request)
    resource = request["resource"]
    return Review(
        api_version=payload["apiVersion"],
        uid=request["uid"],
        group=resource.get("group") or "",
        version=resource["version"],
        plural=resource["resource"],
        kind=request["kind"]["kind"],
        namespace=request.get("namespace") or None,
        name=request.get("name") or None,
        operation=request["operation"],
        subresource=request.get("subResource") or None,
        object=request.get("object"),
        old_object=request.get("oldObject"),
        userinfo=request["userInfo"],
        dryrun=request.get("dryRun") or False,
    )


def rank_errors(errors: Sequence[Exception]) -> Exception | None:
    """Return the one error to be told of, the most telling first (ADM-06), if there is any."""
    for family in _RANKING:
        for error in errors:
            if isinstance(error, family):
                return error
    return errors[0] if errors else None


def build_response(
    review: Review,
    *,
    warnings: Sequence[str] = (),
    patch_ops: Sequence[Mapping[str, Any]] = (),
    error: Exception | None = None,
) -> dict[str, Any]:
    """Return the AdmissionReview with the response (ADM-03 to 05, 07, 09, 29).

    It can be put into JSON whatever the handlers have left: a patch that cannot be, is a refusal.

    Args:
        review: the request.
        warnings: what the one who has sent the request to the API server is to be told.
        patch_ops: the changes of the object, as a JSON patch; a refusal carries none (D-63).
        error: why it is refused; None if it is allowed.
    """
    patch = None
    if patch_ops and error is None:
        try:
            patch = base64.b64encode(orjson.dumps(patch_ops, default=_encode)).decode("ascii")
        except TypeError as exc:
            error = TypeError(f"The patch cannot be put into JSON: {exc}.")
    response: dict[str, Any] = {"uid": review.uid, "allowed": error is None}
    if warnings:
        response["warnings"] = [_clean_line(str(warning)) for warning in warnings]
    if error is not None:
        message = _clean(str(error) or repr(error))
        response["status"] = {"message": message, "code": _get_code(error)}
    elif patch is not None:
        response["patch"] = patch
        response["patchType"] = "JSONPatch"
    return {"apiVersion": review.api_version, "kind": "AdmissionReview", "response": response}


def _check_head(payload: Mapping[str, Any]) -> None:
    if payload.get("kind") != "AdmissionReview":
        raise ReviewError(f"kind must be 'AdmissionReview', not {payload.get('kind')!r:.99}.")
    if payload.get("apiVersion") not in _API_VERSIONS:
        known = " or ".join(_API_VERSIONS)
        raise ReviewError(f"apiVersion must be {known}, not {payload.get('apiVersion')!r:.99}.")
    _check_fields(payload, "", _REVIEW_FIELDS)


def _check_request(request: Mapping[str, Any]) -> None:
    _check_fields(request, "request.", _REQUEST_FIELDS)
    _check_fields(request["resource"], "request.resource.", _RESOURCE_FIELDS)
    _check_fields(request["kind"], "request.kind.", _KIND_FIELDS)
    operation = request["operation"]
    if operation not in _OPERATIONS:
        known = ", ".join(_OPERATIONS)
        raise ReviewError(f"request.operation must be one of {known}, not {operation!r:.99}.")
    new, old = request.get("object"), request.get("oldObject")
    if new is not None:
        _check_object(new, "request.object.")
    if old is not None:
        _check_object(old, "request.oldObject.")
    # There is nothing to connect to but a name, for some resources.
    if new is None and old is None and operation != "CONNECT":
        raise ReviewError(f"request.object or request.oldObject is needed for {operation}.")


def _check_object(body: Mapping[str, Any], where: str) -> None:
    _check_fields(body, where, _OBJECT_FIELDS)
    metadata = body.get("metadata")
    if metadata:
        _check_fields(metadata, f"{where}metadata.", _METADATA_FIELDS)


def _check_fields(
    mapping: Mapping[str, Any],
    where: str,
    fields: tuple[tuple[str, type, bool], ...],
) -> None:
    for name, expected, is_needed in fields:
        value = mapping.get(name)
        if value is None:
            if is_needed:
                raise ReviewError(f"{where}{name} is missing.")
        elif not isinstance(value, expected):
            raise ReviewError(f"{where}{name} must be {_TYPES[expected]}.")
        elif is_needed and value == "":
            raise ReviewError(f"{where}{name} is empty.")


def _encode(value: object) -> object:
    """Give orjson what it does not know: the views of objects."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError  # orjson completes the message


def _get_code(error: Exception) -> int:
    """Return the HTTP status for an error; API servers break on what is not one."""
    code: object = error.code if isinstance(error, AdmissionError) else 500
    return code if isinstance(code, int) and 400 <= code <= 599 else 500


def _clean_line(text: str) -> str:
    """Put a text into one line: API servers drop warnings with any control characters."""
    return _clean(" ".join(_CONTROL_CHARACTERS.sub(" ", text).split()))


def _clean(text: str) -> str:
    """Replace what UTF-8 cannot hold, such as halves of surrogate pairs from file names."""
    return text.encode("utf-8", "replace").decode("utf-8")
