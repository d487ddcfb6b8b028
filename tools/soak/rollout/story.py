"""A rolling restart under load, and a rotation of the CA; counts failed and unchecked requests.

Objects are created at a steady rate: good ones, which the mutating webhook must stamp, and bad
ones, which the validating webhook must deny. At the same time, all replicas are replaced one after
another, and the Secret with the certificates is deleted, which causes new certificates with a new
CA. In the way "converting", objects of a kind with several versions are read and written instead
(:mod:`tools.soak.rollout.conversions`).
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import httpx

from tests.kit.operators import Kind
from tests.kit.waiting import eventually
from tools.long_runs import Say, option
from tools.soak.balancer import Balancer, open_service
from tools.soak.fleet import RUN, Fleet
from tools.soak.handlers import CHECKING, HEAD, SERVING, SERVING_FILES, STAMPING
from tools.soak.steady_load import run_steadily
from webop.objects.resources import Resource
from webop.servers.certificates.certs import build_certificate_self_signed

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

SECRETS = Resource("", "v1", "secrets", "Secret", namespaced=True)
SECRET = "webhooks-webhook-certs"
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
_PLURAL = "webhookconfigurations"
_PATIENCE = 90.0  # seconds
_UVICORN = ["uvicorn", "--port={port}", "--host=127.0.0.1", "--no-access-log"]
_UVICORN += ["--ssl-certfile=cert.pem", "--ssl-keyfile=key.pem", "webop.app:app"]

MANAGED = HEAD + SERVING + STAMPING + CHECKING
_CONVERTING = """
from tests.kit.versioned_shops import declare

