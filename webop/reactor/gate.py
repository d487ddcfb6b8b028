"""When handlers may begin: not before the indexes hold everything that was there at the start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K")


class Gate(Generic[K]):
    """Closed until all listings that fill indexes have ended; then open for good (IDX-22).

    Streams that begin later hold back only their own objects until they are listed.
    """

    def __init__(self) -> None:
        self.pending: set[K] = set()
        self._opened = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    @property
    def is_open(self) -> bool:
        """Whether handlers may run."""
        return self._opened.is_set()

    def expect(self, keys: Iterable[K]) -> None:
        """Say which listings must end, instead of those of before; once open, it stays open."""
        self.pending = set(keys)
        self._open_if_complete()

    def arrive(self, key: K) -> None:
        """Say that one of the listings has ended."""
        self.pending.discard(key)
        self._open_if_complete()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Have a function called when the gate opens."""
        self._listeners.append(listener)

    async def wait(self) -> None:
        """Wait until the gate is open."""
        await self._opened.wait()

    def _open_if_complete(self) -> None:
        if not self.pending and not self.is_open:
            self._opened.set()
            for listener in self._listeners:
                listener()
            self._listeners.clear()
