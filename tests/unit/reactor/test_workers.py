"""The workers of a kind, in the event loop that `webop run` uses."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import uvloop

import webop
from webop.reactor.bodies import Bodies
from webop.reactor.entry import Entry, Owner
from webop.reactor.queue import REST, Later, Result
from webop.reactor.workers import Pace, Workers


class Stream:
    """Its objects are due again at once, twenty times."""

    def __init__(self) -> None:
        self.turns: list[str] = []

    async def take_turn(self, obj: Entry) -> Result:
        self.turns.append(obj.name)
        return Later(1e-5) if self.turns.count(obj.name) < 20 else REST


def test_objects_that_are_due_at_once_do_not_stop_the_workers() -> None:
    async def work() -> list[str]:
        operator: Any = SimpleNamespace(settings=webop.OperatorSettings())
        workers, stream = Workers("widgets", operator, Bodies(), Pace()), Stream()
        names = [f"w{number}" for number in range(3)]
        for name in names:
            workers.add(Entry(cast("Owner", stream), name, name, "ns"))
        async with asyncio.timeout(5):
            while len(stream.turns) < 20 * len(names):
                await asyncio.sleep(0.01)
        return stream.turns

    assert len(uvloop.run(work())) == 60
