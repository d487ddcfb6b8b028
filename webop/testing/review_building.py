"""Build AdmissionReviews like those of API servers from objects."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypedDict, Unpack

import orjson

from webop.aio.clock import now
from webop.errors import ConfigurationError
from webop.handlers.options import parse_options
from webop.models.definitions import is_instance
from webop.models.fitting import dump
from webop.objects.fields import Json, unwrap_mapping
from webop.objects.resources import Resource, guess_plural
from webop.objects.typed_values import must_be

if TYPE_CHECKING:
    from pydantic import BaseModel

Object: TypeAlias = "Mapping[str, Any] | BaseModel"

_OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # of the names that API servers generate
_KEPT = ("uid", "creationTimestamp", "resourceVersion")


class TargetOptions(TypedDict, total=False):
    """The target of a request, in addition to the objects, and its user."""

    resource: Annotated[
        Resource | str | None, must_be("a webop.Resource or a plural name", Resource | str)
    ]
    """The resource or its plural name; by default guessed from the kind"""
    kind: str | None
    """By default that of the object"""
    namespace: str | None
    """By default that of the object"""
    name: str | None
    """By default that of the object"""
    user: Annotated[
        str | Mapping[str, Any] | None, must_be("a name, or a mapping like userInfo", str | Mapping)
    ]
    """The name of the user, or the whole ``userInfo``; by default an administrator"""
    groups: Annotated[
        Iterable[str] | None,
        must_be("a list of names", Iterable, lambda value: not isinstance(value, str)),
    ]
    """The groups of the user; "system:authenticated" is added"""
    dry_run: bool
    """Whether the request is a dry run"""
    subresource: str | None
    """Such as "status"; by default the object itself"""
    options: Mapping[str, Any] | None
    """The options of the request, such as ``{"fieldManager": "kubectl"}``"""


class ReviewOptions(TargetOptions, total=False):
    """The options of :func:`review`."""

    operation: str | None
    """CREATE, UPDATE, DELETE or CONNECT; by default implied by the objects"""
    uid: str | None
    """The uid of the request; by default a new one"""


def review(
    obj: Object | None = None,
    old: Object | None = None,
    **options: Unpack[ReviewOptions],
) -> dict[str, Any]:
    """Return an AdmissionReview with a request (Kubernetes API, admission.k8s.io/v1).

    ::

        response = client.post("/check_size", json=webop.testing.review(database, user="alice"))

    One object is a creation, two are an update, an old one alone is a deletion. ``operation=``
    overrides this: ``review(obj, operation="DELETE")`` has the object as ``oldObject``. Objects can
    be models.
    """
    parse_options("review()", options, ReviewOptions)
    implied = "CREATE" if old is None else "DELETE" if obj is None else "UPDATE"
    operation = options.get("operation") or implied
    if operation == "DELETE" and old is None:
        obj, old = None, obj
    new, before = to_json(obj), to_json(old)
    if new is None and before is None and operation != "CONNECT":
        raise ConfigurationError(f"A review with operation={operation!r} needs an object.")
    body = new or before or {}
    resource, kind = find_resource(body, options), options.get("kind") or body.get("kind")
    # A subresource can have another group than its resource.
    group, _, version = str(body.get("apiVersion") or resource.api_version).rpartition("/")
    names = {
        "kind": {"group": group, "version": version, "kind": kind or resource.kind},
        "resource": {key: getattr(resource, key) for key in ("group", "version")}
        | {"resource": resource.plural},
    }
    request: Json = {"uid": options.get("uid") or str(uuid.uuid4()), **names}
    request |= {f"request{key.capitalize()}": value for key, value in names.items()}
    if subresource := options.get("subresource"):
        request |= {"subResource": subresource, "requestSubResource": subresource}
    for key, given in (("name", options.get("name")), ("namespace", options.get("namespace"))):
        if value := given or (body.get("metadata") or {}).get(key):
            request[key] = value
    details: Json | None = None
    if operation in _OPTIONS:
        details = {"kind": _OPTIONS[operation], "apiVersion": "meta.k8s.io/v1"}
        details |= {"dryRun": ["All"]} if options.get("dry_run") else {}
        details |= options.get("options") or {}
    request |= {
        "operation": operation,
        "userInfo": _build_userinfo(options.get("user"), options.get("groups")),
        "object": new,
        "oldObject": before,
        "dryRun": options.get("dry_run", False),
        "options": details,
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def _build_userinfo(user: str | Mapping[str, Any] | None, groups: Iterable[str] | None) -> Json:
    if isinstance(user, Mapping):
        return {**user} if groups is None else {**user, "groups": [*groups]}
    usual = ("system:masters",) if user is None else ()
    chosen = dict.fromkeys((*(usual if groups is None else groups), "system:authenticated"))
    return {"username": user or "admin", "uid": user or "admin", "groups": list(chosen)}


def to_json(obj: Object | None) -> Json | None:
    """Return a copy of an object as parsed from JSON.

    Raises:
        TypeError: this is no mapping, or contains values that JSON cannot represent.
    """
    if is_instance(obj):
        return dump(obj)
    if obj is not None and not isinstance(obj, Mapping):
        raise TypeError(f"An object must be a mapping, got {obj!r}.")
    result: Json | None = orjson.loads(orjson.dumps(obj, default=unwrap_mapping))
    return result


def find_resource(body: Json, options: TargetOptions, known: Iterable[Resource] = ()) -> Resource:
    """Return the resource of an object; by default, guess its plural like code generators."""
    resource, kind = options.get("resource"), options.get("kind") or body.get("kind")
    if isinstance(resource, Resource):
        return resource
    if not (body.get("apiVersion") and kind):
        raise ConfigurationError(
            "The object has no apiVersion, or no kind: add it, or specify the resource: "
            "resource=webop.Resource(group, version, plural, kind=…)."
        )
    group, _, version = str(body["apiVersion"]).rpartition("/")
    guess = Resource(group, version, resource or guess_plural(str(kind)), kind=str(kind))
    same = (each for each in known if each.api_version == guess.api_version)
    return next((r for r in same if r == guess or (not resource and r.kind == kind)), guess)


def complete(body: Json, old: Json | None, operation: str) -> Json:
    """Return an object with the fields that API servers set before validating webhooks."""
    meta = body.get("metadata")
    if not isinstance(meta, dict) or operation not in ("CREATE", "UPDATE"):
        return body
    if operation == "UPDATE":
        before = (old or {}).get("metadata") or {}
        fields: Json = {key: before[key] for key in _KEPT if key in before}
    else:
        stamp = now().strftime("%Y-%m-%dT%H:%M:%SZ")
        fields = {"uid": str(uuid.uuid4()), "creationTimestamp": stamp}
        if meta.get("generateName") and not meta.get("name"):
            suffix = "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(5))
            fields["name"] = f"{meta['generateName']}{suffix}"
    return {**body, "metadata": {**meta, **fields}}
