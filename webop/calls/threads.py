"""Run sync functions in threads: separate pools for handlers, daemons and admission.

A daemon keeps its thread as long as it runs; in a shared pool, daemons could block all sync
handlers. Reviews have deadlines and must wait for neither. Each login or probe gets a new thread. A
full pool is logged. A thread cannot be stopped: the object of a cancelled call stays busy until it
ends. An abandoned call keeps its thread and is counted.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from webop.aio.cancellation import count_cancellations
from webop.aio.dedicated_threads import DedicatedThreads
from webop.aio.work_deadline import current_fence
from webop.handlers.stopping import SyncDaemonStopped
from webop.settings.thread_pools import Threads

logger = logging.getLogger(__name__)

_TOLERANCE = 2.0  # seconds; shorter bursts of calls are not logged
_MAX_WAITING = 1000  # calls that wait for a thread
_WARNING_INTERVAL = 60.0  # seconds; between two warnings about a pool that stays full


class Pool(Protocol):
    """Where sync functions of one kind run; most pools are groups of settings."""

    @property
    def threads(self) -> Threads:
        """The name of the threads' purpose, for messages."""

    @property
    def executor(self) -> Executor:
        """Where calls are submitted to."""

    @property
    def max_workers(self) -> int | None:
        """The number of calls that can run at once; None for no limit."""


class _NoPool:
    """A thread for each call: logins and probes must not wait for other calls."""

    threads = Threads("activities", "logins and probes", "")
    executor: Executor = DedicatedThreads("webop-activities")
    max_workers: int | None = None


NO_POOL: Pool = _NoPool()


class _Usage:
    """The unfinished calls of an executor. They end in its threads; all else is in the loop."""

    __slots__ = ("calls", "full_since")

    def __init__(self) -> None:
        self.calls: set[Future[Any]] = set()
        self.full_since: float | None = None

    def add(self, call: Future[Any], pool: Pool) -> None:
        """Count a call until it ends; if it waits for a thread, check later whether calls do."""
        self.calls.add(call)
        call.add_done_callback(partial(self._remove, pool=pool))
        if self.full_since is None and self.count_waiting(pool) > 0:
            loop = asyncio.get_running_loop()
            self.full_since = loop.time()
            loop.call_later(_TOLERANCE, self._warn_if_full, pool, self.full_since)

    def count_waiting(self, pool: Pool) -> int:
        """Return the number of calls that wait for a thread."""
        size = pool.max_workers
        return 0 if size is None else max(0, len(self.calls) - size)

    def _remove(self, call: Future[Any], pool: Pool) -> None:
        self.calls.discard(call)
        if self.full_since is not None and self.count_waiting(pool) == 0:
            self.full_since = None

    def _warn_if_full(self, pool: Pool, since: float) -> None:
        """Warn if a pool has been full since then, and schedule the next check."""
        if self.count_waiting(pool) == 0:
            self.full_since = None
        if self.full_since != since:
            return
        logger.warning(
            "All %d threads for sync %s are busy; %d more calls are waiting. Make them async, "
            "or increase settings.%s.max_workers.",
            pool.max_workers,
            pool.threads.calls,
            self.count_waiting(pool),
            pool.threads.group,
        )
        loop = asyncio.get_running_loop()
        loop.call_later(_WARNING_INTERVAL, self._warn_if_full, pool, since)


_usages: WeakKeyDictionary[Executor, _Usage] = WeakKeyDictionary()
_abandoned: dict[Future[Any], Callable[..., Any]] = {}


def count_abandoned(fn: Callable[..., Any]) -> int:
    """Return the number of abandoned calls of a function that still run."""
    return sum(each is fn for each in list(_abandoned.values())) if _abandoned else 0


def is_crowded(pool: Pool) -> bool:
    """Return whether so many calls wait for a thread that no new work should start."""
    usage = _usages.get(pool.executor)
    return usage is not None and usage.count_waiting(pool) > _MAX_WAITING


def count_calls(pool: Pool) -> int:
    """Return the number of unfinished calls of a pool."""
    usage = _usages.get(pool.executor)
    return 0 if usage is None else len(usage.calls)


async def call_in_thread(
    fn: Callable[..., Any], kwargs: Mapping[str, Any], pool: Pool, *, waits_for_end: bool = False
) -> Any:
    """Run a sync function in a pool, with the caller's context variables.

    If a daemon must stop before it has a thread, it is not called. If the caller is cancelled while
    the function runs, the call is abandoned; with ``waits_for_end``, the caller waits,
    which keeps an object busy, but not after a second cancellation.
    """
    executor = pool.executor
    usage = _usages.get(executor) or _usages.setdefault(executor, _Usage())
    submitted = executor.submit(contextvars.copy_context().run, _call, fn, kwargs)
    usage.add(submitted, pool)
    if (fence := current_fence.get()) is not None:
        fence.count(submitted)
    stopped = kwargs.get("stopped")
    del kwargs  # daemons run for long
    if isinstance(stopped, SyncDaemonStopped):
        stopped.prevent(submitted)
    try:
        return await asyncio.wrap_future(submitted)
    except asyncio.CancelledError:
        cancellations = count_cancellations()
        if not submitted.cancelled() or cancellations:
            if waits_for_end and cancellations == 1 and not submitted.done():
                await asyncio.gather(asyncio.wrap_future(submitted), return_exceptions=True)
            raise
        return None  # the daemon had to stop while it waited for a thread
    finally:
        if not submitted.done():
            _abandoned[submitted] = fn
            submitted.add_done_callback(_abandoned.pop)


def _call(fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return fn(**kwargs)
    except (StopIteration, GeneratorExit) as exc:  # coroutines cannot pass them on
        raise RuntimeError(f"The handler raised {exc!r}.") from exc
