"""How far handlers have come, and how it is written down: to the byte, as Kopf 1.45.2 does it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import webop
from webop import Body, Patch, ProgressStorage
from webop.calls.progress import HandlerState, Progress, fetch_states
from webop.handlers.model import Handler

START = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
KEY = "kopf.zalando.org/fn.spec.field"
STORAGE = webop.AnnotationsProgressStorage()


def read_annotation(patch: Patch, key: str = KEY) -> Any:
    return patch["metadata"]["annotations"][key]


def build_body(**records: str | None) -> Body:
    annotations = {f"kopf.zalando.org/{key}": text for key, text in records.items()}
    return Body({"kind": "KopfExample", "metadata": {"annotations": annotations}})


def build_handlers(*ids: str) -> list[Handler]:
    return [Handler(id=key, fn=print) for key in ids]


def restore(
    handlers: Sequence[Handler], *, body: Body, storage: ProgressStorage, purpose: str
) -> Progress:
    states = fetch_states(handlers, body=body, storage=storage)
    return Progress.restore(handlers, states, purpose=purpose)


STATES = {
    "fresh": (
        HandlerState(START, "create"),
        (
            '{"started":"2026-01-02T03:04:05.678901+00:00","purpose":"create","retries":0,'
            '"success":false,"failure":false}'
        ),
    ),
    "delayed": (
        HandlerState(
            START, "create", delayed=START + timedelta(seconds=60), retries=1, message="not yet"
        ),
        (
            '{"started":"2026-01-02T03:04:05.678901+00:00",'
            '"delayed":"2026-01-02T03:05:05.678901+00:00","purpose":"create","retries":1,'
            '"success":false,"failure":false,"message":"not yet"}'
        ),
    ),
    "succeeded": (
        HandlerState(
            START,
            "update",
            stopped=START + timedelta(seconds=1.5),
            retries=3,
            success=True,
            subrefs=frozenset({"fn/b", "fn/a"}),
        ),
        (
            '{"started":"2026-01-02T03:04:05.678901+00:00",'
            '"stopped":"2026-01-02T03:04:07.178901+00:00","purpose":"update","retries":3,'
            '"success":true,"failure":false,"subrefs":["fn/a","fn/b"]}'
        ),
    ),
    "failed": (
        HandlerState(START, "delete", stopped=START, retries=1, failure=True, message='a "b"'),
        (
            '{"started":"2026-01-02T03:04:05.678901+00:00",'
            '"stopped":"2026-01-02T03:04:05.678901+00:00","purpose":"delete","retries":1,'
            '"success":false,"failure":true,"message":"a \\"b\\""}'
        ),
    ),
    "without purpose": (
        HandlerState(START),
        (
            '{"started":"2026-01-02T03:04:05.678901+00:00","retries":0,"success":false,'
            '"failure":false}'
        ),
    ),
}


@pytest.mark.feature("CFG-68", "CFG-69", "CON-03", "CON-04", "ERR-19", "HND-33")
@pytest.mark.parametrize(("state", "text"), STATES.values(), ids=STATES)
def test_a_record_is_that_of_kopf_to_the_byte_and_gone_on_from(
    state: HandlerState, text: str
) -> None:
    patch = Patch()
    progress = Progress({"fn/spec.field": state})
    progress.store(body=build_body(), patch=patch, storage=STORAGE)
    assert read_annotation(patch) == text

    body, purpose = build_body(**{"fn.spec.field": text}), state.purpose or ""
    restored = restore(build_handlers("fn/spec.field"), body=body, storage=STORAGE, purpose=purpose)
    assert restored["fn/spec.field"] == dataclasses.replace(state, purpose=purpose)


@pytest.mark.feature("CFG-69")
def test_a_verbose_record_is_that_of_kopf_to_the_byte() -> None:
    patch = Patch()
    storage = webop.AnnotationsProgressStorage(verbose=True)
    progress = Progress({"fn/spec.field": HandlerState(START, "create")})
    progress.store(body=build_body(), patch=patch, storage=storage)
    assert read_annotation(patch) == (
        '{"started":"2026-01-02T03:04:05.678901+00:00","stopped":null,"delayed":null,'
        '"purpose":"create","retries":0,"success":false,"failure":false,"message":null,'
        '"subrefs":null}'
    )


@pytest.mark.feature("CFG-68")
def test_older_records_without_a_zone_and_with_a_z_are_read() -> None:
    body = build_body(a='{"started":"2026-01-02T03:04:05.678901","delayed":"2026-01-02T03:04:06Z"}')
    state = restore(build_handlers("a"), body=body, storage=STORAGE, purpose="create")["a"]
    assert state.started == START
    assert state.delayed == START.replace(second=6, microsecond=0)
    assert (state.purpose, state.retries, state.is_finished) == ("create", 0, False)
