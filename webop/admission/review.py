"""Check the JSON of an admission review and turn it into a :class:`Review`.

Pure, and on the hot path: the checks are tables of fields, not a schema library. The format is
that of the Kubernetes API, admission.k8s.io/v1 (and v1beta1, which has the same fields).
:mod:`webop.admission.response` builds the response.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from webop.errors import ReviewError

_API_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
_OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")

# The names of fields, their types, and whether they are required.
_Fields = tuple[tuple[str, type, bool], ...]
_REVIEW_FIELDS: _Fields = (("request", dict, True),)
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
_USER_FIELDS = (
    ("username", str, False),
    ("uid", str, False),
    ("groups", list, False),
    ("extra", dict, False),
)
_RESOURCE_FIELDS = (("group", str, False), ("version", str, True), ("resource", str, True))
_KIND_FIELDS = (("kind", str, True),)
# Handlers and filters rely on these; the API server checks the rest of the object.
_OBJECT_FIELDS = (("apiVersion", str, False), ("kind", str, False), ("metadata", dict, False))
_METADATA_FIELDS = (
    ("name", str, False),
    ("generateName", str, False),
    ("namespace", str, False),
    ("uid", str, False),
    ("labels", dict, False),
    ("annotations", dict, False),
)
_STRINGS = frozenset({str})
# Kubernetes names have at most 253 characters, uids 36; user names have no limit.
_MAX_TEXT = 1024

# Lenient JSON decoders let single surrogates pass (RFC 8259).
_UNUSABLE_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

_TYPES = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}


class Review(NamedTuple):
    """A request for admission, checked.

    Attributes:
        api_version: of the review itself; the response has the same.
        uid: of the request; the response has the same.
        group: of the resource, with ``version`` and ``plural``, as the webhook's rule named it.
        kind: the kind of the object.
        namespace: of the object; None if it is cluster-wide.
        name: of the object; None if the API server will generate it.
        operation: CREATE, UPDATE, DELETE or CONNECT.
        subresource: such as "status"; None for the object itself.
        object: the new state; None on deletion.
        old_object: the state before; None on creation.
        userinfo: who has sent the request to the API server.
        dryrun: whether the API server will store nothing.
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
        """The new state of the object; on deletion, the old one."""
        body = self.old_object if self.object is None else self.object
        return {} if body is None else body

    def build_reference(self) -> dict[str, Any]:
        """Return who requests what for which object, for logs, without the object's content.

        Returns:
            ``uid``, ``operation``, ``resource``, ``user``; ``namespace``, ``name`` and ``dry_run``
            if present. A name that will be generated ends with an asterisk.
        """
        resource = f"{self.plural}.{self.group}" if self.group else self.plural
        metadata = self.body.get("metadata") or {}
        base = metadata.get("generateName")
        reference = {
            "uid": self.uid,
            "operation": self.operation,
            "resource": f"{resource}/{self.subresource}" if self.subresource else resource,
            "namespace": self.namespace,
            "name": self.name or metadata.get("name") or (f"{base}*" if base else None),
            "user": self.userinfo.get("username") or "an unknown user",
            "dry_run": self.dryrun,
        }
        return {key: value for key, value in reference.items() if value}


def parse_review(payload: Mapping[str, Any]) -> Review:
    """Check an AdmissionReview with a request.

    Raises:
        ReviewError: a field is wrong; the message names it.
    """
    if not isinstance(payload, dict):
        raise ReviewError(f"An AdmissionReview must be an object, not {payload!r:.99}.")
    if payload.get("kind") != "AdmissionReview":
        raise ReviewError(f"kind must be 'AdmissionReview', not {payload.get('kind')!r:.99}.")
    if payload.get("apiVersion") not in _API_VERSIONS:
        known = " or ".join(_API_VERSIONS)
        raise ReviewError(f"apiVersion must be {known}, not {payload.get('apiVersion')!r:.99}.")
    _check_fields(payload, "", _REVIEW_FIELDS)
    request = payload["request"]
    _check_request(request)
    resource = request["resource"]
    get = request.get
    return Review(
        payload["apiVersion"],
        request["uid"],
        resource.get("group") or "",
        resource["version"],
        resource["resource"],
        request["kind"]["kind"],
        get("namespace") or None,
        get("name") or None,
        request["operation"],
        get("subResource") or None,
        get("object"),
        get("oldObject"),
        request["userInfo"],
        get("dryRun") or False,
    )


def _check_request(request: Mapping[str, Any]) -> None:
    _check_fields(request, "request.", _REQUEST_FIELDS)
    _check_fields(request["resource"], "request.resource.", _RESOURCE_FIELDS)
    _check_fields(request["kind"], "request.kind.", _KIND_FIELDS)
    _check_fields(request["userInfo"], "request.userInfo.", _USER_FIELDS)
    operation = request["operation"]
    if operation not in _OPERATIONS:
        known = ", ".join(_OPERATIONS)
        raise ReviewError(f"request.operation must be one of {known}, not {operation!r:.99}.")
    new, old = request.get("object"), request.get("oldObject")
    if new is not None:
        _check_object(new, "request.object.")
    if old is not None:
        _check_object(old, "request.oldObject.")
    # For some resources, a CONNECT has only a name.
    if new is None and old is None and operation != "CONNECT":
        raise ReviewError(f"{operation} needs request.object or request.oldObject.")


def _check_object(body: Mapping[str, Any], where: str) -> None:
    _check_fields(body, where, _OBJECT_FIELDS)
    metadata = body.get("metadata")
    if metadata:
        _check_fields(metadata, f"{where}metadata.", _METADATA_FIELDS)
        for name in ("labels", "annotations"):  # filters rely on it
            values = metadata.get(name)
            if values and not _STRINGS.issuperset(map(type, values.values())):
                raise ReviewError(f"{where}metadata.{name} must be an object of strings.")


def _check_fields(mapping: Mapping[str, Any], where: str, fields: _Fields) -> None:
    get = mapping.get
    for name, expected, is_required in fields:
        value = get(name)
        kind = type(value)
        if kind is expected:
            if kind is not str or (value and len(value) <= _MAX_TEXT and value.isprintable()):
                continue
        elif value is None:
            if is_required:
                raise ReviewError(f"{where}{name} is missing.")
            continue
        if not isinstance(value, expected):
            raise ReviewError(f"{where}{name} must be {_TYPES[expected]}.")
        if isinstance(value, str):
            if not value and is_required:
                raise ReviewError(f"{where}{name} is empty.")
            if len(value) > _MAX_TEXT:
                raise ReviewError(f"{where}{name} has more than {_MAX_TEXT} characters.")
            if _UNUSABLE_CHARACTERS.search(value):
                raise ReviewError(f"{where}{name} must not have control characters.")
