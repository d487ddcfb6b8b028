"""``webop run --reload``: what is running after each save, and after the end."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.kit.cli_runner import fail
from tests.kit.operators import Objects
from tests.kit.processes import Command, Workshop
from tests.kit.waiting import eventually

_HANDLERS = """
import asyncio, os, webop
from parts.version import VERSION

@webop.on.startup()
def configure(settings, logger, **_):
    settings.posting.enabled = False
    settings.scanning.disabled = True
    logger.info(f'version {VERSION} is process {os.getpid()}.')

@webop.on.cleanup()
def clean(logger, **_):
    logger.info(f'version {VERSION} stops')
"""
_OBJECTS = """
@webop.on.create('widgets')
def created(name, logger, **_):
    logger.info(f'{name} is created by {VERSION}')

@webop.daemon('widgets')
async def accompany(name, stopped, logger, **_):
    logger.info(f'{name} is accompanied by {VERSION}')
    await stopped.wait()
    logger.info(f'{name} is left by {VERSION}')
"""


def write(workshop: Workshop, version: str, handlers: str = _HANDLERS) -> Path:
    """Write the handlers, and a module with their version, which they import."""
    parts = workshop.folder / "parts"
    parts.mkdir(exist_ok=True)
    (parts / "version.py").write_text(f"VERSION = {version}\n")
    path = workshop.folder / "my_handlers.py"
    path.write_text(handlers)
    return path


async def wait_for_end(command: Command) -> None:
    await eventually(
        lambda: not any(is_alive(number) for number in list_processes(command)),
        lambda: f"the end of all processes of\n{command.output}",
    )


def list_processes(command: Command) -> list[str]:
    found = re.findall(r"is process (\d+)\.", command.output)
    assert found
    return found


def is_alive(number: str) -> bool:
    try:  # those whose parent has gone may stay as zombies, in containers
        return "State:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_what_is_saved_runs_at_once(connected: Workshop, objects: Objects) -> None:
    path = write(connected, "1", _HANDLERS + _OBJECTS)
    arguments = ("-n", objects.namespace, "--standalone", "--reload", path)
    async with connected.start(*arguments) as command:
        await objects.create("one")
        await command.wait_for("one is created by 1")
        await command.wait_for("one is accompanied by 1")
        write(connected, "2", _HANDLERS + _OBJECTS)  # as long as before
        await command.wait_for("one is accompanied by 2")
        output = command.output
        assert output.index("one is left by 1") < output.index("one is accompanied by 2")
        write(connected, "(", _HANDLERS + _OBJECTS)
        await command.wait_for("It starts again when a file changes")
        assert re.search(r"SyntaxError: .*version\.py, line 1: VERSION = \(\)", command.output)
        await objects.create("two")
        write(connected, "3", _HANDLERS + _OBJECTS)
        await command.wait_for("two is created by 3")
        assert command.output.count("one is created by") == 1
        # As Ctrl-C in a terminal does.
        command.process.send_signal(signal.SIGINT)
        os.kill(int(list_processes(command)[-1]), signal.SIGINT)
        assert await command.wait_for_exit() == 0
    assert "two is left by 3" in command.output
    assert "Traceback" not in command.output
    await wait_for_end(command)


async def test_handlers_that_never_could_be_imported_run_when_they_can(workshop: Workshop) -> None:
    path = write(workshop, "(")
    async with workshop.start("-A", "--reload", path) as command:
        await command.wait_for("It starts again when a file changes")
        assert "version.py, line 1" in command.output
        write(workshop, "1")
        await command.wait_for("version 1 is process")
        startup = "def configure(settings, logger, **_):\n"
        write(
            workshop, "2", _HANDLERS.replace(startup, f"{startup}    raise webop.PermanentError\n")
        )
        ended = "The operator exited with code 1."
        await eventually(lambda: command.output.count(ended) == 2, lambda: command.output)
        assert await command.stop() == 1


async def test_nothing_is_left_of_handlers_whose_command_was_killed(workshop: Workshop) -> None:
    async with workshop.start("-A", "--reload", write(workshop, "1")) as command:
        await command.wait_for("The operator is running")
        command.process.kill()
        await command.process.wait()
        await wait_for_end(command)
    assert "version 1 stops" in command.output


async def test_the_second_signal_ends_handlers_that_do_not_stop(workshop: Workshop) -> None:
    path = write(workshop, "1", _HANDLERS + "    import time; time.sleep(60)\n")
    async with workshop.start("-A", "--reload", path, KUBERNETES_SERVICE_HOST="x") as command:
        await command.wait_for("The operator is running")
        assert "--reload is for development" in command.output
        command.process.send_signal(signal.SIGTERM)
        await command.wait_for("version 1 stops")
        assert await command.stop(signal.SIGINT) == 130
        await wait_for_end(command)


async def test_a_thread_that_never_ends_does_not_keep_what_is_saved_from_running(
    workshop: Workshop,
) -> None:
    endless = "\nimport threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    path = write(workshop, "1", _HANDLERS + endless)
    async with workshop.start("-A", "--reload", path) as command:
        await command.wait_for("version 1 is process")
        write(workshop, "2")
        await command.wait_for("it did not shut down within 10 s")
        await command.wait_for("version 2 is process")
        command.process.send_signal(signal.SIGTERM)
        assert await command.wait_for_exit() == 0
    await wait_for_end(command)


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)  # as if it was not installed
    output = fail("-A", "--reload", tmp_path / "handlers.py", folder=tmp_path, code=1)
    assert "Install it: pip install watchfiles" in output
