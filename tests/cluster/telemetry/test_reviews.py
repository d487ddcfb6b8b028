"""Traces of reviews, which the API server begins."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from opentelemetry import trace

import webop
from tests.cluster.telemetry.conftest import Spans, get_id, get_parent, get_trace, is_failed, read
from tests.kit.operators import build_settings
from tests.kit.reviews import UID, build_object, build_review, connect, serve
from tests.kit.versioned_shops import GROUP, declare
from webop.logs import preserve

TRACE, CALLER = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
TRACEPARENT = f"00-{TRACE:032x}-{CALLER:016x}-01"


@pytest.fixture(autouse=True)
def _handlers() -> None:
    """Handlers with spans of their own, one of them in a thread."""

    @webop.on.mutate("kopfexamples", id="fill")
    def fill(patch: Any, logger: webop.Logger, **_: Any) -> None:
        with trace.get_tracer("mine").start_as_current_span("look it up"):
            patch.spec["filled"] = "secret-filling"
            logger.info("filled")

    @webop.on.validate("kopfexamples", id="check")
    async def check(spec: Any, **_: Any) -> None:
        if "wrong" in spec:
            raise webop.AdmissionError(f"{spec['wrong']} is wrong")
        if "broken" in spec:
            raise ValueError(f"{spec['broken']} is broken")


async def test_a_review_continues_the_trace_of_the_api_server(spans: Spans) -> None:
    review = build_review(build_object({"field": "secret-value"}, labels={"a": "secret-label"}))
    async with serve(settings=build_settings()) as site:
        answer = await site.post(review, traceparent=TRACEPARENT, baggage="key=secret-baggage")
    assert answer.json()["response"]["allowed"]
    whole = spans.find("review (all)")
    fill, check = spans.find("handler fill"), spans.find("handler check")
    inner = spans.find("look it up")
    assert {get_trace(span) for span in (whole, fill, check, inner)} == {TRACE}
    parents = [get_parent(span) for span in (whole, fill, check, inner)]
    assert parents == [CALLER, get_id(whole), get_id(whole), get_id(fill)]
    assert whole.kind is trace.SpanKind.SERVER
    assert whole.instrumentation_scope is not None
    assert whole.instrumentation_scope.name == "webop"
    assert read(whole) == {
        "webop_review_webhook": "(all)",
        "webop_review_uid": UID,
        "webop_review_operation": "CREATE",
        "webop_review_dry_run": False,
        "webop_resource": "kopfexamples.kopf.dev",
        "k8s_namespace_name": "ns",
        "webop_object_name": "kex",
        "webop_outcome": "allowed",
    }
    assert read(fill) == {
        "webop_handler_id": "fill",
        "webop_handler_type": "webhook",
        "webop_retry": 0,
        "webop_resource": "kopfexamples.kopf.dev",
        "k8s_namespace_name": "ns",
        "webop_object_name": "kex",
        "webop_outcome": "success",
    }
    assert not spans.list_undocumented()
    assert "secret" not in spans.text


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{0:032x}-{0:016x}-01"])
async def test_a_review_of_no_usable_trace_begins_one(spans: Spans, header: str) -> None:
    async with serve(settings=build_settings()) as site:
        await site.post(build_review(), "/check", traceparent=header)
    assert spans.find("review check").parent is None


async def test_a_review_that_the_api_server_does_not_sample_is_not_exported(spans: Spans) -> None:
    async with serve(settings=build_settings()) as site:
        answer = await site.post(build_review(), traceparent=f"{TRACEPARENT[:-2]}00")
    assert answer.json()["response"]["allowed"]
    assert not list(spans)


async def test_a_review_is_a_part_of_the_span_of_a_middleware_in_the_same_trace(
    spans: Spans,
) -> None:
    app = webop.create_app(settings=build_settings())

    async def trace_requests(scope: Any, receive: Any, send: Any) -> None:
        remote = trace.SpanContext(TRACE, CALLER, is_remote=True, trace_flags=trace.TraceFlags(1))
        context = trace.set_span_in_context(trace.NonRecordingSpan(remote))
        with spans.provider.get_tracer("mine").start_as_current_span("POST", context):
            await app(scope, receive, send)

    async with app.lifespan(), connect(trace_requests) as http:
        content = json.dumps(build_review())
        await http.post("/check", content=content, headers={"traceparent": TRACEPARENT})
    review, outer = spans.find("review check"), spans.find("POST")
    assert (get_trace(review), get_parent(review)) == (TRACE, get_id(outer))


async def test_the_outcomes_of_reviews_are_in_their_spans_and_no_messages_of_errors(
    spans: Spans,
) -> None:
    async with serve(settings=build_settings()) as site:
        for spec in ({"wrong": "secret-1"}, {"broken": "secret-2"}):
            await site.review(build_object(spec), path="/check")
        await site.post(build_review(), "/secret-path")
    denied, broken = spans.select("review check")
    assert read(denied)["webop_outcome"] == "denied"
    assert read(broken)["webop_outcome"] == "error"
    lost = spans.find("review (unknown)")
    errors = [read(span).get("error_type") for span in (denied, broken, lost)]
    assert errors == [None, "ValueError", "webop.errors.ReviewError"]
    assert [is_failed(span) for span in (denied, broken, lost)] == [False, True, True]
    calls = spans.select("handler check")
    assert [read(span)["webop_outcome"] for span in calls] == ["denied", "failure"]
    assert [is_failed(span) for span in calls] == [False, True]
    assert not [span for span in spans if span.events]
    assert "secret" not in spans.text


async def test_a_conversion_continues_the_trace_and_has_no_messages_of_errors(spans: Spans) -> None:
    declare()
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Shop", "metadata": {"name": "secret-name"}}
    async with serve(settings=build_settings()) as site:
        for address in ("a:1", 5, "secret:port"):
            objects = [{**body, "spec": {"address": address}}]
            request = {"uid": UID, "desiredAPIVersion": f"{GROUP}/v2", "objects": objects}
            review = {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "ConversionReview",
                "request": request,
            }
            await site.post(review, "/convert", traceparent=TRACEPARENT)
    done, misfit, broken = spans.select("review convert")
    assert (get_trace(done), get_parent(done)) == (TRACE, CALLER)
    assert done.kind is trace.SpanKind.SERVER
    assert read(done) == {
        "webop_review_webhook": "convert",
        "webop_review_uid": UID,
        "webop_review_version": f"{GROUP}/v2",
        "webop_review_objects": 1,
        "webop_outcome": "success",
    }
    assert [read(span)["webop_outcome"] for span in (misfit, broken)] == ["error", "error"]
    errors = [read(span)["error_type"] for span in (misfit, broken)]
    assert errors == ["webop.errors.MisfitError", "ValueError"]
    assert not spans.list_undocumented()
    assert "secret" not in spans.text


async def test_lines_of_json_have_the_ids_of_the_current_span(
    spans: Spans, capsys: pytest.CaptureFixture[str]
) -> None:
    with preserve():
        webop.configure(log_format=webop.LogFormat.JSON)
        async with serve(settings=build_settings()) as site:
            await site.post(build_review(), traceparent=TRACEPARENT)
        logging.getLogger("mine").info("over")
    written = map(json.loads, capsys.readouterr().err.splitlines())
    lines = {line["message"]: line for line in written}
    inner = spans.find("look it up")
    assert lines["filled"]["trace_id"] == f"{TRACE:032x}"
    assert lines["filled"]["span_id"] == f"{get_id(inner):016x}"
    assert "trace_id" not in lines["over"]


async def test_a_provider_that_a_startup_handler_configures_counts(idle_spans: Spans) -> None:
    webop.on.startup()(lambda **_: idle_spans.configure())
    async with serve(settings=build_settings()) as site:
        await site.review(path="/check")
    assert len(idle_spans.select("review check")) == 1
