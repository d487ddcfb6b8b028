"""The life of webhook servers that are made of other servers: called, entered, closed.

Such servers (tunnels, those that choose) are async context managers, too: on exit, the
generators that they have given are closed, and what these hold (manual, "System resource
cleanup"). This module is imported by users' handler files: it imports little.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Self

from webop.servers.base import WebhookClientConfig, WebhookFn

if TYPE_CHECKING:
    from types import TracebackType


class ClosableServer(abc.ABC):
    """A webhook server that closes its generators when its context is left.

    Those that are waiting for something in other tasks are told by the event ``_closing``.
    """

    def __init__(self) -> None:
        self._closing = asyncio.Event()
        # Not kept alive: a generator that nobody iterates any more is closed by the event loop.
        self._generators: weakref.WeakSet[AsyncGenerator[WebhookClientConfig, None]]
        self._generators = weakref.WeakSet()
        self._ends: set[asyncio.Event] = set()  # of the generators that have begun

    async def __aenter__(self) -> Self:
        self._closing.clear()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        for generator in list(self._generators):
            # Those that are being iterated by other tasks end by themselves now.
            with contextlib.suppress(RuntimeError):
                await generator.aclose()
        for end in list(self._ends):  # also of those that the event loop is closing now
            await end.wait()

    def __call__(self, fn: WebhookFn) -> AsyncIterator[WebhookClientConfig]:
        """Serve reviews by a function until the returned generator is closed.

        Raises:
            ConfigurationError: (on the first step) it cannot be started with these options.
        """
        generator = self._run(fn)
        self._generators.add(generator)
        return generator

    async def _run(self, fn: WebhookFn) -> AsyncGenerator[WebhookClientConfig, None]:
        end = asyncio.Event()
        self._ends.add(end)
        try:
            configs = self._serve(fn)
            async with contextlib.aclosing(configs):
                async for config in configs:
                    yield config
        finally:
            self._ends.discard(end)
            end.set()

    @abc.abstractmethod
    def _serve(self, fn: WebhookFn) -> AsyncGenerator[WebhookClientConfig, None]:
        """Serve until closed, or until ``_closing`` is set."""
