"""Kubernetes Events about the objects of handlers, in a real cluster (KEV)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

import webop
from tests.operating import Objects, RunOperator
from webop.posting import EVENTS

Json = dict[str, Any]


def build_settings(**posting: Any) -> webop.OperatorSettings:
    settings = webop.OperatorSettings()
    for name, value in posting.items():
        setattr(settings.posting, name, value)
    return settings


async def wait_for_events(
    objects: Objects, name: str, condition: Callable[[list[Json]], Any]
) -> list[Json]:
    """Wait until the events about an object are as they should be, oldest first."""
    deadline = time.monotonic() + 20
    while True:
        found: list[Json] = []
        async for page in objects.client.list_pages(EVENTS, objects.namespace):
            found += [e for e in page.items if e["involvedObject"].get("name") == name]
        found.sort(key=lambda event: str(event["eventTime"]))
        if condition(found):
            return found
        assert time.monotonic() < deadline, f"events: {found}"
        await asyncio.sleep(0.02)


@pytest.mark.feature("KEV-01", "KEV-02", "KEV-03", "KEV-05", "KEV-08", "ERR-02", "LOG-11", "TRB-04")
async def test_handlers_and_what_becomes_of_them_are_told_in_events(
    registry: webop.OperatorRegistry, run_operator: RunOperator, objects: Objects
) -> None:
    @webop.on.create("widgets", registry=registry, id="fn")
    def fn(name: str, body: webop.Body, logger: webop.Logger, retry: int, **_: Any) -> None:
        if name != "one":
            return
        if not retry:
            webop.info(body, reason="Own", message="hello")
            logger.info("from the logger")
            logger.debug("not important")
            raise webop.TemporaryError("not yet", delay=0.1)
        webop.warn(body, reason="OwnWarning", message="careful")

    async with run_operator(build_settings()):
        parent = await objects.create("one")
        events = await wait_for_events(objects, "one", lambda found: len(found) >= 6)
    told = [(event["type"], event["reason"], event["message"]) for event in events]
    assert told == [
        ("Normal", "Own", "hello"),
        ("Normal", "Logging", "from the logger"),
        ("Error", "Logging", "Handler 'fn' failed temporarily: not yet"),
        ("Warning", "OwnWarning", "careful"),
        ("Normal", "Logging", "Handler 'fn' succeeded."),
        ("Normal", "Logging", "Creation is processed: 1 succeeded; 0 failed."),
    ]
    first = events[0]
    assert first["source"] == {"component": "webop"}
    assert first["reportingComponent"] == "webop"
    assert first["metadata"]["name"].startswith("webop-event-")
    assert first["involvedObject"] == {
        "apiVersion": "tests.webop.dev/v1",
        "kind": "Widget",
        "name": "one",
        "namespace": objects.namespace,
        "uid": parent["metadata"]["uid"],
    }


@pytest.mark.feature("CFG-02", "CFG-03", "CFG-04", "KEV-06", "KEV-10", "D-24", "CFG-51", "STA-04")
async def test_events_are_as_loud_as_the_settings_say(
    registry: webop.OperatorRegistry, run_operator: RunOperator, objects: Objects
) -> None:
    @webop.on.startup(registry=registry, id="startup")
    def configure(settings: webop.OperatorSettings, **_: Any) -> None:
        settings.posting.level = logging.WARNING

    @webop.on.event("widgets", registry=registry, id="event")
    async def event(logger: webop.Logger, **_: Any) -> None:
        logger.error("an event handler")

    @webop.on.create("widgets", registry=registry, id="fn")
    async def fn(body: webop.Body, logger: webop.Logger, **_: Any) -> None:
        webop.info(body, reason="info")
        logger.info("info")
        webop.event(body, type="Own", reason="always")
        logger.warning("warning")
        webop.warn(body, reason="last")

    async with run_operator(build_settings()):
        await objects.create("one")
        events = await wait_for_events(
            objects, "one", lambda found: found and found[-1]["reason"] == "last"
        )
    assert [event.get("message") or event["reason"] for event in events] == [
        "always",
        "warning",
        "last",
    ]


@pytest.mark.feature("KEV-09")
async def test_events_that_are_refused_hold_up_nobody(
    registry: webop.OperatorRegistry,
    run_operator: RunOperator,
    objects: Objects,
    caplog: pytest.LogCaptureFixture,
) -> None:
    @webop.on.create("widgets", registry=registry, id="fn")
    async def fn(body: webop.Body, **_: Any) -> None:
        webop.info(body, reason="x" * 500, message="too long a reason")
        webop.info(body, reason="Fine")

    async with run_operator(build_settings(loggers=False)):
        await objects.create("one")
        await objects.wait_handled("one")
        (event,) = await wait_for_events(objects, "one", lambda found: found)
    assert event["reason"] == "Fine"
    assert "Failed to post an event" in caplog.text
