"""What the log says when an operator has started."""

from __future__ import annotations

import logging

import pytest

import webop
from tests.kit.operators import Objects, RunOperator, do_nothing


def read_greeting(caplog: pytest.LogCaptureFixture) -> str:
    (greeting,) = (r.getMessage() for r in caplog.records if "is running" in r.getMessage())
    return greeting


@pytest.mark.feature("SCP-01", "RES-18")
async def test_an_operator_that_has_started_says_once_what_it_serves_and_where(
    run_operator: RunOperator, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    webop.on.create("widgets", id="created")(do_nothing)
    with caplog.at_level(logging.INFO):
        async with run_operator():
            await objects.create("one")
            await objects.wait_handled("one")
    greeting = read_greeting(caplog)
    assert objects.kind.resource.name in greeting
    assert objects.namespace in greeting
