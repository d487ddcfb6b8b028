"""Random faults on a real API server, for half an hour: ``python -m tools.soak.chaos``.

Replicas handle objects that users change all the time. Faults hit their connections, their
processes and the control plane. After a calm, the rules of :mod:`tools.soak.evidence` are checked.

``--plan rollouts`` replaces all replicas and rotates the CA of their webhooks again and again
instead: then no request of users may fail.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import httpx

from tests.kit.operators import Kind, connect
from tests.kit.reviews import build_object, build_review
from tools.long_runs import Say, prove, read_clock
from tools.soak.balancer import open_service
from tools.soak.evidence import (
    Evidence,
    Violation,
    find_idle_daemons,
    judge,
    measure,
    read_lines,
)
from tools.soak.fleet import Fleet, Replica
from tools.soak.handlers import CHAOS
from tools.soak.life_recorder import LifeRecorder
from tools.soak.link import Link, Weather
from tools.soak.report import read_log, show
from tools.soak.users import Users
from webop.objects.resources import Resource
from webop.testing import LocalCluster

KIND = Kind("chaos.webop.dev", "crates", "Crate")
NAME = "chaos"  # of the operator, for --lease and --shards
DURATION, DEADLINE, PERIOD = 8, 5, 1  # of the Lease, in seconds
WAYS = ("lease", "shards")
ROLLOUT = "rollout"
_LARGEST = 100_000  # of all numbers: all faults of a run are planned at its start
_LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True)
_SECRETS = Resource("", "v1", "secrets", "Secret", namespaced=True)
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations/{}"
_PROGRESS = 15.0  # seconds between two lines
_PATIENCE = 120.0  # more seconds of calm, to distinguish late objects from stuck ones
_ROLLOUT = 60.0  # seconds for a rollout, or for a rotation
_REPETITIONS = 5.0  # seconds after the calm, for repetitions, and for what daemons do

Table = dict[str, tuple[int, tuple[float, float]]]
#: The relative frequency of each fault, and its duration in seconds: of connections to the API
#: server, of processes, of the control plane.
LINK_FAULTS: Table = {
    "cut": (3, (0, 0)),
    "closed": (2, (1, 15)),
    "hung": (2, (1, 15)),
    "half open": (1, (0, 0)),
    "slow": (2, (3, 15)),
    "5xx": (3, (2, 15)),
    "429": (2, (2, 10)),
    "answers lost": (4, (2, 15)),
}
PROCESS_FAULTS: Table = {
    "SIGKILL": (4, (0, 5)),
    "SIGTERM": (3, (0, 3)),
    "pause": (2, (0.5, 3)),
    "long pause": (2, (10, 18)),
}
SERVER_FAULTS: Table = {
    "API server killed": (3, (0, 8)),
    "API server paused": (2, (1, 8)),
    "etcd killed": (3, (0, 8)),
    "etcd paused": (2, (1, 8)),
    "certificates deleted": (1, (0, 0)),
    "Lease of owners deleted": (1, (0, 0)),  # which exists with shards only
}
_ENDS = ("SIGKILL", "SIGTERM")
_WEATHER = {
    "closed": Weather(is_closed=True),
    "hung": Weather(is_hung=True),
    "slow": Weather(delay=0.3),
    "5xx": Weather(failing=0.5),
    "429": Weather(status=429, failing=0.5),
    "answers lost": Weather(losing=0.3),
}
#: The faults of each target, and the seconds between two of them, on average.
_TARGETS: dict[str, tuple[Table, float]] = {
    "link": (LINK_FAULTS, 8.0),
    "process": (PROCESS_FAULTS, 20.0),
    "server": (SERVER_FAULTS, 40.0),
}


@dataclass(frozen=True)
class Times:
    minutes: float = 30.0
    objects: int = 2000
    rate: float = 12.0  # actions of users a second
    replicas: int = 3
    seed: int = 1
    calm: float = 60.0  # seconds in which all objects must settle


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        at: its begin, in seconds since the start of the run.
        kind: a key of one of the tables of this module.
        target: the number of the replica, from 0; None for the leader; unused for the
            control plane.
        duration: seconds until it is repaired, or until a process is restarted.
    """

    at: float
    kind: str
    target: int | None
    duration: float

    def __str__(self) -> str:
        target = "the leader" if self.target is None else f"replica {self.target + 1}"
        whose = "" if self.kind in SERVER_FAULTS else f" of {target}"
        return f"{self.at:.1f} s: {self.kind}{whose} for {self.duration:.1f} s"


