"""What is watched of a cluster: no more than the namespaces and the scanning need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

import webop
from tests.cluster.reactor.request_counts import read_requests
from tests.kit.operators import Objects, RunOperator, build_settings, do_nothing
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster


async def count_watches(cluster: LocalCluster, resource: str) -> dict[str, int]:
    """Return how many watches of a resource have ended so far, by their scope."""
    counts = {"cluster": 0, "namespace": 0}
    for labels, count in await read_requests(cluster):
        scope = labels.get("scope")  # those of the API server itself are of one object: "resource"
        if (labels.get("resource"), labels.get("verb")) == (resource, "WATCH") and scope in counts:
            counts[scope] += count
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
