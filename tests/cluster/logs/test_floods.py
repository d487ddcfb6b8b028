"""Faults that hit hundreds of objects or reviews are told in a few lines."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

import webop
from tests.kit.forwarder import Forwarder
from tests.kit.operators import Objects, build_settings, get_connection, operate
from tests.kit.reviews import build_review, serve
from tests.kit.waiting import eventually
from webop.testing import LocalCluster

OBJECTS = 20


async def test_an_api_server_that_is_away_is_not_told_for_each_object(
    webop_cluster: LocalCluster,
    objects: Objects,
    registry: webop.OperatorRegistry,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    attempts: Counter[str] = Counter()

    @webop.timer("widgets", registry=registry, interval=0.2)
    async def tick(name: str, patch: webop.Patch, **_: Any) -> None:
        attempts[name] += 1
        patch.status["attempt"] = attempts[name]

    settings = build_settings(networking={"error_backoffs": [0.1]})
    async with asyncio.TaskGroup() as group:
        for number in range(OBJECTS):
            group.create_task(objects.create(f"one-{number}"))
    async with Forwarder(webop_cluster.server).listen() as proxy:
        info = get_connection(webop_cluster, proxy.url)
        async with operate(info, registry, settings, beside=True, namespaces=[objects.namespace]):
            await eventually(lambda: len(attempts) >= OBJECTS)
            proxy.is_refusing = True
            proxy.cut()
            seen = attempts.total()
            await eventually(lambda: attempts.total() > seen + 2 * OBJECTS)
    attempted = [r for r in caplog.records if "Retrying in" in r.getMessage()]
    assert len(attempted) > OBJECTS
    texts = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert 1 <= len([text for text in texts if "patch" in text]) <= 4, texts


async def test_a_client_that_sends_garbage_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    webop.on.validate("kopfexamples", id="check")(lambda **_: None)
    async with serve() as site:
        for _ in range(200):
            assert (await site.post("garbage", "/check")).status_code == 400
    refusals = [r for r in caplog.records if "Refused a review" in r.message]
    assert len(refusals) == 200
    shown = [r for r in refusals if r.levelno == logging.WARNING]
    assert 1 <= len(shown) <= 2  # a minute can begin in between


async def test_a_client_that_does_not_wait_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    @webop.on.validate("kopfexamples", id="check")
    async def check(**_: Any) -> None:
        await asyncio.sleep(1)

    async with serve() as site:
        for _ in range(50):
            assert (await site.post(build_review({}), "/check?timeout=1ms")).status_code == 504
    warnings = [r.message for r in caplog.records if r.levelno >= logging.WARNING]
    assert 1 <= len(warnings) <= 2, warnings  # a minute can begin in between


async def test_handlers_may_say_the_same_as_often_as_they_like(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @webop.on.validate("kopfexamples", id="check")
    def check(logger: Any, **_: Any) -> None:
        logger.warning("said")
        raise webop.AdmissionError("no", code=403)

    caplog.set_level(logging.INFO)
    async with serve() as site:
        for _ in range(30):
            await site.review(path="/check")
    assert caplog.messages.count("said") == 30
    assert len([message for message in caplog.messages if message.startswith("Denied")]) == 30
