"""The values that scenarios, the runner and the report exchange."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from bench.api import Children, Collection

# Figures by name, which ends in the unit: cpu_ms_per_object.
Sample = dict[str, float]

MORE = ("three", "resume", "typed")  # see bench.operators.run_operator


class BenchError(Exception):
    """An invalid measurement, with the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """One side: ``argv`` runs it as an operator, ``python`` is its interpreter, if any."""

    name: str
    argv: tuple[str, ...]
    python: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Bench:
    """The environment of a scenario: a server with two collections, one of them stays empty.

    ``maps`` are the children of reconciled objects.
    ``more`` names additional handlers for the scenarios about creations and restarts.
    """

    workdir: Path
    kubeconfig: Path
    sides: tuple[Side, ...]
    things: Collection
    empties: Collection
    maps: Children
    objects: int
    more: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario: ``measure`` takes one sample of one side.

    ``prepare`` runs once, before the first sample of each size. ``sizes`` (numbers of objects),
    ``repeat`` and ``timeout`` (seconds for one sample) are defaults. ``sides`` are those that can
    do the work. A scenario with ``by_name_only`` runs only if it is named.
    """

    name: str
    summary: str
    measure: Callable[[Bench, Side], Awaitable[Sample]]
    prepare: Callable[[Bench], Awaitable[None]] | None = None
    sizes: tuple[int, ...] = (0,)
    repeat: int = 3
    timeout: float = 180
    sides: tuple[str, ...] = ("webop", "kopf")
    by_name_only: bool = False
