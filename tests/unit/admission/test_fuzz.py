"""Hostile requests: a small part of a run of ``tools.fuzzing``, always the same."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.kit.reviews import UID
from tools.fuzzing.__main__ import Fuzzer, fuzz, open_fuzzer
from tools.fuzzing.hostile_requests import BASES, PATHS, Request

Json = dict[str, Any]

_COUNT = 160
_STREAMS = 40

REVIEW = json.dumps(BASES[0]).encode()


@pytest.fixture(autouse=True)
def _no_refusals_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Keep halves of surrogate pairs out of the report, which xdist cannot carry."""
    caplog.set_level(logging.WARNING, "webop.objects")


@pytest.mark.feature("ADM-31")
async def test_hostile_requests_are_refused_with_a_reason_and_nothing_passes_unjudged() -> None:
    report = await fuzz(_COUNT, 1, streams=_STREAMS)
    assert not report.findings, report.summarize()
    assert report.count >= _COUNT
    answered = {status for status, n in report.statuses.items() if n >= 4}
    assert {"200", "400", "404", "socket 200", "socket 400"} <= answered


async def test_valid_reviews_are_served_at_all_paths() -> None:
    async with open_fuzzer() as fuzzer:
        for base in BASES[:-1]:  # the last one is of pods, which no handler is for
            for path in PATHS:
                await fuzzer.send(Request(json.dumps(base).encode(), path))
        assert not fuzzer.report.findings, fuzzer.report.summarize()
        assert fuzzer.report.statuses.keys() == {"200"}


def build_response(**changes: Any) -> Json:
    response = {"uid": UID, "allowed": True, **changes}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {key: value for key, value in response.items() if value is not ...},
    }


def build_patch(*operations: Json) -> Json:
    patch = base64.b64encode(json.dumps(operations).encode()).decode()
    return build_response(patch=patch, patchType="JSONPatch")


@pytest.mark.parametrize(
    ("status", "answer", "rule"),
    [
        (200, build_response(), "allowed, but unjudged"),
        (200, {"kind": "AdmissionReview"}, "a 200 that is not a review: KeyError"),
        (
            200,
            build_response(allowed=False, status={"message": "Oops", "code": 500}),
            "refused, but by no handler: Oops",
        ),
        (
            200,
            build_response(allowed=False, status={"message": "", "code": 500}),
            "a refusal without a reason",
        ),
        (200, build_response(warnings=["a\nb"]), "a warning that API servers drop"),
        (200, build_patch({"op": "remove", "path": "/x"}), "a patch that cannot be applied"),
        (500, {"kind": "Status"}, "status 500"),
        (400, {"message": "No."}, "a 400 that is not a Status with a reason"),
    ],
)
async def test_the_judge_notices_wrong_answers(status: int, answer: Any, rule: str) -> None:
    async def app(scope: Json, receive: Any, send: Callable[[Json], Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": status})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    assert rule in await judge(app)


async def test_the_judge_notices_errors_in_the_log_and_from_the_app() -> None:
    async def app(scope: Json, receive: Any, send: Any) -> None:
        logging.getLogger("some").error("Something is wrong.")
        raise ZeroDivisionError

    assert await judge(app) == {
        "the app has raised ZeroDivisionError",
        "logged: some ERROR Something is wrong.",
    }


async def judge(app: Any) -> set[str]:
    """Send a valid review to an app, and return what is wrong with the answer."""
    async with open_fuzzer() as fuzzer:
        other = Fuzzer(app, fuzzer.recorded, fuzzer.errors)
        await other.send(Request(REVIEW))
    return set(other.report.findings)
