"""The failures in a world: those that the test has ordered, and those that its seed draws."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from webop.objects.resources import Resource
from webop.testing.apiserver import Request
from webop.testing.simulation.network import LATENCY, Fault

_GAPS = (1.0, 2.0, 4.0, 10.0, 40.0)  # writes of the operator from one failure to the next, about
_EARLY = 3.0  # writes until the first failure, at most
_READ, _DISCOVERY = 0.2, 0.01  # how much a read counts, as its failures show less
_SLOWEST = (LATENCY[1], 0.2, 1.0)  # seconds of one way
_MAX_FAULTS = 30  # in one run: an operator that works comes to its end
_MAX_KILLS = 3
_KINDS = (
    *("refused", "lost", "slow", "late", "status", "status"),
    *("kill", "kill after", "cut"),
)
_STATUSES = (500, 503, 429)
SPARED = ("/leases/", "/events", "webhookconfigurations")  # webop's own affairs


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
        is_method = self.method in {"", sent.method}
        return self.times > 0 and is_method and self._is_about(sent.path.strip("/").split("/"))

    def _is_about(self, path: list[str]) -> bool:
        if (found := self.resource) is None:
            return True
        start = ["apis", found.group] if found.group else ["api"]
        place = path[len(start) + 1 :]  # after the version
        if place[:1] == ["namespaces"] and len(place) > 2 and place[2] != "status":
            place = place[2:]
        return path[: len(start)] == start and place[:1] == [found.plural]


class Fate:
    """Decides about each request of the operator.

    Attributes:
        orders: what the test wants.

    Args:
        seed: 0 means that nothing goes wrong by itself.
        is_faulty: whether other seeds bring failures, besides delays.
    """

    def __init__(self, seed: int, *, is_faulty: bool) -> None:
        self._rng = random.Random(f"fate {seed}")
        self.orders: list[Order] = []
        self._rest = _MAX_FAULTS if seed and is_faulty else 0
        self._kills = _MAX_KILLS
        self._gap = self._rng.choice(_GAPS)
        self._writes_left = self._rng.uniform(0.0, _EARLY)  # also short tests must be disturbed
        slowest = self._rng.choice(_SLOWEST)
        self.latency = (LATENCY[0], slowest) if seed else LATENCY

    def choose(self, sent: Request, strike: Callable[[str], bool]) -> Fault | None:
        """Return what goes wrong with a request.

        Args:
            sent: the request.
            strike: called with "kill" or "cut" when its sender, or all watches, are hit; returns
                whether they were.
        """
        for order in self.orders:
            if order.concerns(sent):
                order.times -= 1
                order.is_used = True
                return _fit(order.fault, sent)
        if not self._rest or any(part in sent.path for part in SPARED):
            return None
        is_discovery = sent.path in {"/api", "/apis"}
        self._writes_left -= _DISCOVERY if is_discovery else _READ if sent.method == "GET" else 1.0
        if self._writes_left > 0:
            return None
        self._writes_left = self._rng.expovariate(1.0 / self._gap)
        kind, is_kill = self._rng.choice(_KINDS), False
        if kind.startswith("kill"):
            is_kill = self._kills > 0 and strike("kill")
            if not is_kill:
                return None
            self._kills -= 1
        self._rest -= 1
        if kind == "cut":
            strike("cut")
            return None
        if is_kill:
            return _fit(Fault("silent" if kind == "kill after" else "refused"), sent)
        seconds, status = self._rng.choice((0.1, 1.0, 5.0)), self._rng.choice(_STATUSES)
        return _fit(Fault(kind, status=status, seconds=seconds), sent)


def _fit(fault: Fault, sent: Request) -> Fault:
    """Return a fault for a request; the answer to a watch cannot be lost, as it never ends."""
    return Fault("refused") if sent.is_watch and fault.kind in {"lost", "silent"} else fault
