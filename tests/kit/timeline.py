"""When what has happened in handlers that live in the background: for figures in time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import webop
from tests.kit.waiting import eventually


@dataclass
class Timeline:
    """What has happened, and when; noted in the loop and in threads."""

    moments: list[tuple[str, float]] = field(default_factory=list)

    def note(self, what: str) -> None:
        """Take note of something that happens now."""
        self.moments.append((what, time.monotonic()))

    def noting(self, what: str) -> Callable[..., Any]:
        """Return a handler that notes its calls."""

        async def fn(**_: Any) -> None:
            self.note(what)

        return fn

    async def live(self, stopped: webop.DaemonStopped, **_: Any) -> None:
        """Run as a daemon until it is asked to stop."""
        self.note("begun")
        await stopped.wait()
        self.note("ended")

    def of(self, what: str) -> list[float]:
        return [moment for name, moment in self.moments if name == what]

    def list_names(self) -> list[str]:
        return [name for name, _ in self.moments]

    def measure_gaps(self, what: str) -> list[float]:
        """Return the seconds between the moments of something."""
        return [b - a for a, b in itertools.pairwise(self.of(what))]

    async def wait(self, what: str, count: int = 1) -> float:
        """Wait until something has happened so often; return when it was."""
        await eventually(lambda: len(self.of(what)) >= count, f"{what} ({self.moments})")
        return self.of(what)[count - 1]
