"""What is watched of a cluster: no more than the namespaces and the scanning need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

import webop
from tests.cluster.reactor.request_counts import read_requests
from tests.kit.operators import Objects, RunOperator, build_settings, do_nothing
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster


RESOURCES = ("widgets", "namespaces", "customresourcedefinitions")


async def count_watches(cluster: LocalCluster) -> list[Counter[str]]:
    """Return how many watches of the resources have ended so far, by their scope."""
    counts = {resource: Counter[str]() for resource in RESOURCES}
    for labels, count in await read_requests(cluster):
        resource, scope = labels.get("resource"), labels.get("scope")
        # Those of the API server itself are of one object: "resource".
        is_one = labels.get("verb") == "WATCH" and scope in {"cluster", "namespace"}
        if is_one and resource in counts:
            counts[resource][str(scope)] += count
    return list(counts.values())


@pytest.mark.feature("SCP-12", "SCP-13", "CFG-23")
@pytest.mark.parametrize(
    ("options", "is_scanning", "expected"),
    [
        ({"clusterwide": True, "namespaces": []}, True, [{"cluster"}, set(), {"cluster"}]),
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
    before = await count_watches(webop_cluster)
    async with run_operator(build_settings(scanning={"disabled": not is_scanning}), **options):
        await objects.pass_fence()

    async def look() -> list[set[str]]:
        after = await count_watches(webop_cluster)
        return [set(new - old) for old, new in zip(before, after, strict=True)]

    await eventually(look, f"{expected}", check=expected.__eq__)
