"""The plan of faults, determined by a seed before the start."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: The relative frequency of each fault, and its duration in seconds: of connections to the API
#: server, of processes, of the control plane.
LINK_FAULTS = {
    "cut": (3, (0, 0)),
    "closed": (2, (1, 15)),
    "hung": (2, (1, 15)),
    "half open": (1, (0, 0)),
    "slow": (2, (3, 15)),
    "5xx": (3, (2, 15)),
    "429": (2, (2, 10)),
    "answers lost": (4, (2, 15)),
}
PROCESS_FAULTS = {
    "SIGKILL": (4, (0, 5)),
    "SIGTERM": (3, (0, 3)),
    "pause": (2, (0.5, 3)),
    "long pause": (2, (10, 18)),
}
ENDS = ("SIGKILL", "SIGTERM")
SERVER_FAULTS = {
    "API server killed": (3, (0, 8)),
    "API server paused": (2, (1, 8)),
    "etcd killed": (3, (0, 8)),
    "etcd paused": (2, (1, 8)),
    "certificates deleted": (1, (0, 0)),
}
_PAUSES = {"link": 8.0, "process": 20.0, "server": 40.0}  # seconds between two of them, on average


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        at: its begin, in seconds since the start of the run.
        kind: a key of one of the tables of this module.
        target: the number of the replica, from 0; None for the leader; unused for the
            control plane.
        duration: seconds until it is repaired, or until a process is restarted.
    """

    at: float
    kind: str
    target: int | None
    duration: float

    def __str__(self) -> str:
        target = "the leader" if self.target is None else f"replica {self.target + 1}"
        whose = "" if self.kind in SERVER_FAULTS else f" of {target}"
        return f"{self.at:.1f} s: {self.kind}{whose} for {self.duration:.1f} s"


def build_plan(seed: int, seconds: float, replicas: int) -> list[Fault]:
    """Return the faults of a run, ordered by their begin.

    Half of the faults of replicas hit the leader.
    """
    faults = []
    for group, table in (
        ("link", LINK_FAULTS),
        ("process", PROCESS_FAULTS),
        ("server", SERVER_FAULTS),
    ):
        # Each group has its own random sequence, so that it does not depend on the others.
        chance = random.Random(f"{seed} {group}")
        at = chance.expovariate(1 / _PAUSES[group])
        while at < seconds:
            kind = chance.choices(list(table), [weight for weight, _ in table.values()])[0]
            target = chance.choice([None, chance.randrange(replicas)])
            duration = chance.uniform(*table[kind][1])
            faults.append(Fault(at, kind, target, duration))
            # Faults of the control plane do not overlap.
            at += (duration if group == "server" else 0) + chance.expovariate(1 / _PAUSES[group])
    return sorted(faults, key=lambda fault: fault.at)
