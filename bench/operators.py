"""Run one operator process of one side, measure it through /proc, stop it (Linux only)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from bench.model import Bench, BenchError, Side

if TYPE_CHECKING:
    from collections.abc import Iterator

LOG = "operator.log"  # in the work folder: the output of the newest operator
SHARDS_NAME = "bench"  # of replicas that share the work
_TICKS = os.sysconf("SC_CLK_TCK")
# An operator is idle if it took less than this share of a CPU for some seconds.
_QUIET_SHARE = 0.01
_POLL_SECONDS = 0.1
_STOP_SECONDS = 15.0


class Process:
    """A running process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._proc = Path(f"/proc/{process.pid}")

    def read_cpu(self) -> float:
        """Return user and system time of all threads since the start in ms: proc_pid_stat(5)."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS * 1e3

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to this process."""
        self._process.send_signal(number)

    def pin(self, core: int) -> None:
        """Run on one core only; valid before the process has threads."""
        os.sched_setaffinity(self._process.pid, {core})

    def read_memory(self, field: str = "VmRSS") -> float:
        """Return VmRSS (now) or VmHWM (the peak) in MB (10^6 bytes): proc_pid_status(5)."""
        text = (self._proc / "status").read_text()
        return int(text.partition(f"{field}:")[2].split()[0]) * 1024 / 1e6


class Operator(Process):
    """A running operator."""

    def __init__(self, process: subprocess.Popen[bytes], calls: Path, ticks: Path) -> None:
        super().__init__(process)
        self._calls = calls
        self._ticks = ticks

    def read_calls(self) -> int:
        """Return the number of calls of the handler; valid after the operator has stopped."""
        return int(self._calls.read_text())

    async def wait_for_ticks(self, count: int) -> int:
        """Wait until there were more calls of timers than ``count``; return their number."""
        ticks = 0
        while ticks <= count:
            await asyncio.sleep(0.01)
            with contextlib.suppress(FileNotFoundError, ValueError):  # the operator is writing it
                ticks = int(self._ticks.read_text())
        return ticks

    async def wait_started(self) -> None:
        """Wait until the startup handler has run."""
        await self.wait_for(self._calls)

    async def wait_for(self, output: Path) -> None:
        """Wait until the operator has written this file."""
        while not output.exists():  # noqa: ASYNC240 - a local file
            await self._pause()

    async def settle(self, seconds: float = 2.0) -> float:
        """Wait until the started operator has been idle for that long.

        Six seconds are enough for work that the sides delay until an object is quiet.

        Returns:
            The value of ``time.monotonic`` at the beginning of these seconds.
        """
        await self.wait_started()
        window: deque[tuple[float, float]] = deque()
        while not window or window[-1][0] - window[0][0] < seconds:
            window.append((time.monotonic(), self.read_cpu()))
            while window[-1][1] - window[0][1] > seconds * 1e3 * _QUIET_SHARE:
                window.popleft()
            await self._pause()
        return window[0][0]

    async def wait_killed(self) -> None:
        """Wait until the operator has killed itself, as with "record:COUNT"."""
        code = await asyncio.to_thread(self._process.wait)
        if code != -signal.SIGKILL:
            raise BenchError(f"The operator exited with code {code}, not by SIGKILL.")

    async def _pause(self) -> None:
        await asyncio.sleep(_POLL_SECONDS)
        if self._process.poll() is not None:
            raise BenchError(f"The operator exited with code {self._process.returncode}.")


@contextlib.contextmanager
def run_operator(bench: Bench, side: Side, plural: str, extra: str = "") -> Iterator[Operator]:
    """Run one side with the handlers of the bench for one of its collections.

    There is a creation handler, but not with "children"; ``extra`` adds more:

    - "update", "timer", "daemon", "resume": such a handler;
    - "children": a reconciler that gives each object two ConfigMaps;
    - "three": two more creation handlers;
    - "busy": the creation handler uses 3 ms of CPU;
    - "typed": the creation handler gets its spec as a model, where the side has models;
    - "review:PORT": webhooks on that port, with the certificate in the work folder;
    - "record:COUNT": each call is recorded in record.txt; after that many calls (0: never), the
      operator kills itself.
    """
    calls, ticks = bench.workdir / "calls.txt", bench.workdir / "ticks.txt"
    for path in (calls, ticks):
        path.unlink(missing_ok=True)
    variables = {
        "SIDE": side.name,
        "PLURAL": plural,
        "WORKDIR": str(bench.workdir),
        "EXTRA": extra,
    }
    more = {f"BENCH_{name}": value for name, value in variables.items()}
    more["WEBOP_ADMISSION__SHUTDOWN_DELAY"] = "0"  # no need to wait for API servers
    with _run(bench, side.argv, more) as process:
        yield Operator(process, calls, ticks)


@contextlib.contextmanager
def run_replica(
    bench: Bench, side: Side, number: int, plural: str, extra: str = ""
) -> Iterator[Operator]:
    """Run one of several replicas that share the work, with a work folder of its own."""
    folder = bench.workdir / f"replica-{number}"
    folder.mkdir(exist_ok=True)
    sharing = dataclasses.replace(side, argv=(*side.argv, f"--shards={SHARDS_NAME}"))
    with run_operator(
        dataclasses.replace(bench, workdir=folder), sharing, plural, extra
    ) as operator:
        yield operator


@contextlib.contextmanager
def run_process(bench: Bench, argv: tuple[str, ...]) -> Iterator[Process]:
    """Run some other process in the work folder."""
    with _run(bench, argv, {}) as process:
        yield Process(process)


@contextlib.contextmanager
def _run(
    bench: Bench, argv: tuple[str, ...], variables: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with (bench.workdir / LOG).open("wb") as log:
        process = subprocess.Popen(
            argv,
            env={**os.environ, "KUBECONFIG": str(bench.kubeconfig), **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=bench.workdir,
            start_new_session=True,  # Ctrl-C goes to the bench, which stops the operator
        )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        process.kill()
        process.wait()
