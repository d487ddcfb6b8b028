"""Requests of the bench to the API server: the load, the handled objects, the metrics."""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

from bench.model import BenchError
from webop.objects.shards import SHARDS, parse_shards

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

GROUP = "bench.webop.dev"
HANDLED = "kopf.zalando.org/last-handled-configuration"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
_CONCURRENCY = 50
_PAGE = 1000
_SPEC = {"replicas": 3, "image": "registry.example/app:1.0", "ports": [80, 443]}
_REQUESTS = re.compile(r'^apiserver_request_total\{(.*verb="(\w+)".*)\} (\S+)$', re.MULTILINE)
# The server counts server-side apply separately from other patches.
_CHANGES = ("PATCH", "APPLY", "PUT")


def open_session(server: str, token: str, ca_data: str) -> aiohttp.ClientSession:
    """Open a session without timeouts (turns have theirs); ``ca_data`` is base64 of PEM."""
    tls = ssl.create_default_context(cadata=base64.b64decode(ca_data).decode())
    return aiohttp.ClientSession(
        server,
        headers={"Authorization": f"Bearer {token}"},
        connector=aiohttp.TCPConnector(limit=_CONCURRENCY + 10, ssl=tls),
        timeout=aiohttp.ClientTimeout(total=None),
    )


class Collection:
    """The objects of one custom resource, all in the namespace ``default``."""

    group = GROUP
    # What count_writes() counts. The bench itself creates and deletes the objects.
    counted: tuple[str, ...] = _CHANGES
    query: Mapping[str, str] = {}  # selects the objects

    def __init__(self, session: aiohttp.ClientSession, plural: str) -> None:
        self._session = session
        root = f"/apis/{self.group}" if self.group else "/api"
        self._url = f"{root}/v1/namespaces/default/{plural}"
        self.plural = plural

    async def define(self, *, has_status: bool) -> None:
        """Create the CRD and wait until the resource is served."""
        url = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        await self._call("POST", url, _build_definition(self.plural, has_status=has_status))
        while True:
            async with self._session.get(self._url) as response:
                if response.ok:
                    return
            await asyncio.sleep(0.1)

    async def create(self, name: str, spec: dict[str, Any], handled: str | None = None) -> None:
        """Create one object, optionally with the annotation of a finished handling."""
        head = {"apiVersion": f"{GROUP}/v1", "kind": self.plural.capitalize()}
        meta = {"name": name, "annotations": {HANDLED: handled} if handled else {}}
        await self._call("POST", self._url, {**head, "metadata": meta, "spec": spec})

    async def change(self, name: str, spec: dict[str, Any]) -> None:
        """Change fields of the spec of one object."""
        await self._call("PATCH", f"{self._url}/{name}", {"spec": spec})

    async def fill(self, count: int, handled: str | None = None) -> None:
        """Create objects as fast as the server accepts them."""
        await self._concurrently(lambda name: self.create(name, _SPEC, handled), build_names(count))

    async def load(self, count: int) -> None:
        """Create objects as fast as the server accepts them; return when all are handled."""
        await self.fill(count)
        await self.wait_handled(build_names(count))

    async def make_annotation(self) -> str:
        """Return the operator's annotation of a handled object like those of :meth:`fill`."""
        await self.load(1)
        meta = (await self._call("GET", f"{self._url}/{build_names(1)[0]}"))["metadata"]
        return str(meta["annotations"][HANDLED])

    async def count_handled(self) -> int:
        """Return the number of objects with the annotation of a finished handling."""
        query, total = {"limit": str(_PAGE)}, 0
        while True:
            page = await self._call("GET", self._url, query=query)
            total += sum(
                HANDLED in item["metadata"].get("annotations", ()) for item in page["items"]
            )
            if not (following := page["metadata"].get("continue")):
                return total
            query["continue"] = following

    async def prove(self) -> None:
        """Create one more object, wait until it is handled, and delete it."""
        await self.create("canary", _SPEC)
        try:
            await self.wait_handled(["canary"], fieldSelector="metadata.name=canary")
        finally:  # do not leave it for the next side
            await self._call("DELETE", f"{self._url}/canary")

    async def clear(self) -> None:
        """Delete all objects, also those with finalizers, and wait until they are gone."""
        query = {"limit": str(_PAGE), **self.query}
        while left := (await self._call("GET", self._url, query=query))["items"]:
            await self._concurrently(self.remove, [item["metadata"]["name"] for item in left])

    async def count_writes(self) -> float:
        """Return how many updates of these objects the server has counted in its metrics."""
        async with self._session.get("/metrics", raise_for_status=True) as response:
            found = _REQUESTS.findall(await response.text())
        ours = f'group="{self.group}"', f'resource="{self.plural}"'
        return sum(
            float(number)
            for labels, verb, number in found
            if verb in self.counted and all(each in labels for each in ours)
        )

    async def wait_shared(self, name: str, replicas: int) -> None:
        """Wait until so many replicas own all shards, in fair shares."""
        url, counts = f"{_LEASES}/{name}-shards", list[int]()
        while not (len(counts) == replicas and sum(counts) == SHARDS and _is_fair(counts)):
            await asyncio.sleep(0.1)
            notes = (await self._call("GET", url, may_be_gone=True)).get("metadata", {})
            text = notes.get("annotations", {}).get("webop.dev/shards", "[]")
            counts = [len(parse_shards(one["shards"])) for one in orjson.loads(text)]

    async def wait_handled(self, names: Iterable[str], **query: str) -> None:
        """Watch the collection until the named objects have the annotation of a finished handling.

        Without a resourceVersion, a watch begins with all existing objects. The server ends
        watches with slow readers.
        """

        def is_handled(meta: dict[str, Any]) -> bool:
            return HANDLED in meta.get("annotations", ())

        await self._wait(is_handled, names, **query)

    async def _wait(
        self, condition: Callable[[dict[str, Any]], bool], names: Iterable[str], **query: str
    ) -> None:
        pending, query = set(names), {"watch": "1", **self.query, **query}
        while pending:
            async with self._session.get(self._url, params=query, raise_for_status=True) as events:
                while pending and (line := await events.content.readline()):
                    meta = orjson.loads(line)["object"]["metadata"]
                    if condition(meta):
                        pending.discard(meta["name"])

    async def _concurrently(self, fn: Callable[[str], Awaitable[None]], names: list[str]) -> None:
        rest = iter(names)

        async def work() -> None:
            for name in rest:
                await fn(name)

        async with asyncio.TaskGroup() as group:
            for _ in range(_CONCURRENCY):
                group.create_task(work())

    async def remove(self, name: str) -> None:
        """Delete one object, also if it has finalizers."""
        url = f"{self._url}/{name}"
        response = await self._call("DELETE", url, may_be_gone=True)
        if response["kind"] != "Status":  # it still exists, because of its finalizers
            await self._call("PATCH", url, {"metadata": {"finalizers": None}}, may_be_gone=True)

    async def _call(
        self,
        method: str,
        url: str,
        body: object = None,
        *,
        query: dict[str, str] | None = None,
        may_be_gone: bool = False,
    ) -> Any:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Content-Type": kind}
        request = self._session.request(method, url, json=body, headers=headers, params=query)
        async with request as response:
            content = await response.read()
            if not response.ok and not (may_be_gone and response.status == 404):
                raise BenchError(f"{method} {url}: {response.status} {content[:200]!r}")
            return orjson.loads(content)


