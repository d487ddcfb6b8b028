"""Requests to the API server of a local cluster: check its readiness; apply, get, delete objects.

Tests prepare and check a cluster with these, without kubectl and client libraries. Kinds come from
the API server's discovery (Kubernetes API, "API discovery"); objects are applied with
"Server-Side Apply", like ``kubectl apply --server-side``. No library is used that would write to
the log of the test.
"""

from __future__ import annotations

import difflib
import http.client
import os
import random
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import orjson
import yaml

from webop.errors import ClusterError, ConfigurationError
from webop.objects.resources import Resource

from .state import POLL_INTERVAL

_TIMEOUT = 10.0
_PORTS = range(20000, 32000)

Json = dict[str, Any]
Manifest = str | os.PathLike[str] | Mapping[str, Any]
_MANAGER = "webop-tests"
_APPLY = "application/apply-patch+yaml"
_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
# Other objects depend on these.
_FIRST = ("CustomResourceDefinition", "Namespace")
_SERVING_TIMEOUT = 30.0  # seconds; a CRD is usually served after some tenths of one


class Response(NamedTuple):
    """A response of the API server."""

    status: int
    body: bytes

    def read_json(self) -> Json:
        """Decode the body, which must be a JSON object."""
        return dict(orjson.loads(self.body))


class AdminClient:
    """Requests to one API server as the administrator, also for objects by their kinds."""

    def __init__(self, server: str, ca_cert: str, token: str) -> None:
        self.server = server
        self._context = ssl.create_default_context(cadata=ca_cert)
        self._token = token
        self._kinds: dict[tuple[str, str], Resource] = {}

    def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Response:
        """Send a request and return the response of any status.

        Raises:
            OSError: there is no valid response.
        """
        parts = urlsplit(self.server)
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, context=self._context, timeout=_TIMEOUT
        )
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
        try:
            content = None if body is None else orjson.dumps(body)
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            return Response(response.status, response.read())
        except http.client.HTTPException as error:
            raise OSError(f"invalid response: {error!r}") from error
        finally:
            connection.close()

    def has(self, path: str) -> bool:
        """Return whether a GET of a path responds with 200; False also without a response."""
        try:
            return self.request("GET", path).status == 200
        except OSError:
            return False

    def apply(
        self, manifests: Iterable[Manifest], namespace: str | None, *, dry_run: bool = False
    ) -> list[Json]:
        """Create or change objects, CRDs and namespaces first; return them as stored."""
        bodies = [dict(body) for manifest in manifests for body in read_manifest(manifest)]
        bodies.sort(key=lambda body: body.get("kind") not in _FIRST)
        return [self._apply(body, namespace, dry_run=dry_run) for body in bodies]

    def get(
        self, api_version: str, kind: str, name: str, namespace: str | None = None
    ) -> Json | None:
        """Return an object, or None if it does not exist."""
        path = self._find(api_version, kind).get_url(namespace=namespace or "default", name=name)
        response = self.request("GET", path)
        if response.status == 404:
            return None
        return _read(response, f"Cannot get {kind} {name}")

    def delete(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> None:
        """Request the deletion of an object; do nothing if it does not exist."""
        path = self._find(api_version, kind).get_url(namespace=namespace or "default", name=name)
        response = self.request("DELETE", path)
        if response.status != 404:
            _read(response, f"Cannot delete {kind} {name}")

    def _apply(self, body: Json, namespace: str | None, *, dry_run: bool) -> Json:
        kind = self._find(body["apiVersion"], body["kind"])
        metadata = body.get("metadata") or {}
        own, name = metadata.get("namespace"), metadata.get("name", "")
        what = f"{body['kind']} {name or metadata.get('generateName', '')}"
        if kind.namespaced and own and namespace and own != namespace:
            raise ConfigurationError(
                f"{what} has the namespace {own!r}, but namespace= is {namespace!r}. Remove one of "
                "them."
            )
        query = {"fieldManager": _MANAGER, "fieldValidation": "Strict"}
        query |= {"dryRun": "All"} if dry_run else {}
        path = kind.get_url(namespace=own or namespace or "default", name=name or None)
        if name:
            response = self.request("PATCH", f"{path}?{urlencode(query)}&force=true", body, _APPLY)
        else:
            response = self.request("POST", f"{path}?{urlencode(query)}", body)
        stored = _read(response, f"Cannot apply {what}")
        if stored["kind"] == "CustomResourceDefinition" and not dry_run:
            self._wait_served(stored)
        return stored

    def _wait_served(self, definition: Json) -> None:
        """Wait until discovery lists all served versions of a CRD, and their lists respond."""
        group, names = definition["spec"]["group"], definition["spec"]["names"]
        missing = [
            f"{group}/{version['name']}"
            for version in definition["spec"]["versions"]
            if version["served"]
        ]
        deadline = time.monotonic() + _SERVING_TIMEOUT
        while missing := [each for each in missing if not self._is_served(each, names)]:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"The API server does not serve {names['plural']} in {', '.join(missing)} "
                    f"{_SERVING_TIMEOUT:g} s after the CRD was applied."
                )
            time.sleep(POLL_INTERVAL)

    def _is_served(self, api_version: str, names: Json) -> bool:
        kind = self._fetch(api_version).get(names["kind"])
        return kind is not None and self.has(kind.get_url(params={"limit": "1"}))

    def _find(self, api_version: str, kind: str) -> Resource:
        if (api_version, kind) not in self._kinds:
            for name, found in self._fetch(api_version).items():
                self._kinds[api_version, name] = found
        try:
            return self._kinds[api_version, kind]
        except KeyError:
            known = [name for version, name in self._kinds if version == api_version]
            advice = "If it is a custom resource, apply its CRD first."
            for nearest in difflib.get_close_matches(kind, known, n=1):  # e.g. for the plural
                advice = f"Did you mean {nearest!r}?"
            raise ClusterError(f"There is no kind {kind!r} in {api_version!r}. {advice}") from None

    def _fetch(self, api_version: str) -> dict[str, Resource]:
        """Return the kinds of an API version by name; nothing if the version does not exist."""
        group, _, version = api_version.rpartition("/")
        response = self.request("GET", f"/apis/{api_version}" if group else f"/api/{version}")
        if response.status == 404:
            return {}
        return {
            item["kind"]: Resource(group, version, item["name"], namespaced=item["namespaced"])
            for item in _read(response, f"Cannot discover {api_version}")["resources"]
            if "/" not in item["name"]  # the others are subresources
        }


