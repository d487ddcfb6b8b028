"""Detect a blocked event loop, and the handler that blocks it, from a separate thread.

Once per ``settings.process.blocked_loop_threshold``, the watchdog schedules a callback in the loop;
if the loop does not call it within the threshold, the watchdog logs the handler and the stack. So
it detects each block of twice the threshold, and none that is shorter than the threshold. It works
with any event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from itertools import accumulate, chain, repeat, starmap
from operator import attrgetter, getitem
from types import CodeType
from typing import Any

from webop.aio.backoff import Once
from webop.aio.cancellation import contain
from webop.calls.current_call import Invocation, current_invocation
from webop.events.loggers import ObjectLogger
from webop.settings.groups import ProcessSettings
from webop.telemetry.counters import Timings

logger = logging.getLogger(__name__)

_OFF_POLLING = 5.0  # seconds; between two reads of the setting while it is off
_LAG_POLLING = 0.5  # seconds; between two measurements of the lag
_ENDING = 1.0  # seconds; for the last line of the log
_FRAMES = 12  # of the stack, if no handler is in it
_pausing = threading.Lock()  # held while the garbage collector pauses


@contextlib.contextmanager
def watching_loop(settings: ProcessSettings) -> Iterator[None]:
    """Watch the running event loop as long as the block lasts."""
    watchdog = Watchdog(asyncio.get_running_loop(), settings)
    thread = threading.Thread(target=watchdog.run, name="webop-watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watchdog.stop()
        thread.join(_ENDING)  # Python aborts if a thread logs while the interpreter ends


async def measure_lag(timings: Timings) -> None:
    """Measure how late the loop runs due callbacks, without end."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _LAG_POLLING
        await asyncio.sleep(_LAG_POLLING)
        timings.add(max(0.0, loop.time() - due))


class Watchdog:
    """Watches one event loop from another thread; reads the settings at each check."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: ProcessSettings) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._settings = settings
        self._stopped = threading.Event()
        self._responded = threading.Event()
        self._logged = Once()

    def stop(self) -> None:
        """End soon. The loop calls this, so it is not blocked."""
        self._stopped.set()
        self._responded.set()

    def run(self) -> None:
        """Watch until stopped, or until the loop is closed."""
        while not self._stopped.is_set() and not self._loop.is_closed():
            threshold = self._settings.blocked_loop_threshold
            try:
                if threshold is not None:
                    self._check(threshold)
            except Exception as exc:  # noqa: BLE001  of a log handler, or the loop is just closed
                logger.debug("Cannot check the event loop: %r", exc)
            self._stopped.wait(_OFF_POLLING if threshold is None else threshold)

    def _check(self, threshold: float) -> None:
        """Check that the loop responds; if it does not, log why, and wait until it does.

        If this thread runs late and the process used no CPU meanwhile, the process was stopped or
        got no CPU. If it used CPU, the loop did not let other threads run.
        """
        began, used = time.monotonic(), time.process_time()
        self._responded.clear()
        self._loop.call_soon_threadsafe(self._responded.set)
        if self._responded.wait(threshold) or self._stopped.is_set() or not self._loop.is_running():
            return
        seconds = time.monotonic() - began
        if seconds > 2 * threshold and time.process_time() - used < seconds / 2:
            return
        invocation, stack = self._inspect()
        culprit = "Code outside of handlers"
        extra = {}
        if invocation is not None:
            culprit = str(invocation.handler)
            log = invocation.cause.logger
            extra = {"k8s_ref": log.reference} if isinstance(log, ObjectLogger) else {}
        level = self._logged.choose_level(culprit)  # it may do so for many objects
        if logger.isEnabledFor(level):
            text = (
                "%s blocks the event loop for %.1f s so far. All other handlers, reviews and "
                "probes wait. Await slow calls, or make it a sync handler. It is here:"
            )
            place = logger.name, level, __file__, 0
            record = logger.makeRecord(
                *place, text, (culprit, seconds), None, extra=extra, sinfo=stack
            )
            logger.handle(record)  # formatters escape line breaks in messages, not in stacks
        self._responded.wait()
        seconds = time.monotonic() - began
        level = min(level, logging.INFO)
        logger.log(level, "%s no longer blocks the event loop, after %.1f s.", culprit, seconds)

    def _inspect(self) -> tuple[Invocation | None, str]:
        """Return the handler that the loop is in, if there is one, and the stack from there on."""
        task: Any = asyncio.current_task(self._loop)
        invocation = getattr(task, "invocation", None)
        if invocation is None:  # in a task of a handler, as far as contexts are known (Python 3.12)
            context: Any = getattr(task, "get_context", dict)()
            invocation = context.get(current_invocation)
        stack = self._walk_stack()
        calls = [at for at, (code, _) in enumerate(stack) if code is contain.__code__]
        del stack[calls[0] if calls else _FRAMES :]
        lines = [(code.co_filename, line, code.co_name, None) for code, line in reversed(stack)]
        return invocation, "".join(traceback.format_list(lines)).rstrip()

    def _walk_stack(self) -> list[tuple[CodeType, int]]:
        """Return the code and the line of each frame of the loop's thread, the innermost first.

        Frames that end meanwhile can crash Python 3.11. So the iterators are in C, and consumed by
        one call, in which no other thread runs. The garbage collector pauses: a finalizer that
        lets another thread run would block all threads for ever (CPython issue 106883).
        """
        innermost = map(getitem, starmap(sys._current_frames, [()]), [self._thread])  # noqa: SLF001
        steps: Iterator[Any] = chain(innermost, repeat("f_back"))
        stack: list[tuple[CodeType, int]] = []
        with _pausing:
            is_enabled = gc.isenabled()
            gc.disable()
            with contextlib.suppress(AttributeError, KeyError):  # no further frame; no thread
                stack.extend(map(attrgetter("f_code", "f_lineno"), accumulate(steps, getattr)))
            if is_enabled:
                gc.enable()
        return stack
