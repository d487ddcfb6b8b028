"""Faults of the leader of three replicas, one after another; checks which replica leads then."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.kit.operators import Kind, Objects, connect
from tests.kit.reviews import build_review
from tests.kit.waiting import eventually
from tools.long_runs import Say, option, read_clock
from tools.soak.leadership.replicas import Deployment, Replica, Step
from tools.soak.steady_load import SteadyLoad

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster


_PATIENCE = 60.0  # seconds
_REVIEW_TIMEOUT = 5.0
_SHUTDOWN_DELAY = 1.5
_BETWEEN = 0.5  # seconds; so that late steps are seen


@dataclass(frozen=True)
class Times:
    duration: float = option(15.0, "lease duration in seconds")
    deadline: float = option(10.0, "renew deadline in seconds")
    period: float = option(2.0, "retry period in seconds")
    rate: float = option(20.0, "reviews a second")


@dataclass
class Reviews:
    """The results of the reviews that are sent all the time to all replicas."""

    answered: int = 0
    excused: int = 0
    failed: list[str] = field(default_factory=list)
    slowest: float = 0.0


@dataclass
class Outcome:
    """The outcome of a fault.

    Attributes:
        before: the previous leader.
        after: the new leader.
        handover: the seconds from the fault to the first step of the new leader.
        overlaps: steps of others after it, or at the same time.
        steps: the number of steps.
    """

    fault: str
    before: str
    after: str
    handover: float
    overlaps: list[str]
    steps: int
    failed: int


@dataclass
class Stage:
    deployment: Deployment
    objects: Objects
    http: httpx.AsyncClient
    times: Times
    reviews: Reviews = field(default_factory=Reviews)
    created: list[str] = field(default_factory=list)

    @property
    def alive(self) -> list[Replica]:
        return [replica for replica in self.deployment.replicas if not replica.is_gone]

    def find(self, name: str) -> Replica:
        return next(r for r in self.deployment.replicas if r.name == name)

    async def create(self, name: str) -> None:
        await self.objects.create(name)
        self.created.append(name)

    def list_steps(self, since: float = 0.0) -> list[Step]:
        return [step for step in self.deployment.read_steps() if step.begin >= since]

    async def wait_for_steps(self, names: list[str], since: float, *others: str) -> str:
        """Wait until one replica, not among ``others``, handles all objects; return its name."""
        found = ""

        async def act() -> bool:
            nonlocal found
            steps = [step for step in self.list_steps(since) if step.who not in others]
            if steps:
                found = steps[-1].who
            done = {step.name for step in steps if step.who == found and step.what == "daemon"}
            return done >= set(names)

        await eventually(act, lambda: f"One replica for all objects\n{self.show_logs()}", _PATIENCE)
        return found

    async def wait_for_indexes(self) -> None:
        for replica in self.alive:

            async def know(replica: Replica = replica) -> bool:
                answer = await self.http.post(replica.url + "/check", json=self.build_review())
                warnings = answer.json()["response"].get("warnings")
                return bool(warnings == [str(len(self.created))])

            what = f"The index of {replica.name}"
            await eventually(know, what, _PATIENCE, ignoring=httpx.HTTPError)

    def build_review(self) -> dict[str, Any]:
        kind = self.objects.kind
        return build_review(resource=(kind.group, "v1", kind.plural), kind=kind.kind)

    def show_logs(self) -> str:
        return "\n".join(
            f"--- {r.name}\n{r.command.output[-3000:]}" for r in self.deployment.replicas
        )


class ReviewLoad(SteadyLoad[Reviews]):
    """Reviews, to all replicas in turns."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.reviews, stage.times.rate)
        self._stage = stage

    async def act(self, number: int) -> None:
        stage, tally = self._stage, self.tally
        replica = stage.deployment.replicas[number % len(stage.deployment.replicas)]
        if replica.is_gone:
            return
        begun = time.monotonic()
        url = f"{replica.url}/check?timeout={_REVIEW_TIMEOUT:g}s"
        try:
            answer = await stage.http.post(url, json=stage.build_review(), timeout=_REVIEW_TIMEOUT)
            assert answer.json()["response"]["allowed"] is True, answer.text
        except (httpx.HTTPError, AssertionError, ValueError, KeyError) as exc:
            if time.monotonic() > replica.excused_from:
                tally.excused += 1
            else:
                tally.failed.append(f"{replica.name}: {exc!r}")
        else:
            tally.answered += 1
            if replica.excused_from > begun:
                tally.slowest = max(tally.slowest, time.monotonic() - begun)


@asynccontextmanager
async def set_up(
    cluster: LocalCluster, namespace: str, kind: Kind, folder: Path, times: Times
) -> AsyncIterator[Stage]:
    """Start three replicas, one of which leads."""
    variables = {
        "WEBOP_LEADERSHIP__LEASE_DURATION": str(times.duration),
        "WEBOP_LEADERSHIP__RENEW_DEADLINE": str(times.deadline),
        "WEBOP_LEADERSHIP__RETRY_PERIOD": str(times.period),
        "WEBOP_ADMISSION__SHUTDOWN_DELAY": str(_SHUTDOWN_DELAY),
    }
    deployment = Deployment(cluster, namespace, kind, folder, variables)
    await asyncio.to_thread(deployment.permit_all, [f"replica-{n}" for n in (1, 2, 3)])
    http = httpx.AsyncClient(timeout=_REVIEW_TIMEOUT, trust_env=False)
    async with connect(cluster) as client, http, deployment.run(3) as replicas:
        stage = Stage(deployment, Objects(client, kind, namespace), http, times)
        for replica in replicas:
            look = partial(_is_ready, http, replica)
            await eventually(look, stage.show_logs, _PATIENCE, ignoring=httpx.HTTPError)
        for name in ("first", "second"):
            await stage.create(name)
        await stage.wait_for_steps(stage.created, 0.0)
        await stage.wait_for_indexes()
        for name in stage.created:
            await stage.objects.wait_handled(name)
        async with ReviewLoad(stage).run():
            yield stage


