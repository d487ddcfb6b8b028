"""The network of histories: what goes wrong for a while."""

from __future__ import annotations

import random
from collections.abc import Callable

from webop.testing import apiserver as servers
from webop.testing.simulation.network import Fault, Network, Sender
from webop.testing.simulation.virtual_loop import VirtualLoop

HANGING = {"hung", "silent", "lost", "mute"}
"""Kinds of faults that let a watch hang until it is given up."""


class FaultyNetwork(Network):
    """A network with faults that begin and end.

    Attributes:
        faults: what is wrong now.
        policies: what the API server denies for ever.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        cluster: servers.Cluster,
        rng: random.Random,
        on_request: Callable[[Sender, servers.Request], None],
    ) -> None:
        super().__init__(loop, cluster, rng, on_request)
        self.faults: list[Fault] = []
        self.policies: list[Fault] = []

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
