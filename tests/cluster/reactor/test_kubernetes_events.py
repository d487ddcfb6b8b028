"""Kubernetes Events about the objects of handlers, in a real cluster (KEV)."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from tests.kit.operators import Objects, RunOperator, build_settings, wait_for_events

Json = dict[str, Any]

NAMESPACES = webop.Resource("", "v1", "namespaces", kind="Namespace", namespaced=False)


@pytest.mark.feature(
    "KEV-01", "KEV-02", "KEV-03", "KEV-05", "KEV-08", "ERR-02", "LOG-11", "TRB-04", "KEV-10", "D-24"
)
async def test_handlers_and_what_becomes_of_them_are_told_in_events(
    run_operator: RunOperator, objects: Objects
) -> None:
    @webop.on.create("widgets", id="fn")
    def fn(name: str, body: webop.Body, logger: webop.Logger, retry: int, **_: Any) -> None:
        if name != "one":
            return
        if not retry:
            webop.info(body, reason="Own", message="hello")
            logger.info("from the logger")
            logger.debug("not important")
            raise webop.TemporaryError("not yet", delay=0.1)
        webop.warn(body, reason="OwnWarning", message="careful")

    @webop.on.event("widgets", id="event")
    async def event(logger: webop.Logger, **_: Any) -> None:
        logger.error("an event handler tells nobody")

    async with run_operator(build_settings(posting={"enabled": True})):
        parent = await objects.create("one")
        events = await wait_for_events(objects, "one", lambda found: len(found) >= 6)
        await objects.wait_handled("one")
    told = [(event["type"], event["reason"], event["message"]) for event in events]
    assert told == [
        ("Normal", "Own", "hello"),
        ("Normal", "Logging", "from the logger"),
        ("Warning", "HandlerRetry", "Handler 'fn' is not done yet: not yet."),
        ("Warning", "OwnWarning", "careful"),
        ("Normal", "HandlerSucceeded", "Handler 'fn' succeeded."),
        ("Normal", "Handled", "All handlers succeeded for creation."),
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
