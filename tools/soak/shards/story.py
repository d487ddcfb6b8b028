"""A run: users, replicas that share the work, and faults one after another; then a calm."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from tests.kit.operators import Kind, open_http
from tests.kit.waiting import eventually
from tools.long_runs import Say, option, read_clock
from tools.soak.chaos.handlers import RECORDING
from tools.soak.chaos.invariants import Evidence, Process, Violation, read_lines
from tools.soak.chaos.life_recorder import LifeRecorder
from tools.soak.chaos.report import read_log
from tools.soak.chaos.users import Users
from tools.soak.leadership.replicas import Deployment, Replica
from tools.soak.shards.moves import Event, Gain, read_gains
from webop.objects.shards import SHARDS, parse_shards

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

NAME = "team"  # of the operator, for --shards and --lease
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}"
REPLICAS = 3
_PATIENCE = 60.0  # seconds, more than three leases
_BETWEEN = (1.0, 5.0)  # seconds between two events
_LABELLED = 0.1  # the share of objects with a timer, and of those with a daemon

HANDLERS = f"""{RECORDING}
@webop.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False

@webop.on.resume(*KIND)
async def resumed(**kwargs):
    with Call('resumed', **kwargs):
        pass
"""


@dataclass(frozen=True)
class Times:
    minutes: float = option(30.0, "minutes of faults")
    objects: int = option(2000, "objects at once")
    rate: float = option(25.0, "actions of users a second")
    seed: int = option(1, "seed of the order of faults, and of the users")
    duration: float = option(15.0, "lease duration in seconds")
    deadline: float = option(10.0, "renew deadline in seconds")
    period: float = option(2.0, "retry period in seconds")
    calm: float = option(60.0, "seconds after the faults in which all objects must settle")


@dataclass
class Stage:
    """The parts of a run.

    Attributes:
        running: the replicas that share the work, by name.
        processes: all that have ever run.
        events: what has happened.
        problems: what has been found out meanwhile.
        began: the start, by the clock of the evidence.
    """

    deployment: Deployment
    http: httpx.AsyncClient
    users: Users
    recorder: LifeRecorder
    times: Times
    chance: random.Random
    running: dict[str, Replica] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    problems: list[Violation] = field(default_factory=list)
    began: float = field(default_factory=read_clock)
    ends: set[asyncio.Task[None]] = field(default_factory=set)
    expected: set[str] = field(default_factory=set)  # to end

    @property
    def told(self) -> list[tuple[float, str]]:
        """The events with their times, as texts."""
        return [(event.at, f"{event.kind} {event.who}") for event in self.events]

    def note(
        self, kind: str, who: str = "", *, is_arrival: bool = False, is_orderly: bool = False
    ) -> None:
        self.events.append(Event(kind, read_clock(), who, is_arrival, is_orderly))

    def choose(self) -> Replica:
        """Return one of the replicas that share the work."""
        return self.running[self.chance.choice(sorted(self.running))]

    # Replicas

    async def add(self, option: str = "--shards") -> Replica:
        """Start another replica, and wait until it is ready."""
        name = f"replica-{len(self.processes) + 1}"
        self.note(f"arrival ({option})", name, is_arrival=True)
        self.processes[name] = process = Process(name, read_clock())
        await asyncio.to_thread(self.deployment.grant, name)
        replica = await self.deployment.add(name, option)
        task = asyncio.create_task(self._attend(replica, process))
        self.ends.add(task)
        task.add_done_callback(self.ends.discard)
        if option == "--shards":
            self.running[name] = replica

        async def is_ready() -> bool:
            return (await self.http.get(f"{replica.probes}/readyz")).status_code == 200

        what = lambda: f"{name} ready\n{replica.command.output[-3000:]}"  # noqa: E731
        await eventually(is_ready, what, _PATIENCE, ignoring=httpx.HTTPError)
        return replica

    async def _attend(self, replica: Replica, process: Process) -> None:
        code = await replica.command.process.wait()
        process.died = read_clock()
        if replica.name not in self.expected:
            text = f"{replica.name} ended with {code}:\n{replica.command.output[-1500:]}"
            self.problems.append(Violation("a process has ended by itself", text, at=process.died))

    async def end(self, replica: Replica, number: signal.Signals = signal.SIGTERM) -> None:
        """End a replica by a signal; wait for its end."""
        self.running.pop(replica.name, None)
        self.expected.add(replica.name)
        self.note(number.name, replica.name, is_orderly=number == signal.SIGTERM)
        replica.command.process.send_signal(number)
        code = await asyncio.wait_for(replica.command.process.wait(), _PATIENCE)
        if code != (0 if number == signal.SIGTERM else -number):
            text = f"{replica.name} ended with {code}:\n{replica.command.output[-1500:]}"
            self.problems.append(Violation("a wrong exit code", text, at=read_clock()))

    # What the API server says

    async def read_owners(self) -> dict[str, int]:
        """Return the numbers of shards of the replicas."""
        path = LEASES.format(self.deployment.namespace, f"{NAME}-shards")
        answer = await self.http.get(path)
        notes = answer.raise_for_status().json()["metadata"].get("annotations") or {}
        owners = json.loads(notes.get("webop.dev/shards", "[]"))
        return {one["holder"]: len(parse_shards(one["shards"])) for one in owners}

    async def wait_balanced(self, *without: str) -> None:
        """Wait until the running replicas own all shards in fair shares."""
        names = self.running.keys() - set(without)

        def is_fair(owners: dict[str, int]) -> bool:
            counts = [owners.get(name, 0) for name in names]
            return sum(counts) == SHARDS and max(counts) - min(counts) <= 1

        what = f"{len(names)} fair shares"
        limit = _PATIENCE + 3 * self.times.duration
        await eventually(self.read_owners, what, limit, check=is_fair, ignoring=httpx.HTTPError)

    async def has_acted(self, name: str) -> bool:
        """Return whether a replica has called a handler."""
        path = self.deployment.folder / f"{name}.lines"
        return path.exists() and path.stat().st_size > 0


@asynccontextmanager
async def set_up(
    cluster: LocalCluster, namespace: str, kind: Kind, folder: Path, times: Times
) -> AsyncIterator[Stage]:
    """Start the replicas, and wait until they share the shards."""
    variables = {
        "WEBOP_LEADERSHIP__LEASE_DURATION": str(times.duration),
        "WEBOP_LEADERSHIP__RENEW_DEADLINE": str(times.deadline),
        "WEBOP_LEADERSHIP__RETRY_PERIOD": str(times.period),
        "LEASE": NAME,
    }
    deployment = Deployment(cluster, namespace, kind, folder, variables, NAME, HANDLERS)
    await asyncio.to_thread(deployment.permit_all, [])
    url = kind.resource.get_url(namespace=namespace)
    async with open_http(cluster) as http, deployment.run(0):
        users = Users(http, url, kind, times.seed, bad=0.0, labelled=_LABELLED)
        recorder = LifeRecorder(http, url, has_webhooks=False)
        chance = random.Random(f"{times.seed} events")
        stage = Stage(deployment, http, users, recorder, times, chance)
        watching = asyncio.create_task(recorder.watch())
        try:
            for _ in range(REPLICAS):
                await stage.add()
            await stage.wait_balanced()
            yield stage
        finally:
            watching.cancel()
            stage.expected |= stage.processes.keys()
            for replica in deployment.replicas:
                await replica.command.kill()


async def play(stage: Stage, say: Say) -> float:
    """Run users and events; return the seconds of calm until all objects were settled."""
    times, names = stage.times, [f"crate-{number}" for number in range(stage.times.objects)]
    acting = asyncio.create_task(stage.users.act(names, times.rate))
    try:
        await eventually(
            lambda: len(stage.recorder.lives) >= len(names),
            "as many objects created",
            _PATIENCE + times.objects / 20,
        )
        say("All objects are created. The faults begin.")
        until, waiting = read_clock() + times.minutes * 60, list[Act]()
        while read_clock() < until:
            if not waiting:
                waiting = stage.chance.sample(ACTS, len(ACTS))
            act, began = waiting.pop(), read_clock()
            await act(stage)
            took, lives = read_clock() - began, stage.recorder.lives.values()
            alive = sum(life.gone is None for life in lives)
            say(f"{act.__doc__} {took:.1f} s; {alive} objects, {len(lives)} created so far")
            await asyncio.sleep(stage.chance.uniform(*_BETWEEN))
        stage.users.stop()
        await acting
    finally:
        acting.cancel()
        await asyncio.wait([acting])
    say("Users and faults have stopped. The calm begins.")
    began = read_clock()
    with contextlib.suppress(AssertionError):
        await eventually(
            stage.recorder.list_unsettled, timeout=times.calm, check=lambda found: not found
        )
    took = read_clock() - began
    if left := await stage.recorder.list_unsettled():
        text = f"{len(left)} after {took:.1f} s: {', '.join(left[:10])}"
        stage.problems.append(Violation("objects did not settle in time", text, at=read_clock()))
    await asyncio.sleep(3.0)  # for repetitions, and for what daemons do
    return took


Act = Callable[[Stage], Awaitable[None]]


async def kill(stage: Stage) -> None:
    """A replica was killed, and another one started."""
    await stage.end(stage.choose(), signal.SIGKILL)
    await stage.add()
    await stage.wait_balanced()


async def stop_for_long(stage: Stage) -> None:
    """A replica was stopped beyond its lease, and continued."""
    async with _stopped(stage, "SIGSTOP beyond the lease") as replica:
        await stage.wait_balanced(replica.name)
    stage.note("return from SIGSTOP", replica.name, is_arrival=True)
    await stage.wait_balanced()


async def stop_for_a_moment(stage: Stage) -> None:
    """A replica was stopped for less than its lease, and continued."""
    async with _stopped(stage, "SIGSTOP for a moment"):
        await asyncio.sleep(stage.chance.uniform(0.1, 0.9) * stage.times.deadline)
    await stage.wait_balanced()


@asynccontextmanager
async def _stopped(stage: Stage, kind: str) -> AsyncIterator[Replica]:
    replica = stage.choose()
    stage.note(kind, replica.name)
    replica.command.process.send_signal(signal.SIGSTOP)
    began = read_clock()
    try:
        yield replica
    finally:
        stage.processes[replica.name].pauses.append((began, read_clock()))
        replica.command.process.send_signal(signal.SIGCONT)


async def part(stage: Stage) -> None:
    """A replica was cut off from the API server, and connected again."""
    replica = stage.choose()
    stage.note("partition", replica.name)
    replica.proxy.is_refusing = True
    replica.proxy.cut()
    try:
        await stage.wait_balanced(replica.name)
    finally:
        stage.note("return from partition", replica.name, is_arrival=True)
        replica.proxy.is_refusing = False
    await stage.wait_balanced()


async def roll_out(stage: Stage) -> None:
    """All replicas were replaced, one after another."""
    for replica in [*stage.running.values()]:
        await stage.add()
        await stage.end(replica)
    await stage.wait_balanced()


async def scale(stage: Stage) -> None:
    """A fourth replica came, and went."""
    replica = await stage.add()
    await stage.wait_balanced()
    await stage.end(replica)
    await stage.wait_balanced()


async def restart_server(stage: Stage) -> None:
    """The API server was killed, and started again."""
    cluster = stage.deployment.cluster
    stage.note("API server killed")
    await asyncio.to_thread(cluster.kill_apiserver)
    await asyncio.sleep(stage.chance.uniform(0.0, stage.times.deadline / 2))
    await asyncio.to_thread(cluster.restart_apiserver)
    await stage.wait_balanced()


async def delete_owners(stage: Stage) -> None:
    """The Lease with the owners was deleted."""
    stage.note("Lease of owners deleted")
    path = LEASES.format(stage.deployment.namespace, f"{NAME}-shards")
    (await stage.http.delete(path)).raise_for_status()
    await stage.wait_balanced()


async def elect(stage: Stage) -> None:
    """A replica with --lease came, acted alone when the others had stopped, and went."""
    leader = await stage.add("--lease")
    await asyncio.sleep(2 * stage.times.period)
    if await stage.has_acted(leader.name):
        text = f"{leader.name} with --lease has acted beside replicas with --shards"
        stage.problems.append(Violation("two replicas act at once", text, at=read_clock()))
    for replica in [*stage.running.values()]:
        await stage.end(replica)
    what = f"steps of {leader.name}"
    await eventually(lambda: stage.has_acted(leader.name), what, _PATIENCE)
    for _ in range(REPLICAS):
        await stage.add()
    await asyncio.sleep(2 * stage.times.period)
    for name in stage.running:
        if await stage.has_acted(name):
            text = f"{name} with --shards has acted beside a leader"
            stage.problems.append(Violation("two replicas act at once", text, at=read_clock()))
    await stage.end(leader)
    stage.note("end of a leader", is_arrival=True)
    await stage.wait_balanced()


ACTS: list[Act] = [
    kill,
    stop_for_long,
    stop_for_a_moment,
    part,
    roll_out,
    scale,
    restart_server,
    delete_owners,
    elect,
]

_CLAIMS = (
    r"This replica (?P<leads>is leading)|This replica owns (no shards|\d+ of \d+ shards "
    r"\((?P<shards>.*?)\))|(?P<lost>Leadership is lost|Released the lease)"
)


def collect(stage: Stage) -> tuple[Evidence, list[Gain]]:
    """Return what the replicas have done, and which shards they have got, before their end."""
    calls, gains, folder = [], [], stage.deployment.folder
    (folder / "events.json").write_text(json.dumps([asdict(event) for event in stage.events]))
    for who, process in stage.processes.items():
        log = (folder / f"{who}.log").read_text()
        process.terms = [at for at, _ in read_log(log, "This replica is (leading|one of those)")]
        claims = [
            (
                at,
                None
                if found["lost"]
                else parse_shards(found["shards"] or (f"0-{SHARDS - 1}" if found["leads"] else "")),
            )
            for at, found in read_log(log, _CLAIMS)
        ]
        gains += read_gains(who, claims)
        path = folder / f"{who}.lines"
        calls += read_lines(process, path.read_text().splitlines() if path.exists() else [])
    return Evidence(calls, stage.recorder.lives, stage.processes, has_lease=False), gains


def summarize(stage: Stage, evidence: Evidence, took: float) -> list[str]:
    """Return what the run has done, in numbers."""
    counts: dict[str, Counter[str]] = {
        "users": stage.users.counts,
        "calls": Counter(call.handler for call in evidence.calls),
        "outcomes": Counter(call.outcome or "interrupted" for call in evidence.calls),
        "events": Counter(event.kind for event in stage.events),
    }
    lines = [
        f"{name:10} {', '.join(f'{key} {value}' for key, value in sorted(counter.items()))}"
        for name, counter in counts.items()
    ]
    lives, gaps = evidence.lives.values(), stage.recorder.gaps
    alive = sum(life.gone is None for life in lives)
    lines.append(f"objects    {len(lives)} created, {alive} at the end, settled in {took:.1f} s")
    return [*lines, f"watch      {gaps} gaps in the record of stored states"]
