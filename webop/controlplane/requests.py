"""Requests to the API server of a local cluster: is it ready, and which objects are there.

Objects are applied from files, folders and code, looked at, deleted: for preparing a cluster and
for looking at what has become of it, with no kubectl and no client library at hand. Kinds are
looked up by the API server's own lists (Kubernetes API, "API discovery"); objects are put by
"Server-Side Apply", as ``kubectl apply --server-side`` does.

The standard library does for these; the client of the operator is not loaded for them.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import orjson
import yaml

from webop.errors import ClusterError, ConfigurationError

from .state import POLL_INTERVAL

_TIMEOUT = 10.0
_PORTS = range(20000, 32000)

Json = dict[str, Any]
Manifest = str | os.PathLike[str] | Mapping[str, Any]
_MANAGER = "webop-tests"
_APPLY = "application/apply-patch+yaml"
_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
# Others need these to be there.
_FIRST = ("CustomResourceDefinition", "Namespace")
_SERVING_TIMEOUT = 30.0  # seconds; a definition is served after some tenths of one


@dataclass(frozen=True)
class Response:
    """An answer of the API server."""

    status: int
    body: bytes

    def read_json(self) -> dict[str, Any]:
        """Decode the body, which must be a JSON object."""
        data: dict[str, Any] = orjson.loads(self.body)
        return data


class Prober:
    """Sends single requests to one API server, as its administrator."""

    def __init__(self, server: str, ca_cert: str, token: str) -> None:
        self.server = server
        parts = urlsplit(server)
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or 443
        self._context = ssl.create_default_context(cadata=ca_cert)
        self._token = token

    def request(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Response:
        """Send a request and return the answer, whatever its status."""
        connection = http.client.HTTPSConnection(
            self._host, self._port, context=self._context, timeout=_TIMEOUT
        )
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
        try:
            connection.request(
                method, path, body=None if body is None else orjson.dumps(body), headers=headers
            )
            answer = connection.getresponse()
            return Response(answer.status, answer.read())
        except http.client.HTTPException as error:
            raise OSError(f"garbled answer: {error!r}") from error
        finally:
            connection.close()

    def has(self, path: str) -> bool:
        """Tell whether a path is answered with success; False also if there is no answer."""
        try:
            return self.request("GET", path).status == 200
        except OSError:
            return False


def find_free_port() -> int:
    """Find a port of the loopback interface that nobody listens on at this moment.

    It is below the ports that systems give to outgoing connections: while an API server is down
    for a test of faults, its port must neither be given away, nor connect a client to itself.
    """
    for port in random.sample(_PORTS, k=100):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ClusterError(
        f"Of 100 ports tried between {_PORTS[0]} and {_PORTS[-1]} on 127.0.0.1, none is free. "
        "Look at what listens there (ss -ltn)."
    )


class Kind(NamedTuple):
    """Where the objects of a kind are."""

    prefix: str
    plural: str
    is_namespaced: bool

    def build_path(self, namespace: str | None, name: str = "") -> str:
        """Return the path of an object, or of all in a namespace."""
        folder = f"/namespaces/{quote(namespace)}" if self.is_namespaced and namespace else ""
        return f"{self.prefix}{folder}/{self.plural}" + (f"/{quote(name)}" if name else "")


class ObjectStore:
    """The objects of one API server."""

    def __init__(self, prober: Prober, kinds: dict[tuple[str, str], Kind]) -> None:
        self._prober = prober
        self._kinds = kinds

    def apply(
        self, manifests: Iterable[Manifest], namespace: str | None, *, dry_run: bool = False
    ) -> list[Json]:
        """Create or change objects, definitions and namespaces first; return them as stored."""
        bodies = [dict(body) for manifest in manifests for body in read_manifest(manifest)]
        bodies.sort(key=lambda body: body.get("kind") not in _FIRST)
        return [self._apply(body, namespace, dry_run=dry_run) for body in bodies]

    def get(
        self, api_version: str, kind: str, name: str, namespace: str | None = None
    ) -> Json | None:
        """Return an object, or None if there is none."""
        path = self._find(api_version, kind).build_path(namespace or "default", name)
        answer = self._prober.request("GET", path)
        if answer.status == 404:
            return None
        return _read(answer, f"{kind} {name} cannot be read")

    def delete(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> None:
        """Ask for the deletion of an object; nothing happens if there is none."""
        path = self._find(api_version, kind).build_path(namespace or "default", name)
        answer = self._prober.request("DELETE", path)
        if answer.status != 404:
            _read(answer, f"{kind} {name} cannot be deleted")

    def _apply(self, body: Json, namespace: str | None, *, dry_run: bool) -> Json:
        kind = self._find(body["apiVersion"], body["kind"])
        metadata = body.get("metadata") or {}
        own, name = metadata.get("namespace"), metadata.get("name", "")
        what = f"{body['kind']} {name or metadata.get('generateName', '')}"
        if kind.is_namespaced and own and namespace and own != namespace:
            raise ConfigurationError(
                f"{what} says that it is for the namespace {own!r}, not for {namespace!r}: "
                "leave out one of them."
            )
        query = {"fieldManager": _MANAGER, "fieldValidation": "Strict"}
        query |= {"dryRun": "All"} if dry_run else {}
        path = kind.build_path(own or namespace or "default", name)
        if name:
            url = f"{path}?{urlencode({**query, 'force': 'true'})}"
            answer = self._prober.request("PATCH", url, body, _APPLY)
        else:
            answer = self._prober.request("POST", f"{path}?{urlencode(query)}", body)
        stored = _read(answer, f"{what} cannot be applied")
        if stored["kind"] == "CustomResourceDefinition" and not dry_run:
            self._wait_served(stored)
        return stored

    def _wait_served(self, definition: Json) -> None:
        """Wait until all versions of a custom resource are served, and known to discovery."""
        group, names = definition["spec"]["group"], definition["spec"]["names"]
        missing = [
            f"{group}/{version['name']}"
            for version in definition["spec"]["versions"]
            if version["served"]
        ]
        deadline = time.monotonic() + _SERVING_TIMEOUT
        while missing := [each for each in missing if not self._is_served(each, names)]:
            if time.monotonic() > deadline:
                raise ClusterError(f"{names['plural']} are not served in {', '.join(missing)}.")
            time.sleep(POLL_INTERVAL)

    def _is_served(self, api_version: str, names: Json) -> bool:
        kinds = self._fetch(api_version)
        return names["kind"] in kinds and self._prober.has(
            f"{kinds[names['kind']].build_path(None)}?limit=1"
        )

    def _find(self, api_version: str, kind: str) -> Kind:
        if (api_version, kind) not in self._kinds:
            for name, found in self._fetch(api_version).items():
                self._kinds[api_version, name] = found
        try:
            return self._kinds[api_version, kind]
        except KeyError:
            known = [name for version, name in self._kinds if version == api_version]
            advice = "If it is a custom resource, apply its definition first."
            for nearest in difflib.get_close_matches(kind, known, n=1):  # such as of the plural
                advice = f"Did you mean {nearest!r}?"
            raise ClusterError(f"There is no kind {kind!r} in {api_version!r}. {advice}") from None

    def _fetch(self, api_version: str) -> dict[str, Kind]:
        """Return the kinds of a version of a group by name; nothing if there is no such one."""
        prefix = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        answer = self._prober.request("GET", prefix)
        if answer.status == 404:
            return {}
        resources = _read(answer, f"{api_version} cannot be discovered")["resources"]
        return {
            item["kind"]: Kind(prefix, item["name"], item["namespaced"])
            for item in resources
            if "/" not in item["name"]  # the others are subresources
        }


def read_manifest(manifest: Manifest) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a manifest: of a file, of a folder's files, or the object itself."""
    if isinstance(manifest, Mapping):
        yield from _unpack(manifest, "the object")
        return
    path = Path(manifest)
    if not path.exists():
        raise ConfigurationError(f"There is no file {str(path)!r} to apply.")
    files = [path] if path.is_file() else sorted(path.iterdir())
    for file in files:
        if file == path or file.suffix in _SUFFIXES:
            try:
                documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
            except (yaml.YAMLError, UnicodeDecodeError) as error:
                raise ConfigurationError(f"{str(file)!r} is not YAML: {error}") from None
            for document in documents:
                if document is not None:
                    yield from _unpack(document, str(file))


def _unpack(document: Any, place: str) -> Iterator[Mapping[str, Any]]:
    if not isinstance(document, Mapping) or not {"apiVersion", "kind"} <= document.keys():
        raise ConfigurationError(f"What is in {place} has no apiVersion and kind: {document!r:.80}")
    metadata = document.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise ConfigurationError(f"What is in {place} has no mapping for metadata: {metadata!r}")
    texts = {name: document[name] for name in ("apiVersion", "kind")}
    texts |= {f"metadata.{name}": metadata.get(name) or "" for name in ("name", "namespace")}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise ConfigurationError(
                f"What is in {place} has {name}: {value!r}, which is no text; put it in quotes."
            )
    if document["kind"] == "List":
        for item in document.get("items") or ():
            yield from _unpack(item, place)
    else:
        yield document


def _read(answer: Response, failure: str) -> Json:
    """Return the object in an answer."""
    if answer.status < 400:
        return answer.read_json()
    try:
        reason = answer.read_json()["message"]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        reason = f"HTTP {answer.status}: {answer.body.decode(errors='replace')}"
    raise ClusterError(f"{failure}: {reason}")