Cure = Callable[[], Awaitable[None]]


async def play(stage: Stage, say: Say) -> list[Outcome]:
    """Inject all faults into the leader, one after another."""
    outcomes = []
    for fault, strike in (
        ("its connection is cut", cut),
        ("it may not renew any more", forbid),
        ("SIGSTOP beyond the lease", stop),
        ("the API server is killed", restart),
        ("SIGTERM", terminate),
        ("kill -9", kill),
    ):
        outcomes.append(await _befall(stage, fault, strike))
        say(format_outcome(outcomes[-1]))
    return outcomes


async def _befall(
    stage: Stage, fault: str, strike: Callable[[Stage, Replica], Awaitable[Cure]]
) -> Outcome:
    leader = stage.find(stage.list_steps()[-1].who)
    failed = len(stage.reviews.failed)
    began = read_clock()
    cure = await strike(stage, leader)
    struck = read_clock()
    # A process that is stopped inside a step ends the step late.
    since = struck if strike is stop else began
    # A leader that recovers in time continues; the time of its next step counts.
    returned = struck if strike is restart else since
    name = f"{strike.__name__}-gap"
    await stage.create(name)
    excluded = () if strike is restart else (leader.name,)
    after = await stage.wait_for_steps(stage.created, struck, *excluded)
    await asyncio.sleep(_BETWEEN)
    await cure()
    await stage.wait_for_indexes()
    await stage.objects.wait_handled(
        name
    )  # otherwise another replica may handle its creation again
    await asyncio.sleep(_BETWEEN)
    steps = stage.list_steps(since)
    first = next(step for step in steps if step.who == after and step.begin > returned)
    return Outcome(
        fault=fault,
        before=leader.name,
        after=after,
        handover=first.begin - began,
        overlaps=find_overlaps(steps, first),
        steps=len(steps),
        failed=len(stage.reviews.failed) - failed,
    )


def find_overlaps(steps: list[Step], first: Step) -> list[str]:
    """Return the steps of other replicas after, or during, the first step of the new leader."""
    late = [s for s in steps if s.who != first.who and s.begin > first.begin]
    meanwhile = [b for a, b in itertools.pairwise(steps) if a.who != b.who and b.begin < a.end]
    return [f"{step} after {first}" for step in {*late, *meanwhile}]


def find_repetitions(steps: list[Step]) -> list[str]:
    """Return the objects whose creation was handled more than once."""
    ended = [step.name for step in steps if step.what == "end of creation"]
    return sorted({name for name in ended if ended.count(name) > 1})


async def cut(_: Stage, leader: Replica) -> Cure:
    """Break all connections to the API server, and refuse new ones."""
    leader.proxy.is_refusing = True
    leader.proxy.cut()

    async def cure() -> None:
        leader.proxy.is_refusing = False

    return cure


async def forbid(stage: Stage, leader: Replica) -> Cure:
    """Revoke only the access to the Lease."""
    await asyncio.to_thread(stage.deployment.revoke, leader.name)

    async def cure() -> None:
        assert "Needed: get, create and update" in leader.command.output
        await asyncio.to_thread(stage.deployment.grant, leader.name)

    return cure


async def stop(_: Stage, leader: Replica) -> Cure:
    """Stop the process with SIGSTOP until another replica leads."""
    leader.excused_from = time.monotonic() - _REVIEW_TIMEOUT
    leader.command.process.send_signal(signal.SIGSTOP)

    async def cure() -> None:
        leader.command.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(2 * _BETWEEN)
        leader.excused_from = float("inf")

    return cure


async def restart(stage: Stage, _: Replica) -> Cure:
    """Kill the API server, and start it again."""
    cluster = stage.deployment.cluster
    await asyncio.to_thread(cluster.kill_apiserver)
    await asyncio.to_thread(cluster.restart_apiserver)
    return _do_nothing


async def terminate(_: Stage, leader: Replica) -> Cure:
    """Stop the process like a kubelet; it serves its webhooks for a while."""
    leader.command.process.send_signal(signal.SIGTERM)
    # Load balancers notice within the delay; then it may close its port.
    asyncio.get_running_loop().call_later(_SHUTDOWN_DELAY / 2, setattr, leader, "is_gone", True)

    async def cure() -> None:
        ending = asyncio.create_task(leader.command.process.wait())
        assert (await asyncio.wait({ending}, timeout=_PATIENCE))[0], leader.command.output[-8000:]
        code = ending.result()
        assert code in (0, -signal.SIGTERM, 128 + signal.SIGTERM), leader.command.output

    return cure


async def kill(_: Stage, leader: Replica) -> Cure:
    leader.excused_from = time.monotonic() - _REVIEW_TIMEOUT
    leader.command.process.kill()
    leader.is_gone = True
    return _do_nothing


async def _do_nothing() -> None: ...


def format_outcome(outcome: Outcome) -> str:
    return (
        f"{outcome.fault:28} {outcome.before} -> {outcome.after} {outcome.handover:10.2f} s "
        f"{len(outcome.overlaps):9} {outcome.steps:7} {outcome.failed:15}"
    )


_COLUMNS = ("fault", "leader", "takeover", "overlaps", "steps", "failed reviews")
HEADING = "{:28} {:22} {:>12} {:>9} {:>7} {:>15}".format(*_COLUMNS)


async def _is_ready(http: httpx.AsyncClient, replica: Replica) -> bool:
    return (await http.get(f"{replica.probes}/readyz")).status_code == 200
