"""A rolling restart under load, and a rotation of the CA; counts failed and unchecked creations.

Objects are created at a steady rate: good ones, which the mutating webhook must stamp, and bad
ones, which the validating webhook must deny. At the same time, all replicas are replaced one after
another, and the Secret with the certificates is deleted, which causes new certificates with a new
CA.
"""

from __future__ import annotations

import asyncio
import base64
import signal
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from tests.kit.operators import Kind
from tests.kit.waiting import eventually
from tools.long_runs import Say, option
from tools.soak.balancer import Balancer, open_service
from tools.soak.rollout.replicas import HANDLERS, Plan, Replica
from tools.soak.steady_load import SteadyLoad, T
from webop.objects.resources import Resource
from webop.servers.certificates.certs import build_certificate_self_signed

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

SECRETS = Resource("", "v1", "secrets", "Secret", namespaced=True)
SECRET = "webhooks-webhook-certs"
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
_PLURAL = "webhookconfigurations"
_PATIENCE = 90.0  # seconds


@dataclass(frozen=True)
class Times:
    rate: float = option(50.0, "requests a second; of creations, every fourth object is bad")
    lag: float = option(1.0, "seconds until the balancer applies a change of readiness")
    shutdown_delay: float = option(10.0, "seconds from SIGTERM until the port is closed")
    settle: float = option(5.0, "seconds from a new CA to the first certificate signed by it")


@dataclass
class Tally:
    created: int = 0
    refused: int = 0
    failed: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    slowest: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)

    def take(self, name: str, is_bad: bool, answer: httpx.Response) -> None:
        self.statuses[answer.status_code] += 1
        if answer.status_code == 201:
            spec = answer.json()["spec"]
            self.created += 1
            if is_bad or spec.get("stamped") is not True:
                self.unchecked.append(f"{name}: {spec}")
        elif is_bad and answer.status_code == 400 and "This is bad." in answer.text:
            self.refused += 1
        else:
            self.failed.append(f"{name}: {answer.status_code} {answer.text[:300]}")

    def __str__(self) -> str:
        return (
            f"{self.created} created, {self.refused} correctly denied, "
            f"{len(self.failed)} failed, {len(self.unchecked)} unchecked, "
            f"slowest {self.slowest:.2f} s"
        )


class Load(SteadyLoad[Tally]):
    def __init__(self, stage: Stage, prefix: str, rate: float) -> None:
        super().__init__(Tally(), rate)
        self._http, self._url, self._kind = stage.http, stage.url, stage.kind
        self._prefix = prefix

    async def act(self, number: int) -> None:
        """Send one request, and count its result."""
        is_bad = number % 4 == 3
        name = f"{self._prefix}-{'bad' if is_bad else 'good'}-{number}"
        body = {
            "apiVersion": self._kind.resource.api_version,
            "kind": self._kind.kind,
            "metadata": {"name": name},
            "spec": {"bad": True} if is_bad else {},
        }
        begun = time.monotonic()
        answer = await self._http.post(self._url, json=body)
        self.tally.slowest = max(self.tally.slowest, time.monotonic() - begun)
        self.tally.take(name, is_bad, answer)


@dataclass
class Stage:
    """The cluster, the balancer that plays the Service, and the replicas behind it."""

    http: httpx.AsyncClient
    cluster: LocalCluster
    namespace: str
    kind: Kind
    balancer: Balancer
    plan: Plan
    replicas: list[Replica] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.kind.resource.get_url(namespace=self.namespace)

    async def add_replica(self) -> None:
        """Start a replica, and wait until the balancer sends connections to it."""
        replica = await self.plan.start()
        self.replicas.append(replica)
        self.balancer.add(replica.endpoint)
        await replica.wait_listed()

    async def add_replicas(self, count: int) -> None:
        """Start replicas at the same time, as a Deployment does."""
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self.add_replica())

    async def replace_oldest(self, count: int = 1) -> None:
        """Do a rolling update: start new replicas first, then stop as many of the oldest."""
        await self.add_replicas(count)
        oldest, self.replicas = self.replicas[:count], self.replicas[count:]
        await asyncio.gather(*map(self._stop, oldest))

    async def _stop(self, replica: Replica) -> None:
        # uvicorn ends by the signal that it received.
        expected = -signal.SIGTERM if self.plan.way.startswith("uvicorn") else 0
        try:
            code = await replica.command.stop()
            assert code == expected, f"exit code {code}:\n{replica.command.output}"
        finally:
            self.balancer.remove(replica.endpoint)
            await replica.command.kill()

    async def has_webhook(self, handler: str) -> bool:
        name = self.plan.variables["MANAGED"]
        answer = await self.http.get(f"{_CONFIGURATIONS}/validating{_PLURAL}/{name}")
        return [hook["name"] for hook in answer.json()["webhooks"]] == [f"{handler}.{name}"]

    async def read_certificate(self) -> str:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", self.balancer.port, ssl=context)
        try:
            der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            return ssl.DER_cert_to_PEM_cert(der)
        finally:
            writer.transport.abort()

    async def rotate(self) -> None:
        """Delete the Secret, and wait until all replicas use certificates of another CA."""
        before = await self.read_certificate()
        path = SECRETS.get_url(namespace=self.namespace, name=SECRET)
        (await self.http.delete(path)).raise_for_status()
        for _ in self.replicas:  # the balancer alternates between them
            await eventually(
                self.read_certificate, "another certificate", _PATIENCE, check=before.__ne__
            )


