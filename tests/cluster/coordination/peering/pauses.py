"""How tests see that an operator is paused."""

from __future__ import annotations

import asyncio

import pytest

from tests.kit.operators import Calls, Objects
from tests.kit.waiting import eventually


async def stay_out(objects: Objects, calls: Calls, log: pytest.LogCaptureFixture) -> None:
    """See that nobody handles an object: another one, of somebody else, is passed by."""
    await eventually(lambda: "Pausing" in log.text or "is paused" in log.text, "a pause")
    await objects.create("ignored", labels={"x": "y"})
    await asyncio.sleep(0.2)  # for what should not happen
    assert not len(calls)
