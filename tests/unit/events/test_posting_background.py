"""How Kubernetes Events get to the API server: counts, rates, faults; the rules are elsewhere."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable
from typing import Any

import pytest

import webop
from tests.kit.event_posting import BODY, Recorder, post
from tests.kit.rows import rows
from tests.kit.waiting import eventually
from webop.errors import (
    APIConnectionError,
    APIForbiddenError,
    APINotFoundError,
    APIServerError,
    APITooManyRequestsError,
)

pytestmark = pytest.mark.usefixtures("in_context")


@pytest.mark.feature("D-60")
async def test_an_event_that_has_expired_in_the_cluster_is_posted_anew(
    posted: Recorder, logger: webop.ObjectLogger
) -> None:
    logger.info("hello")
    (event,) = await posted.wait()
    posted.stored.clear()
    logger.info("hello")
    (again,) = await posted.wait()
    assert posted.requests == ["POST", "PATCH", "POST"]
    assert again["count"] == 2
    assert again["metadata"] == event["metadata"]
    assert again["firstTimestamp"] == event["firstTimestamp"]


TERMINATING: dict[str, object] = {
    "causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]
}
FAILURES: list[tuple[Exception, str]] = [
    (APIForbiddenError("boo", status=403), "1 failed. The last failure: boo"),
    (APIForbiddenError("x", status=403, details=TERMINATING), "1 in namespaces that are deleted"),
    (APINotFoundError("x", status=404, details={"kind": "namespaces"}), "1 in namespaces that"),
]


@pytest.mark.feature("KEV-09", "D-60")
@pytest.mark.parametrize(("failure", "report"), FAILURES, ids=repr)
async def test_failures_to_post_are_reported_and_forgotten(
    settings: webop.OperatorSettings,
    caplog: pytest.LogCaptureFixture,
    failure: Exception,
    report: str,
) -> None:
    caplog.set_level(logging.INFO)
    recorder = Recorder()
    recorder.failures = [failure]
    async with post(settings, recorder):
        webop.info(BODY, reason="R1")
        webop.info(BODY, reason="R2")
        (event,) = await recorder.wait()
    assert event["reason"] == "R2"
    (message,) = caplog.messages
    assert message.startswith(f"1 Kubernetes Event was not posted: {report}")


@pytest.mark.feature("KEV-09")
@pytest.mark.parametrize(
    "failure",
    [
        APIServerError("boo", status=503),
        APIConnectionError("boo"),
        APITooManyRequestsError("boo", status=429, retry_after=1),
    ],
    ids=repr,
)
async def test_what_the_api_server_cannot_take_is_posted_later(
    posted: Recorder, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    posted.failures = [failure]
    webop.info(BODY, reason="R1")
    webop.info(BODY, reason="R2")
    await eventually(lambda: posted.requests)
    webop.info(BODY, reason="R1")
    await posted.wait(2)
    assert [(event["reason"], event["count"]) for event in posted.events] == [("R1", 2), ("R2", 1)]
    assert posted.requests == ["POST"] * 3
    assert not caplog.records


@pytest.mark.feature("KEV-09", "REF-74")
@pytest.mark.parametrize(
    "backoffs",
    [[0.01, 0.01], iter([0, 0]), itertools.repeat(0.01)],
    ids=["list", "once", "endless"],
)
async def test_an_event_is_tried_again_after_the_pauses_that_are_chosen_for_it(
    posted: Recorder, backoffs: Iterable[float]
) -> None:
    posted.failures = [APIServerError("boo", status=503)] * 2
    webop.exception(BODY, reason="R1", exc=ValueError("boo"), backoffs=backoffs)
    (event,) = await posted.wait()
    assert event["reason"] == "R1"
    assert posted.requests == ["POST"] * 3


@pytest.mark.feature("KEV-09", "REF-74")
@pytest.mark.parametrize(("backoffs", "attempts"), [((), 1), (0, 2), ([0, 0], 3)])
async def test_an_event_is_dropped_when_the_pauses_that_are_chosen_for_it_are_used_up(
    posted: Recorder, backoffs: float | list[float], attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    posted.failures = [APIServerError("boo", status=503)] * attempts
    webop.warn(BODY, reason="R1", backoffs=backoffs)
    await eventually(lambda: caplog.messages)
    assert caplog.messages == ["1 Kubernetes Event was not posted: 1 failed. The last failure: boo"]
    assert posted.requests == ["POST"] * attempts


@pytest.mark.feature("REF-74")
@rows("backoffs", ["5", -1, [1, "2"], True])
async def test_pauses_that_are_no_seconds_are_refused_at_once(backoffs: Any) -> None:
    with pytest.raises(ValueError, match="seconds"):
        webop.info(BODY, reason="R", backoffs=backoffs)


@pytest.mark.feature("KEV-09")
async def test_an_event_whose_answer_was_lost_is_not_posted_twice(posted: Recorder) -> None:
    posted.losses = [APIConnectionError("boo")]
    webop.info(BODY, reason="R1")
    webop.info(BODY, reason="R2")
    await posted.wait(2)
    assert [(event["reason"], event["count"]) for event in posted.events] == [("R1", 1), ("R2", 1)]
    assert posted.requests == ["POST", "POST", "PATCH", "POST"]


@pytest.mark.feature("KEV-09", "ASY-03", "D-60")
async def test_no_message_of_many_threads_is_lost(
    posted: Recorder, logger: webop.ObjectLogger
) -> None:
    def talk() -> None:
        webop.info(BODY, reason="thread")
        for _ in range(500):
            logger.info("hello")

    await asyncio.gather(*(asyncio.to_thread(talk) for _ in range(4)))
    counts = {"thread": 4, "Logging": 2000}
    await eventually(lambda: {e["reason"]: e["count"] for e in posted.events} == counts)
