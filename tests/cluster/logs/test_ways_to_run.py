"""Who sets up logging: the app if nobody has, else whoever was first; embedding never does."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import webop
from tests.kit.operators import operate
from tests.kit.reviews import serve
from webop.logs import preserve

FULL = r"\[\d{4}-.*\] webop.objects {8}\[INFO {4}\] \[KopfExample ns/kex\] \[1ca13837\] said"


@contextlib.contextmanager
def bare() -> Iterator[logging.Logger]:
    """Give the root logger as it is at first: pytest has put its own handlers on it."""
    root = logging.getLogger()
    with preserve():
        handlers, root.handlers = root.handlers, []
        try:
            yield root
        finally:
            root.handlers = handlers


@pytest.fixture(autouse=True)
def _handler() -> None:
    @webop.on.validate("kopfexamples", id="talk")
    def talk(logger: webop.Logger, **_: object) -> None:
        logger.info("said")


@pytest.mark.feature("LOG-01", "LOG-06")
async def test_an_app_logs_as_the_command_does(capsys: pytest.CaptureFixture[str]) -> None:
    with bare():
        async with serve() as site:
            await site.review()
    *_, line = capsys.readouterr().err.splitlines()
    assert re.fullmatch(FULL, line)


async def test_an_app_leaves_logging_alone_that_is_set_up() -> None:
    own = logging.StreamHandler(io.StringIO())
    with bare() as root:
        root.handlers = [own]
        root.setLevel(logging.INFO)
        async with serve() as site:
            await site.review()
        assert root.handlers == [own]
    assert "said\n" in own.stream.getvalue()


@pytest.mark.feature("LOG-03", "LOG-08")
async def test_files_with_handlers_may_set_it_up_for_the_app(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "sets_up_logging.py"
    path.write_text("import webop\nwebop.configure(log_format=webop.LogFormat.JSON)\n")
    with bare():
        async with serve(modules=[str(path)]) as site:
            await site.review()
    *_, line = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "said"


async def test_an_embedded_operator_sets_nothing_up(info: webop.ConnectionInfo) -> None:
    with bare() as root:
        async with operate(info, webop.OperatorRegistry(), clusterwide=True):
            assert root.handlers == []
