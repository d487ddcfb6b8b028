"""A stand-in for an API server that knows webhook configurations, and managers that use it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

import webop
from tests.kit.httpx_client import answer_by
from tests.kit.waiting import eventually
from webop.admission.configurations.agreement import PREFIX, ReplicaRecord, decode_record
from webop.admission.configurations.management import ConfigurationManager
from webop.client.api import Client
from webop.runtime.operator import Operator, OperatorOptions

Json = dict[str, Any]
KEX = webop.Resource("kopf.dev", "v1", "kopfexamples")
PODS = webop.Resource("", "v1", "pods", namespaced=True)
VALIDATING = "validatingwebhookconfigurations"
MUTATING = "mutatingwebhookconfigurations"
REVIEW = "selfsubjectreviews"
LOOK = [f"PATCH {VALIDATING}", f"PATCH {MUTATING}"]


@dataclass
class FakeConfigurations:
    """An API server that knows webhook configurations, and can be told to fail."""

    stored: dict[str, Json] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    failures: list[int | Exception] = field(default_factory=list)
    review: int = 201
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    conflicts: int = 0
    # The removal of mutating webhooks waits for the second event; the first tells that it does.
    removing: asyncio.Event = field(default_factory=asyncio.Event)
    removable: asyncio.Event | None = None

    async def handle(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        body = json.loads(content) if content else {}
        if REVIEW in request.url.path:
            return self._answer_review()
        plural = next(p for p in (VALIDATING, MUTATING) if p in request.url.path)
        self.requests.append(f"{request.method} {plural}")
        await self.gate.wait()
        for _ in range(10):  # as on a real network, others come in between
            await asyncio.sleep(0)
        if plural == MUTATING and body.get("webhooks") == [] and self.removable is not None:
            self.removing.set()
            await self.removable.wait()
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return answer_status(failure)
        handle = self._create if request.method == "POST" else self._patch
        return handle(plural, body)

    def _answer_review(self) -> httpx.Response:
        if self.review != 201:
            return answer_status(self.review)
        now = (dt.datetime.now(dt.UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {"userInfo": {"username": "system:serviceaccount:ns:me"}}
        return httpx.Response(201, json={"metadata": {"creationTimestamp": now}, "status": status})

    def _create(self, plural: str, body: Json) -> httpx.Response:
        if plural in self.stored:
            return answer_status(409)
        self.put(plural, body["webhooks"], body["metadata"]["annotations"])
        return httpx.Response(201, json=self.stored[plural])

    def _patch(self, plural: str, patch: Json) -> httpx.Response:
        found = self.stored.get(plural)
        if found is None:
            return answer_status(404)
        metadata = found["metadata"]
        changed = patch.get("metadata", {})
        if (
            changed.get("resourceVersion", metadata["resourceVersion"])
            != (metadata["resourceVersion"])
        ):
            self.conflicts += 1
            return answer_status(409)
        if patch:
            annotations = {**metadata["annotations"], **changed.get("annotations", {})}
            kept = {key: text for key, text in annotations.items() if text is not None}
            self.put(plural, {**found, **patch}["webhooks"], kept)
        return httpx.Response(200, json=self.stored[plural])

    def put(self, plural: str, webhooks: list[Json], annotations: Json | None = None) -> None:
        """Store a configuration as a new version."""
        version = f"{time.monotonic_ns()}"
        metadata = {"resourceVersion": version, "annotations": annotations or {}}
        self.stored[plural] = {"metadata": metadata, "webhooks": webhooks}

    def get_names(self) -> dict[str, list[str]]:
        return {
            plural: [w["name"].removesuffix(".auto.kopf.dev") for w in found["webhooks"]]
            for plural, found in self.stored.items()
        }

    def get_records(self, plural: str = VALIDATING) -> list[ReplicaRecord]:
        annotations = self.stored[plural]["metadata"]["annotations"]
        return [decode_record(text) for key, text in annotations.items() if key.startswith(PREFIX)]


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
    registry: webop.OperatorRegistry,
    server: FakeConfigurations,
    config: webop.WebhookClientConfig | None = None,
    **admission: Any,
) -> AsyncIterator[Managing]:
    """Run a manager that knows the resource and where the webhooks are served."""
    settings = webop.OperatorSettings()
    settings.admission.managed = "auto.kopf.dev"
    settings.networking.error_backoffs = ()
    for name, value in admission.items():
        setattr(settings.admission, name, value)
    operator = Operator(OperatorOptions(registry=registry, settings=settings))
    info = webop.ConnectionInfo(server="http://api", default_namespace="mine")
    vault, factory = webop.Vault({"x": info}), answer_by(server.handle)
    async with Client(vault, settings.networking, transport_factory=factory) as client:
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
