"""A run: users, replicas and faults for some minutes, then a calm, then the check of all rules."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from tests.kit.operators import Kind, connect
from tests.kit.reviews import build_object, build_review
from tools.long_runs import Say, option, read_clock
from tools.soak.balancer import open_service
from tools.soak.chaos.plan import ENDS, LINK_FAULTS, PROCESS_FAULTS, Fault
from tools.soak.fleet import Fleet, Replica
from tools.soak.handlers import CHAOS
from tools.soak.link import Link, Weather
from tools.soak.stage import Stage, open_stage
from webop.objects.resources import Resource

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

KIND = Kind("chaos.webop.dev", "crates", "Crate")
LEASE = "chaos"
DURATION, DEADLINE, PERIOD = 8, 5, 1  # of the lease, in seconds
_LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True)
_SECRETS = Resource("", "v1", "secrets", "Secret", namespaced=True)
_MANAGED = "chaos.webop.dev"
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_PROGRESS = 15.0  # seconds between two lines


@dataclass(frozen=True)
class Times:
    minutes: float = option(30.0, "minutes of faults")
    objects: int = option(2000, "objects at once")
    rate: float = option(12.0, "actions of users a second")
    replicas: int = option(3, "replicas with a Lease")
    seed: int = option(1, "seed of the faults")
    calm: float = option(60.0, "seconds in which all objects must settle", can_be_0=True)


@dataclass
class ChaosStage(Stage):
    """The parts of a run.

    Attributes:
        counts: the number of faults by kind.
        breaking: held while the control plane is broken, which can last longer than planned.
    """

    counts: Counter[str] = field(default_factory=Counter)
    breaking: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def has_lease(self) -> bool:
        return len(self.fleet.replicas) > 1

    async def strike(self, fault: Fault) -> None:
        replica = await self._find_replica(fault.target)
        # The first one is never killed, so that its growth can be measured.
        if fault.kind in ENDS and replica is self.fleet.replicas[0] and self.has_lease:
            fault = replace(fault, kind="long pause", duration=2 * DURATION)
        if fault.kind == "SIGTERM" and not self.has_lease:
            # The last replica removes its webhooks when it stops.
            fault = replace(fault, kind="SIGKILL")
        if fault.kind in PROCESS_FAULTS and not replica.is_up:
            return
        self.counts[fault.kind] += 1
        text = f"{fault} ({replica.name})"
        self.note(text)
        if fault.kind in LINK_FAULTS:
            await _disturb(replica.link, fault)
        elif fault.kind in ENDS:
            await self.fleet.end(replica, signal.Signals[fault.kind])
            await asyncio.sleep(fault.duration)
            await self.fleet.start(replica)
        elif fault.kind in PROCESS_FAULTS:
            async with replica.stopped():
                await asyncio.sleep(fault.duration)
        else:
            async with self.breaking:
                await self._break_control_plane(fault)
        self.note(f"over: {text}")

    async def _find_replica(self, target: int | None) -> Replica:
        """Return the replica of a fault; the first one if the leader is unknown."""
        if target is not None:
            return self.fleet.replicas[target]
        path = _LEASES.get_url(namespace=self.fleet.namespace, name=LEASE)
        with contextlib.suppress(httpx.HTTPError, KeyError):
            holder = (await self.http.get(path, timeout=2)).json()["spec"]["holderIdentity"]
            for replica in self.fleet.replicas:
                if holder == replica.identity:
                    return replica
        return self.fleet.replicas[0]

    async def _break_control_plane(self, fault: Fault) -> None:
        kind, cluster = fault.kind, self.fleet.cluster
        if kind == "certificates deleted":
            namespace, name = self.fleet.namespace, "webhooks-webhook-certs"
            with contextlib.suppress(httpx.HTTPError):
                await self.http.delete(_SECRETS.get_url(namespace=namespace, name=name))
            return
        is_etcd = kind.startswith("etcd")
        if kind.endswith("paused"):
            pid = cluster.pids["etcd" if is_etcd else "kube-apiserver"]
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(fault.duration)
            finally:
                os.kill(pid, signal.SIGCONT)
            return
        await asyncio.to_thread(cluster.kill_etcd if is_etcd else cluster.kill_apiserver)
        await asyncio.sleep(fault.duration)
        await asyncio.to_thread(cluster.restart_etcd if is_etcd else cluster.restart_apiserver)

    async def report_progress(self, say: Say) -> None:
        while True:
            await asyncio.sleep(_PROGRESS)
            lines = sum(path.stat().st_size for path in self.fleet.folder.glob("*.lines"))
            say(
                f"{self.describe()}, {lines / 1e6:.1f} MB of evidence, "
                f"{self.counts.total()} faults, {len(self.fleet.processes)} processes"
            )

    async def check_webhooks(self) -> None:
        """Check that the webhook configuration always exists: replicas never remove it."""
        path = f"{_CONFIGURATIONS}/{_MANAGED}"
        while True:
            with contextlib.suppress(httpx.HTTPError):
                answer = await self.http.get(path)
                hooks = answer.json().get("webhooks") if answer.status_code == 200 else None
                if answer.status_code == 404 or (answer.status_code == 200 and not hooks):
                    self.complain("the webhook configuration is missing", path)
            await asyncio.sleep(0.5)

    async def check_indexes(self) -> None:
        """Check that the index of each replica has as many objects as the cluster."""
        count = sum(life.gone is None for life in self.recorder.lives.values())
        resource = (KIND.group, "v1", KIND.plural)
        review = build_review(build_object({"counts": True}), resource=resource, kind=KIND.kind)
        async with httpx.AsyncClient(verify=False, trust_env=False, timeout=10) as http:
            for replica in self.fleet.replicas:
                url = f"https://127.0.0.1:{replica.endpoint.port}/check"
                warnings = (await http.post(url, json=review)).json()["response"].get("warnings")
                if warnings != [str(count)]:
                    text = f"{replica.name} has {warnings} objects, the cluster {count}"
                    self.complain("an index is wrong", text)


async def _disturb(link: Link, fault: Fault) -> None:
    if fault.kind in ("cut", "half open"):
        (link.cut if fault.kind == "cut" else link.freeze)()
        return
    link.weather = weather = {
        "closed": Weather(is_closed=True),
        "hung": Weather(is_hung=True),
        "slow": Weather(delay=0.3),
        "5xx": Weather(failing=0.5),
        "429": Weather(status=429, failing=0.5),
        "answers lost": Weather(losing=0.3),
    }[fault.kind]
    if weather.is_closed:
        link.cut()
    await asyncio.sleep(fault.duration)
    if link.weather is weather:
        link.weather = Weather()


@contextlib.asynccontextmanager
async def set_up(cluster: LocalCluster, folder: Path, times: Times) -> AsyncIterator[ChaosStage]:
    """Start the replicas behind a Service, and wait until all are ready."""
    namespace = await asyncio.to_thread(cluster.create_namespace, "chaos-")
    async with open_service(cluster, namespace, 0.5, 20) as (http, balancer):
        async with connect(cluster) as client:
            await KIND.define(client)
        variables = {
            "SERVICE_PORT": str(balancer.port),
            "SETTLE_TIME": "2",
            "MANAGED": _MANAGED,
            "WEBOP_ADMISSION__SHUTDOWN_DELAY": "2",
            "WEBOP_LEADERSHIP__LEASE_DURATION": str(DURATION),
            "WEBOP_LEADERSHIP__RENEW_DEADLINE": str(DEADLINE),
            "WEBOP_LEADERSHIP__RETRY_PERIOD": str(PERIOD),
            **({"LEASE": LEASE} if times.replicas > 1 else {}),
        }
        fleet = Fleet(cluster, namespace, KIND, folder, variables, times.seed, balancer)
        opened = open_stage(fleet, http, CHAOS, has_webhooks=True, make=ChaosStage)
        async with opened as stage:
            for _ in range(times.replicas):
                await fleet.add(*([f"--lease={LEASE}"] if times.replicas > 1 else []))
            for replica in fleet.replicas:
                await fleet.wait_listed(replica)
            assert isinstance(stage, ChaosStage)
            yield stage


async def play(stage: ChaosStage, times: Times, plan: list[Fault], say: Say) -> None:
    """Run users and faults, and then the calm."""
    stage.began = read_clock()
    background = [
        asyncio.create_task(stage.report_progress(say)),
        asyncio.create_task(stage.check_webhooks()),
    ]
    try:
        async with stage.used(times.objects, times.rate), asyncio.TaskGroup() as group:
            for fault in plan:
                await asyncio.sleep(max(0.0, stage.began + fault.at - read_clock()))
                group.create_task(stage.strike(fault))
            await asyncio.sleep(max(0.0, stage.began + times.minutes * 60 - read_clock()))
        await stage.calm_down(times.calm, say)
        await stage.check_indexes()
        for task in background:
            if task.done():
                task.result()
    finally:  # also after Ctrl-C
        for task in background:
            task.cancel()
        await asyncio.wait(background)