declare(webop.get_default_registry())
"""
#: The ways to serve: the server, and the handlers. Those of uvicorn and of files have webhook
#: configurations of an administrator.
WAYS = {
    "managed": (RUN, MANAGED),
    "converting": (RUN, HEAD + SERVING + _CONVERTING),
    "static": (RUN, HEAD + SERVING_FILES + STAMPING + CHECKING),
    "uvicorn": ([*_UVICORN, "--timeout-keep-alive=120"], HEAD + STAMPING + CHECKING),
}


@dataclass(frozen=True)
class Times:
    rate: float = option(50.0, "requests a second; of creations, every fourth object is bad")
    lag: float = option(1.0, "seconds until the balancer applies a change of readiness")
    shutdown_delay: float = option(10.0, "seconds from SIGTERM until the port is closed")
    settle: float = option(5.0, "seconds from a new CA to the first certificate signed by it")
    replicas: int = option(3, "replicas")


class Load(Protocol):
    """What is sent at a steady rate, and what came of it, as its text says."""

    @property
    def problems(self) -> list[str]:
        """What failed, or was wrong."""

    async def act(self, number: int) -> None:
        """Send one request, and count its result."""


@dataclass
class Creations:
    """Good and bad objects."""

    stage: Stage
    prefix: str
    created: int = 0
    refused: int = 0
    failed: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    slowest: float = 0.0

    @property
    def problems(self) -> list[str]:
        """What failed, or went unchecked."""
        return self.failed + self.unchecked

    async def act(self, number: int) -> None:
        is_bad = number % 4 == 3
        name = f"{self.prefix}-{'bad' if is_bad else 'good'}-{number}"
        begun = time.monotonic()
        answer = await self.stage.create(name, is_bad=is_bad)
        self.slowest = max(self.slowest, time.monotonic() - begun)
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


@dataclass
class Stage:
    """The cluster, the balancer that plays the Service, and the replicas behind it."""

    http: httpx.AsyncClient
    balancer: Balancer
    fleet: Fleet
    times: Times
    is_managed: bool

    async def create(self, name: str, *, is_bad: bool, **query: str) -> httpx.Response:
        kind = self.fleet.kind
        body = {
            "apiVersion": kind.resource.api_version,
            "kind": kind.kind,
            "metadata": {"name": name},
            "spec": {"bad": True} if is_bad else {},
        }
        url = kind.resource.get_url(namespace=self.fleet.namespace)
        return await self.http.post(url, json=body, params=query)

    async def add_replicas(self, count: int) -> None:
        """Start replicas at the same time, as a Deployment does; wait until they are listed."""

        async def add() -> None:
            await self.fleet.wait_listed(await self.fleet.add())

        await asyncio.gather(*(add() for _ in range(count)))

    async def replace_oldest(self, count: int = 1) -> None:
        """Do a rolling update: start new replicas first, then stop as many of the oldest."""
        oldest = [one for one in self.fleet.replicas if one.is_up][:count]
        await self.add_replicas(count)
        await asyncio.gather(*map(self.fleet.remove, oldest))
        assert not self.fleet.problems, self.fleet.problems

    async def has_webhook(self, handler: str) -> bool:
        name = self.fleet.variables["MANAGED"]
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
        path = SECRETS.get_url(namespace=self.fleet.namespace, name=SECRET)
        (await self.http.delete(path)).raise_for_status()
        what = "another certificate"
        for _ in range(self.times.replicas):  # the balancer alternates between them
            await eventually(self.read_certificate, what, _PATIENCE, check=before.__ne__)


@asynccontextmanager
async def set_up(
    cluster: LocalCluster,
    namespace: str,
    kind: Kind,
    folder: Path,
    times: Times,
    way: str = "managed",
) -> AsyncIterator[Stage]:
    """Start replicas behind a Service, in one of the ways to serve."""
    pair = build_certificate_self_signed([f"webhooks.{namespace}.svc"])
    (folder / "cert.pem").write_bytes(pair.cert)
    (folder / "key.pem").write_bytes(pair.key)
    async with open_service(cluster, namespace, times.lag, 60) as (http, balancer):
        variables = {
            "SERVICE_PORT": str(balancer.port),
            "MANAGED": f"{namespace}.rollout.webop.dev",
            "SETTLE_TIME": str(times.settle),
            "WEBOP_ADMISSION__SHUTDOWN_DELAY": str(times.shutdown_delay),
        }
        program, handlers = WAYS[way]
        fleet = Fleet(cluster, namespace, kind, folder, variables)
        fleet.balancer, fleet.program = balancer, program
        stage = Stage(http, balancer, fleet, times, SERVING in handlers)
        try:
            async with fleet.run(handlers):
                await stage.add_replicas(times.replicas)
                if not stage.is_managed:
                    await _configure(stage)
                yield stage
        finally:
            for one in ("mutating", "validating"):
                await http.delete(f"{_CONFIGURATIONS}/{one}{_PLURAL}/{variables['MANAGED']}")


async def _configure(stage: Stage) -> None:
    """Apply webhook configurations as an administrator; wait until the API server uses them."""
    fleet = stage.fleet
    bundle = base64.b64encode((fleet.folder / "cert.pem").read_bytes()).decode()
    rule = {
        "apiGroups": [fleet.kind.group],
        "apiVersions": ["v1"],
        "resources": [fleet.kind.plural],
        "operations": ["CREATE"],
    }
    for kind, handler in (("Mutating", "stamp"), ("Validating", "check")):
        service = {"namespace": fleet.namespace, "name": "webhooks", "path": f"/{handler}"}
        service["port"] = stage.balancer.port  # type: ignore[assignment]
        webhook = {
            "name": f"{handler}.rollout.webop.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": {"service": service, "caBundle": bundle},
            "rules": [rule],
        }
        body = {"metadata": {"name": fleet.variables["MANAGED"]}, "webhooks": [webhook]}
        answer = await stage.http.post(f"{_CONFIGURATIONS}/{kind.lower()}{_PLURAL}", json=body)
        answer.raise_for_status()

    async def is_in_force() -> bool:
        name = f"probe-{time.monotonic_ns()}"
        return (await stage.create(name, is_bad=True, dryRun="All")).status_code == 400

    await eventually(is_in_force, "the webhook configurations", _PATIENCE)


async def play(stage: Stage, load: Load, say: Say) -> None:
    """Replace all replicas, then two at once, and rotate the CA, under load."""
    async with run_steadily(load.act, stage.times.rate):
        await _replace_all(stage, load, say)
        await stage.replace_oldest(2)
        say(f"Replaced two replicas at once: {load}")
        if stage.is_managed:
            await stage.rotate()
            say(f"Rotated the CA: {load}")
        await asyncio.sleep(2 * stage.times.lag)  # so that late faults are seen


async def play_renaming(stage: Stage, load: Load, say: Say, *, rotates: bool = False) -> None:
    """Roll out a version with a renamed validating handler, and maybe rotate, under load."""
    stage.fleet.release(MANAGED.replace("def check(", "def inspect("))
    async with run_steadily(load.act, stage.times.rate):
        await _replace_all(stage, load, say)
        await eventually(lambda: stage.has_webhook("inspect"), "the renamed webhook", _PATIENCE)
        if rotates:
            await stage.rotate()
        await asyncio.sleep(2 * stage.times.lag)


async def _replace_all(stage: Stage, load: Load, say: Say) -> None:
    count = stage.times.replicas
    for number in range(1, count + 1):
        await stage.replace_oldest()
        say(f"Replaced replica {number} of {count}: {load}")
