"""What the framework says again and again is left out, and counted; what handlers say never is."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import webop
from webop.logs.repetitions import Limit, RepetitionFilter, limit_repetitions, read_limit

REACTOR = str(Path(webop.__file__).parent / "reactor" / "process.py")
HANDLING = str(Path(webop.__file__).parent / "handling" / "execute.py")

Say = Callable[..., None]


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limiter(clock: Clock) -> RepetitionFilter:
    return RepetitionFilter(Limit(3, 60), clock)


@pytest.fixture
def logger(limiter: RepetitionFilter) -> Iterator[logging.Logger]:
    """One of the framework's loggers, as it were."""
    logger = logging.getLogger("webop.trials")
    filters, logger.filters = logger.filters, [limiter]
    yield logger
    logger.filters = filters


def say(
    logger: logging.Logger, text: str = "away", line: int = 1, level: int = logging.WARNING
) -> None:
    """Log as a line of a module of the framework does."""
    record = logger.makeRecord(logger.name, level, "there.py", line, "It is %s", (text,), None)
    logger.handle(record)


def test_the_first_ones_are_shown_and_the_rest_is_counted(
    logger: logging.Logger,
    limiter: RepetitionFilter,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number in range(100):
        say(logger, str(number))
    assert caplog.messages == ["It is 0", "It is 1", "It is 2"]
    clock.now += 60
    limiter.flush()
    assert caplog.messages[3:] == ["It is 99 (repeated 97 times in 60 s)"]
    assert (caplog.records[3].levelno, caplog.records[3].lineno) == (logging.WARNING, 1)
    assert vars(caplog.records[3])["repeated"] == 97


def test_a_long_flood_has_two_lines_an_interval(
    logger: logging.Logger, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(600):
        say(logger)
        clock.now += 1
    assert len(caplog.messages) == 3 + 9 * 2
    assert caplog.messages.count("It is away (repeated 59 times in 60 s)") == 8


def test_all_is_shown_again_after_an_interval_of_peace(
    logger: logging.Logger, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        say(logger)
    clock.now += 60
    say(logger)
    clock.now += 60
    caplog.clear()
    for _ in range(3):
        say(logger)
    assert caplog.messages == ["It is away"] * 3


def test_places_do_not_share_their_limits(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    for line in range(5):
        for _ in range(4):
            say(logger, line=line)
    assert len(caplog.messages) == 15


def test_debugging_is_not_limited(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger.name)
    for _ in range(20):
        say(logger, level=logging.DEBUG)
    assert len(caplog.messages) == 20


async def test_what_is_left_out_is_told_when_the_interval_is_over(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    logger.filters = [RepetitionFilter(Limit(1, 0.05))]
    for _ in range(3):
        say(logger)
    async with asyncio.timeout(10):
        while len(caplog.messages) < 2:
            await asyncio.sleep(0.01)
    assert caplog.messages[1] == "It is away (repeated 2 times in 0.05 s)"


def test_what_is_left_out_is_told_at_the_end_at_the_latest(
    logger: logging.Logger, limiter: RepetitionFilter, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        say(logger)
    limiter.flush(is_last=True)
    assert caplog.messages[3:] == ["It is away (repeated 2 times in 1 s)"]
    limiter.flush(is_last=True)
    assert len(caplog.messages) == 4


@pytest.mark.parametrize(
    ("name", "path", "level", "is_limited"),
    [
        ("webop.client.api", "api.py", logging.WARNING, True),
        ("webop.client.api", "api.py", logging.INFO, True),
        ("webop.objects", REACTOR, logging.ERROR, True),
        ("webop.objects", REACTOR, logging.INFO, False),
        ("webop.objects", HANDLING, logging.ERROR, False),
        ("webop.objects", "handlers.py", logging.ERROR, False),
        ("webop.activities.probe", HANDLING, logging.ERROR, True),
        ("webop.activities.probe", HANDLING, logging.INFO, False),
        ("webop.activities.probe", "handlers.py", logging.ERROR, False),
    ],
)
def test_what_handlers_say_is_not_limited(
    limiter: RepetitionFilter, name: str, path: str, level: int, is_limited: bool
) -> None:
    record = logging.LogRecord(name, level, path, 1, "text", (), None)
    assert [limiter.filter(record) for _ in range(4)] == [True, True, True, not is_limited]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("", Limit(10, 60)),
        ("5/30", Limit(5, 30)),
        ("5", Limit(5, 60)),
        (" OFF ", Limit(0)),
        ("0", Limit(0)),
    ],
)
def test_the_environment_sets_the_limit(text: str, limit: Limit) -> None:
    assert read_limit(text) == limit


@pytest.mark.parametrize("text", ["many", "5/0", "-1/60", "1/inf", "1/nan", "10/60/3"])
def test_a_limit_that_is_none_is_told_and_ignored(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_limit(text) == Limit(10, 60)
    assert f"WEBOP_LOG_LIMIT={text} is ignored" in caplog.text
    assert "such as 10/60" in caplog.text


def test_it_is_for_the_loggers_of_the_framework_and_for_later_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(os.environ, "WEBOP_LOG_LIMIT", "2/60")
    limit_repetitions()
    first = logging.getLogger("webop.trials.first")
    logging.getLogger("webop.client.api").warning("This is said once")
    caplog.clear()
    for name in (first.name, "other.trials"):
        for _ in range(3):
            logging.getLogger(name).warning("said")
    assert [record.name for record in caplog.records] == [first.name] * 2 + ["other.trials"] * 3
    monkeypatch.setitem(os.environ, "WEBOP_LOG_LIMIT", "off")
    limit_repetitions()
    assert caplog.messages[-1] == "said (repeated once in 1 s)"