@asynccontextmanager
async def set_up(
    cluster: LocalCluster,
    namespace: str,
    kind: Kind,
    folder: Path,
    times: Times,
    *,
    way: str = "managed",
    handlers: str = "",
) -> AsyncIterator[Stage]:
    """Start three replicas behind a Service, in one of the ways to serve, or of other handlers."""
    pair = build_certificate_self_signed([f"webhooks.{namespace}.svc"])
    (folder / "cert.pem").write_bytes(pair.cert)
    (folder / "key.pem").write_bytes(pair.key)
    async with open_service(cluster, namespace, times.lag, 60) as (http, balancer):
        variables = {
            "KUBECONFIG": str(cluster.kubeconfig),
            "NAMESPACE": namespace,
            "SERVICE_PORT": str(balancer.port),
            "MANAGED": f"{namespace}.rollout.webop.dev",
            "GROUP": kind.group,
            "PLURAL": kind.plural,
            "SETTLE_TIME": str(times.settle),
            "WEBOP_ADMISSION__SHUTDOWN_DELAY": str(times.shutdown_delay),
        }
        stage = Stage(http, cluster, namespace, kind, balancer, Plan(folder, variables, way))
        if handlers:
            stage.plan.release(handlers)
        try:
            await stage.add_replicas(3)
            if way != "managed":
                await _configure(stage)
            yield stage
        finally:
            for replica in stage.replicas:
                await replica.command.kill()
            await _delete_configurations(stage)


async def _configure(stage: Stage) -> None:
    """Apply webhook configurations as an administrator; wait until the API server uses them."""
    namespace, port = stage.namespace, stage.balancer.port
    bundle = base64.b64encode((stage.plan.folder / "cert.pem").read_bytes()).decode()
    rule = {
        "apiGroups": [stage.kind.group],
        "apiVersions": ["v1"],
        "resources": [stage.kind.plural],
        "operations": ["CREATE"],
    }
    for kind, handler in (("Mutating", "stamp"), ("Validating", "check")):
        service = {"namespace": namespace, "name": "webhooks", "path": f"/{handler}", "port": port}
        webhook = {
            "name": f"{handler}.rollout.webop.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": {"service": service, "caBundle": bundle},
            "rules": [rule],
        }
        body = {"metadata": {"name": stage.plan.variables["MANAGED"]}, "webhooks": [webhook]}
        answer = await stage.http.post(f"{_CONFIGURATIONS}/{kind.lower()}{_PLURAL}", json=body)
        answer.raise_for_status()

    async def is_in_force() -> bool:
        body = {
            "apiVersion": stage.kind.resource.api_version,
            "kind": stage.kind.kind,
            "metadata": {"name": f"probe-{time.monotonic_ns()}"},
            "spec": {"bad": True},
        }
        answer = await stage.http.post(stage.url, params={"dryRun": "All"}, json=body)
        return answer.status_code == 400

    await eventually(is_in_force, "the webhook configurations", _PATIENCE)


async def _delete_configurations(stage: Stage) -> None:
    for kind in ("mutating", "validating"):
        name = stage.plan.variables["MANAGED"]
        await stage.http.delete(f"{_CONFIGURATIONS}/{kind}{_PLURAL}/{name}")


async def play_renaming(stage: Stage, times: Times, say: Say) -> Tally:
    """Roll out a version with a renamed validating handler, under load."""
    stage.plan.release(HANDLERS.replace("def check(", "def inspect("))
    load = Load(stage, "renaming", times.rate)
    async with load.run() as tally:
        for number in range(1, 4):
            await stage.replace_oldest()
            say(f"Updated replica {number} of 3: {tally}")
        await eventually(lambda: stage.has_webhook("inspect"), "the renamed webhook", _PATIENCE)
        await asyncio.sleep(2 * times.lag)
    return tally


async def play(stage: Stage, load: SteadyLoad[T], times: Times, say: Say) -> T:
    """Replace all replicas and rotate the CA under load; return the results."""
    async with load.run() as tally:
        for number in range(1, 4):
            await stage.replace_oldest()
            say(f"Replaced replica {number} of 3: {tally}")
        await stage.replace_oldest(2)
        say(f"Replaced two replicas at once: {tally}")
        if stage.plan.way == "managed":
            await stage.rotate()
            say(f"Rotated the CA: {tally}")
        await asyncio.sleep(2 * times.lag)  # so that late faults are seen
    return tally
