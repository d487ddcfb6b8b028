"""What operators keep to themselves: memos are the user's, settings are those of one operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

import webop
from tests.cluster.reactor.request_counts import read_requests
from tests.kit.operators import Calls, Objects, RunOperator, build_settings, do_nothing, operate
from tests.kit.waiting import eventually
from webop.client.auth.vault import ConnectionInfo

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster


@pytest.mark.feature("CFG-50", "CFG-51", "CFG-28", "EMB-09")
async def test_two_operators_in_one_loop_have_their_own_settings(
    info: ConnectionInfo, objects: Objects, calls: Calls
) -> None:
    async def fail_once(retry: int, **kwargs: Any) -> None:
        calls.note("fn", kwargs)
        if not retry:
            raise ValueError("for once")

    def build_registry(name: str, backoff: float) -> webop.OperatorRegistry:
        registry = webop.OperatorRegistry()

        @webop.on.startup(registry=registry, id="startup")
        async def configure(settings: webop.OperatorSettings, **_: Any) -> None:
            settings.execution.default_backoff = backoff

        webop.on.create("widgets", registry=registry, id="fn", labels={"of": name})(fail_once)
        return registry

    patient, hasty = build_registry("patient", 1000), build_registry("hasty", 0.05)
    options: Any = {"namespaces": [objects.namespace], "beside": True}
    async with operate(info, patient, **options), operate(info, hasty, **options):
        await objects.create("waiting", labels={"of": "patient"})
        await calls.wait("waiting")
        await objects.make("done", labels={"of": "hasty"})
    assert len(calls.of("done")) == 2
    assert len(calls.of("waiting")) == 1


async def count_watches(cluster: LocalCluster, resource: str) -> dict[str, int]:
    """Return how many watches of a resource have ended so far, by their scope."""
    counts = {"cluster": 0, "namespace": 0}
    for labels, count in await read_requests(cluster):
        if (labels["resource"], labels["verb"]) == (resource, "WATCH"):
            counts[labels["scope"]] += count
    return counts


@pytest.mark.feature("SCP-12", "SCP-13", "CFG-23")
@pytest.mark.parametrize(
    ("options", "is_scanning", "expected"),
    [
        ({"clusterwide": True, "namespaces": []}, True, [{"cluster"}, set(), {"cluster"}]),
        ({"namespaces": ["*"]}, True, [{"namespace"}, {"cluster"}, {"cluster"}]),
        ({}, True, [{"namespace"}, {"cluster"}, {"cluster"}]),
        ({}, False, [{"namespace"}, set(), set()]),
    ],
)
async def test_no_more_is_watched_than_the_namespaces_and_the_scanning_need(
    run_operator: RunOperator,
    objects: Objects,
    webop_cluster: LocalCluster,
    options: Any,
    is_scanning: bool,
    expected: Sequence[set[str]],
) -> None:
    webop.on.event("widgets", id="fn")(do_nothing)
    resources = ("widgets", "namespaces", "customresourcedefinitions")
    before = [await count_watches(webop_cluster, name) for name in resources]
    async with run_operator(build_settings(scanning={"disabled": not is_scanning}), **options):
        await objects.pass_fence()
    await wait_for_watches(webop_cluster, resources, before, expected)


async def wait_for_watches(
    cluster: LocalCluster,
    resources: Sequence[str],
    before: Sequence[dict[str, int]],
    expected: Sequence[set[str]],
) -> None:
    """Wait until the watches that have ended since then are of the expected scopes."""

    async def look() -> list[set[str]]:
        after = [await count_watches(cluster, name) for name in resources]
        return [
            {scope for scope in new if new[scope] > old[scope]}
            for old, new in zip(before, after, strict=True)
        ]

    await eventually(look, f"{expected}", check=expected.__eq__)
