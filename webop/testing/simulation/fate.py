"""The failures in a world: those that the test has ordered, and those that its seed draws."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from webop.objects.resources import Resource
from webop.testing.apiserver import Request
from webop.testing.simulation.network import LATENCY, Fault

_RATES = (0.002, 0.01, 0.05, 0.2)  # of the requests
_SLOWEST = (LATENCY[1], 0.2, 1.0)  # seconds of one way
_MAX_FAULTS = 30  # in one run: an operator that works comes to its end
_MAX_KILLS = 3
_KINDS = (
    *("refused", "lost", "slow", "late", "status", "status"),
    *("kill", "kill after", "cut"),
)
_STATUSES = (500, 503, 429)


@dataclass
class Order:
    """A failure that the test wants.

    Attributes:
        method: of the requests; all if it is empty.
        resource: their kind; None for all.
        times: how many more.
        is_used: whether there was such a request.
    """

    method: str
    resource: Resource | None
    fault: Fault
    times: int
    is_used: bool = False

    def concerns(self, sent: Request) -> bool:
        """Tell whether a request is meant."""
        found, path = self.resource, f"{sent.path}/"
        place = "" if found is None else f"/apis/{found.group}/" if found.group else "/api/"
        is_kind = found is None or (path.startswith(place) and f"/{found.plural}/" in path)
        return self.method in {"", sent.method} and is_kind and self.times > 0


class Fate:
    """Decides about each request of the operator.

    Attributes:
        orders: what the test wants.

    Args:
        seed: 0 means that nothing goes wrong by itself.
        is_faulty: whether other seeds bring failures, besides delays.
        strike: called with "kill" or "cut" when that happens.
    """

    def __init__(self, seed: int, *, is_faulty: bool, strike: Callable[[str], None]) -> None:
        self._rng = random.Random(f"fate {seed}")
        self.orders: list[Order] = []
        self._strike = strike
        self._rest = _MAX_FAULTS if seed and is_faulty else 0
        self._kills = _MAX_KILLS
        self._rate = self._rng.choice(_RATES)
        slowest = self._rng.choice(_SLOWEST)
        self.latency = (LATENCY[0], slowest) if seed else LATENCY

    def choose(self, sent: Request) -> Fault | None:
        """Return what goes wrong with a request."""
        for order in self.orders:
            if order.concerns(sent):
                order.times -= 1
                order.is_used = True
                return order.fault
        is_lease = "/leases/" in sent.path
        # Discovery is frequent, and its failures show little.
        rate = self._rate / 10 if sent.path in {"/api", "/apis"} else self._rate
        if is_lease or not self._rest or self._rng.random() > rate:
            return None
        kind = self._rng.choice(_KINDS)
        if kind.startswith("kill"):
            if not self._kills:
                return None
            self._kills -= 1
        self._rest -= 1
        if kind in {"kill", "cut"}:
            self._strike(kind)
            return Fault("refused") if kind == "kill" else None
        is_watch = sent.query.get("watch") in {"true", "1"}
        if kind == "kill after":
            self._strike("kill")
            return Fault("refused" if is_watch else "silent")
        if kind == "lost" and is_watch:
            kind = "refused"  # an answer that never ends cannot be lost
        seconds = self._rng.choice((0.1, 1.0, 5.0))
        status = self._rng.choice(_STATUSES)
        return Fault(kind, status=status, seconds=seconds)
