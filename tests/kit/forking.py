"""``python -m webop`` and ``kopf`` in processes that are forked with these imported.

The start of a command imports for half a second. The fork server of :mod:`multiprocessing` imports
once in each test run, and forks the commands; all else in them is as in a new process: folder,
environment, output, signals.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.kit.preloaded"])


class ForkedProcess:
    """A process with the methods of :class:`asyncio.subprocess.Process` that tests need."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        assert process.pid is not None
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    async def wait(self) -> int:
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(self._process.sentinel, ended.set)
        try:
            while self._process.exitcode is None:
                await ended.wait()
                self._process.join()
        finally:
            loop.remove_reader(self._process.sentinel)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(
    words: tuple[str, ...], folder: Path, environment: Mapping[str, str], out: Path, err: Path
) -> ForkedProcess:
    """Start ``python -m`` with these words; its output is appended to files."""
    target = (words, str(folder), dict(environment), str(out), str(err))
    process = _CONTEXT.Process(target=_become, args=target)
    process.start()
    return ForkedProcess(process)


async def run_forked(
    words: tuple[str, ...], folder: Path, environment: Mapping[str, str]
) -> tuple[int, str, str]:
    """Run ``python -m`` with these words to its end; return its exit code and both outputs."""
    with tempfile.TemporaryDirectory() as outputs:
        out, err = Path(outputs) / "out", Path(outputs) / "err"
        process = fork(words, folder, environment, out, err)
        try:
            code = await process.wait()
        finally:
            process.kill()
        return code, out.read_text(), err.read_text()


def _become(words: tuple[str, ...], folder: str, env: dict[str, str], out: str, err: str) -> None:
    """Be the process that was wanted; this is called in the fork."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    for stream, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, stream)
        os.close(file)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.path[:] = [folder, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep)), *sys.path]
    sys.argv[:] = words
    if words[0] != "kopf":  # an operator of webop does not have it imported
        for name in [name for name in sys.modules if name.partition(".")[0] == "kopf"]:
            del sys.modules[name]
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
        logging.shutdown()
