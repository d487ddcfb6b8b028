"""Draws what goes wrong in a history: with processes, network, cluster and credentials."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tools.simulation.plans import Step
from tools.simulation.themes import Theme
from webop.testing.simulation.network import Fault

NAMES = ("one", "two", "three")


def draw_fate(rng: random.Random, theme: Theme, length: float, replicas: int) -> Iterator[Step]:
    for _ in range(rng.randint(0, 5)):
        at, seconds = rng.uniform(0, length), rng.choice((0.3, 2.0, rng.uniform(1, 40)))
        replica = rng.randrange(replicas)
        kind = rng.choice(theme.fate)
        if kind == "fault":
            yield Step(at, kind, None, seconds, _draw_fault(rng, theme, replica))
        elif kind == "watches":
            fault = Fault(rng.choice(("cut", "mute")), share=rng.choice((0.5, 1.0)))
            yield Step(at, "fault", None, seconds, fault)
        elif kind in _SERIES:
            yield from _SERIES[kind](rng, at, seconds, replica)
        elif kind in {"kill", "stop", "pause"}:
            yield Step(at, kind, replica, seconds)
        else:
            yield Step(at, kind, None, seconds if kind == "lag" else 0.0)


def _draw_outage(rng: random.Random, at: float, seconds: float, _: int) -> Iterator[Step]:
    """Nobody reaches the API server; users change objects; the history may be lost."""
    yield Step(at, "fault", None, 0.0, Fault("cut"))
    yield Step(at, "fault", None, seconds, Fault("refused"))
    for name in rng.sample(NAMES, rng.randint(0, 2)):
        kind = rng.choice(("delete", "delete", "update", "replace"))
        yield Step(at + seconds * rng.uniform(0, 0.5), kind, name)
    if rng.random() < 0.5:
        yield Step(at + seconds / 2, "compact")


def _draw_lockout(rng: random.Random, at: float, seconds: float, _: int) -> Iterator[Step]:
    """Credentials are refused; before, writes may have failed."""
    if rng.random() < 0.5:
        fault = Fault("status", (), ("PATCH",), "things", rng.choice((0.5, 1.0)))
        yield Step(max(0.0, at - 3.0), "fault", None, min(at, 3.0) + 0.2, fault)
        yield Step(max(0.0, at - 2.0), rng.choice(("delete", "update")), rng.choice(NAMES))
    yield Step(at, "fault", None, 0.0, Fault("cut"))
    yield Step(at, "fault", None, seconds, Fault("status", status=401))


def _draw_burst(rng: random.Random, at: float, _: float, __: int) -> Iterator[Step]:
    """Many objects at once, whose patches hang."""
    kind = rng.choice(("hung", "silent", "late"))
    fault = Fault(kind, (), ("PATCH",), "things", seconds=30.0)
    yield Step(at, "fault", None, rng.uniform(15, 40), fault)
    yield Step(at, "crowd", 25)


def _draw_takeover(rng: random.Random, at: float, _: float, replica: int) -> Iterator[Step]:
    """Somebody cannot renew the Lease, maybe after answers that were late."""
    who, leases = rng.choice(((), (replica,))), "leases"
    if rng.random() < 0.5:
        late = Fault("late", who, ("PUT", "PATCH"), leases, seconds=8.0)
        yield Step(max(0.0, at - 10.0), "fault", None, min(at, 10.0), late)
    refused = Fault(rng.choice(("refused", "hung")), who, (), leases)
    yield Step(at, "fault", None, rng.uniform(9, 30), refused)


def _draw_freeze(rng: random.Random, at: float, _: float, __: int) -> Iterator[Step]:
    """A process stands still in the middle of its work, for longer than its Lease lasts."""
    yield Step(max(0.0, at - 0.1), "update", rng.choice(("one", "one", "two")))
    yield Step(at, "pause", "leader", rng.uniform(14, 40))


def _draw_hiccup(rng: random.Random, at: float, _: float, __: int) -> Iterator[Step]:
    """The Lease is lost, and got back soon."""
    yield Step(at, "fault", None, rng.uniform(9, 14), Fault("refused", path="leases"))


def _draw_deafness(rng: random.Random, at: float, _: float, replica: int) -> Iterator[Step]:
    """Watches are mute that were there before; who keeps records may have begun late."""
    if rng.random() < 0.5:
        yield Step(rng.uniform(0, at), "stop", replica, 1.0)
    yield Step(at, "fault", None, 0.0, Fault("mute", rng.choice(((), (0,), (replica,)))))


def _draw_past(rng: random.Random, _: float, __: float, ___: int) -> Iterator[Step]:
    """The watch cache lags when records of peers are renewed; then watches begin again."""
    at = rng.uniform(40.0, 50.0)
    yield Step(at, "lag", None, 35.0)
    yield Step(at + rng.uniform(15.0, 30.0), "fault", None, 0.0, Fault("cut"))


def _draw_policy(rng: random.Random, _: float, __: float, ___: int) -> Iterator[Step]:
    """The API server denies some of what handlers want, for ever."""
    content = rng.choice(('"of-create', '"of-update', '"of-'))
    status = rng.choice((403, 422))
    yield Step(
        0.0, "policy", None, 0.0, Fault("status", (), ("PATCH",), content=content, status=status)
    )


def draw_move(rng: random.Random, at: float, replica: int) -> Iterator[Step]:
    """Something goes wrong with one of the replicas that share the work, or with their Leases."""
    seconds = rng.choice((0.5, 3.0, 14.0, rng.uniform(5, 40)))
    kinds = "stop", "kill", "pause", "parted", "parted", "lease", "lease", "late", "deaf"
    kind = rng.choice(kinds)
    if kind in {"stop", "kill", "pause"}:
        yield Step(at, kind, replica, seconds)
    elif kind == "parted":
        fault = Fault(rng.choice(("refused", "silent", "hung", "lost")), (replica,))
        yield Step(at, "fault", None, 0.0, Fault("cut", (replica,)))
        yield Step(at, "fault", None, seconds, fault)
    elif kind == "lease":
        members = (f"member-{number:02}" for number in range(4))
        yield Step(at, "lease deleted", rng.choice(("shards", "shards", *members)))
    elif kind == "late":
        how, who = rng.choice(("late", "slow", "lost")), rng.choice(((), (replica,)))
        fault = Fault(how, who, ("PUT", "POST"), "leases", rng.choice((0.3, 1.0)), seconds=8.0)
        yield Step(at, "fault", None, seconds, fault)
    else:
        yield Step(at, "fault", None, 0.0, Fault("mute", (replica,), path="leases"))


_SERIES = {
    "outage": _draw_outage,
    "lockout": _draw_lockout,
    "burst": _draw_burst,
    "takeover": _draw_takeover,
    "freeze": _draw_freeze,
    "hiccup": _draw_hiccup,
    "deafness": _draw_deafness,
    "past": _draw_past,
    "policy": _draw_policy,
}
"""Steps that belong together: from a moment, for some seconds, and which replica suffers."""


def _draw_fault(rng: random.Random, theme: Theme, replica: int) -> Fault:
    kind = rng.choice(theme.faults)
    return Fault(
        kind,
        replicas=rng.choice(((), (replica,))),
        methods=rng.choice(theme.methods),
        path=rng.choice(theme.paths),
        share=rng.choice((0.2, 0.5, 1.0)),
        status=rng.choice(theme.statuses) if kind == "status" else 503,
        seconds=rng.choice((0.0, 1.0, 5.0)) if kind != "lost" else rng.choice((0.0, 5.0, 9.0)),
    )
