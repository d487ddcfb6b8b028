"""Requests to the API server and its responses, as plain values. Pure: no I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from webop.client.http.failed_requests import Attempt, parse_attempt
from webop.errors import APIConnectionError
from webop.objects.fields import is_lossy, is_mapping, resolve, unwrap_mapping
from webop.objects.resources import Resource

JSON = "application/json"
_PARTIAL = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"
PARTIAL_OBJECT, PARTIAL_LIST = _PARTIAL.format(""), _PARTIAL.format("List")
"""Media types of responses with only the metadata, if the server can (Kubernetes API concepts:
"Metadata-only fetches")."""
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

REVIEWS = ("/apis/authentication.k8s.io/", "/apis/authorization.k8s.io/")
_VERSION_TEST = ("test", "/metadata/resourceVersion")

# In YAML, these are line breaks, which become spaces, or are not allowed.
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class Call(NamedTuple):
    """A request without credentials.

    Attributes:
        method: an HTTP method in upper case.
        path: from the root of the API server, quoted.
        params: the query.
        content: the encoded body.
        content_type: of the body.
        accept: the accepted media types of the response.
        timeout: in seconds, for one attempt; None for that of the settings.
        is_retried: whether network errors and 5xx are retried.
        queue: the queue in which it waits for others (:class:`webop.client.api.Client`); None if
            it must never wait.
        etag: of the content that is known, empty for none: the result is the ETag of the present
            content with this content, or with None if it is the known one. None for the usual
            result, the content.
    """

    method: str
    path: str
    params: Mapping[str, str] | None = None
    content: bytes | None = None
    content_type: str = JSON
    accept: str = JSON
    timeout: float | None = None
    is_retried: bool = True
    queue: str | None = None
    etag: bytes | None = None

    @property
    def attempt(self) -> Attempt:
        """The call in the words of RBAC, for messages."""
        return parse_attempt(self.method, self.path, self.params)

    def is_repeatable(self) -> bool:
        """Return whether it can be sent again although the first one may have been executed.

        So it is if the second one does the same, or is refused: a new object has a name, a JSON
        patch only replaces, or tests the version first, and a deletion names the uid or version.
        A second deletion by name alone could delete what has come in place of the first object.
        Reviews, such as SelfSubjectAccessReviews, store nothing.
        """
        is_patch = self.method == "PATCH"
        if self.method in {"GET", "PUT"} or (is_patch and self.content_type != JSON_PATCH):
            return True
        body = orjson.loads(self.content or b"{}")
        if is_patch:
            steps = {(item.get("op"), item.get("path")) for item in body if is_mapping(item)}
            return _VERSION_TEST in steps or {op for op, _ in steps} <= {"replace", "test"}
        if self.method == "DELETE":
            return bool(resolve(body, ("preconditions",)))
        is_new = self.method == "POST" and self.attempt.name is None
        is_review = self.path.startswith(REVIEWS)
        return is_new and (is_review or bool(resolve(body, ("metadata", "name"))))


class Page(NamedTuple):
    """One page of a list: objects with ``apiVersion`` and ``kind``, and the list's version."""

    items: list[dict[str, Any]]
    resource_version: str


class Selection(NamedTuple):
    """The part of the objects of a kind, and of each object, that a watch gets.

    Attributes:
        params: the selectors, as parameters of lists and watches.
        is_partial: whether the objects come with only their metadata.
    """

    params: Mapping[str, str] = MappingProxyType({})
    is_partial: bool = False


def select_name(name: str) -> Selection:
    """Return the selection of one object only, also for a role limited to its name."""
    return Selection({"fieldSelector": f"metadata.name={name}"})


def encode_body(body: object) -> bytes:
    """Encode as JSON, including mappings of all types.

    Raises:
        TypeError: JSON cannot represent it.
        ValueError: it contains NaN or infinity, or contains itself.
    """
    try:
        content = orjson.dumps(body, default=unwrap_mapping)
    except TypeError:
        # Integers beyond 64 bits, keys that are not strings: slower, but valid JSON.
        return json.dumps(body, default=unwrap_mapping, allow_nan=False).encode()
    if is_lossy(content, body):
        raise ValueError("JSON cannot represent NaN or infinity")
    return content


def encode_yaml(body: object) -> bytes:
    """Encode as JSON that is also YAML; raise the same as :func:`encode_body`."""
    text = encode_body(body).decode()
    return _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()


def parse_page(call: Call, response: Any) -> tuple[Page, str]:
    """Return the page and the token of the next page; an empty token after the last page.

    The items of built-in resources lack apiVersion and kind, which are added.
    """
    is_list = (
        isinstance(response, dict)
        and isinstance(response.get("metadata"), dict)
        and isinstance(response.get("items", ""), list | None)
    )
    if not is_list:
        # As an empty list, a Status would mean that all objects are deleted.
        raise APIConnectionError(f"Cannot {call.attempt}: the response is not a list of objects")
    items = response["items"] or []
    kind = str(response.get("kind") or "").removesuffix("List")
    defaults = {"apiVersion": response.get("apiVersion"), "kind": kind}
    for index, item in enumerate(items):
        if isinstance(item, dict) and not ("kind" in item and "apiVersion" in item):
            items[index] = {**defaults, **item}
    metadata = response["metadata"]
    version = str(metadata.get("resourceVersion") or "")
    return Page(items, version), str(metadata.get("continue") or "")


def cut_object(raw: dict[str, Any], resource: Resource) -> dict[str, Any]:
    """Return an object with only its metadata.

    The kind of partial objects is PartialObjectMetadata. Some servers send whole objects instead.
    """
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": raw.get("metadata") or {},
    }


def strip_object(response: Any) -> dict[str, Any]:
    """Return an object without its managed fields, which nobody needs; they prevent an apply."""
    found: dict[str, Any] = response if isinstance(response, dict) else {"metadata": None}
    metadata = found.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise APIConnectionError(
            "The response is not an object. Check that the server is an API server."
        )
    metadata.pop("managedFields", None)
    return found