def find_free_port() -> int:
    """Return a port of the loopback interface that is free at this moment.

    It is below the ports for outgoing connections. Otherwise, while an API server is down in a
    test, another process could get its port, or a client could connect to itself.
    """
    for port in random.sample(_PORTS, k=100):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ClusterError(
        f"Found no free port: tried 100 ports between {_PORTS[0]} and {_PORTS[-1]} on 127.0.0.1. "
        "List the processes that listen there with: ss -ltnp"
    )


def read_manifest(manifest: Manifest) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a file, of the files in a folder, or the given object itself."""
    if isinstance(manifest, Mapping):
        yield from _unpack(manifest, "the argument")
        return
    path = Path(manifest)
    if not path.exists():
        raise ConfigurationError(f"Cannot apply {str(path)!r}: there is no such file or folder.")
    files = [path] if path.is_file() else sorted(path.iterdir())
    for file in files:
        if file == path or file.suffix in _SUFFIXES:
            try:
                documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
            except (yaml.YAMLError, UnicodeDecodeError) as error:
                raise ConfigurationError(f"{str(file)!r} is not valid YAML: {error}") from None
            for document in documents:
                if document is not None:
                    yield from _unpack(document, str(file))


def _unpack(document: Any, place: str) -> Iterator[Mapping[str, Any]]:
    if not isinstance(document, Mapping) or not {"apiVersion", "kind"} <= document.keys():
        raise ConfigurationError(
            f"An object in {place} must have apiVersion and kind, got {document!r:.80}"
        )
    metadata = document.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise ConfigurationError(f"metadata in {place} must be a mapping, got {metadata!r}")
    texts = {name: document[name] for name in ("apiVersion", "kind")}
    texts |= {f"metadata.{name}": metadata.get(name) or "" for name in ("name", "namespace")}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise ConfigurationError(
                f"{name} in {place} must be a string, got {value!r}. Put it in quotes."
            )
    if document["kind"] == "List":
        for item in document.get("items") or ():
            yield from _unpack(item, place)
    else:
        yield document


def _read(response: Response, failure: str) -> Json:
    """Return the object in a response.

    Raises:
        ClusterError: the API server refused the request; the message has its reason.
    """
    if response.status < 400:
        return response.read_json()
    try:
        reason = response.read_json()["message"]
    except (ValueError, LookupError, TypeError):
        reason = f"HTTP {response.status}: {response.body.decode(errors='replace')}"
    raise ClusterError(f"{failure}: {reason}")
