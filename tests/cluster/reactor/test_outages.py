"""The API server refuses all writes of a namespace for a moment; afterwards everything goes on."""

from __future__ import annotations

import asyncio

import httpx
import pytest

import webop
from tests.kit.http_relay import fail
from tests.kit.operators import Calls, Objects, RunOperator, build_settings
from tests.kit.timeline import Timeline
from tests.kit.waiting import eventually

NAMES = [f"w{number}" for number in range(60)]  # of 50 on, a namespace begins no more handlers
QUICK = {"networking": {"error_backoffs": [0.1]}, "batching": {"error_delays": [0.1, 0.2]}}


class Outage:
    """Refuses the patches of widgets while it lasts.

    Attributes:
        refused: how many, by name.
    """

    def __init__(self, refusal: httpx.Response) -> None:
        self.refusal = refusal
        self.is_over = False
        self.refused: dict[str, int] = {}

    async def meddle(self, request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or "widgets" not in request.url.path or self.is_over:
            return None
        name = request.url.path.rsplit("/", 1)[1]
        self.refused[name] = self.refused.get(name, 0) + 1
        return httpx.Response(self.refusal.status_code, content=self.refusal.content)


@pytest.mark.feature("CFG-52", "CFG-54", "HND-18")
@pytest.mark.parametrize("moment", ["creation", "deletion"])
async def test_after_an_outage_while_many_objects_get_or_lose_their_finalizer_all_are_handled(
    run_relayed: RunOperator, objects: Objects, calls: Calls, timeline: Timeline, moment: str
) -> None:
    outage = Outage(fail(503))
    outage.is_over = moment != "creation"
    webop.on.create("widgets", id="created")(calls.noting("created"))
    webop.daemon("widgets", id="daemon")(timeline.live)
    async with run_relayed(build_settings(**QUICK), meddle=outage.meddle):
        await asyncio.gather(*map(objects.create, NAMES))
        if moment == "deletion":
            for name in NAMES:
                await objects.wait_handled(name)
            await timeline.wait("begun", 60)
            outage.is_over = False
            await asyncio.gather(*map(objects.delete, NAMES))
        await eventually(lambda: len(outage.refused) >= 50, "the namespace is away")
        outage.is_over = True
        await eventually(lambda: {call["name"] for call in calls} >= {*NAMES}, timeout=10)
        if moment == "deletion":
            for name in NAMES:
                await objects.wait_gone(name, timeout=5)


async def test_no_other_handler_of_an_object_begins_while_what_the_last_ones_left_cannot_be_written(
    run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    outage, may_end = Outage(fail(503)), asyncio.Event()
    webop.on.create("widgets", id="first")(calls.noting("first"))
    webop.on.create("widgets", id="second")(calls.noting("second", may_end))
    webop.on.create("widgets", id="third")(calls.noting("third"))
    async with run_relayed(build_settings(**QUICK), meddle=outage.meddle):
        await objects.create("one")
        await eventually(lambda: outage.refused, "the outcome of the first one is refused")
        may_end.set()
        count = outage.refused["one"]
        await eventually(lambda: outage.refused["one"] > count + 2)
        assert calls.handlers("one") == ["first", "second"]
        outage.is_over = True
        await objects.wait_handled("one")
    assert calls.handlers("one") == ["first", "second", "third"]
