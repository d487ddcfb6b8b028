"""The client for sync functions: the same methods, which block the thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from webop.client import current_client
from webop.client.objects import AsyncClient
from webop.errors import APIConnectionError

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncClient, P], R]:
    @functools.wraps(method)
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.wait(method(self.asynchronous, *args, **kwargs))

    return call


class SyncClient:
    """The methods of :class:`AsyncClient` for functions that run in threads.

    It sends requests in the event loop of the operator, over the same connections. The condition of
    :meth:`wait_for` is called in that loop, so it must not block.
    """

    __slots__ = ("_context", "_loop", "asynchronous")

    def __init__(self, asynchronous: AsyncClient, loop: asyncio.AbstractEventLoop) -> None:
        self.asynchronous = asynchronous
        self._loop = loop
        self._context = contextvars.copy_context()

    get = _blocking(AsyncClient.get)
    list = _blocking(AsyncClient.list)
    create = _blocking(AsyncClient.create)
    apply = _blocking(AsyncClient.apply)
    patch = _blocking(AsyncClient.patch)
    delete = _blocking(AsyncClient.delete)
    wait_for = _blocking(AsyncClient.wait_for)
    wait_gone = _blocking(AsyncClient.wait_gone)

    def wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the event loop of the operator, and return its result.

        Raises:
            APIConnectionError: the operator is stopping, or is no longer the leader.
            RuntimeError: the caller runs in that event loop, which would wait for itself; or the
                loop is closed.
        """
        if asyncio._get_running_loop() is self._loop:  # noqa: SLF001 - the public one raises
            coroutine.close()
            raise RuntimeError(
                "The sync client would block the event loop forever. In async functions, await the "
                "methods of the argument `client`."
            )
        context = contextvars.copy_context()
        if context.get(current_client) is None:  # a thread that a handler started
            context = self._context.copy()  # with the handler's right to act
        try:
            future = context.run(asyncio.run_coroutine_threadsafe, coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise APIConnectionError(
                "The request was cancelled: the operator is stopping, or is no longer the leader."
            ) from None
