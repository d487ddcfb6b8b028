"""A run with users: replicas, what happens to them, a calm, and the check of all rules.

:mod:`tools.soak.chaos` and :mod:`tools.soak.handover` share it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

import httpx

from tools.long_runs import Say, read_clock
from tools.soak.evidence import (
    Evidence,
    Violation,
    count_repetitions,
    find_idle_daemons,
    judge,
    list_leaders,
    measure_growth,
    read_lines,
)
from tools.soak.fleet import Fleet
from tools.soak.handover.moves import Event
from tools.soak.life_recorder import LifeRecorder
from tools.soak.report import read_log, show
from tools.soak.users import Users

_PATIENCE = 120.0  # more seconds of calm, to distinguish late objects from stuck ones
_REPETITIONS = 5.0  # seconds after the calm, for repetitions, and for what daemons do


@dataclass
class Stage:
    """The parts of a run.

    Attributes:
        chance: for what happens.
        began: the start, by the clock of the evidence.
        events: what has happened.
        problems: what was found meanwhile.
    """

    fleet: Fleet
    http: httpx.AsyncClient
    users: Users
    recorder: LifeRecorder
    chance: random.Random
    watching: asyncio.Task[None]
    began: float = field(default_factory=read_clock)
    events: list[Event] = field(default_factory=list)
    problems: list[Violation] = field(default_factory=list)

    def note(self, kind: str, who: str = "", *, is_arrival: bool = False) -> None:
        """Note what happens, to one process or to all."""
        self.events.append(Event(kind, read_clock(), who, is_arrival))

    def complain(self, rule: str, text: str) -> None:
        self.problems.append(Violation(rule, text, at=read_clock()))

    def describe(self) -> str:
        """Return the number of objects, for a line of progress."""
        lives = self.recorder.lives.values()
        return f"{sum(life.gone is None for life in lives)} objects, {len(lives)} created so far"

    @contextlib.asynccontextmanager
    async def used(self, objects: int, rate: float) -> AsyncIterator[None]:
        """Let users act during a block, with so many objects; at its end, they finish."""
        names = [f"crate-{number}" for number in range(objects)]
        acting = asyncio.create_task(self.users.act(names, rate))
        try:
            yield
            self.users.stop()
            await acting
        finally:  # also after Ctrl-C
            acting.cancel()
            await asyncio.wait([acting])

    async def calm_down(self, calm: float, say: Say) -> None:
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
        if self.watching.done():
            self.watching.result()

    def collect(self, *, has_lease: bool) -> Evidence:
        """Return what the replicas have done, before their end."""
        calls = []
        for who, process in self.fleet.processes.items():
            log = self.fleet.read(who, "log")
            begins = read_log(log, "This replica is (leading|one of those)")
            process.terms = [at for at, _ in begins]
            calls += read_lines(process, self.fleet.read(who, "lines").splitlines())
        return Evidence(calls, self.recorder.lives, self.fleet.processes, has_lease)

    def conclude(
        self, evidence: Evidence, more: Iterable[Violation], counts: dict[str, object], say: Say
    ) -> int:
        """Print violations and figures; return the number of violations."""
        violations = [
            *self.problems,
            *self.fleet.problems,
            *judge(evidence),
            *find_idle_daemons(evidence),
            *more,
        ]
        told = [(event.at, f"{event.kind} {event.who}") for event in self.events]
        show(violations, evidence, told, self.began, say)
        calls, lives = evidence.calls, evidence.lives.values()
        outcomes = Counter(call.outcome or "interrupted" for call in calls)
        rows: dict[str, object] = {
            "users": self.users.counts,
            "objects": f"{len(lives)}, {sum(life.gone is None for life in lives)} at the end",
            "calls": f"{len(calls)}: {_format(outcomes)}",
            "calls by handler": Counter(call.handler for call in calls),
            "repeated calls": count_repetitions(calls),
            "changes of the leader": len(list_leaders(calls)) - 1 if evidence.has_lease else "-",
            "processes": len(evidence.processes),
            "faults of connections": sum((r.link.counts for r in self.fleet.replicas), Counter()),
            "gaps in the watch": self.recorder.gaps,
            **counts,
        }
        for process in evidence.processes.values():
            for name, trend in measure_growth(process).items():
                rows[f"{name} of {process.who}"] = trend
        for name, value in rows.items():
            say(f"{name:28} {_format(value) if isinstance(value, Counter) else value}")
        say(f"Violations: {len(violations)}")
        return len(violations)


def _format(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


@contextlib.asynccontextmanager
async def open_stage(
    fleet: Fleet,
    http: httpx.AsyncClient,
    handlers: str,
    *,
    has_webhooks: bool,
    make: Callable[..., Stage] = Stage,
) -> AsyncIterator[Stage]:
    """Prepare users, and the record of what they do; the replicas are killed at the end."""
    url = fleet.kind.resource.get_url(namespace=fleet.namespace)
    users = Users(http, url, fleet.kind, fleet.seed, bad=0.2 if has_webhooks else 0.0)
    recorder = LifeRecorder(http, url, has_webhooks=has_webhooks)
    chance = random.Random(f"{fleet.seed} events")
    async with fleet.run(handlers):
        watching = asyncio.create_task(recorder.watch())
        try:
            yield make(fleet, http, users, recorder, chance, watching)
        finally:
            watching.cancel()
