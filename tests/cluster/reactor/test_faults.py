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
