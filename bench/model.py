"""The values that scenarios, the runner and the report exchange."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from bench.api import Collection

# Figures by name, which ends in the unit: cpu_ms_per_object.
Sample = dict[str, float]


class BenchError(Exception):
    """A measurement that says nothing, with the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """One contestant: ``argv`` runs it as an operator, ``python`` is its interpreter, if any."""

    name: str
    argv: tuple[str, ...]
    python: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Bench:
    """What a scenario measures with: a server with two collections, one is for its objects."""

    workdir: Path
    kubeconfig: Path
    sides: tuple[Side, ...]
    things: Collection
    empties: Collection
    objects: int


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """One thing to measure: ``measure`` takes one sample of one side.

    ``prepare`` runs once, before the first sample of each size. ``sizes`` (numbers of objects),
    ``repeat`` and ``timeout`` (seconds for one sample) are defaults. ``sides`` are those that can
    do the work. A scenario with ``by_name_only`` is no part of "everything".
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
