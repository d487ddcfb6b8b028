"""Requests to the API server of a local cluster: check its readiness; apply, get, delete objects.

Tests prepare and check a cluster with these, without kubectl and client libraries. Kinds come from
the API server's discovery (Kubernetes API, "API discovery"); objects are applied with
"Server-Side Apply", like ``kubectl apply --server-side``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import yaml

from webop.aio.dedicated_threads import DedicatedThreads
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo
from webop.client.http.requests import APPLY_PATCH, JSON
from webop.client.http.streams import StreamLimits
from webop.client.kinds import Kinds
from webop.client.standalone import connect_command
from webop.client.waiting import wait_served
from webop.errors import APIError, APINotFoundError, ClusterError, ConfigurationError
from webop.models.crds import build_crds
from webop.models.definitions import list_versions
from webop.models.fitting import dump
from webop.objects.resources import Resource, select_objects

T = TypeVar("T")

_LIMITS = StreamLimits(connect=10.0, silence=10.0)
_PORTS = range(20000, 32000)

Json = dict[str, Any]
Manifest = (
    str | os.PathLike[str] | Mapping[str, Any] | pydantic.BaseModel | type[pydantic.BaseModel]
)
_MANAGER = "webop-tests"
_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
# Other objects depend on these.
_FIRST = ("CustomResourceDefinition", "Namespace")
_SERVING_TIMEOUT = 30.0  # seconds; a CRD is usually served after some tenths of one


class AdminClient:
    """Requests to one API server as the administrator, also for objects by their kinds.

    All methods block. A thread with a separate event loop sends the requests, because the caller
    can run in a loop.
    """

    def __init__(self, server: str, ca_data: str, token: str) -> None:
        self.server = server
        self._info = ConnectionInfo(server, ca_data=ca_data, token=token)
        self._kinds: dict[tuple[str, str], Resource] = {}

    def request(self, method: str, path: str, body: Json | None = None) -> Json:
        """Send a request and return the object in the response.

        Raises:
            ClusterError: the API server refuses it, or does not respond.
        """

        async def send(client: Client) -> Json:
            with _explaining(f"{method} {path} failed"):
                return dict(await client.request(method, path, body=body))

        return self._run(send)

    def has(self, path: str) -> bool:
        """Return whether the response to a GET is a success; False also without a response."""

        async def look(client: Client) -> bool:
            with contextlib.suppress(APIError, TimeoutError):
                async with client.stream(path, limits=_LIMITS):
                    return True
            return False

        return self._run(look)

    def apply(
        self, manifests: Iterable[Manifest], namespace: str | None, *, dry_run: bool = False
    ) -> list[Json]:
        """Create or change objects, CRDs and namespaces first; return them as stored."""
        bodies = [dict(body) for manifest in manifests for body in read_manifest(manifest)]
        bodies.sort(key=lambda body: body.get("kind") not in _FIRST)

        async def apply(client: Client) -> list[Json]:
            return [await self._apply(client, body, namespace, dry_run=dry_run) for body in bodies]

        return self._run(apply)

    def send(
        self, method: str, api_version: str, kind: str, name: str, namespace: str | None
    ) -> Json | None:
        """Read or delete an object, and return the response; None if it does not exist."""

        async def send(client: Client) -> Json | None:
            with _explaining(f"Cannot {method.lower()} {kind} {name}"):
                resource = await self._find(client, api_version, kind)
                path = resource.get_url(namespace=namespace or "default", name=name)
                try:
                    return dict(await client.request(method, path))
                except APINotFoundError:
                    return None

        return self._run(send)

    def _run(self, action: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            async with connect_command(info=self._info) as client:
                return await action(client)

        return DedicatedThreads("webop-cluster").submit(asyncio.run, run()).result()

    async def _apply(
        self, client: Client, body: Json, namespace: str | None, *, dry_run: bool
    ) -> Json:
        metadata = body.get("metadata") or {}
        own, name = metadata.get("namespace"), metadata.get("name", "")
        what = f"{body['kind']} {name or metadata.get('generateName', '')}"
        params = {"fieldManager": _MANAGER, "fieldValidation": "Strict"}
        params |= {"dryRun": "All"} if dry_run else {}
        method, content_type = "POST", JSON
        if name:
            method, content_type, params["force"] = "PATCH", APPLY_PATCH, "true"
        with _explaining(f"Cannot apply {what}"):
            kind = await self._find(client, body["apiVersion"], body["kind"])
            if kind.namespaced and own and namespace and own != namespace:
                raise ConfigurationError(
                    f"{what} has the namespace {own!r}, but namespace= is {namespace!r}. Remove "
                    "one of them."
                )
            path = kind.get_url(namespace=own or namespace or "default", name=name or None)
            stored = dict(
                await client.request(
                    method, path, params=params, body=body, content_type=content_type
                )
            )
            is_new = stored["kind"] == "CustomResourceDefinition" and not dry_run
            if is_new and (missing := await wait_served(client, stored, _SERVING_TIMEOUT)):
                raise ClusterError(
                    f"The API server does not serve {', '.join(sorted(map(str, missing)))} "
                    f"{_SERVING_TIMEOUT:g} s after the CRD was applied."
                )
        return stored

    async def _find(self, client: Client, api_version: str, kind: str) -> Resource:
        known = api_version, kind
        if known not in self._kinds:
            try:
                self._kinds[known] = await Kinds(client).find(select_objects(api_version, kind))
            except APINotFoundError as exc:
                similar = str(exc).partition(" in the cluster.")[2]
                raise ClusterError(
                    f"There is no kind {kind!r} in {api_version!r}.{similar} If it is a custom "
                    "resource, apply its CRD first."
                ) from None
        return self._kinds[known]


@contextlib.contextmanager
def _explaining(failure: str) -> Iterator[None]:
    """Raise the errors of requests as those of a cluster, with the words of the API server."""
    try:
        yield
    except APIError as exc:
        text = str(exc)
        reason = text.partition(": ")[2] if text.startswith("Cannot ") else text
        raise ClusterError(f"{failure}: {reason}") from None


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
    """Yield the objects of a file, of the files in a folder, or the given object itself.

    The object of a class is the definition of its kind.
    """
    if isinstance(manifest, type):
        yield from build_crds(list_versions(manifest))
        return
    if isinstance(manifest, pydantic.BaseModel):
        manifest = dump(manifest)
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
