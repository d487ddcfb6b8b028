"""Sync functions in threads: one pool for handlers, one for daemons, so that neither starves.

A daemon keeps its thread as long as it runs; in a pool shared with handlers, a few of them would
be the end of all sync handlers. A pool that is full is told about, with figures.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any
from weakref import WeakKeyDictionary

from webop.handling.stopping import SyncDaemonStopped
from webop.settings import BackgroundSettings, ExecutionSettings

logger = logging.getLogger(__name__)

_PATIENCE = 2.0  # seconds; bursts of calls that are over by then are nothing to be told about
_WARNING_INTERVAL = 60.0  # seconds; between two warnings about a pool that stays full

Pool = ExecutionSettings | BackgroundSettings


class _Usage:
    """How many calls an executor has taken and not finished; changed in the loop only."""

    __slots__ = ("calls", "full_since")

    def __init__(self) -> None:
        self.calls = 0
        self.full_since: float | None = None

    def add(self, pool: Pool) -> None:
        """Count a call; if it has to wait for a thread, look after a while if others do still."""
        self.calls += 1
        if self.full_since is None and _is_full(self, pool):
            loop = asyncio.get_running_loop()
            self.full_since = loop.time()
            loop.call_later(_PATIENCE, _look, self, pool, self.full_since)

    def remove(self, pool: Pool) -> None:
        """Count a call that has ended."""
        self.calls -= 1
        if not _is_full(self, pool):
            self.full_since = None


_usages: WeakKeyDictionary[Executor, _Usage] = WeakKeyDictionary()


async def call_in_thread(
    fn: Callable[..., Any],
    kwargs: Mapping[str, Any],
    pool: Pool,
) -> Any:
    """Run a sync function in a pool; its thread sees the context variables of here (ASY-03).

    A daemon that is told to stop before there was a thread for it is not called at all.
    """
    executor = pool.executor
    usage = _usages.get(executor)
    if usage is None:
        usage = _usages.setdefault(executor, _Usage())
    submitted = executor.submit(contextvars.copy_context().run, _call, fn, kwargs)
    usage.add(pool)
    stopped = kwargs.get("stopped")
    del kwargs  # a daemon is awaited for long
    if isinstance(stopped, SyncDaemonStopped):
        stopped.prevent(submitted)
    try:
        return await asyncio.wrap_future(submitted)
    except asyncio.CancelledError:
        if not submitted.cancelled() or _is_being_cancelled():
            raise
        return None  # it was told to stop while it waited for a thread
    finally:
        usage.remove(pool)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _call(fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return fn(**kwargs)
    except StopIteration as exc:  # no future can hold it: the caller would wait for ever
        raise RuntimeError(f"The handler has raised {exc!r}.") from exc


def _is_full(usage: _Usage, pool: Pool) -> bool:
    size = pool.max_workers
    return size is not None and usage.calls > size


def _look(usage: _Usage, pool: Pool, full_since: float) -> None:
    """Warn of a pool that has been full all the time, and will be looked at again."""
    if usage.full_since != full_since:
        return
    is_of_handlers = isinstance(pool, ExecutionSettings)
    size = pool.max_workers or 0
    logger.warning(
        "All %d threads for sync %s are busy, and %d more wait for one: make them async, or raise "
        "settings.%s.max_workers.",
        size,
        "handlers" if is_of_handlers else "daemons",
        usage.calls - size,
        "execution" if is_of_handlers else "background",
    )
    loop = asyncio.get_running_loop()
    loop.call_later(_WARNING_INTERVAL, _look, usage, pool, full_since)
