"""What the tests of shared certificates need: Secrets in memory, API servers that are behind."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import contextvars
import copy
import random
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import webop
from tests.kit.webhook_servers import Recorder, trust
from webop.errors import APIConflictError, APIError, APINotFoundError
from webop.servers.certificates.certs import split_certificates
from webop.servers.limits import ClusterAccess, Hosting, current_hosting

Json = dict[str, Any]

LAG = 0.3  # seconds; how far API servers are behind, at most
FAST: Json = {"poll_interval": 0.05, "settle_time": LAG + 0.2, "overlap": 1.2}
SECRET = "svc-webhook-certs"


class Secrets:
    """A ``ClusterAccess`` to the Secrets of one namespace, with ``resourceVersion`` as usual."""

    namespace: str | None = "ns"

    def __init__(self) -> None:
        self.stored: dict[str, Json] = {}
        self.requests: list[str] = []
        #: What to fail with, by methods; None fails no request.
        self.failures: dict[str, APIError | None] = {}
        self.conflicts = 0
        self._version = 0

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        self.requests.append(method)
        await asyncio.sleep(random.uniform(0, 0.01))
        failure = self.failures.get(method)
        if failure is not None:
            raise failure
        if path == "/version":
            return {}
        name = path.removeprefix("/api/v1/namespaces/ns/secrets").strip("/")
        return copy.deepcopy(self._answer(method, name, body))

    async def fetch_certificate(self) -> bytes | None:
        return None

    def put(self, name: str, document: Json) -> Json:
        """Store a Secret, as whoever else would."""
        self._version += 1
        old = self.stored.get(name, {"metadata": {"uid": f"uid{self._version}"}})
        metadata = {**document.get("metadata", {}), "uid": old["metadata"]["uid"]}
        metadata["resourceVersion"] = str(self._version)
        self.stored[name] = {**copy.deepcopy(document), "metadata": metadata}
        return self.stored[name]

    def annotate(self, name: str, **annotations: str) -> None:
        document = copy.deepcopy(self.stored[name])
        present = document["metadata"].setdefault("annotations", {})
        present.update({key.replace("_", "."): value for key, value in annotations.items()})
        self.put(name, document)

    def get_data(self, key: str, name: str = SECRET) -> bytes:
        return base64.b64decode(self.stored[name]["data"][key])

    def count_writes(self) -> int:
        """Tell how often the replicas have tried to write."""
        return len([method for method in self.requests if method != "GET"])

    def _answer(self, method: str, name: str, body: Any) -> Json:
        if method == "POST":
            name = body["metadata"]["name"]
            if name in self.stored:
                self.conflicts += 1
                raise APIConflictError("it exists", status=409)
            return self.put(name, body)
        if name not in self.stored:
            raise APINotFoundError("no such Secret", status=404)
        if method == "GET":
            return self.stored[name]
        known = self.stored[name]["metadata"]
        if body["metadata"].get("resourceVersion") != known["resourceVersion"]:
            self.conflicts += 1
            raise APIConflictError("it has changed", status=409)
        return self.put(name, body)


@dataclass
class Replica:
    hosting: Hosting
    port: int
    configs: list[webop.WebhookClientConfig] = field(default_factory=list)
    recorder: Recorder = field(default_factory=Recorder)

    def get_bundle(self) -> bytes:
        return base64.b64decode(self.configs[-1]["caBundle"] or "")


@dataclass
class Trust:
    """The managed configuration, and the API servers that go by it a bit later.

    It trusts what all live replicas have advertised last, as their records say.
    """

    records: dict[int, bytes] = field(default_factory=dict)
    told: list[tuple[float, frozenset[bytes]]] = field(default_factory=list)

    def announce(self, replica: int, bundle: bytes | None) -> None:
        """Take over what a replica advertises; None if it has gone."""
        self.records.pop(replica, None)
        if bundle is not None:
            self.records[replica] = bundle
        if self.records:
            union = frozenset(split_certificates(b"".join(self.records.values())))
            self.told.append((time.monotonic(), union))

    async def confirm(self, bundle: bytes) -> None:
        while not self.told[-1][1].issuperset(split_certificates(bundle)):
            await asyncio.sleep(0.01)
        await asyncio.sleep(random.uniform(0, 0.05))

    def choose(self) -> bytes:
        """Return the bundle that some API server goes by, however late that one is."""
        since = time.monotonic() - random.uniform(0, LAG)
        known = (union for told, union in reversed(self.told) if told <= since)
        return b"".join(next(known, self.told[0][1]))


@contextlib.asynccontextmanager
async def replicate(
    cluster: ClusterAccess | None, known: Trust | None = None, **options: Any
) -> AsyncIterator[Replica]:
    """Run a server as an operator does, until it is closed."""
    trusted = known or Trust()

    async def confirm(config: webop.WebhookClientConfig) -> None:
        await trusted.confirm(base64.b64decode(config["caBundle"] or ""))

    hosting = Hosting(cluster=cluster, confirm=confirm)
    replica = Replica(hosting, port=0)
    server = webop.WebhookServiceServer(
        **{"service": "svc", "addr": "127.0.0.1", "port": 0, **FAST, **options}
    )
    started = asyncio.Event()

    async def run() -> None:
        current_hosting.set(hosting)
        async for config in server(replica.recorder):
            replica.configs.append(config)
            trusted.announce(id(replica), replica.get_bundle())
            assert server._listener is not None
            replica.port = server._listener.port
            started.set()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(run(), context=contextvars.copy_context())
        await started.wait()
        try:
            yield replica
        finally:
            trusted.announce(id(replica), None)
            task.cancel()


async def shake_hands(port: int, cas: bytes, hostname: str = "svc.ns.svc") -> bytes:
    """Connect as an API server does; return the certificate that is shown, in DER."""
    context = trust(cas)
    _, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=hostname
    )
    try:
        session: ssl.SSLObject = writer.get_extra_info("ssl_object")
        return session.getpeercert(binary_form=True) or b""
    finally:
        writer.transport.abort()


def to_der(pem: bytes) -> bytes:
    """Return the first certificate in DER."""
    text = pem.decode().partition("-----END CERTIFICATE-----")
    return ssl.PEM_cert_to_DER_cert(text[0] + text[1])
