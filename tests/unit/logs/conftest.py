"""The logging of the process, as it was before each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from webop.logs import preserve


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    with preserve():
        yield


@pytest.fixture
def read(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Returns what was logged since the last call."""
    return lambda: capsys.readouterr().err
