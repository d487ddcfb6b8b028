"""``webop run`` in a process of its own, and other commands, for tests of the command line."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from importlib.util import cache_from_source
from pathlib import Path

from tests.kit.forking import ForkedProcess, fork
from tests.kit.pages import ROOT
from tests.kit.waiting import eventually

PATIENCE = 30.0  # seconds

HANDLERS = """
import webop

@webop.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False

@webop.on.create('widgets')
def created(name, logger, **_):
    logger.info(f'created {name}')
    return 'done'

@webop.on.cleanup()
def clean(logger, **_):
    logger.info('cleaned up')
"""


def run_module(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m`` in the clone, and wait for its end."""
    return subprocess.run(
        [sys.executable, "-m", *argv],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


class Command:
    def __init__(self, process: asyncio.subprocess.Process | ForkedProcess, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def output(self) -> str:
        """What it has written so far, to both streams."""
        return self._log.read_text()

    async def wait_for(self, text: str) -> None:
        def is_written() -> bool:
            is_over = self.process.returncode is not None
            assert text in self.output or not is_over, self._explain(text)
            return text in self.output

        await eventually(is_written, lambda: self._explain(text), PATIENCE)

    def _explain(self, text: str) -> str:
        return f"{text!r} in the output:\n{self.output}\n"

    async def wait_for_exit(self) -> int:
        try:
            async with asyncio.timeout(PATIENCE):
                code = await self.process.wait()
        except TimeoutError:
            raise AssertionError(f"It does not end. Output:\n{self.output}") from None
        assert -code not in {signal.SIGABRT, signal.SIGSEGV}, f"A crash. Output:\n{self.output}"
        return code

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return await self.wait_for_exit()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


class Workshop:
    """A folder to run commands in, with no cluster and no settings but those that are given."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("WEBOP_", "KUBE"))}
        self._environment = {**kept, "HOME": str(folder), "PYTHONUNBUFFERED": "1", **variables}

    def write(self, code: str) -> Path:
        path = self.folder / "my_handlers.py"
        path.write_text(code)
        # Python would take it for a file of the same size that was written in the same second.
        Path(cache_from_source(str(path))).unlink(missing_ok=True)
        return path

    def start(self, *args: str | Path, **variables: str) -> AbstractAsyncContextManager[Command]:
        """Start ``webop run`` with arguments; the process is killed at the end of the block."""
        return self.start_module(("webop", "run"), *args, **variables)

    @asynccontextmanager
    async def start_module(
        self, program: tuple[str, ...], *args: str | Path, **variables: str
    ) -> AsyncIterator[Command]:
        """Start any command as ``python -m`` does, with variables of the environment."""
        command = await self.spawn(program, *args, **variables)
        try:
            yield command
        finally:
            await command.kill()

    async def spawn(
        self, program: tuple[str, ...], *args: str | Path, log: str = "output.log", **variables: str
    ) -> Command:
        """Start a command that lives on, with a file for its output."""
        everything = {**self._environment, **variables}
        path = self.folder / log
        path.write_bytes(b"")
        if program[0] in ("webop", "kopf") and "--reload" not in args:  # that forks, too
            words = (*program, *map(str, args))
            return Command(fork(words, self.folder, everything, path, path), path)
        with path.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *program, *map(str, args)),
                stdout=file,
                stderr=file,
                cwd=self.folder,
                env=everything,
            )
        return Command(process, path)

    async def fail(self, *args: str | Path, **variables: str) -> str:
        """Run a command that is to fail because of a mistake of the user; return what it says."""
        async with self.start(*args, **variables) as command:
            code = await command.wait_for_exit()
        output = command.output
        assert code > 0, output
        assert "Traceback" not in output
        assert "Error" in output
        return output


@contextmanager
def take_port() -> Iterator[int]:
    """Listen at a port, so that nobody else can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]
