"""Rollouts under load, with the times of a real cluster: ``python -m tools.soak.rollout``.

Requests come at a steady rate: creations of good objects, which the mutating webhook must stamp,
and of bad ones, which the validating webhook must deny. Meanwhile, all replicas are replaced one
after another, and the Secret with the certificates is deleted, which causes new certificates with a
new CA. In the way "converting", objects are read and written in two versions of their kind instead.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.kit.operators import Json, Kind, connect
from tests.kit.versioned_shops import GROUP, open_shops
from tests.kit.waiting import eventually
from tools.long_runs import Say, build_parser, option, prove, take_options
from tools.soak.balancer import Balancer, open_service
from tools.soak.fleet import RUN, Fleet
from tools.soak.handlers import CHECKING, HEAD, SERVING, SERVING_FILES, STAMPING
from tools.soak.steady_load import run_steadily
from webop.objects.resources import Resource
from webop.servers.certificates.certs import build_certificate_self_signed
from webop.testing import LocalCluster

PARCELS = Kind("rollout.webop.dev", "parcels", "Parcel")
_SHOPS = Kind(GROUP, "shops", "Shop")
_NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
_SECRETS = Resource("", "v1", "secrets", "Secret", namespaced=True)
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
_PATIENCE = 90.0  # seconds
_RETRIES = 20  # of a 429, which a changed definition causes for a moment: all clients repeat these
_UVICORN = ["uvicorn", "--port={port}", "--host=127.0.0.1", "--no-access-log"]
_UVICORN += ["--ssl-certfile=cert.pem", "--ssl-keyfile=key.pem", "webop.app:app"]
_PROTOCOL = "--http=webop.servers.http.protocol:HTTPProtocol"

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
    "uvicorn-protocol": ([*_UVICORN, _PROTOCOL], HEAD + STAMPING + CHECKING),
}


@dataclass(frozen=True)
class Times:
    rate: float = option(50.0, "requests a second; of creations, every fourth object is bad")
    lag: float = option(1.0, "seconds until the balancer applies a change of readiness")
    shutdown_delay: float = option(10.0, "seconds from SIGTERM until the port is closed")
    settle: float = option(5.0, "seconds from a new CA to the first certificate signed by it")
    replicas: int = option(3, "replicas")


@dataclass
class Stage:
    """The cluster, the balancer that plays the Service, and the replicas behind it."""

    http: httpx.AsyncClient
    balancer: Balancer
    fleet: Fleet
    times: Times
    is_managed: bool

    async def send(
        self, method: str, name: str = "", body: Any = None, version: str = "v1", **query: str
    ) -> httpx.Response:
        """Send a request about an object; repeat it as long as the answer is 429."""
        kind = self.fleet.kind
        url = f"/apis/{kind.group}/{version}/namespaces/{self.fleet.namespace}/{kind.plural}"
        form = "application/merge-patch+json" if method == "PATCH" else "application/json"
        for _ in range(_RETRIES):
            answer = await self.http.request(
                method,
                f"{url}/{name}" if name else url,
                json=body,
                params=query,
                headers={"content-type": form},
            )
            if answer.status_code != 429:
                break
            await asyncio.sleep(float(answer.headers.get("retry-after", 1)))
        return answer

    async def create(
        self, name: str, spec: Json, version: str = "v1", **query: str
    ) -> httpx.Response:
        kind = self.fleet.kind
        head = {"apiVersion": f"{kind.group}/{version}", "kind": kind.kind}
        body = {**head, "metadata": {"name": name}, "spec": spec}
        return await self.send("POST", body=body, version=version, **query)

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
        answer = await self.http.get(f"{_CONFIGURATIONS}/validatingwebhookconfigurations/{name}")
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
        path = _SECRETS.get_url(namespace=self.fleet.namespace, name="webhooks-webhook-certs")
        (await self.http.delete(path)).raise_for_status()
        what = "another certificate"
        for _ in range(self.times.replicas):  # the balancer alternates between them
            await eventually(self.read_certificate, what, _PATIENCE, check=before.__ne__)


Act = Callable[[Stage, "Tally", int], Coroutine[Any, Any, None]]


@dataclass
class Tally:
    """What came of requests.

    Attributes:
        ports: of the objects that were created in two versions.
    """

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    slowest: float = 0.0
    ports: list[int] = field(default_factory=list)

    def note(self, what: str, problem: str = "") -> None:
        self.counts[what] += 1
        if problem:
            self.problems.append(f"{what}: {problem[:400]}")

    async def measure(self, act: Act, stage: Stage, number: int) -> None:
        """Send one request."""
        begun = time.monotonic()
        await act(stage, self, number)
        self.slowest = max(self.slowest, time.monotonic() - begun)

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        return f"{counts}; {len(self.problems)} problems, slowest {self.slowest:.2f} s"


async def create(stage: Stage, tally: Tally, number: int) -> None:
    """Create a good object, or a bad one."""
    is_bad = number % 4 == 3
    name = f"parcel-{time.monotonic_ns()}"
    answer = await stage.create(name, {"bad": True} if is_bad else {})
    if answer.status_code == 201:
        is_checked = not is_bad and answer.json()["spec"].get("stamped") is True
        tally.note("created" if is_checked else "unchecked", "" if is_checked else answer.text)
    elif is_bad and answer.status_code == 400 and "This is bad." in answer.text:
        tally.note("denied")
    else:
        tally.note("failed", f"{answer.status_code} {answer.text}")


async def convert(stage: Stage, tally: Tally, number: int) -> None:
    """Create, read or patch an object in one of the versions."""
    version = ("v1", "v2")[number % 2]
    verb = ("create", "read", "patch", "read")[number // 2 % 4] if tally.ports else "create"
    port = number % 60000 + 1
    if verb != "create":
        port = tally.ports[number * 7919 % len(tally.ports)]
    name, expected = f"shop-{port}", _build_spec(version, port)
    if verb == "create":
        answer = await stage.create(name, expected, version)
    elif verb == "read":
        answer = await stage.send("GET", name, version=version)
    else:
        patch = {"metadata": {"labels": {"number": str(number)}}}
        answer = await stage.send("PATCH", name, patch, version)
    if answer.status_code not in (200, 201):
        tally.note("failed", f"{verb} {version}: {answer.status_code} {answer.text}")
        return
    if verb == "create":
        tally.ports.append(port)
    spec = answer.json()["spec"]
    is_right = {key: spec.get(key) for key in expected} == expected
    tally.note(f"{verb} {version}" if is_right else "wrong", "" if is_right else answer.text)


def _build_spec(version: str, port: int) -> Json:
    return {"address": f"host:{port}"} if version == "v1" else {"host": "host", "port": port}


@contextlib.asynccontextmanager
async def set_up(
    cluster: LocalCluster, namespace: str, folder: Path, times: Times, way: str = "managed"
) -> AsyncIterator[Stage]:
    """Start replicas behind a Service, in one of the ways to serve."""
    pair = build_certificate_self_signed([f"webhooks.{namespace}.svc"])
    (folder / "cert.pem").write_bytes(pair.cert)
    (folder / "key.pem").write_bytes(pair.key)
    kind = _SHOPS if way == "converting" else PARCELS
    async with open_service(cluster, namespace, times.lag, 60) as (http, balancer):
        variables = {
            "SERVICE_PORT": str(balancer.port),
            "MANAGED": f"{namespace}.rollout.webop.dev",
            "SETTLE_TIME": str(times.settle),
            "WEBOP_ADMISSION__SHUTDOWN_DELAY": str(times.shutdown_delay),
        }
        program, handlers = WAYS[way]
        fleet = Fleet(cluster, namespace, kind, folder, variables, balancer, program)
        stage = Stage(http, balancer, fleet, times, SERVING in handlers)
        try:
            async with fleet.run(handlers):
                await stage.add_replicas(times.replicas)
                if not stage.is_managed:
                    await _configure(stage)
                yield stage
        finally:
            for one in ("mutating", "validating"):
                path = f"{_CONFIGURATIONS}/{one}webhookconfigurations/{variables['MANAGED']}"
                await http.delete(path)


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
    service = {"namespace": fleet.namespace, "name": "webhooks", "port": stage.balancer.port}
    for way, handler in (("mutating", "stamp"), ("validating", "check")):
        config = {"service": {**service, "path": f"/{handler}"}, "caBundle": bundle}
        webhook = {
            "name": f"{handler}.rollout.webop.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": config,
            "rules": [rule],
        }
        body = {"metadata": {"name": fleet.variables["MANAGED"]}, "webhooks": [webhook]}
        answer = await stage.http.post(f"{_CONFIGURATIONS}/{way}webhookconfigurations", json=body)
        answer.raise_for_status()

    async def is_in_force() -> bool:
        name = f"probe-{time.monotonic_ns()}"
        return (await stage.create(name, {"bad": True}, dryRun="All")).status_code == 400

    await eventually(is_in_force, "the webhook configurations", _PATIENCE)


async def play(stage: Stage, act: Act, say: Say) -> Tally:
    """Replace all replicas, then two at once, and rotate the CA, under load."""
    tally = Tally()
    async with run_steadily(partial(tally.measure, act, stage), stage.times.rate):
        await _replace_all(stage, tally, say)
        await stage.replace_oldest(2)
        say(f"Replaced two replicas at once: {tally}")
        if stage.is_managed:
            await stage.rotate()
            say(f"Rotated the CA: {tally}")
        await asyncio.sleep(2 * stage.times.lag)  # so that late faults are seen
    return tally


async def play_renaming(stage: Stage, say: Say, *, rotates: bool = False) -> Tally:
    """Roll out a version with a renamed validating handler, and maybe rotate, under load."""
    tally = Tally()
    stage.fleet.release(MANAGED.replace("def check(", "def inspect("))
    async with run_steadily(partial(tally.measure, create, stage), stage.times.rate):
        await _replace_all(stage, tally, say)
        await eventually(lambda: stage.has_webhook("inspect"), "the renamed webhook", _PATIENCE)
        if rotates:
            await stage.rotate()
        await asyncio.sleep(2 * stage.times.lag)
    return tally


async def _replace_all(stage: Stage, tally: Tally, say: Say) -> None:
    count = stage.times.replicas
    for number in range(1, count + 1):
        await stage.replace_oldest()
        say(f"Replaced replica {number} of {count}: {tally}")


async def _run(times: Times, ways: list[str], cluster: LocalCluster, folder: Path, say: Say) -> int:
    problems = list[str]()
    async with connect(cluster) as client:
        await PARCELS.define(client)
        for way in ways:
            await client.create(_NAMESPACES, None, {"metadata": {"name": way}})
            own = folder / way
            own.mkdir()
            async with contextlib.AsyncExitStack() as stack:
                is_converting = way == "converting"
                if is_converting:
                    shops = await stack.enter_async_context(open_shops(client, way))
                stage = await stack.enter_async_context(set_up(cluster, way, own, times, way))
                if is_converting:
                    await shops.wait_converted()
                say(f"{way}: Replicas are ready on Kubernetes {cluster.version}.")
                tallies = [await play(stage, convert if is_converting else create, say)]
                if way == "managed":
                    say("Rolling out a version with a renamed handler:")
                    tallies.append(await play_renaming(stage, say))
                for tally in tallies:
                    problems += tally.problems
                    say("\n".join([*tally.problems[:20], f"{way}: {tally}"]))
                say(f"{way}: {stage.balancer.refused} connections found no ready replica")
    return int(bool(problems))


def main() -> int:
    """Run the command line; return 0 if no request failed, was wrong, or went unchecked."""
    parser = build_parser("rollout", __doc__, Times)
    text = f"ways to serve: {','.join(WAYS)} (%(default)s)"
    parser.add_argument("--ways", default="managed", help=text)
    times, keep, more = take_options(parser, Times)
    ways = more.ways.split(",")
    if unknown := set(ways) - set(WAYS):
        parser.error(f"unknown ways: {', '.join(unknown)}. Choose from {', '.join(WAYS)}")
    return prove("rollout", times, partial(_run, times, ways), keep)


if __name__ == "__main__":
    sys.exit(main())
