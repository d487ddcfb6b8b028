"""Threads for what keeps the operator alive: each call has its own, and waits for no pool.

Pools are filled by whatever else runs in the process: sync handlers in the operator's, the user's
``asyncio.to_thread()`` in the event loop's, where names are resolved by default, too.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DedicatedThreads(Executor):
    """A new thread for each call; none of them keeps the process from ending."""

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a call.

        Raises:
            RuntimeError: the system has no more threads.
        """
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        call = partial(fn, *args, **kwargs)
        threading.Thread(target=_run, args=(future, call), name=self._name, daemon=True).start()
        return future


def _run(future: Future[T], call: Callable[[], T]) -> None:
    try:
        result = call()
    except BaseException as exc:  # noqa: BLE001  the caller gets it
        future.set_exception(exc)
        del future  # it has the error, which has this frame: what is in it would stay for long
    else:
        future.set_result(result)


_threads = DedicatedThreads("webop")


async def call_in_dedicated_thread(fn: Callable[..., T], *args: Any) -> T:
    """Do as ``asyncio.to_thread()``, but in a thread that nobody else waits for."""
    # No name for the future here: with an error in it, it would be a part of a cycle.
    return await asyncio.wrap_future(_threads.submit(contextvars.copy_context().run, fn, *args))
