"""AdmissionReviews as API servers send them, made of nothing but objects.

What is in a request was looked up in those of a real API server (Kubernetes 1.36), for creations,
updates, deletions, connections, and subresources.
"""

from __future__ import annotations

import datetime as dt
import secrets
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import orjson

from webop.errors import ConfigurationError
from webop.handling.options import check_names
from webop.objects.fields import unwrap_mapping
from webop.objects.resources import Resource

Json = dict[str, Any]

_ADMINISTRATOR = ("admin", ("system:masters",))
_OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}
_OPERATIONS = (*_OPTIONS, "CONNECT")
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # of the names that API servers generate


class TargetOptions(TypedDict, total=False):
    """What a request is about, beside the objects, and who has sent it.

    Attributes:
        resource: the kind of resource, or its plural name; by default the plural is guessed from
            the kind of the object.
        kind: of the object; by default as the object says.
        namespace: of the object; by default as the object says.
        name: of the object; by default as the object says.
        user: the name of the user, or all of ``userInfo``; by default an administrator.
        groups: of the user; ``system:authenticated`` is added.
        dry_run: whether nothing is going to be stored.
        subresource: such as "status".
        options: of the request to the API server, such as ``{"fieldManager": "kubectl"}``.
    """

    resource: Resource | str | None
    kind: str | None
    namespace: str | None
    name: str | None
    user: str | Mapping[str, Any] | None
    groups: Iterable[str] | None
    dry_run: bool
    subresource: str | None
    options: Mapping[str, Any] | None


class ReviewOptions(TargetOptions, total=False):
    """The options of :func:`review`.

    Attributes:
        operation: CREATE, UPDATE, DELETE or CONNECT; by default, what the objects tell.
        uid: of the request; by default a new one.
    """

    operation: str | None
    uid: str | None


def review(
    obj: Mapping[str, Any] | None = None,
    old: Mapping[str, Any] | None = None,
    **options: Unpack[ReviewOptions],
) -> dict[str, Any]:
    """Build an AdmissionReview with a request, as API servers send it to webhooks.

    One object is a creation, two are an update, an old one alone is a deletion; for any other
    meaning there is ``operation=``: ``review(obj, operation="DELETE")`` has it as ``oldObject``.

    Args:
        obj: the object as it is to be.
        old: the object as it was.
        options: see :class:`ReviewOptions`.

    Returns:
        A document of its own, for JSON (Kubernetes API, admission.k8s.io/v1 AdmissionReview).

    Raises:
        ConfigurationError: it is not clear what is to happen to what; the message says what to
            add.
        TypeError: there is no such option.
    """
    check_names("review()", options, ReviewOptions)
    change = "DELETE" if obj is None else "UPDATE"
    implied = "CREATE" if old is None else change
    operation = options.get("operation") or implied
    if operation not in _OPERATIONS:
        raise ConfigurationError(
            f"There is no operation {operation!r}: it is one of {', '.join(_OPERATIONS)}."
        )
    if operation == "DELETE" and old is None:
        obj, old = None, obj
    new, before = to_json(obj), to_json(old)
    if new is None and before is None and operation != "CONNECT":
        raise ConfigurationError(f"A review of a {operation} needs an object.")
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": _build_request(operation, new, before, options),
    }


def _build_request(
    operation: str, new: Json | None, old: Json | None, given: ReviewOptions
) -> Json:
    body = (old if new is None else new) or {}
    meta = body.get("metadata") or {}
    resource = find_resource(body, given.get("resource"), given.get("kind"))
    names = _name_parts(body, resource, given)
    name = given.get("name") or meta.get("name")
    namespace = given.get("namespace") or meta.get("namespace")
    details: Json | None = None
    if kind := _OPTIONS.get(operation):
        dry = {"dryRun": ["All"]} if given.get("dry_run") else {}
        more = given.get("options") or {}
        details = {"kind": kind, "apiVersion": "meta.k8s.io/v1", **dry, **more}
    return {
        "uid": given.get("uid") or str(uuid.uuid4()),
        **names,
        **{f"request{key[0].upper()}{key[1:]}": value for key, value in names.items()},
        **({"name": name} if name else {}),
        **({"namespace": namespace} if namespace else {}),
        "operation": operation,
        "userInfo": _build_userinfo(given.get("user"), given.get("groups")),
        "object": new,
        "oldObject": old,
        "dryRun": given.get("dry_run", False),
        "options": details,
    }


def _name_parts(body: Mapping[str, Any], resource: Resource, given: ReviewOptions) -> Json:
    """Return kind and resource; a subresource can be of another group than its resource."""
    group, _, version = str(body.get("apiVersion") or resource.api_version).rpartition("/")
    kind = given.get("kind") or body.get("kind") or resource.kind
    if not kind:
        raise ConfigurationError(f"The kind of what is sent to {resource} is not known: add kind=.")
    names = {"group": resource.group, "version": resource.version, "resource": resource.plural}
    subresource = given.get("subresource")
    return {
        "kind": {"group": group, "version": version, "kind": kind},
        "resource": names,
        **({"subResource": subresource} if subresource else {}),
    }


