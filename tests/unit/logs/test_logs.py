"""What log lines look like (chapter "Configuration", "Logging formats and levels")."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

import webop
from tests.kit.event_posting import BODY, REFERENCE
from webop import LogFormat
from webop.logs import JSONFormatter

Read = Callable[[], str]


@pytest.fixture
def logger() -> webop.ObjectLogger:
    return webop.ObjectLogger(body=BODY, settings=webop.OperatorSettings())


@pytest.mark.feature("LOG-01", "LOG-06", "LOG-08", "LOG-09", "KWA-10")
def test_full_lines_have_the_time_the_logger_and_the_level(
    read: Read, logger: webop.ObjectLogger
) -> None:
    webop.configure(log_format=LogFormat.FULL, log_prefix=True)
    logger.info("hello %s", "world")
    line = r"\[[\d-]+ [\d:,]+\] webop.objects {8}\[INFO {4}\] \[KopfExample ns/kex\] hello world\n"
    assert re.fullmatch(line, read())


@pytest.mark.feature("LOG-02", "LOG-06", "KWA-10")
@pytest.mark.parametrize(
    ("body", "prefix"),
    [
        ({"kind": "Pod", "metadata": {"name": "kex", "namespace": "ns"}}, "[Pod ns/kex] "),
        ({"kind": "Node", "metadata": {"name": "kex"}}, "[Node kex] "),
        ({"metadata": {"name": "kex", "namespace": "ns"}}, "[ns/kex] "),
        ({"metadata": {"name": "kex"}}, "[kex] "),
    ],
)
def test_plain_lines_are_the_message_with_the_object(read: Read, body: Any, prefix: str) -> None:
    webop.configure(log_format=LogFormat.PLAIN, log_prefix=True)
    webop.ObjectLogger(body=body, settings=webop.OperatorSettings()).info("hello")
    logging.getLogger("other").info("bye")
    assert read() == f"{prefix}hello\nbye\n"


@pytest.mark.feature("LOG-06", "LOG-08", "D-26")
def test_the_function_puts_no_prefix_unless_asked_to(
    read: Read, logger: webop.ObjectLogger
) -> None:
    webop.configure(log_format=LogFormat.PLAIN)
    logger.info("hello")
    assert read() == "hello\n"


@pytest.mark.feature("LOG-03", "LOG-06")
def test_json_lines_carry_the_object(read: Read, logger: webop.ObjectLogger) -> None:
    webop.configure(log_format=LogFormat.JSON)
    logger.info("hello %s", "world", extra={"own": 1})
    logging.getLogger("other").warning("bye")
    first, second = (json.loads(line) for line in read().splitlines())
    assert first == {
        "message": "hello world",
        "severity": "info",
        "timestamp": first["timestamp"],
        "logger": "webop.objects",
        "kind": "KopfExample",
        "object": REFERENCE,
        "own": 1,
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", first["timestamp"])
    assert second.keys() == {"message", "severity", "timestamp", "logger"}
    assert second["logger"] == "other"


@pytest.mark.feature("LOG-04")
@pytest.mark.parametrize(
    ("level", "severity"),
    [(10, "debug"), (20, "info"), (25, "info"), (30, "warn"), (40, "error"), (50, "fatal")],
)
def test_json_lines_tell_the_severity(read: Read, level: int, severity: str) -> None:
    webop.configure(log_format=LogFormat.JSON, verbose=True)
    logging.getLogger("any").log(level, "hello")
    assert json.loads(read())["severity"] == severity


@pytest.mark.feature("LOG-03")
def test_json_lines_carry_the_traceback(read: Read, logger: webop.ObjectLogger) -> None:
    webop.configure(log_format=LogFormat.JSON)
    try:
        int("boo")
    except ValueError:
        logger.exception("failed")
    line = json.loads(read())
    assert line["message"] == "failed"
    assert "ValueError: invalid literal" in line["exc_info"]


@pytest.mark.feature("LOG-03")
@pytest.mark.parametrize(
    "value",
    [object(), {1: 2}, "\ud800", {1}, [2**70, float("nan")]],
)
def test_json_lines_hold_whatever_they_are_given(value: Any) -> None:
    # Not through the root logger: the test runner cannot carry such text between processes.
    record = logging.makeLogRecord(
        {"msg": "hello \ud800 \u00fc", "levelno": logging.INFO, "own": value}
    )
    text = JSONFormatter(has_prefix=False, refkey=None).format(record)
    line = json.loads(text, parse_constant=pytest.fail)  # NaN is no JSON
    assert line["severity"] == "info"
    assert line["message"].startswith("hello")
    assert "own" in line


@pytest.mark.feature("LOG-07", "LOG-08")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["webop info", "webop warning", "asyncio warning"]),
        ({"quiet": True}, ["webop warning", "asyncio warning"]),
        ({"verbose": True}, ["webop debug", "webop info", "webop warning", "asyncio warning"]),
        (
            {"debug": True},
            ["webop debug", "webop info", "webop warning", "asyncio debug", "asyncio warning"],
        ),
    ],
)
def test_verbosity_is_that_of_the_command_line(
    read: Read, options: Any, expected: list[str]
) -> None:
    webop.configure(log_format=LogFormat.PLAIN, **options)
    for name in ("webop", "asyncio"):
        for level in ("debug", "info", "warning"):
            getattr(logging.getLogger(name), level)(f"{name} {level}")
    shown = [line for line in read().splitlines() if line != "asyncio info"]
    assert shown == expected


@pytest.mark.feature("LOG-08", "REF-15")
def test_configuring_twice_does_not_double_the_lines(read: Read) -> None:
    webop.configure(log_format=LogFormat.FULL)
    webop.configure(None, None, None, LogFormat.PLAIN, log_prefix=False, log_refkey=None)
    logging.getLogger("any").info("hello")
    assert read() == "hello\n"
