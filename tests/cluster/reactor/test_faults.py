"""Faults of the network and of the API server: nothing is lost, and nothing is done twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import webop
from tests.kit.forwarder import Forwarder
from tests.kit.operators import (
    Calls,
    Objects,
    RunOperator,
    build_settings,
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


@pytest.mark.feature("CFG-34", "CFG-52", "CFG-54", "CON-04")
async def test_a_handler_is_not_repeated_because_its_outcome_could_not_be_written_at_once(
    run_operator: RunOperator, objects: Objects, calls: Calls, proxy: Forwarder
) -> None:
    @webop.on.create("widgets", id="fn", when=is_no_fence)
    async def fn(**kwargs: Any) -> str:
        calls.note("fn", kwargs)
        proxy.is_refusing = True
        proxy.cut()
        return "done"

    quick = {**QUICK, "networking": {"error_backoffs": [0.05], "request_timeout": 2}}
    async with run_operator(build_settings(**quick), beside=True):
        await objects.create("one")
        await calls.wait("one")
        refused = proxy.accepted
        # The retries of the request itself are over then.
        await eventually(lambda: proxy.accepted > refused + 5)
        proxy.is_refusing = False
        body = await objects.wait_handled("one")
        await objects.pass_fence()
    assert len(calls.of("one")) == 1
    assert body["status"] == {"fn": "done"}


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


@pytest.mark.feature("CFG-39", "PAT-07", "PAT-09")
async def test_the_newer_state_is_read_if_the_watch_does_not_bring_it(
    run_operator: RunOperator, objects: Objects, proxy: Forwarder, calls: Calls
) -> None:
    def append(body: webop.RawBody) -> None:
        body["spec"]["by"] = [*body["spec"].get("by", []), body["spec"]["a"]]

    @webop.on.event("widgets", id="fn")
    async def fn(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("fn", kwargs)
        if len(calls.of("one")) == 1:
            proxy.freeze()  # the watch does not tell of what happens now, until it is renewed
            await objects.patch("one", {"spec": {"a": 1}})
            patch.fns.append(append)

    quick = {**QUICK, "networking": {"error_backoffs": [0.05] * 100, "request_timeout": 0.3}}
    quick["watching"] = {"inactivity_timeout": 2.0, "reconnect_backoff": 0.05}
    async with run_operator(build_settings(**quick), beside=True):
        await objects.create("one", {"a": 0})
        await calls.wait("one", count=2)
        await objects.pass_fence()
        body = await objects.get("one")
    assert body["spec"] == {"a": 1, "by": [1]}