def build_plan(seed: int, seconds: float, replicas: int) -> list[Fault]:
    """Return the faults of a run, ordered by their begin.

    Half of the faults of replicas hit the leader.
    """
    faults = []
    for group, (table, pause) in _TARGETS.items():
        # Each group has its own random sequence, so that it does not depend on the others.
        chance = random.Random(f"{seed} {group}")
        at = chance.expovariate(1 / pause)
        while at < seconds:
            kind = chance.choices(list(table), [weight for weight, _ in table.values()])[0]
            target = chance.choice([None, chance.randrange(replicas)])
            duration = chance.uniform(*table[kind][1])
            faults.append(Fault(at, kind, target, duration))
            # Faults of the control plane do not overlap.
            at += (duration if group == "server" else 0) + chance.expovariate(1 / pause)
    return sorted(faults, key=lambda fault: fault.at)


def build_rollouts(seconds: float) -> list[Fault]:
    """Return rollouts and rotations of the CA, one after another."""
    kinds = itertools.cycle((ROLLOUT, "certificates deleted"))
    times = itertools.count(_ROLLOUT / 2, _ROLLOUT)
    return [
        Fault(at, next(kinds), 0, 0.0) for at in itertools.takewhile(lambda at: at < seconds, times)
    ]


@dataclass
class Run:
    """The parts of a run.

    Attributes:
        way: how the replicas agree who acts.
        told: the faults, with their times.
        counts: the number of faults by kind.
        breaking: held while the control plane is broken, which can last longer than planned.
        problems: what was found meanwhile.
        began: the start, by the clock of the evidence.
    """

    way: str
    fleet: Fleet
    http: httpx.AsyncClient
    users: Users
    recorder: LifeRecorder
    told: list[tuple[float, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    breaking: asyncio.Lock = field(default_factory=asyncio.Lock)
    problems: list[Violation] = field(default_factory=list)
    began: float = field(default_factory=read_clock)

    def complain(self, rule: str, text: str) -> None:
        self.problems.append(Violation(rule, text, at=read_clock()))

    async def play(self, times: Times, plan: list[Fault], say: Say) -> None:
        """Let users act and faults happen, and then wait until all objects are settled."""
        self.began = read_clock()
        names = [f"crate-{number}" for number in range(times.objects)]
        background = [
            asyncio.create_task(self.recorder.watch()),
            asyncio.create_task(self._report_progress(say)),
            asyncio.create_task(self._check_webhooks()),
        ]
        acting = asyncio.create_task(self.users.act(names, times.rate))
        try:
            async with asyncio.TaskGroup() as group:
                for fault in plan:
                    await asyncio.sleep(max(0.0, self.began + fault.at - read_clock()))
                    group.create_task(self._strike(fault))
                await asyncio.sleep(max(0.0, self.began + times.minutes * 60 - read_clock()))
            self.users.stop()
            await acting
            await self._calm_down(times.calm, say)
            await self._check_indexes()
            for task in background:
                if task.done():
                    task.result()
        finally:  # also after Ctrl-C
            for task in (acting, *background):
                task.cancel()
            await asyncio.wait([acting, *background])

    async def _strike(self, fault: Fault) -> None:
        replica = await self._find_replica(fault.target)
        # The first one is never killed, so that its growth can be measured.
        if fault.kind in _ENDS and replica is self.fleet.replicas[0]:
            fault = replace(fault, kind="long pause", duration=2 * DURATION)
        if fault.kind in PROCESS_FAULTS and not replica.is_up:
            return
        self.counts[fault.kind] += 1
        text = f"{fault} ({replica.name})"
        self.told.append((read_clock(), text))
        if fault.kind == ROLLOUT:
            for old in [one for one in self.fleet.replicas if one.is_up]:
                await self.fleet.wait_listed(await self.fleet.add(*old.options))
                await self.fleet.remove(old)
        elif fault.kind in LINK_FAULTS:
            await _disturb(replica.link, fault)
        elif fault.kind in _ENDS:
            await self.fleet.end(replica, signal.Signals[fault.kind])
            await asyncio.sleep(fault.duration)
            await self.fleet.start(replica)
        elif fault.kind in PROCESS_FAULTS:
            async with replica.stopped():
                await asyncio.sleep(fault.duration)
        else:
            async with self.breaking:
                await self._break_control_plane(fault)
        self.told.append((read_clock(), f"over: {text}"))

    async def _find_replica(self, target: int | None) -> Replica:
        """Return the replica of a fault; any one if the leader is unknown."""
        if target is not None:
            return self.fleet.replicas[target]
        path = _LEASES.get_url(namespace=self.fleet.namespace, name=NAME)
        with contextlib.suppress(httpx.HTTPError, KeyError):
            holder = (await self.http.get(path, timeout=2)).json()["spec"]["holderIdentity"]
            for replica in self.fleet.replicas:
                if holder == replica.identity:
                    return replica
        return self.fleet.replicas[self.counts.total() % len(self.fleet.replicas)]

    async def _break_control_plane(self, fault: Fault) -> None:
        kind, cluster, namespace = fault.kind, self.fleet.cluster, self.fleet.namespace
        if kind.endswith("deleted"):
            path = _SECRETS.get_url(namespace=namespace, name="webhooks-webhook-certs")
            if kind == "Lease of owners deleted":
                path = _LEASES.get_url(namespace=namespace, name=f"{NAME}-shards")
            with contextlib.suppress(httpx.HTTPError):
                await self.http.delete(path)
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

    async def _calm_down(self, calm: float, say: Say) -> None:
        """Wait until all objects are settled, or for too long."""
        say("Users and faults have stopped. The calm begins.")
        began, left = read_clock(), ["?"]
        while left and read_clock() - began < calm + _PATIENCE:
            left = await self.recorder.list_unsettled()
            await asyncio.sleep(0.5)
        took = read_clock() - began
        say(f"{len(left)} objects are unsettled after {took:.1f} s of calm.")
        if left or took > calm:
            text = f"{took:.1f} s of calm; still unsettled: {', '.join(left[:10]) or 'none'}"
            self.complain("objects did not settle in time", text)
        await asyncio.sleep(_REPETITIONS)

    async def _report_progress(self, say: Say) -> None:
        while True:
            await asyncio.sleep(_PROGRESS)
            lives = self.recorder.lives.values()
            present = sum(life.gone is None for life in lives)
            faults, processes = self.counts.total(), len(self.fleet.processes)
            say(f"{present} objects, {len(lives)} so far, {faults} faults, {processes} processes")

    async def _check_webhooks(self) -> None:
        """Check that the webhook configuration always exists: replicas never remove it."""
        path = _CONFIGURATIONS.format("validating", self.fleet.variables["MANAGED"])
        while True:
            with contextlib.suppress(httpx.HTTPError):
                answer = await self.http.get(path)
                hooks = answer.json().get("webhooks") if answer.status_code == 200 else None
                if answer.status_code == 404 or (answer.status_code == 200 and not hooks):
                    self.complain("the webhook configuration is missing", path)
            await asyncio.sleep(0.5)

    async def _check_indexes(self) -> None:
        """Check that the index of each replica has as many objects as the cluster."""
        count = sum(life.gone is None for life in self.recorder.lives.values())
        resource = (KIND.group, "v1", KIND.plural)
        review = build_review(build_object({"counts": True}), resource=resource, kind=KIND.kind)
        async with httpx.AsyncClient(verify=False, trust_env=False, timeout=10) as http:
            for replica in filter(lambda replica: replica.is_up, self.fleet.replicas):
                url = f"https://127.0.0.1:{replica.endpoint.port}/check"
                warnings = (await http.post(url, json=review)).json()["response"].get("warnings")
                if warnings != [str(count)]:
                    text = f"{replica.name} has {warnings} objects, the cluster {count}"
                    self.complain("an index is wrong", text)

    def conclude(self, say: Say) -> int:
        """Print violations and figures; return the number of violations."""
        processes, lives = self.fleet.processes, self.recorder.lives
        calls = []
        for who, process in processes.items():
            begins = read_log(self.fleet.read(who, "log"), "This replica is (leading|one of those)")
            process.terms = [at for at, _ in begins]
            calls += read_lines(process, self.fleet.read(who, "lines").splitlines())
        evidence = Evidence(calls, lives, processes, has_lease=self.way == "lease")
        if not self.counts.keys() - {ROLLOUT, "certificates deleted"}:
            for failure in self.users.list_failures():
                self.complain("a request of a user has failed", failure)
        violations = [
            *self.problems,
            *self.fleet.problems,
            *judge(evidence),
            *find_idle_daemons(evidence),
        ]
        show(violations, evidence, self.told, self.began, say)
        present = sum(life.gone is None for life in lives.values())
        figures: dict[str, object] = {
            "faults": self.counts,
            "users": self.users.counts,
            "objects": f"{len(lives)}, {present} at the end",
            "calls": Counter(call.outcome or "interrupted" for call in calls),
            "calls by handler": Counter(call.handler for call in calls),
            "processes": len(processes),
            "faults of connections": sum((r.link.counts for r in self.fleet.replicas), Counter()),
            "gaps in the watch": self.recorder.gaps,
        }
        for process in processes.values():
            for name, medians in measure(process).items():
                figures[f"{name} of {process.who}"] = f"{medians[0]:g} -> {medians[-1]:g}"
        for name, value in figures.items():
            shown = value
            if isinstance(value, Counter):
                shown = ", ".join(f"{key} {count}" for key, count in sorted(value.items()))
            say(f"{name:28} {shown}")
        say(f"Violations: {len(violations)}")
        return len(violations)


async def _disturb(link: Link, fault: Fault) -> None:
    if fault.kind in ("cut", "half open"):
        (link.cut if fault.kind == "cut" else link.freeze)()
        return
    link.weather = weather = replace(_WEATHER[fault.kind])
    if weather.is_closed:
        link.cut()
    await asyncio.sleep(fault.duration)
    if link.weather is weather:
        link.weather = Weather()


@contextlib.asynccontextmanager
async def set_up(
    cluster: LocalCluster, folder: Path, times: Times, way: str = "lease"
) -> AsyncIterator[Run]:
    """Start the replicas behind a Service, and wait until all are ready; kill them at the end."""
    namespace = await asyncio.to_thread(cluster.create_namespace, "chaos-")
    async with open_service(cluster, namespace, 0.5, 20) as (http, balancer):
        async with connect(cluster) as client:
            await KIND.define(client)
        variables = {
            "SERVICE_PORT": str(balancer.port),
            "SETTLE_TIME": "2",
            "MANAGED": f"{namespace}.webop.dev",
            "WEBOP_ADMISSION__SHUTDOWN_DELAY": "2",
            "WEBOP_LEADERSHIP__LEASE_DURATION": str(DURATION),
            "WEBOP_LEADERSHIP__RENEW_DEADLINE": str(DEADLINE),
            "WEBOP_LEADERSHIP__RETRY_PERIOD": str(PERIOD),
        }
        fleet = Fleet(cluster, namespace, KIND, folder, variables, balancer, seed=times.seed)
        url = KIND.resource.get_url(namespace=namespace)
        users = Users(http, url, KIND, times.seed)
        try:
            async with fleet.run(CHAOS):
                for _ in range(times.replicas):
                    await fleet.add(f"--{way}={NAME}")
                for replica in fleet.replicas:
                    await fleet.wait_listed(replica)
                yield Run(way, fleet, http, users, LifeRecorder(http, url))
        finally:  # the last replicas were killed
            for kind in ("validating", "mutating"):
                with contextlib.suppress(httpx.HTTPError):
                    await http.delete(_CONFIGURATIONS.format(kind, variables["MANAGED"]))


async def _run(
    times: Times, way: str, kind: str, cluster: LocalCluster, folder: Path, say: Say
) -> int:
    plan = build_rollouts(times.minutes * 60)
    if kind == "faults":
        plan = build_plan(times.seed, times.minutes * 60, times.replicas)
    async with set_up(cluster, folder, times, way) as run:
        say(f"Replicas ready on Kubernetes {cluster.version}. {len(plan)} faults are planned.")
        await run.play(times, plan, say)
        return int(bool(run.conclude(say)))


def main() -> int:
    """Run the command line; return 0 if no rule was violated."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.soak.chaos",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for name, default in vars(Times()).items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help="a number")
    text = "how the replicas agree who acts"
    parser.add_argument("--way", choices=WAYS, default="lease", help=text)
    text = "random faults, or only rollouts and rotations of the CA"
    parser.add_argument("--plan", choices=("faults", "rollouts"), default="faults", help=text)
    text = "write logs and evidence to a new folder"
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help=text)
    chosen = parser.parse_args()
    times = Times(**{name: getattr(chosen, name) for name in vars(Times())})
    for name, value in vars(times).items():
        if not 0 < value < _LARGEST:  # nor nan
            parser.error(f"--{name} must be above 0, and below {_LARGEST}")
    if chosen.keep is not None and chosen.keep.exists():
        parser.error(f"--keep must be a new folder, got {chosen.keep}")
    run = partial(_run, times, chosen.way, chosen.plan)
    return prove("chaos", times, run, chosen.keep)


if __name__ == "__main__":
    sys.exit(main())
