"""Traces of the work on objects, against a real API server."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

import webop
from tests.cluster.telemetry.conftest import Spans, get_id, get_parent, get_trace, is_failed, read
from tests.kit.operators import Calls, Objects, RunOperator, build_settings, do_nothing

FAST = build_settings(execution={"default_backoff": 0.01})


async def test_all_attempts_of_a_cycle_are_one_trace_with_the_requests_inside(
    objects: Objects, run_operator: RunOperator, spans: Spans
) -> None:
    here = objects.namespace

    @webop.on.create("widgets", id="flaky")
    async def flake(retry: int, spec: Any, client: webop.AsyncClient, **_: Any) -> dict[str, str]:
        with contextlib.suppress(webop.APINotFoundError):
            await client.get("configmaps", "absent", namespace=here)
        if not retry:
            raise ValueError(f"{spec['field']} is not ready")
        return {"result": "secret-result"}

    @webop.on.create("widgets", id="threaded")
    def act(client: webop.SyncClient, **_: Any) -> None:
        with trace.get_tracer("mine").start_as_current_span("own"):
            client.list("configmaps", namespace=here, labels={"secret-key": "secret-label"})

    @webop.on.create("widgets", id="parent")
    async def divide(spec: Any, **_: Any) -> None:
        webop.register(id=spec["field"], fn=handle_part)

    async def handle_part(**_: Any) -> None: ...

    async with run_operator(settings=FAST):
        body = await objects.create(
            "one", {"field": "secret-value"}, annotations={"note": "secret-note"}
        )
        await objects.wait_handled("one")
        last = (await spans.wait("create widgets.tests.webop.dev", webop_outcome="done"))[0]
    first = spans.select("create widgets.tests.webop.dev")[0]
    assert first.parent is None
    assert read(first) == {
        "webop_resource": "widgets.tests.webop.dev",
        "k8s_namespace_name": here,
        "webop_object_name": "one",
        "webop_object_uid": body["metadata"]["uid"],
        "webop_reason": "create",
        "webop_outcome": "retry",
    }
    assert (get_trace(last), get_parent(last)) == (get_trace(first), get_id(first))
    whole = [span for span in spans if get_trace(span) == get_trace(first)]
    (failed,) = spans.select("handler flaky", webop_retry=0)
    (passed,) = spans.select("handler flaky", webop_retry=1)
    assert [get_parent(span) for span in (failed, passed)] == [get_id(first), get_id(last)]
    assert [read(span)["webop_outcome"] for span in (failed, passed)] == ["retry", "success"]
    assert [is_failed(span) for span in (failed, passed)] == [True, False]
    assert read(failed)["error_type"] == "ValueError"
    # What handlers ask for is a part of them, also in threads.
    reads = spans.select("GET configmaps", webop_verb="get")
    assert {get_parent(span) for span in reads} == {get_id(failed), get_id(passed)}
    assert {read(span)["error_type"] for span in reads} == {"404"}
    listing = spans.find("GET configmaps", webop_verb="list")
    own = spans.find("own")
    assert [get_parent(listing), get_parent(own)] == [
        get_id(own),
        get_id(spans.find("handler threaded")),
    ]
    assert listing.kind is trace.SpanKind.CLIENT
    assert read(listing)["http_request_method"] == "GET"
    assert read(listing)["http_response_status_code"] == 200
    assert read(listing)["server_address"] == "127.0.0.1"
    # The sub-handler's id is made of a value. Its parent is not what has failed.
    part = spans.find("handler parent/*")
    assert get_parent(part) in {get_id(span) for span in spans.select("handler parent")}
    assert not any(map(is_failed, spans.select("handler parent")))
    # What webop itself writes at the end of a cycle is a part of it. On a slow machine, the first
    # one has been written before its end.
    writes = [span for span in whole if span.name == "PATCH widgets.tests.webop.dev"]
    parents = {get_parent(span) for span in writes}
    assert get_id(last) in parents
    assert parents <= {get_id(first), get_id(last)}
    assert not [span for span in spans if span.events]
    assert not spans.list_undocumented()
    assert "secret" not in spans.text


async def test_daemons_timers_events_and_activities_have_traces_of_their_own(
    objects: Objects, run_operator: RunOperator, spans: Spans
) -> None:
    webop.on.startup(id="begin")(do_nothing)
    webop.on.event("widgets", id="spy")(do_nothing)
    webop.on.create("widgets", id="create")(do_nothing)

    @webop.daemon("widgets", id="guard")
    async def guard(retry: int, client: webop.AsyncClient, **_: Any) -> None:
        await client.list("configmaps", namespace=objects.namespace)
        if not retry:
            raise webop.TemporaryError("secret", delay=0.01)

    @webop.timer("widgets", id="tick", interval=0.05)
    def tick(**_: Any) -> None: ...

    @webop.index("widgets", id="numbers")
    async def index(name: str, **_: Any) -> dict[str, int]:
        return {name: 1}

    async with run_operator(settings=FAST):
        await objects.create("one")
        for name, count in (("begin", 1), ("guard", 2), ("tick", 2), ("spy", 1), ("numbers", 1)):
            await spans.wait(f"handler {name}", count)
        await spans.wait("handler create")
    roots = [f"handler {name}" for name in ("begin", "guard", "tick", "spy", "numbers")]
    traces = [get_trace(span) for span in spans if span.name in {*roots, "handler create"}]
    assert len(set(traces)) == len(traces)
    assert not [span.name for span in spans if span.name in roots and span.parent is not None]
    first, second = spans.select("handler guard")[:2]
    assert [read(span)["webop_outcome"] for span in (first, second)] == ["retry", "success"]
    assert read(first)["webop_object_name"] == "one"
    lists = [get_parent(span) for span in spans.select("GET configmaps")]
    assert lists[:2] == [get_id(first), get_id(second)]
    # Watches, Leases and the like belong to nothing: each would be a trace for itself.
    assert not [span.name for span in spans if span.parent is None and " " in span.name[:5]]
    assert "secret" not in spans.text


class _Broken(SpanProcessor):
    """What fails when a span begins, or when it ends."""

    def __init__(self, moment: str) -> None:
        self._moment = moment

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        assert self._moment != "start"

    def on_end(self, span: ReadableSpan) -> None:
        assert self._moment != "end"


async def test_a_broken_span_processor_has_no_handler_called_twice(
    objects: Objects,
    run_operator: RunOperator,
    spans: Spans,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for moment in ("start", "end"):
        spans.provider.add_span_processor(_Broken(moment))

    @webop.on.create("widgets", id="created")
    async def create(**kwargs: Any) -> None:
        calls.note("created", kwargs)

    caplog.set_level("DEBUG", "webop.telemetry.spans")  # it is a warning once a minute only
    async with run_operator(build_settings(batching={"error_delays": [0.01]})):
        await objects.make("one")
    assert calls.handlers("one") == ["created"]
    assert "a span processor of OpenTelemetry has failed" in caplog.text
