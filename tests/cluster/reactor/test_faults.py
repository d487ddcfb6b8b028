"""Faults of the network and of the API server: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import webop
from tests.kit.forwarder import Forwarder
from tests.kit.http_relay import Relay, fail
from tests.kit.operators import (
    Calls,
    Objects,
    RunOperator,
    build_settings,
    do_nothing,
    get_connection,
    is_no_fence,
)
from tests.kit.waiting import eventually
from webop.client.auth.vault import ConnectionInfo

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

QUICK: dict[str, dict[str, Any]] = {
    "networking": {"error_backoffs": [0.05] * 100, "request_timeout": 2},
    "watching": {"inactivity_timeout": 1.0, "reconnect_backoff": 0.05},
    "batching": {"error_delays": [0.1]},
}


@pytest.fixture
def info(webop_cluster: LocalCluster, proxy: Forwarder) -> ConnectionInfo:
    """The administrator's credentials, by the way of the proxy."""
    return get_connection(webop_cluster, proxy.url)


@pytest.fixture
def noting(calls: Calls) -> Calls:
    """Handlers of creations and updates, which note their calls."""
    webop.on.create("widgets", id="created")(calls.noting("created"))
    webop.on.update("widgets", id="updated")(calls.noting("updated"))
    return calls


@pytest.mark.feature("CFG-17")
async def test_a_dead_line_is_noticed_by_its_silence(
    noting: Calls, run_operator: RunOperator, objects: Objects, proxy: Forwarder
) -> None:
    async with run_operator(build_settings(**QUICK), beside=True):
        await objects.make("one", {"a": 0})
        proxy.freeze()
        await objects.change("one", {"spec": {"a": 1}})
    assert [call["spec"]["a"] for call in noting.of("one", "updated")] == [1]


async def test_an_operator_that_starts_before_the_api_server_begins_when_it_is_there(
    noting: Calls,
    run_operator: RunOperator,
    objects: Objects,
    proxy: Forwarder,
    caplog: pytest.LogCaptureFixture,
) -> None:
    proxy.is_refusing = True
    quick = {**QUICK, "networking": {"error_backoffs": [], "request_timeout": 2}}
    async with run_operator(build_settings(**quick), beside=True) as operator:
        await eventually(lambda: "Cannot " in caplog.text)
        assert not any(task.done() for task in operator.tasks)
        proxy.is_refusing = False
        await objects.make("one")
    assert noting.handlers("one") == ["created"]


HASTY = {"networking": {"error_backoffs": [0.3]}, "batching": {"error_delays": [0.3]}}


def is_patch_with(request: httpx.Request, text: str) -> bool:
    return request.method == "PATCH" and text.encode() in request.content


async def spoil_metadata(patch: webop.Patch) -> None:
    patch["metadata"] = "not a mapping"


async def spoil_by_cycle(patch: webop.Patch) -> None:
    content: dict[str, Any] = {}
    content["again"] = content
    patch["status"] = content


async def test_an_api_server_that_does_not_know_the_kind_yet_does_not_mean_that_objects_are_gone(
    run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    """It has just started; the object is read because of a conflict."""
    reads = 0

    @webop.on.create("widgets", id="fn")
    async def fn(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("fn", kwargs)
        patch.status["a"] = 1

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        nonlocal reads
        if not request.url.path.endswith("/a"):
            return None
        if request.method == "PATCH" and not reads:
            return fail(409)
        if request.method == "GET":
            reads += 1
            return httpx.Response(404, text="404 page not found") if reads == 1 else None
        return None

    async with run_relayed(build_settings(**HASTY), meddle=meddle):
        await objects.make("a")
        raw = await objects.get("a")
    assert raw["status"] == {"a": 1}
    assert calls.handlers("a") == ["fn"]


@pytest.mark.parametrize("spoil", [spoil_metadata, spoil_by_cycle])
async def test_a_senseless_patch_of_an_event_handler_harms_no_other_object(
    run_operator: RunOperator,
    objects: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
    spoil: Any,
) -> None:
    @webop.on.event("widgets", id="ev")
    async def ev(name: str, patch: webop.Patch, **kwargs: Any) -> None:
        if name == "bad":
            calls.note("ev", {"name": name, "spec": {}})
            await spoil(patch)

    @webop.on.create("widgets", id="fn")
    async def fn(name: str, **kwargs: Any) -> None:
        if name == "good":
            calls.note("begun", {"name": name, "spec": {}})
            await asyncio.sleep(1)
            calls.note("ended", {"name": name, "spec": {}})

    async with run_operator():
        await objects.create("good")
        await calls.wait("good", "begun")
        await objects.create("bad")
        await calls.wait("bad")
        await calls.wait("good", "ended")
        await objects.wait_handled("good")
        await objects.pass_fence()
    assert calls.handlers("good") == ["begun", "ended"]
    assert "has failed" not in caplog.text


async def test_a_late_response_to_an_own_write_hides_no_newer_change(
    relayed: Relay, run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    has_changed = False
    webop.on.create("widgets", id="created", when=is_no_fence)(calls.noting("created"))
    webop.on.update("widgets", id="updated")(calls.noting("updated"))

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        nonlocal has_changed
        if request.method != "PATCH" or not request.url.path.endswith("/one") or has_changed:
            return None
        has_changed = True
        response = await relayed.pass_on(request)
        await objects.patch("one", {"spec": {"a": 2}})
        await objects.pass_fence()  # the watch has shown the change
        return response

    async with run_relayed(meddle=meddle):
        await objects.create("one", {"a": 1})
        await calls.wait("one", "updated")
        await objects.wait_handled("one")
    assert [call["spec"] for call in calls.of("one")] == [{"a": 1}, {"a": 2}]


async def test_a_finalizer_refused_by_409_is_tried_again(
    run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    """A conflict that is not about the version of the object: such as of a webhook."""
    refused = 0
    webop.on.create("widgets", id="fn")(calls.noting("fn"))
    webop.on.delete("widgets", id="del")(do_nothing)

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        nonlocal refused
        is_patch = request.method == "PATCH" and request.url.path.endswith("/a")
        if is_patch and b'"finalizers"' in request.content:
            refused += 1
            if refused == 1:
                return fail(409)
        return None

    async with run_relayed(build_settings(**HASTY), meddle=meddle):
        await objects.create("a")
        await eventually(lambda: len(calls.of("a")) == 1, timeout=5)
    assert refused == 2
