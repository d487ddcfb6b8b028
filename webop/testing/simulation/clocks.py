"""The clocks, the chance and the network of all code that runs in a virtual loop.

``time.time``, ``datetime.now`` and their like are moved by ``time-machine``, in C, so that names
that were imported before move, too. ``time.sleep`` lasts virtual time in simulated threads. The
monotonic clock belongs to the process: only the modules of webop and of the handlers see that of
the loop, under the names that they have for it.
"""

from __future__ import annotations

import contextlib
import math
import random
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn
from unittest import mock

from webop.admission.configurations import management
from webop.aio.concurrency import find_running_loop
from webop.calls import progress
from webop.calls import threads as call_threads
from webop.errors import ConfigurationError
from webop.reactor import observer
from webop.runtime import operator
from webop.testing.simulation.virtual_loop import VirtualLoop
from webop.testing.simulation.virtual_threads import (
    SimulationError,
    VirtualEvent,
    VirtualThreads,
    find_worker,
    locate,
    run_coroutine_threadsafe,
    sleep,
)

_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 3600.0)  # of discovery: watches bring the news
_SLEEP, _MONOTONIC = time.sleep, time.monotonic


class Clocks:
    """The clocks of one world.

    Args:
        loop: whose time it is.
        threads: those of the world.
        epoch: the time on the wall at the start, as Unix time.
        seed: for ``random``, ``uuid4`` and ``os.urandom``.
    """

    def __init__(self, loop: VirtualLoop, threads: VirtualThreads, epoch: float, seed: int) -> None:
        self._loop = loop
        self._threads = threads
        self._epoch = epoch
        self._seed = seed
        self._stack = contextlib.ExitStack()
        self._time = _Times(self)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Move all clocks for a block."""
        try:
            import time_machine  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigurationError(
                "webop.testing.simulated needs the package time-machine, which is in webop[test]."
            ) from None
        state = random.getstate()
        draw = random.Random(f"bytes {self._seed}").randbytes
        before = set(sys.modules)
        with self._stack as stack:
            stack.callback(random.setstate, state)
            random.seed(self._seed)
            traveller = stack.enter_context(time_machine.travel(self._epoch, tick=False))
            self._loop.on_jump = lambda moment: traveller.move_to(self._epoch + moment)
            self._loop.refuse = self._refuse
            for target, fake in {
                "time.sleep": self._sleep,
                "asyncio.run_coroutine_threadsafe": run_coroutine_threadsafe,
                "os.urandom": draw,
                "random._urandom": draw,
                "socket.socket.connect": self._guard(socket.socket.connect),
                "socket.getaddrinfo": self._guard(socket.getaddrinfo),
            }.items():
                stack.enter_context(mock.patch(target, fake))
            stack.enter_context(
                mock.patch.object(progress, "_clock", SimpleNamespace(read=time.time))
            )
            pool = type(call_threads.NO_POOL)
            stack.enter_context(mock.patch.object(pool, "executor", self._threads))
            # Code that only wakes up regularly would take most of the time of long runs.
            stack.enter_context(mock.patch.object(operator, "measure_lag", _measure_nothing))
            stack.enter_context(mock.patch.object(observer, "_PAUSES", _PAUSES))
            stack.enter_context(mock.patch.object(management, "_LONGEST_PAUSE", math.inf))
            stack.callback(sys.modules.__setitem__, "time", time)
            sys.modules["time"] = self._time  # for all modules that are imported meanwhile
            # A replica that starts again takes over the record of its predecessor.
            stack.enter_context(mock.patch.object(management, "detect_process", str))
            self.adopt(module for name, module in sys.modules.items() if _is_webop(name))
            try:
                yield
            finally:
                self._leave(sys.modules[name] for name in sys.modules.keys() - before)

    def adopt(self, modules: Iterable[ModuleType]) -> None:
        """Let modules see the time of the loop under the names that they have for it."""
        shims: dict[int, Any] = {id(time): self._time, id(_MONOTONIC): self._time.monotonic}
        shims[id(_SLEEP)] = self._sleep
        for module in list(modules):
            for name, value in list(vars(module).items()):
                if (shim := shims.get(id(value))) is not None:
                    self._stack.enter_context(mock.patch.object(module, name, shim))
                elif value is threading and _is_webop(module.__name__):
                    shim = SimpleNamespace(**vars(threading))
                    shim.Event = VirtualEvent
                    shim.Thread = _NoThread
                    self._stack.enter_context(mock.patch.object(module, name, shim))

    def _leave(self, modules: Iterable[ModuleType]) -> None:
        """Give the real clocks to libraries that were imported meanwhile."""
        for module in modules:
            for name, value in list(vars(module).items()):
                if value is self._time:
                    setattr(module, name, time)
                elif value is self._time.monotonic:
                    setattr(module, name, _MONOTONIC)

    @property
    def is_inside(self) -> bool:
        """Whether the caller lives in the time of the loop."""
        worker = find_worker()
        loop = find_running_loop() if worker is None else worker.pool.loop
        return loop is self._loop

    def read(self) -> float:
        """Return the time of the loop; the real one for those outside."""
        return self._loop.time() if self.is_inside else _MONOTONIC()

    def _sleep(self, seconds: float) -> None:
        if sleep(seconds):
            return
        if not self.is_inside:
            _SLEEP(seconds)
            return
        file, line, what = locate(sys._getframe(1))
        warnings.warn_explicit(
            f"{what} blocks the event loop with time.sleep(): use asyncio.sleep(), or a function "
            "that is not async.",
            *(UserWarning, file, line),
        )
        self._loop.skip(seconds)

    def _guard(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def connect(*args: Any, **kwargs: Any) -> Any:
            own, *rest = args or (kwargs.get("host"),)  # a socket and an address, or a host
            if self.is_inside and getattr(own, "family", None) != getattr(socket, "AF_UNIX", -1):
                address = rest[0] if isinstance(own, socket.socket) else own
                host = address[0] if isinstance(address, tuple) else address
                self._refuse(f"connects to {host.decode() if isinstance(host, bytes) else host}")
            return real(*args, **kwargs)

        return connect

    def _refuse(self, what: str) -> NoReturn:
        """Refuse something, and let the test fail, also if the error is caught.

        Raises:
            SimulationError: always.
        """
        file, line, who = locate(sys._getframe(1))
        problem = SimulationError(
            f"{who} {what}, at {file}:{line}. There is no network in virtual time, and "
            "nothing else outside of the process: replace it."
        )
        self._loop.interrupt(problem)
        raise problem


class _NoThread(threading.Thread):
    """A thread of webop's own, in which nothing is done: they only watch the process."""

    def start(self) -> None:
        """Begin nothing."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for nothing."""


class _Times(ModuleType):
    """The module ``time``, with the monotonic clocks of a loop."""

    def __init__(self, clocks: Clocks) -> None:
        super().__init__("time")
        self.monotonic = self.perf_counter = clocks.read
        self.monotonic_ns = lambda: int(clocks.read() * 1e9)

    def clock_gettime(self, clock: int) -> float:
        """Return the time of a clock; all but that on the wall are the same one."""
        return time.time() if clock == time.CLOCK_REALTIME else self.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


async def _measure_nothing(_: object) -> None:
    """Measure no lag: there is none."""


def _is_webop(name: str) -> bool:
    is_own = name == "webop" or name.startswith("webop.")
    return is_own and not name.startswith("webop.testing.simulation")
