"""A run: users, replicas that share the work or elect a leader, and one fault after another."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from tests.kit.operators import Kind, connect, open_http
from tests.kit.waiting import eventually
from tools.long_runs import Say, option, read_clock
from tools.soak.evidence import Evidence
from tools.soak.fleet import PATIENCE, Fleet, Replica
from tools.soak.handlers import HANDOVER
from tools.soak.handover.moves import Event, Gain, read_gains
from tools.soak.link import Weather
from tools.soak.report import read_log
from tools.soak.stage import Stage, open_stage
from webop.errors import APIConflictError
from webop.objects.shards import SHARDS, parse_shards

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

KIND = Kind("handover.webop.dev", "crates", "Crate")
NAME = "team"  # of the operator, for --shards and --lease
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}"
_BETWEEN = (1.0, 5.0)  # seconds between two events


@dataclass(frozen=True)
class Times:
    minutes: float = option(30.0, "minutes of faults")
    objects: int = option(2000, "objects at once")
    rate: float = option(25.0, "actions of users a second")
    replicas: int = option(3, "replicas")
    seed: int = option(1, "seed of the order of faults, and of the users")
    duration: float = option(15.0, "lease duration in seconds")
    deadline: float = option(10.0, "renew deadline in seconds")
    period: float = option(2.0, "retry period in seconds")
    calm: float = option(60.0, "seconds in which all objects must settle")


@dataclass(kw_only=True)
class HandoverStage(Stage):
    """The parts of a run.

    Attributes:
        way: ``--shards`` or ``--lease``: how the replicas agree.
        running: those of this way that have not been asked to end.
    """

    times: Times
    way: str
    running: list[Replica]

    async def choose(self) -> Replica:
        """Return one of the replicas that share the work, or the leader."""
        if self.way == "--shards":
            return self.chance.choice(self.running)
        (holder,) = await self.read_owners()
        return next(replica for replica in self.running if replica.identity == holder)

    async def add(self, way: str = "") -> Replica:
        """Start another replica, and wait until it is ready."""
        way = way or self.way
        replica = await self.fleet.add(f"{way}={NAME}")
        # Who waits for its turn gets nothing from others.
        self.note(f"arrival ({way})", replica.who, is_arrival=True)
        if way == self.way:
            self.running.append(replica)
        await self.fleet.wait_ready(replica, self.http)
        return replica

    async def end(self, replica: Replica, number: signal.Signals = signal.SIGTERM) -> None:
        """End a replica by a signal; wait for its end."""
        if replica in self.running:
            self.running.remove(replica)
        self.note(number.name, replica.who)
        await self.fleet.end(replica, number)

    async def read_owners(self) -> dict[str, int]:
        """Return the numbers of shards of the replicas; a leader has all of them."""
        is_shared = self.way == "--shards"
        path = _LEASES.format(self.fleet.namespace, f"{NAME}-shards" if is_shared else NAME)
        lease = (await self.http.get(path)).raise_for_status().json()
        if not is_shared:
            holder = lease["spec"].get("holderIdentity")
            return {holder: SHARDS} if holder else {}
        notes = lease["metadata"].get("annotations") or {}
        owners = json.loads(notes.get("webop.dev/shards", "[]"))
        return {one["holder"]: len(parse_shards(one["shards"])) for one in owners}

    async def wait_balanced(self, without: Replica | None = None) -> None:
        """Wait until the running replicas own all shards in fair shares, or one of them leads."""
        names = {replica.identity for replica in self.running if replica is not without}

        def is_fair(owners: dict[str, int]) -> bool:
            counts = [owners.get(name, 0) for name in names]
            is_even = self.way == "--lease" or max(counts) - min(counts) <= 1
            return sum(counts) == SHARDS and is_even

        limit = PATIENCE + 3 * self.times.duration
        what = f"fair shares of {names}"
        await eventually(self.read_owners, what, limit, check=is_fair, ignoring=httpx.HTTPError)

    def has_acted(self, replica: Replica) -> bool:
        """Tell whether a replica has called a handler."""
        return bool(self.fleet.read(replica.who, "lines"))


@contextlib.asynccontextmanager
async def set_up(
    cluster: LocalCluster, namespace: str, folder: Path, times: Times, way: str
) -> AsyncIterator[HandoverStage]:
    """Start the replicas, and wait until they share the shards, or have elected a leader."""
    async with connect(cluster) as client:
        with contextlib.suppress(APIConflictError):  # of another way
            await KIND.define(client)
    variables = {
        "WEBOP_LEADERSHIP__LEASE_DURATION": str(times.duration),
        "WEBOP_LEADERSHIP__RENEW_DEADLINE": str(times.deadline),
        "WEBOP_LEADERSHIP__RETRY_PERIOD": str(times.period),
        "LEASE": NAME,
    }
    fleet = Fleet(cluster, namespace, KIND, folder, variables, times.seed)

    def make(*parts: object) -> HandoverStage:
        return HandoverStage(*parts, times=times, way=way, running=[])  # type: ignore[arg-type]

    async with (
        open_http(cluster) as http,
        open_stage(fleet, http, HANDOVER, has_webhooks=False, make=make) as stage,
    ):
        assert isinstance(stage, HandoverStage)
        for _ in range(times.replicas):
            await stage.add()
        await stage.wait_balanced()
        yield stage


async def play(stage: HandoverStage, say: Say, acts: list[Act] | None = None) -> None:
    """Run users and events, each of the given ones once, or all until the time is over."""
    times = stage.times
    async with stage.used(times.objects, times.rate):
        await eventually(
            lambda: len(stage.recorder.lives) >= times.objects,
            "as many objects created",
            PATIENCE + times.objects / 20,
        )
        say("All objects are created. The faults begin.")
        until, waiting = read_clock() + times.minutes * 60, list[Act]()
        while acts or (acts is None and read_clock() < until):
            if acts is None and not waiting:
                known = SHARING if stage.way == "--shards" else LEADING
                waiting = stage.chance.sample(known, len(known))
            act, began = (acts or waiting).pop(0), read_clock()
            await act(stage)
            say(f"{act.__doc__} {read_clock() - began:.1f} s; {stage.describe()}")
            await asyncio.sleep(stage.chance.uniform(*_BETWEEN))
    await stage.calm_down(times.calm, say)


Act = Callable[[HandoverStage], Awaitable[None]]


async def kill(stage: HandoverStage) -> None:
    """A replica was killed, and another one started."""
    await stage.end(await stage.choose(), signal.SIGKILL)
    await stage.add()
    await stage.wait_balanced()


async def replace(stage: HandoverStage) -> None:
    """A replica was stopped, and another one started."""
    await stage.end(await stage.choose())
    await stage.add()
    await stage.wait_balanced()


async def stop_for_long(stage: HandoverStage) -> None:
    """A replica was stopped beyond its lease, and continued."""
    replica = await stage.choose()
    stage.note("SIGSTOP beyond the lease", replica.who)
    async with replica.stopped():
        await stage.wait_balanced(replica)
    stage.note("return from SIGSTOP", replica.who, is_arrival=True)
    await stage.wait_balanced()


async def stop_for_a_moment(stage: HandoverStage) -> None:
    """A replica was stopped for less than its lease, and continued."""
    replica = await stage.choose()
    stage.note("SIGSTOP for a moment", replica.who)
    async with replica.stopped():
        await asyncio.sleep(stage.chance.uniform(0.1, 0.9) * stage.times.deadline)
    await stage.wait_balanced()


async def part(stage: HandoverStage) -> None:
    """A replica was cut off from the API server, and connected again."""
    await _disturb(stage, "partition", Weather(is_closed=True))


async def forbid(stage: HandoverStage) -> None:
    """A replica was denied the access to Leases, and got it back."""
    await _disturb(stage, "no access to Leases", Weather(status=403, failing=1.0, path="/leases"))


async def _disturb(stage: HandoverStage, kind: str, weather: Weather) -> None:
    replica = await stage.choose()
    stage.note(kind, replica.who)
    replica.link.weather = weather
    replica.link.cut()
    try:
        await stage.wait_balanced(replica)
    finally:
        stage.note(f"return from {kind}", replica.who, is_arrival=True)
        replica.link.weather = Weather()
    await stage.wait_balanced()


async def roll_out(stage: HandoverStage) -> None:
    """All replicas were replaced, one after another."""
    for replica in [*stage.running]:
        await stage.add()
        await stage.end(replica)
    await stage.wait_balanced()


async def restart_server(stage: HandoverStage) -> None:
    """The API server was killed, and started again."""
    cluster = stage.fleet.cluster
    stage.note("API server killed")
    await asyncio.to_thread(cluster.kill_apiserver)
    await asyncio.sleep(stage.chance.uniform(0.0, stage.times.deadline / 2))
    await asyncio.to_thread(cluster.restart_apiserver)
    await stage.wait_balanced()


async def scale(stage: HandoverStage) -> None:
    """One more replica came, and went."""
    replica = await stage.add()
    await stage.wait_balanced()
    await stage.end(replica)
    await stage.wait_balanced()


async def delete_owners(stage: HandoverStage) -> None:
    """The Lease with the owners was deleted."""
    stage.note("Lease of owners deleted")
    path = _LEASES.format(stage.fleet.namespace, f"{NAME}-shards")
    (await stage.http.delete(path)).raise_for_status()
    await stage.wait_balanced()


async def elect(stage: HandoverStage) -> None:
    """A replica with --lease came, acted alone when the others had stopped, and went."""
    leader = await stage.add("--lease")
    await asyncio.sleep(2 * stage.times.period)
    if stage.has_acted(leader):
        text = f"{leader.who} with --lease has acted beside replicas with --shards"
        stage.complain("two replicas act at once", text)
    count = len(stage.running)
    for replica in [*stage.running]:
        await stage.end(replica)
    await eventually(lambda: stage.has_acted(leader), f"steps of {leader.who}", PATIENCE)
    for _ in range(count):
        await stage.add()
    await asyncio.sleep(2 * stage.times.period)
    for replica in filter(stage.has_acted, stage.running):
        text = f"{replica.who} with --shards has acted beside a leader"
        stage.complain("two replicas act at once", text)
    await stage.end(leader)
    stage.note("end of a leader", is_arrival=True)
    await stage.wait_balanced()


_BOTH: list[Act] = [kill, stop_for_long, stop_for_a_moment, part, roll_out, restart_server]
SHARING: list[Act] = [*_BOTH, scale, delete_owners, elect]
LEADING: list[Act] = [*_BOTH, replace, forbid]

_CLAIMS = (
    r"This replica (?P<leads>is leading)|This replica owns (no shards|\d+ of \d+ shards "
    r"\((?P<shards>.*?)\))|(?P<lost>Leadership is lost|Released the lease)"
)


def collect(stage: HandoverStage) -> tuple[Evidence, list[Gain], list[Event]]:
    """Return what the replicas have done, and which shards they have got and lost until now."""
    events = json.dumps([asdict(event) for event in stage.events])
    (stage.fleet.folder / "events.json").write_text(events)
    gains, losses = [], []
    for who in stage.fleet.processes:
        claims = []
        log = stage.fleet.read(who, "log")
        losses += [Event("lost", at, who) for at, _ in read_log(log, "Leadership is lost")]
        for at, found in read_log(log, _CLAIMS):
            owned = found["shards"] or (f"0-{SHARDS - 1}" if found["leads"] else "")
            claims.append((at, None if found["lost"] else parse_shards(owned)))
        gains += read_gains(who, claims)
    return stage.collect(has_lease=stage.way == "--lease"), gains, losses
