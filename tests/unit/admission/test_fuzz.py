"""Hostile requests: a small part of a run of ``tools.fuzzing``, always the same."""

from __future__ import annotations

import logging

import pytest

from tools.fuzzing.__main__ import fuzz


@pytest.fixture(autouse=True)
def _no_refusals_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Keep halves of surrogate pairs out of the report, which xdist cannot carry."""
    caplog.set_level(logging.WARNING, "webop.objects")


@pytest.mark.feature("ADM-31")
async def test_hostile_requests_are_refused_with_a_reason_and_nothing_passes_unjudged() -> None:
    report = await fuzz(120, 1, streams=30)
    assert not report.findings, report.summarize()
    assert report.count >= 120
    answered = {status for status, n in report.statuses.items() if n >= 4}
    assert {"200", "400", "404", "socket 200", "socket 400"} <= answered
