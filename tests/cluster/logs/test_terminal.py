"""``webop run`` at a terminal: a banner, short lines, colours, and how long the stop took."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import webop
from tests.kit.operators import Objects
from tests.kit.processes import Workshop
from tests.kit.terminals import Terminal
from tests.kit.waiting import eventually
from webop.controlplane.cluster_client import find_free_port
from webop.logs import configure_terminal, preserve
from webop.logs.terminal import TerminalFormatter, accepts_colours, find_formatter
from webop.testing import LocalCluster

HANDLERS = """
import webop

@webop.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    settings.admission.server = webop.WebhookServer(addr="127.0.0.1", port={port})

@webop.on.create("widgets")
def created(name, logger, **_):
    logger.info("created %s\\n\\x1b[31mforged", name)

@webop.on.validate("widgets")
def check(**_): ...
"""
LONELY = """
import webop

@webop.on.startup()
def configure(logger, **_):
    logger.info("configured")
"""

CROWD = """
import asyncio, webop

async def serve(fn):
    yield {"service": {"namespace": "ns", "name": "hooks", "port": 443}}
    await asyncio.Event().wait()

@webop.on.startup()
def configure(settings, **_):
    settings.admission.server = serve

for number in range(6):
    webop.on.validate(f"kind{number}", id=f"check{number}")(lambda **_: None)
"""


@pytest.fixture
def terminal(workshop: Workshop) -> Iterator[Terminal]:
    """A terminal of 100 columns, with no cluster and no settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WEBOP_", "KUBE", "NO_COLOR"))}
    opened = Terminal(workshop.folder, {**kept, "HOME": str(workshop.folder)})
    yield opened
    if not opened.is_free:
        opened.interrupt()
    opened.close()


async def run(terminal: Terminal, *words: str | Path, until: str, **variables: str) -> None:
    """Type ``webop run`` with variables; wait until it prints a text."""
    line = [*(f"{key}={value}" for key, value in variables.items()), sys.executable, "-m", "webop"]
    typed = " ".join([*line, "run", *(shlex.quote(str(word)) for word in words)])
    await asyncio.to_thread(terminal.type, typed, until=until)


async def stop(terminal: Terminal) -> None:
    """Press Ctrl-C; the command must end well."""
    assert await asyncio.to_thread(terminal.interrupt) == 0


async def test_a_terminal_shows_a_banner_short_coloured_lines_and_the_end(
    workshop: Workshop, terminal: Terminal, webop_cluster: LocalCluster, objects: Objects
) -> None:
    hook, probes = find_free_port(), find_free_port()
    path = workshop.write(HANDLERS.format(port=hook))
    options = ("-n", objects.namespace, "--standalone", f"--liveness=http://localhost:{probes}/x")
    kubeconfig = str(webop_cluster.kubeconfig)
    await run(terminal, *options, path, until="Status", KUBECONFIG=kubeconfig)
    await objects.make("one")
    await eventually(lambda: "'created' succeeded" in terminal.text)
    await stop(terminal)
    text = terminal.text
    begin = text.index("webop 0.")
    server = webop_cluster.server
    assert text[begin:].splitlines()[1:6] == [
        "  Handlers  widgets (create, validate)",
        f"  Cluster   {server}",
        f"  Serving   widgets.v1.tests.webop.dev in namespaces: {objects.namespace}",
        f"  Webhooks  https://127.0.0.1:{hook}, not registered (settings.admission.managed)",
        f"  Status    http://localhost:{probes}/ui",
    ]
    said = f" INFO    [Widget {objects.namespace}/one] created one\\n\\u001b[31mforged\n"
    assert said in text
    assert "\x1b[32mINFO   \x1b[0m" in terminal.output
    assert re.search(r"Stopped after [\d.]+ s\.\n$", text)


async def test_a_banner_is_short_and_its_page_can_be_opened_at_a_free_port_and_by_ipv6(
    workshop: Workshop, terminal: Terminal
) -> None:
    await run(terminal, "-A", "--status=http://[::]:0/ui", workshop.write(CROWD), until="/ui\n")
    kinds = ", ".join(f"kind{number} (validate)" for number in range(4))
    text = terminal.text
    assert f"  Handlers  {kinds} and 2 more\n" in text
    assert "  Serving   check0, check1, check2, check3 and 2 more\n" in text
    assert "  Webhooks  the Service ns/hooks, port 443, not registered" in text
    (url,) = re.findall(r"Status +(\S+)\n", text)
    assert url.startswith("http://[::1]:")
    async with httpx.AsyncClient() as http:
        assert (await http.get(url)).status_code == 200


async def test_a_terminal_without_colours_shows_the_same_without_colours(
    workshop: Workshop, terminal: Terminal
) -> None:
    await run(terminal, "-A", workshop.write(LONELY), until="Status", NO_COLOR="1")
    await stop(terminal)
    assert "Stopped after " in terminal.text
    assert "\x1b" not in terminal.output
    assert re.search(r"^\d\d:\d\d:\d\d INFO    configured$", terminal.text, re.MULTILINE)
    assert "  Cluster   not needed\n" in terminal.text
    assert "  Webhooks  none\n" in terminal.text


async def test_a_format_that_was_chosen_is_kept_at_a_terminal(
    workshop: Workshop, terminal: Terminal
) -> None:
    chosen = {"WEBOP_RUN_LOG_FORMAT": "full"}
    path, running = workshop.write(LONELY), "The operator is running"
    await run(terminal, "-A", path, until=running, **chosen)
    await stop(terminal)
    lines = [line for line in terminal.text.replace("^C", "").splitlines() if line]
    assert all(re.match(r"\[\d{4}-\d\d-\d\d [\d:,]+\] \S+ +\[", line) for line in lines), lines


@pytest.mark.parametrize(("quiet", "is_shown"), [(True, False), (False, True)])
def test_a_quiet_terminal_shows_no_banner(quiet: bool, is_shown: bool) -> None:
    with preserve():
        webop.configure(quiet=quiet)
        configure_terminal(has_prefix=True)
        assert (find_formatter() is not None) is is_shown
        webop.configure(log_format=webop.LogFormat.JSON)  # as a file with handlers may do
        assert find_formatter() is None


class Stream(io.StringIO):
    """A stream that may be a terminal."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(
    ("is_terminal", "environment", "expected"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": ""}, True),  # as https://no-color.org says
        (True, {"NO_COLOR": "0"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {"TERM": "xterm"}, False),
    ],
)
def test_colours_are_shown_to_those_who_want_them(
    is_terminal: bool, environment: dict[str, str], expected: bool
) -> None:
    assert accepts_colours(Stream(is_terminal=is_terminal), environment) is expected


def test_a_traceback_follows_its_line() -> None:
    formatter = TerminalFormatter(has_prefix=True, has_colours=False)
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        values: dict[str, Any] = {"msg": "failed", "levelname": "ERROR", "exc_info": sys.exc_info()}
    record = logging.makeLogRecord(values)
    first, *_, last = formatter.format(record).splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d ERROR   failed", first)
    assert last == "    second"
