"""Hostile requests: a small part of a run of ``tools.fuzzing``, always the same."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.kit.reviews import UID
from tools.fuzzing.__main__ import Fuzzer, fuzz, open_fuzzer
from tools.fuzzing.hostile_requests import BASES, Request


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


async def test_the_fuzzer_notices_wrong_answers_and_errors_in_the_log() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        logging.getLogger("some").error("Something is wrong.")
        allowed = {"uid": UID, "allowed": True}
        answer = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        await send({"type": "http.response.start", "status": 200})
        body = json.dumps({**answer, "response": allowed}).encode()
        await send({"type": "http.response.body", "body": body})

    async with open_fuzzer() as fuzzer:
        other = Fuzzer(app, fuzzer.recorded, fuzzer.errors)
        await other.send(Request(json.dumps(BASES[0]).encode()))
    assert {*other.report.findings} == {
        "allowed, but unjudged",
        "logged: some ERROR Something is wrong.",
    }
