"""Admission reviews as values: from parsed JSON to a checked :class:`Review`.

Pure, and on the hot path: the checks are tables of fields, not a schema library. The format is
that of the Kubernetes API, admission.k8s.io/v1 (and v1beta1, which has the same fields). The
answer is made in :mod:`webop.admission.response`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

from webop.errors import ReviewError

_API_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
_OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")

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
    ("options", dict, False),
    ("requestKind", dict, False),
    ("requestResource", dict, False),
    ("requestSubResource", str, False),
)
_USER_FIELDS = (
    ("username", str, False),
    ("uid", str, False),
    ("groups", list, False),
    ("extra", dict, False),
)
_RESOURCE_FIELDS = (("group", str, False), ("version", str, True), ("resource", str, True))
_KIND_FIELDS = (("kind", str, True),)
# What handlers and filters rely on; the rest of the object is checked by the API server.
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
_OPTIONAL_OBJECTS = frozenset({dict, NoneType})
_OPTIONAL_LIST = frozenset({list, NoneType})
_OPTIONAL_FLAG = frozenset({bool, NoneType})
_OBJECTS_OF_REQUEST = ("options", "requestKind", "requestResource")

# Halves of surrogate pairs come from decoders that are more lenient than RFC 8259 recommends.
_UNUSABLE_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

_TYPES = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}


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

    def build_reference(self) -> dict[str, Any]:
        """Return who wants to do what to which object, for logs: nothing of its content.

        Returns:
            ``uid``, ``operation``, ``resource``, ``user``; ``namespace``, ``name`` and ``dry_run``
            if there are such. A name that is yet to be generated ends with an asterisk.
        """
        resource = f"{self.plural}.{self.group}" if self.group else self.plural
        reference = {
            "uid": self.uid,
            "operation": self.operation,
            "resource": f"{resource}/{self.subresource}" if self.subresource else resource,
            "namespace": self.namespace,
            "name": self.name or self._find_name(),
            "user": self.userinfo.get("username") or "somebody unknown",
            "dry_run": self.dryrun,
        }
        return {key: value for key, value in reference.items() if value}

    def _find_name(self) -> str | None:
        metadata = self.body.get("metadata") or {}
        base = metadata.get("generateName")
        return metadata.get("name") or (f"{base}*" if base else None)


def parse_review(payload: Mapping[str, Any]) -> Review:
    """Check an AdmissionReview with a request.

    Raises:
        ReviewError: it is not one; the message names the field.
    """
    if not _is_usual(payload):
        _check_head(payload)
        _check_request(payload["request"])
    request = payload["request"]
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


def _is_usual(payload: Mapping[str, Any]) -> bool:
    """Tell at a glance whether a review is as API servers send it: then nothing is wrong with it.

    If not, it may be fine all the same: the checks below say. These take three times as long.
    """
    try:
        request = payload["request"]
        resource, kind, user = request["resource"], request["kind"], request["userInfo"]
        needed = (request["uid"], resource["version"], resource["resource"], kind["kind"])
        new, old = request.get("object"), request.get("oldObject")
        others = (
            resource.get("group", ""),
            request.get("namespace", ""),
            request.get("name", ""),
            request.get("subResource", ""),
            request.get("requestSubResource", ""),
            user.get("username", ""),
            user.get("uid", ""),
        )
        return (
            payload["kind"] == "AdmissionReview"
            and payload["apiVersion"] in _API_VERSIONS
            and request["operation"] in _OPERATIONS
            and all(needed)
            and "".join(needed + others).isprintable()
            and _OPTIONAL_OBJECTS.issuperset(map(type, map(request.get, _OBJECTS_OF_REQUEST)))
            and type(request.get("dryRun")) in _OPTIONAL_FLAG
            and type(user.get("groups")) in _OPTIONAL_LIST
            and type(user.get("extra")) in _OPTIONAL_OBJECTS
            and (new is not None or old is not None)
            and (new is None or _is_usual_object(new))
            and (old is None or _is_usual_object(old))
        )
    except (KeyError, TypeError, AttributeError):  # something is absent, or of a wrong type
        return False


def _is_usual_object(body: Mapping[str, Any]) -> bool:
    metadata = body["metadata"]
    labels, annotations = metadata.get("labels"), metadata.get("annotations")
    texts = (
        body["apiVersion"],
        body["kind"],
        metadata.get("name", ""),
        metadata.get("generateName", ""),
        metadata.get("namespace", ""),
        metadata.get("uid", ""),
    )
    return (
        "".join(texts).isprintable()
        and (labels is None or _STRINGS.issuperset(map(type, labels.values())))
        and (annotations is None or _STRINGS.issuperset(map(type, annotations.values())))
    )


def _check_head(payload: Mapping[str, Any]) -> None:
    if not isinstance(payload, dict):
        raise ReviewError(f"An AdmissionReview must be an object, not {payload!r:.99}.")
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
    # There is nothing to connect to but a name, for some resources.
    if new is None and old is None and operation != "CONNECT":
        raise ReviewError(f"request.object or request.oldObject is needed for {operation}.")


def _check_object(body: Mapping[str, Any], where: str) -> None:
    _check_fields(body, where, _OBJECT_FIELDS)
    metadata = body.get("metadata")
    if metadata:
        _check_fields(metadata, f"{where}metadata.", _METADATA_FIELDS)
        _check_strings(metadata.get("labels"), where, "labels")
        _check_strings(metadata.get("annotations"), where, "annotations")


def _check_strings(values: Mapping[str, object] | None, where: str, name: str) -> None:
    """Check that all values are strings, as filters and their callbacks rely on it."""
    if values and not _STRINGS.issuperset(map(type, values.values())):
        raise ReviewError(f"{where}metadata.{name} must be an object of strings.")


def _check_fields(
    mapping: Mapping[str, Any],
    where: str,
    fields: tuple[tuple[str, type, bool], ...],
) -> None:
    get = mapping.get
    for name, expected, is_needed in fields:
        value = get(name)
        kind = type(value)
        if value is None:
            if not is_needed:
                continue
        elif kind is expected and (
            kind is not str or (value.isprintable() and (value or not is_needed))
        ):
            continue
        _check_closely(value, f"{where}{name}", expected, is_needed=is_needed)


def _check_closely(value: object, where: str, expected: type, *, is_needed: bool) -> None:
    """Find out what is wrong with the value of a field, if there is anything."""
    if value is None:
        raise ReviewError(f"{where} is missing.")
    if not isinstance(value, expected):
        raise ReviewError(f"{where} must be {_TYPES[expected]}.")
    if value == "" and is_needed:
        raise ReviewError(f"{where} is empty.")
    if isinstance(value, str) and _UNUSABLE_CHARACTERS.search(value):
        raise ReviewError(f"{where} must not have control characters.")
