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
from tools.soak.chaos.invariants import (
    Evidence,
    Violation,
    count_repetitions,
    list_leaders,
    measure_growth,
    read_lines,
)
from tools.soak.chaos.life_recorder import LifeRecorder
from tools.soak.chaos.link import Link, Weather
from tools.soak.chaos.plan import ENDS, LINK_FAULTS, PROCESS_FAULTS, Fault
from tools.soak.chaos.replicas import DURATION, LEASE, Fleet, Place
from tools.soak.chaos.report import read_log
from tools.soak.chaos.users import Users
from tools.soak.rollout.story import SECRET, SECRETS
from webop.objects.resources import Resource

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True)
KIND = Kind("chaos.webop.dev", "crates", "Crate")
_PATIENCE = 120.0  # more seconds, to distinguish late objects from stuck ones
_PROGRESS = 15.0  # seconds between two lines
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@dataclass(frozen=True)
class Times:
    minutes: float = option(30.0, "minutes of faults")
    objects: int = option(2000, "objects at once")
    rate: float = option(12.0, "actions of users a second")
    replicas: int = option(3, "replicas with a Lease")
    seed: int = option(1, "seed of the faults")
    calm: float = option(60.0, "seconds after the faults in which all objects must settle")


@dataclass
class Stage:
    """The parts of a run.

    Attributes:
        began: the start, by the clock of the evidence.
        told: the faults with their times, by the same clock.
        breaking: held while the control plane is broken, which can last longer than planned.
    """

    cluster: LocalCluster
    http: httpx.AsyncClient
    fleet: Fleet
    users: Users
    recorder: LifeRecorder
    began: float = field(default_factory=read_clock)
    told: list[tuple[float, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[Violation] = field(default_factory=list)
    breaking: asyncio.Lock = field(default_factory=asyncio.Lock)
    watching: asyncio.Task[None] = field(init=False)
    unsettled: list[str] = field(default_factory=list)

    async def strike(self, fault: Fault) -> None:
        place = await self._find_place(fault.target)
        if fault.kind in ENDS and place.is_spared:
            fault = replace(fault, kind="long pause", duration=2 * DURATION)
        if fault.kind == "SIGTERM" and not self.fleet.has_lease:
            fault = replace(
                fault, kind="SIGKILL"
            )  # the last replica removes its webhooks when it stops
        if fault.kind in PROCESS_FAULTS and not place.is_up:
            return
        self.counts[fault.kind] += 1
        text = f"{fault} (replica {place.number + 1})"
        self.told.append((read_clock(), text))
        if fault.kind in LINK_FAULTS:
            await _disturb(place.link, fault)
        elif fault.kind in PROCESS_FAULTS:
            await _hit(place, fault)
        else:
            async with self.breaking:
                await self._break_control_plane(fault)
        self.told.append((read_clock(), f"over: {text}"))

    async def _find_place(self, target: int | None) -> Place:
        """Return the place of a fault; the first one if the leader is unknown."""
        if target is not None:
            return self.fleet.places[target]
        path = LEASES.get_url(namespace=self.fleet.namespace, name=LEASE)
        with contextlib.suppress(httpx.HTTPError, KeyError):
            holder = (await self.http.get(path, timeout=2)).json()["spec"]["holderIdentity"]
            for place in self.fleet.places:
                if holder == place.identity:
                    return place
        return self.fleet.places[0]

    async def _break_control_plane(self, fault: Fault) -> None:
        kind, cluster = fault.kind, self.cluster
        if kind == "certificates deleted":
            path = SECRETS.get_url(namespace=self.fleet.namespace, name=SECRET)
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


async def _hit(place: Place, fault: Fault) -> None:
    if fault.kind in ENDS:
        place.end(signal.Signals[fault.kind], fault.duration)
    else:
        await place.pause(fault.duration)


@contextlib.asynccontextmanager
async def set_up(
    cluster: LocalCluster, folder: Path, times: Times, *, has_lease: bool
) -> AsyncIterator[Stage]:
    """Start the replicas behind a Service, and wait until all are ready."""
    namespace = await asyncio.to_thread(cluster.create_namespace, "chaos-")
    async with open_service(cluster, namespace, 0.5, 20) as (http, balancer):
        async with connect(cluster) as client:
            await KIND.define(client)
        fleet = Fleet(cluster, namespace, KIND, folder, balancer, has_lease)
        url = KIND.resource.get_url(namespace=namespace)
        users, recorder = Users(http, url, KIND, times.seed), LifeRecorder(http, url)
        stage = Stage(cluster, http, fleet, users, recorder)
        async with fleet.run(times.replicas, times.seed):
            await fleet.wait_ready()
            stage.watching = asyncio.create_task(recorder.watch())
            try:
                yield stage
            finally:
                stage.watching.cancel()


async def play(stage: Stage, times: Times, plan: list[Fault], say: Say) -> float:
    """Run users and faults; return the seconds of calm until all objects were settled."""
    names = [f"crate-{number}" for number in range(times.objects)]
    stage.began = read_clock()
    acting = asyncio.create_task(stage.users.act(names, times.rate))
    background = [
        stage.watching,
        asyncio.create_task(_report_progress(stage, say)),
        asyncio.create_task(_check_webhooks(stage)),
    ]
    try:
        async with asyncio.TaskGroup() as group:
            for fault in plan:
                await asyncio.sleep(max(0.0, stage.began + fault.at - read_clock()))
                group.create_task(stage.strike(fault))
            await asyncio.sleep(max(0.0, stage.began + times.minutes * 60 - read_clock()))
        stage.users.stop()
        await acting
        took = await _calm_down(stage, times, say)
        for task in background:
            if task.done() and not task.cancelled():
                task.result()
        return took
    finally:  # also after Ctrl-C
        for task in (acting, *background):
            task.cancel()
        await asyncio.wait([acting, *background])


async def _calm_down(stage: Stage, times: Times, say: Say) -> float:
    """Wait until all objects are settled, or for too long; return the seconds."""
    say("Users and faults have stopped. The calm begins.")
    began = read_clock()
    stage.told.append((began, "the calm begins"))
    stage.unsettled = await stage.recorder.list_unsettled()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(times.calm + _PATIENCE):
            while stage.unsettled:
                await asyncio.sleep(1)
                stage.unsettled = await stage.recorder.list_unsettled()
    took, left = read_clock() - began, stage.unsettled
    say(f"{len(left)} objects are unsettled after {took:.1f} s of calm.")
    if left or took > times.calm:
        text = f"{took:.1f} s of calm; still unsettled: {', '.join(left[:10]) or 'none'}"
        stage.problems.append(Violation("objects did not settle in time", text, at=read_clock()))
    await asyncio.sleep(max(5.0, times.calm - took))
    await _check_indexes(stage)
    return took


async def _report_progress(stage: Stage, say: Say) -> None:
    while True:
        await asyncio.sleep(_PROGRESS)
        lives = stage.recorder.lives.values()
        lines = sum(path.stat().st_size for path in stage.fleet.folder.glob("*.lines"))
        say(
            f"{sum(life.gone is None for life in lives)} objects ({len(lives)} created), "
            f"{lines / 1e6:.1f} MB of evidence, {stage.counts.total()} faults, "
            f"{sum(len(place.processes) for place in stage.fleet.places)} processes"
            + (
                f", {len(stage.unsettled)} unsettled: {stage.unsettled[0]}, …"
                if stage.unsettled
                else ""
            )
        )


async def _check_webhooks(stage: Stage) -> None:
    """Check that the webhook configuration always exists: replicas never remove it."""
    path = f"{_CONFIGURATIONS}/{stage.fleet.variables['MANAGED']}"
    while True:
        with contextlib.suppress(httpx.HTTPError):
            answer = await stage.http.get(path)
            hooks = answer.json().get("webhooks") if answer.status_code == 200 else None
            if answer.status_code == 404 or (answer.status_code == 200 and not hooks):
                stage.problems.append(
                    Violation("the webhook configuration is missing", path, at=read_clock())
                )
        await asyncio.sleep(0.5)


async def _check_indexes(stage: Stage) -> None:
    """Check that the index of each replica has as many objects as the cluster."""
    count = sum(life.gone is None for life in stage.recorder.lives.values())
    resource = (KIND.group, "v1", KIND.plural)
    body = build_object({"counts": True})
    review = build_review(body, resource=resource, kind=KIND.kind)
    async with httpx.AsyncClient(verify=False, trust_env=False, timeout=10) as http:
        for place in stage.fleet.places:
            answer = await http.post(f"https://127.0.0.1:{place.port}/check", json=review)
            warnings = answer.json()["response"].get("warnings")
            if warnings != [str(count)]:
                text = f"replica {place.number + 1} has {warnings} objects, the cluster {count}"
                stage.problems.append(Violation("an index is wrong", text, at=read_clock()))


def collect(stage: Stage) -> Evidence:
    """Return the evidence of the replicas, after their end."""
    processes = {p.who: p for place in stage.fleet.places for p in place.processes}
    calls = []
    for who, process in processes.items():
        log = (stage.fleet.folder / f"{who}.log").read_text()
        process.terms = [at for at, _ in read_log(log, "This replica is leading")]
        path = stage.fleet.folder / f"{who}.lines"
        calls += read_lines(process, path.read_text().splitlines() if path.exists() else [])
    stage.problems += [
        Violation("a process has ended by itself", text, at=read_clock())
        for place in stage.fleet.places
        for text in place.surprises
    ]
    return Evidence(calls, stage.recorder.lives, processes, stage.fleet.has_lease)


def summarize(stage: Stage, evidence: Evidence, took: float) -> list[str]:
    calls, users = evidence.calls, stage.users.counts
    outcomes = Counter(call.outcome or "interrupted" for call in calls)
    ways = sum((place.link.counts for place in stage.fleet.places), Counter())
    rows: dict[str, object] = {
        "users": users,
        "objects": len(evidence.lives),
        "objects at the end": sum(life.gone is None for life in evidence.lives.values()),
        "calls": f"{len(calls)}: {_format(outcomes)}",
        "calls by handler": Counter(call.handler for call in calls),
        "repeated calls": count_repetitions(calls),
        "changes of the leader": len(list_leaders(calls)) - 1,
        "processes": len(evidence.processes),
        "faults": stage.counts,
        "faults of connections": ways,
        "reviews without a replica": stage.fleet.balancer.refused,
        "calm until settled": f"{took:.1f} s",
        "gaps in the watch": stage.recorder.gaps,
    }
    for process in evidence.processes.values():
        for name, trend in measure_growth(process).items():
            rows[f"{name} of {process.who}"] = trend
    return [
        f"{name:28} {_format(value) if isinstance(value, Counter) else value}"
        for name, value in rows.items()
    ]


def _format(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
