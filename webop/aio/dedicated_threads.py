"""Run essential calls in their own threads, so that they never wait for a thread pool.

Other code can fill the pools: sync handlers fill that of the operator, ``asyncio.to_thread()`` of
users fills that of the event loop, which also resolves names by default.
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
    """Starts a new daemon thread for each call."""

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a call; raise RuntimeError if the system has no more threads."""
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
    """Call a function like ``asyncio.to_thread()``, but in a new thread."""
    # No name for the future here: with an error in it, it would be a part of a cycle.
    return await asyncio.wrap_future(_threads.submit(contextvars.copy_context().run, fn, *args))
