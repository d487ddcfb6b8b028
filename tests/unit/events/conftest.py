"""A running poster, for the tests of Events."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import webop
from tests.kit.event_posting import BODY, Recorder, post


@pytest.fixture
def settings() -> webop.OperatorSettings:
    return webop.OperatorSettings()


@pytest.fixture
async def posted(settings: webop.OperatorSettings) -> AsyncIterator[Recorder]:
    """A poster at work; what is posted is kept."""
    recorder = Recorder()
    async with post(settings, recorder):
        yield recorder


@pytest.fixture
def in_context(posted: Recorder, settings: webop.OperatorSettings) -> None:
    """See that fixtures and tests share their context variables."""


@pytest.fixture
def logger(settings: webop.OperatorSettings) -> webop.ObjectLogger:
    return webop.ObjectLogger(body=BODY, settings=settings)
