"""What operators written for Kopf set on its loggers has its effect on ours."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

import webop

BODY = {"metadata": {"name": "kex", "namespace": "ns", "uid": "u1"}}


@pytest.fixture(params=["kopf", "kopf.objects"])
def theirs(request: pytest.FixtureRequest) -> Iterator[logging.Logger]:
    logger = logging.getLogger(request.param)
    yield logger
    logger.disabled, logger.propagate = False, True
    logger.handlers.clear()
    logger.filters.clear()
    logger.setLevel(logging.NOTSET)


def log(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Log of an object at two levels; return what has come through to the root logger."""
    caplog.clear()
    logger = webop.ObjectLogger(body=BODY, settings=webop.OperatorSettings())
    logger.info("hello")
    logger.warning("%s", "help")
    return [record.getMessage() for record in caplog.records]


def test_a_level_of_kopfs_logger_is_that_of_messages_about_objects(
    theirs: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert log(caplog) == ["hello", "help"]
    theirs.setLevel(logging.WARNING)
    assert log(caplog) == ["help"]


def test_a_handler_of_kopfs_logger_gets_messages_about_objects_with_our_name(
    theirs: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    taken: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: taken.append(record.name)  # type: ignore[method-assign]
    theirs.addHandler(handler)
    assert log(caplog) == ["hello", "help"]
    theirs.propagate = False
    assert log(caplog) == []
    assert taken == ["webop.objects"] * 4


def test_filters_and_disabling_of_kopfs_loggers_have_their_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    theirs = logging.getLogger("kopf.objects")

    def has_help(record: logging.LogRecord) -> bool:
        return "help" in record.getMessage()

    theirs.addFilter(has_help)
    try:
        assert log(caplog) == ["help"]
        theirs.disabled = True
        assert log(caplog) == []
    finally:
        theirs.removeFilter(has_help)
        theirs.disabled = False
    assert log(caplog) == ["hello", "help"]
