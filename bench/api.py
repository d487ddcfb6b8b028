"""The API server from the bench's side: the load, who has been handled, what the server saw."""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

from bench.model import BenchError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

GROUP = "bench.webop.dev"
HANDLED = "kopf.zalando.org/last-handled-configuration"
_CONCURRENCY = 50
_PAGE = 1000
_SPEC = {"replicas": 3, "image": "registry.example/app:1.0", "ports": [80, 443]}
# The server counts server-side apply apart from the other patches.
_WRITES = re.compile(
    r'^apiserver_request_total\{(.*verb="(?:PATCH|APPLY|PUT)".*)\} (\S+)$', re.MULTILINE
)


def open_session(server: str, token: str, ca_data: str) -> aiohttp.ClientSession:
    """Open a session without timeouts, the turns have theirs. The CA is base64 of PEM."""
    tls = ssl.create_default_context(cadata=base64.b64decode(ca_data).decode())
    return aiohttp.ClientSession(
        server,
        headers={"Authorization": f"Bearer {token}"},
        connector=aiohttp.TCPConnector(limit=_CONCURRENCY + 10, ssl=tls),
        timeout=aiohttp.ClientTimeout(total=None),
    )


class Collection:
    """The objects of one custom resource, all in the namespace ``default``."""

    def __init__(self, session: aiohttp.ClientSession, plural: str) -> None:
        self._session = session
        self._url = f"/apis/{GROUP}/v1/namespaces/default/{plural}"
        self.plural = plural

    async def define(self, *, has_status: bool) -> None:
        """Create the resource's definition and wait until it is served."""
        url = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        await self._call("POST", url, _build_definition(self.plural, has_status=has_status))
        while True:
            async with self._session.get(self._url) as response:
                if response.ok:
                    return
            await asyncio.sleep(0.1)

    async def create(self, name: str, spec: dict[str, Any], mark: str | None = None) -> None:
        """Create one object, with the mark of a handling that nobody has done, if asked to."""
        head = {"apiVersion": f"{GROUP}/v1", "kind": self.plural.capitalize()}
        meta = {"name": name, "annotations": {HANDLED: mark} if mark else {}}
        await self._call("POST", self._url, {**head, "metadata": meta, "spec": spec})

    async def change(self, name: str, spec: dict[str, Any]) -> None:
        """Change fields of the spec of one object."""
        await self._call("PATCH", f"{self._url}/{name}", {"spec": spec})

    async def fill(self, count: int, mark: str | None = None) -> None:
        """Create objects as fast as the server takes them."""
        await self._concurrently(lambda name: self.create(name, _SPEC, mark), build_names(count))

    async def load(self, count: int) -> None:
        """Create objects as fast as the server takes them; return when all have been handled."""
        await self.fill(count)
        await self.wait_handled(build_names(count))

    async def make_mark(self) -> str:
        """Return the mark that the running operator puts on an object such as `fill` creates."""
        await self.load(1)
        meta = (await self._call("GET", f"{self._url}/{build_names(1)[0]}"))["metadata"]
        return str(meta["annotations"][HANDLED])

    async def count_handled(self) -> int:
        """Count the objects that bear the mark of a finished handling."""
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
        """Return when one more object has been handled and removed again."""
        await self.create("canary", _SPEC)
        try:
            await self.wait_handled(["canary"], fieldSelector="metadata.name=canary")
        finally:  # the next side must not find it
            await self._call("DELETE", f"{self._url}/canary")

    async def clear(self) -> None:
        """Delete all objects, whatever finalizers operators have left, and wait for their end."""
        query = {"limit": str(_PAGE)}
        while left := (await self._call("GET", self._url, query=query))["items"]:
            await self._concurrently(self._remove, [item["metadata"]["name"] for item in left])

    async def count_writes(self) -> float:
        """Read from the server's metrics how many updates of these objects it has served."""
        async with self._session.get("/metrics", raise_for_status=True) as response:
            found = _WRITES.findall(await response.text())
        marks = f'group="{GROUP}"', f'resource="{self.plural}"'
        return sum(float(number) for labels, number in found if all(m in labels for m in marks))

    async def wait_handled(self, names: Iterable[str], **query: str) -> None:
        """Follow the collection until the named objects bear the mark of a finished handling.

        Without a resourceVersion, a watch begins with all objects that exist. The server ends
        those watches whose readers are too slow for it.
        """
        pending, query = set(names), {"watch": "1", **query}
        while pending:
            async with self._session.get(self._url, params=query, raise_for_status=True) as events:
                while pending and (line := await events.content.readline()):
                    meta = orjson.loads(line)["object"]["metadata"]
                    if HANDLED in meta.get("annotations", ()):
                        pending.discard(meta["name"])

    async def _concurrently(self, fn: Callable[[str], Awaitable[None]], names: list[str]) -> None:
        rest = iter(names)

        async def work() -> None:
            for name in rest:
                await fn(name)

        async with asyncio.TaskGroup() as group:
            for _ in range(_CONCURRENCY):
                group.create_task(work())

    async def _remove(self, name: str) -> None:
        url = f"{self._url}/{name}"
        answer = await self._call("DELETE", url, may_be_gone=True)
        if answer["kind"] != "Status":  # it still exists, for its finalizers
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


def build_names(count: int) -> list[str]:
    """Return the names of the objects that are created when so many are wanted."""
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
