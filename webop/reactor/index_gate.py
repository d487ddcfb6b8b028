"""When handlers may start: not before the indexes hold all objects that existed at the start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K")


class IndexGate(Generic[K]):
    """Closed until all listings that fill indexes have ended; then open for ever (IDX-22).

    A stream that starts later delays only its own objects, until they are listed.
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
        """Replace the listings that must end; once open, the gate stays open."""
        self.pending = set(keys)
        self._open_if_complete()

    def arrive(self, key: K) -> None:
        """Record the end of a listing."""
        self.pending.discard(key)
        self._open_if_complete()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call a function when the gate opens."""
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
