"""Daemons and timers, which hold their objects by the finalizer."""

from __future__ import annotations

import pytest

from tests.kit.operators import FINALIZER, Json, get_annotations
from tests.kopf.relay import SWAPS, Relay, Swap


def is_held(body: Json) -> bool:
    return bool(body["metadata"].get("finalizers") == [FINALIZER])


@pytest.mark.feature("CON-04", "CON-06", "CFG-36", "D-27")
@pytest.mark.parametrize("swap", SWAPS, ids=str)
async def test_daemons_and_timers_move_to_the_other_with_their_finalizer(
    relay: Relay, swap: Swap
) -> None:
    relay.write("""
import asyncio

@kopf.daemon(KIND, labels={'relay': kopf.ABSENT}, cancellation_timeout=1.0)
async def daemon(stopped, **kwargs):
    note('daemon', kwargs)
    await stopped.wait()
    note('stopped', kwargs)

@kopf.timer(KIND, labels={'relay': kopf.ABSENT}, interval=0.3)
def timer(**kwargs):
    note('timer', kwargs)
""")
    async with relay.run(swap.first) as command:
        for name in ("kept", "away"):
            await relay.objects.create(name, {"x": 1})
            for handler in ("daemon", "timer"):
                await relay.wait_for_call(name, handler, turn=1)
            await relay.objects.wait(name, is_held)
        await command.stop(swap.stop)
    await relay.objects.delete("away")
    assert await relay.objects.exists("away")
    async with relay.run(swap.second):
        await relay.objects.wait_gone("away")
        for handler in ("daemon", "timer"):
            await relay.wait_for_call("kept", handler, turn=2)
        body = await relay.objects.get("kept")
        assert is_held(body)
        assert not get_annotations(body)
        await relay.objects.remove("kept")
    assert relay.list_handlers("kept", turn=2).count("daemon") == 1
    assert relay.list_handlers("kept", turn=2).count("stopped") == 1
