"""What the clock of a test moves in an operator, and what it does not."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import webop
from tests.kit.leases import LEASES
from tests.kit.operators import Objects, RunOperator, build_settings, get_progress
from tests.kit.waiting import eventually
from webop.testing import FakeClient

START = dt.datetime(2040, 1, 1, tzinfo=dt.UTC)


async def test_a_moved_clock_moves_the_time_of_handlers_but_neither_pauses_nor_records_nor_leases(
    run_operator: RunOperator, objects: Objects
) -> None:
    seen = list[dt.datetime]()

    @webop.on.create("widgets", id="fn")
    async def fail(**_: Any) -> None:
        seen.append(webop.now())
        raise webop.TemporaryError("later", delay=0.1 if len(seen) == 1 else 3600)

    async def read_records() -> Any:
        return get_progress(await objects.get("one"))

    leadership = {"lease_name": "lead", "lease_namespace": objects.namespace}
    with FakeClient(now=START):
        async with run_operator(build_settings(leadership=leadership)):
            await objects.create("one")
            record = json.loads((await eventually(read_records))["fn"])
            lease = await objects.client.get(LEASES, objects.namespace, "lead")
            await eventually(lambda: len(seen) == 2, "a retry", timeout=5)
    assert seen == [START] * 2
    now, minute = dt.datetime.now(dt.UTC), dt.timedelta(minutes=1)
    for text in (record["started"], lease["spec"]["renewTime"]):
        assert abs(now - dt.datetime.fromisoformat(text)) < minute