class Children(Collection):
    """The ConfigMaps that the operators give to objects, two to each: see ``build`` in handlers."""

    group = ""
    counted = (*_CHANGES, "POST", "DELETE")
    query = MappingProxyType({"labelSelector": "app=bench"})

    def __init__(self, session: aiohttp.ClientSession) -> None:
        super().__init__(session, "configmaps")

    async def wait_complete(self, parents: Iterable[str]) -> None:
        """Watch until each of these objects has its two ConfigMaps, and is their owner."""

        def is_owned(meta: dict[str, Any]) -> bool:
            owners = [owner["name"] for owner in meta.get("ownerReferences", ())]
            return owners == [meta["name"].rpartition("-")[0]]

        names = [f"{parent}-{part}" for parent in parents for part in "ab"]
        await self._wait(is_owned, names)

    async def prove_owned(self, things: Collection) -> None:
        """Create one more object, wait until it has its ConfigMaps, and delete all of them."""
        await things.create("canary", _SPEC)
        try:
            await self.wait_complete(["canary"])
        finally:  # do not leave it for the next side
            await things.remove("canary")
            for part in "ab":
                await self.remove(f"canary-{part}")


def _is_fair(counts: list[int]) -> bool:
    return max(counts) - min(counts) <= 1


def build_names(count: int) -> list[str]:
    """Return the names of that many objects."""
    return [f"thing-{number}" for number in range(count)]


def _build_definition(plural: str, *, has_status: bool) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "kind": plural.capitalize()}
    versions = [{**version, "subresources": {"status": {}} if has_status else {}}]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": versions},
    }
