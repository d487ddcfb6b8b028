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


def test_levels_filters_handlers_and_disabling_of_kopfs_loggers_have_their_effect(
    theirs: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert log(caplog) == ["hello", "help"]
    theirs.setLevel(logging.WARNING)
    assert log(caplog) == ["help"]
    theirs.setLevel(logging.NOTSET)
    taken: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: taken.append(record.name)  # type: ignore[method-assign]
    theirs.addHandler(handler)
    assert log(caplog) == ["hello", "help"]
    theirs.propagate = False
    assert log(caplog) == []
    assert taken == ["webop.objects"] * 4
    theirs.propagate = True
    if theirs.name == "kopf.objects":  # those of its parent count for its own messages only
        theirs.addFilter(lambda record: "help" in record.getMessage())
        assert log(caplog) == ["help"]
        theirs.disabled = True
        assert log(caplog) == []
