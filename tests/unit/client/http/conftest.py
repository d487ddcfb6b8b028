"""The tests of HTTP/1.1 run on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

_ON_BOTH = ("test_http1", "test_hostile_servers")


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    uv = {"uvloop": uvloop.new_event_loop} if item.path.stem in _ON_BOTH else {}
    return {"asyncio": asyncio.SelectorEventLoop, **uv}
