"""Run the demo as a process, and check its output."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.pages import find_blocks

_ROOT = Path(__file__).parents[3]
_EXAMPLE = _ROOT / "examples" / "ephemeral_volume_claims"
_DEMO = _EXAMPLE / "demo"

# The demo starts a control plane, maybe on a slow machine.
pytestmark = [pytest.mark.journey, pytest.mark.timeout(300)]


@contextlib.contextmanager
def start_demo() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, str(_DEMO)],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        start_new_session=True,
    ) as process:
        watchdog = threading.Timer(240, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
            watchdog.cancel()


def read_until(process: subprocess.Popen[str], beginning: str) -> str:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(beginning):
            return "".join(lines)
    raise AssertionError("".join(lines))


@pytest.mark.feature("TRB-04", "TRB-05", "ADM-01", "ADM-07", "ADM-40", "ADM-72")
def test_the_story_comes_out_as_it_should() -> None:
    """After its checks, the demo serves until Ctrl-C."""
    with start_demo() as process:
        text = read_until(process, "Ctrl-C")
        shown = next(block.code for block in find_blocks(_ROOT / "README.md") if "✓" in block.code)
        assert {*shown.splitlines()} <= {*text.splitlines()}
        assert "denied the request: spec.size: 'plenty' is not a quantity" in text
        assert "Warning: spec.size: '500m' is only 0.5 bytes" in text
        (curl,) = re.findall(r"curl --insecure .*", text)
        answer = subprocess.run(
            curl.split(), cwd=_ROOT, capture_output=True, text=True, check=True
        ).stdout
        assert "is not a quantity" in answer
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        text += process.stdout.read()
        assert process.wait() == 0
    assert "\033[" not in text, "no colours without a terminal"
    assert "Traceback" not in text
