"""An operator that is started in the block of a client of tests: pauses last as long as without."""

from __future__ import annotations

import datetime as dt
from typing import Any

import webop
from tests.kit.operators import Calls, Objects, RunOperator
from tests.kit.waiting import eventually
from webop.testing import FakeClient

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


async def test_a_retry_comes_although_the_time_of_the_test_stands_still(
    objects: Objects, run_operator: RunOperator, calls: Calls
) -> None:
    @webop.on.create("widgets", id="fn")
    async def fn(retry: int, **kwargs: Any) -> None:
        calls.note("fn", {**kwargs, "retry": retry})
        if not retry:
            raise webop.TemporaryError("not yet", delay=0.1)

    with FakeClient(now=START):
        async with run_operator():
            await objects.create("one")
            await eventually(lambda: len(calls.of("one")) == 2, "a retry", timeout=5)
