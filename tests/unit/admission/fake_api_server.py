"""The API server in memory, which can fail, and managers of webhook configurations that use it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

import webop
from tests.kit.httpx_client import build_request, build_response, connect
from tests.kit.waiting import eventually
from webop.admission.configurations.management import ConfigurationManager
from webop.runtime.operator import Operator, OperatorOptions
from webop.testing.apiserver import Cluster

Json = dict[str, Any]
KEX = webop.Resource("kopf.dev", "v1", "kopfexamples")
PODS = webop.Resource("", "v1", "pods", namespaced=True)
VALIDATING = "validatingwebhookconfigurations"
MUTATING = "mutatingwebhookconfigurations"
KINDS = (VALIDATING, MUTATING)
GROUP = "admissionregistration.k8s.io"
LOOK = [f"PATCH {VALIDATING}", f"PATCH {MUTATING}"]


@dataclass
class FailingServer:
    """The API server of the simulation, which can be told to fail."""

    cluster: Cluster = field(
        default_factory=lambda: Cluster(lambda: dt.datetime.now(dt.UTC), random.Random(1))
    )
    requests: list[str] = field(default_factory=list)
    failures: list[int | Exception] = field(default_factory=list)
    review: int = 201
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    # The removal of mutating webhooks waits for the second event; the first tells that it does.
    removing: asyncio.Event = field(default_factory=asyncio.Event)
    removable: asyncio.Event | None = None

    @property
    def stored(self) -> dict[str, Json]:
        """The configurations, by the plural names of their kinds."""
        found = {kind: self.cluster.get_objects(f"{kind}.{GROUP}") for kind in KINDS}
        return {kind: raw for kind, objects in found.items() for raw in objects.values()}

    async def handle(self, request: httpx.Request) -> httpx.Response:
        content, path = await request.aread(), request.url.path
        if "selfsubjectreviews" in path:
            return self._carry_out(request) if self.review == 201 else answer_status(self.review)
        plural = next(kind for kind in KINDS if kind in path)
        self.requests.append(f"{request.method} {plural}")
        await self.gate.wait()
        for _ in range(10):  # as on a real network, others come in between
            await asyncio.sleep(0)
        is_removal = plural == MUTATING and b'"webhooks":[]' in content
        if is_removal and self.removable is not None:
            self.removing.set()
            await self.removable.wait()
        if not self.failures:
            return self._carry_out(request)
        failure = self.failures.pop(0)
        if isinstance(failure, Exception):
            raise failure
        return answer_status(failure)

    def _carry_out(self, request: httpx.Request) -> httpx.Response:
        sent = build_request(request, "system:serviceaccount:ns:me")
        return build_response(self.cluster.handle(sent))

    def put(self, plural: str, webhooks: list[Json], annotations: Json | None = None) -> None:
        """Create a configuration."""
        metadata = {"name": "auto.kopf.dev", "annotations": annotations or {}}
        body = {"metadata": metadata, "webhooks": webhooks}
        url = f"http://api/apis/{GROUP}/v1/{plural}"
        assert self._carry_out(httpx.Request("POST", url, json=body)).status_code == 201

    def get_names(self) -> dict[str, list[str]]:
        return {
            plural: [w["name"].removesuffix(".auto.kopf.dev") for w in found.get("webhooks", [])]
            for plural, found in self.stored.items()
        }


def answer_status(code: int) -> httpx.Response:
    details = {"name": "auto.kopf.dev"}
    body = {"kind": "Status", "message": "Not now.", "code": code, "details": details}
    return httpx.Response(code, json=body)


@dataclass
class Managing:
    """A manager at work."""

    manager: ConfigurationManager
    task: asyncio.Task[None]
    operator: Operator

    async def wait_applied(self) -> None:
        """Wait until the configurations are as they should be."""
        is_applied = self.manager.is_applied
        await eventually(lambda: self.task.done() or is_applied.is_set())
        assert not self.task.done(), self.task.exception()


@contextlib.asynccontextmanager
async def manage(
    server: FailingServer, config: webop.WebhookClientConfig | None = None, **admission: Any
) -> AsyncIterator[Managing]:
    """Run a manager that knows the resource and where the webhooks are served."""
    settings = webop.OperatorSettings()
    settings.admission.managed = "auto.kopf.dev"
    settings.networking.error_backoffs = ()
    for name, value in admission.items():
        setattr(settings.admission, name, value)
    operator = Operator(OperatorOptions(settings=settings))
    info = webop.ConnectionInfo(server="http://api", default_namespace="mine")
    async with connect(server.handle, settings.networking, webop.Vault({"x": info})) as client:
        manager = operator.webhooks.manager = ConfigurationManager(
            operator.context, client, lambda: True
        )
        task = asyncio.create_task(manager.run())
        operator.context.cluster_view.update([KEX])
        manager.announce(config or {"url": "https://host"})
        try:
            yield Managing(manager, task, operator)
        finally:
            task.cancel()
            await asyncio.wait([task])
