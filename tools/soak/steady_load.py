"""Requests at a steady rate, independent of the responses."""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class SteadyLoad(ABC, Generic[T]):
    """Sends requests during a block.

    Attributes:
        tally: what came of them.
    """

    def __init__(self, tally: T, rate: float) -> None:
        self.tally = tally
        self._rate = rate

    @abstractmethod
    async def act(self, number: int) -> None:
        """Send one request, and count its result."""

    @asynccontextmanager
    async def run(self) -> AsyncIterator[T]:
        """Send requests during a block; at its end, wait for all responses."""
        stopping = asyncio.Event()
        task = asyncio.create_task(self._run(stopping))
        try:
            yield self.tally
        finally:
            stopping.set()
            await task

    async def _run(self, stopping: asyncio.Event) -> None:
        started, count = time.monotonic(), 0
        async with asyncio.TaskGroup() as group:
            while not stopping.is_set():
                group.create_task(self.act(count))
                count += 1
                pause = started + count / self._rate - time.monotonic()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), max(0.0, pause))
