"""The gate that holds handlers back until indexes have all objects that existed at the start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any


class IndexGate:
    """A gate that opens once, when all lists that fill indexes are complete.

    It never closes again: a stream that starts later delays only its own objects.
    """

    def __init__(self) -> None:
        self.pending: set[Any] = set()
        self._opened = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    @property
    def is_open(self) -> bool:
        """Whether handlers may run."""
        return self._opened.is_set()

    def expect(self, keys: Iterable[Any]) -> None:
        """Replace the keys of the lists that must end first; an open gate stays open."""
        self.pending = set(keys)
        self._open_if_complete()

    def arrive(self, key: Any) -> None:
        """Record that a list is complete."""
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
