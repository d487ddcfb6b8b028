"""The network of histories: what goes wrong for a while, and who is impatient."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from webop.testing import apiserver as servers
from webop.testing.simulation.network import LATENCY, Fault, Network, Sender
from webop.testing.simulation.virtual_loop import VirtualLoop

_SAVE = 0.1  # seconds, between the requests of one patch

HANGING = {"hung", "silent", "lost", "mute"}
"""Kinds of faults that let a watch hang until it is given up."""


class FaultyNetwork(Network):
    """A network with faults that begin and end.

    Attributes:
        faults: what is wrong now.
        policies: what the API server denies for ever.

    Args:
        loop: the loop of all processes.
        cluster: what the requests go to.
        rng: for delays, and for who is hit by a fault.
        on_request: called for each request that is carried out, with its sender.
        on_impatience: called when a process patches or reads again before the time that
            ``Retry-After`` has told: with the process, the method, the path, the times from and
            until, and whether it writes more.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        cluster: servers.Cluster,
        rng: random.Random,
        on_request: Callable[[Sender, servers.Request], None],
        on_impatience: Callable[[str, str, str, float, float, bool], None],
    ) -> None:
        super().__init__(loop, cluster, rng, on_request)
        self.faults: list[Fault] = []
        self.policies: list[Fault] = []
        self._on_impatience = on_impatience
        # By process, method and path, since when, until when and for what it was refused.
        self._pauses: dict[tuple[str, str, str], tuple[float, float, set[str]]] = {}
        self._patched: dict[tuple[str, str], float] = {}  # the last time

    def begin(self, fault: Fault) -> None:
        """Let something go wrong from now on."""
        self.faults.append(fault)
        self.spoil_watches(fault)

    def end(self, fault: Fault) -> None:
        """Let it be right again; connections that hang do so until somebody gives up."""
        self.faults.remove(fault)

    def choose(self, sender: Sender, sent: servers.Request) -> Fault | None:
        what = sender.number, sent.method, sent.path, sent.body
        for fault in (*self.policies, *self.faults):
            is_hit = fault.kind not in {"cut", "mute"} and fault.concerns(*what)
            if is_hit and self.rng.random() < fault.share:
                return fault
        return None

    def send(
        self, sender: Sender, sent: servers.Request, waiter: asyncio.Future[Any]
    ) -> tuple[Fault | None, float]:
        how = sent.method
        if sent.is_watch:
            # Operators may list what they cannot watch, and watch what they cannot list by a watch.
            how = "STREAM" if sent.query.get("sendInitialEvents") == "true" else "WATCH"
        key = sender.identity, how, sent.path
        since, until, refused = self._pauses.get(key, (0.0, 0.0, set()))
        now, place = self.loop.time(), (sender.identity, sent.path.removesuffix("/status"))
        if now < until - LATENCY[1]:
            # What comes after a part that is new must not stay behind.
            is_next = now - self._patched.get(place, -1.0) < _SAVE
            writes_more = is_next or not _list_values(sent.body) <= refused
            self._on_impatience(*key, since, until, writes_more)
        fault, delay = super().send(sender, sent, waiter)
        if sent.method == "PATCH" and fault is None:
            self._patched[place] = now
        is_told = fault is not None and fault.kind == "status" and fault.status in {429, 503}
        if fault is not None and is_told and sent.method in {"PATCH", "GET"}:
            answered, values = self.loop.time() + delay, _list_values(sent.body)
            if answered < until:  # what a timer writes meanwhile makes a pause no longer
                refused |= values
            else:
                self._pauses[key] = now, answered + fault.seconds, values
        return fault, delay


def _list_values(patch: bytes | None) -> set[str]:
    """Return what a patch writes, and where; not the version of the object that it is made for."""
    content = orjson.loads(patch or b"{}")
    if isinstance(content, list):
        return {str(operation) for operation in content if operation["op"] != "test"}

    def walk(value: Any, place: str) -> Iterator[str]:
        for key, inner in value.items() if isinstance(value, dict) else ():
            yield from walk(inner, f"{place}/{key}")
        if not isinstance(value, dict) and not place.endswith("/resourceVersion"):
            yield f"{place}: {value}"

    return {*walk(content, "")}