def _build_userinfo(user: str | Mapping[str, Any] | None, groups: Iterable[str] | None) -> Json:
    if isinstance(user, Mapping):
        return {**user} if groups is None else {**user, "groups": [*groups]}
    name, usual = _ADMINISTRATOR if user is None else (user, ())
    chosen = dict.fromkeys((*(usual if groups is None else groups), "system:authenticated"))
    return {"username": name, "uid": name, "groups": list(chosen)}


def to_json(obj: Mapping[str, Any] | None) -> Json | None:
    """Return a copy of an object as it comes out of JSON.

    Raises:
        ConfigurationError: it is not for JSON.
    """
    if obj is None:
        return None
    try:
        result: Json = orjson.loads(orjson.dumps(obj, default=unwrap_mapping))
    except (TypeError, ValueError) as exc:
        raise ConfigurationError(f"The object cannot be put into JSON: {exc}.") from exc
    return result


def find_resource(
    body: Mapping[str, Any], resource: Resource | str | None = None, kind: str | None = None
) -> Resource:
    """Return the resource of an object; of none (an empty one), as it is known.

    Raises:
        ConfigurationError: the object does not tell enough.
    """
    if isinstance(resource, Resource):
        return resource
    api_version, name = body.get("apiVersion"), kind or body.get("kind")
    if not (isinstance(api_version, str) and api_version and isinstance(name, str) and name):
        missing = [key for key in ("apiVersion", "kind") if not isinstance(body.get(key), str)]
        raise ConfigurationError(
            f"The object has no {' and no '.join(missing) or 'kind'}: add it, or tell the "
            "resource: resource=webop.Resource(group, version, plural, kind=…)."
        )
    group, _, version = api_version.rpartition("/")
    plural = resource or guess_plural(name)
    return Resource(group, version, plural, kind=name)


def guess_plural(kind: str) -> str:
    """Return the plural name that a kind most probably has, as generators of kinds make it."""
    name = kind.lower()
    if name == "endpoints":
        return name
    if name.endswith(("s", "x", "z", "ch", "sh")):
        return f"{name}es"
    if name.endswith("y") and name[-2:-1] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}s"


@dataclass(frozen=True, slots=True)
class ServerView:
    """What API servers do to objects on their way, so far as handlers can see it.

    Mutating webhooks get an object nearly as it was sent; before the validating ones get it, it
    is completed. What depends on the schema is left out: defaults, pruning, ``managedFields``.
    """

    operation: str
    subresource: str | None = None

    def prepare(self, body: Json, namespace: str | None) -> Json:
        """Return an object as it is for mutating webhooks: in the namespace of its URL."""
        meta = body.get("metadata")
        if not namespace or self.operation == "CONNECT" or not isinstance(meta, dict):
            return body
        return {**body, "metadata": {**meta, "namespace": namespace}}

    def complete(self, body: Json, old: Json | None) -> Json:
        """Return an object as it is for validating webhooks: with what API servers set."""
        meta = body.get("metadata")
        if not isinstance(meta, dict) or self.operation not in ("CREATE", "UPDATE"):
            return body
        if self.operation == "CREATE":
            return {**body, "metadata": {**meta, **_build_new_metadata(body, meta)}}
        before = old or {}
        if self.subresource == "status":
            kept = {key: value for key, value in before.items() if key != "status"}
            return kept | ({"status": body["status"]} if "status" in body else {})
        return {**body, "metadata": {**meta, **_build_kept_metadata(body, before)}}


def _build_new_metadata(body: Mapping[str, Any], meta: Mapping[str, Any]) -> Json:
    fields: Json = {
        "uid": str(uuid.uuid4()),
        "creationTimestamp": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    if "spec" in body:  # others, such as config maps, have no generations
        fields["generation"] = 1
    if meta.get("generateName") and not meta.get("name"):
        suffix = "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(5))
        fields["name"] = f"{meta['generateName']}{suffix}"
    return fields


def _build_kept_metadata(body: Mapping[str, Any], old: Mapping[str, Any]) -> Json:
    before = old.get("metadata") or {}
    names = ("uid", "creationTimestamp")
    fields: Json = {name: before[name] for name in names if name in before}
    if isinstance(generation := before.get("generation"), int):
        essences = [{**each, "metadata": None, "status": None} for each in (body, old)]
        fields["generation"] = generation + (essences[0] != essences[1])
    if "resourceVersion" in before:
        meta = body["metadata"]
        fields["resourceVersion"] = meta.get("resourceVersion") or before["resourceVersion"]
    return fields
