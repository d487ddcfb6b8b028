"""Who is next among the handlers that are due."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import webop
from webop import lifecycles

HANDLERS = [SimpleNamespace(id=key) for key in "abc"]
STATE = {
    key: SimpleNamespace(retries=retries) for key, retries in zip("abc", (2, 1, 1), strict=True)
}


def choose(lifecycle: Any, handlers: Any = tuple(HANDLERS)) -> str:
    chosen = lifecycle(handlers, state=STATE, spec={}, logger=None)
    return "".join(handler.id for handler in chosen)


@pytest.mark.feature("REF-30")
def test_lifecycles_choose_as_they_are_called() -> None:
    assert choose(lifecycles.all_at_once) == "abc"
    assert choose(lifecycles.one_by_one) == "a"
    assert choose(lifecycles.asap) == "b"
    assert choose(lifecycles.randomized) in "abc"
    assert "".join(sorted(choose(lifecycles.shuffled))) == "abc"


@pytest.fixture
def restored() -> Iterator[None]:
    yield
    webop.set_default_lifecycle(None)


@pytest.mark.feature("REF-29")
@pytest.mark.usefixtures("restored")
def test_the_default_lifecycle_can_be_set_and_reset() -> None:
    assert webop.get_default_lifecycle() is lifecycles.asap
    webop.set_default_lifecycle(lifecycles.one_by_one)
    assert webop.get_default_lifecycle() is lifecycles.one_by_one
    webop.set_default_lifecycle(None)
    assert webop.get_default_lifecycle() is lifecycles.asap
