"""How many requests an object costs, counted by the API server itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import webop
from tests.cluster.reactor.request_counts import read_requests
from tests.kit.operators import Kind, Objects, RunOperator, do_nothing

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster


async def count_requests(cluster: LocalCluster, kind: Kind) -> dict[str, int]:
    """Return how many requests about a kind the API server has got so far, by verbs.

    The subresource is a part of the verb: "PATCH", "PATCH status".
    """
    counts: dict[str, int] = {}
    for labels, count in await read_requests(cluster):
        if labels.get("group") == kind.group and labels.get("resource") == kind.plural:
            verb = f"{labels['verb']} {labels['subresource']}".strip()
            counts[verb] = counts.get(verb, 0) + count
    return counts


class Meter:
    """Counts the writes of operators: the tests themselves use other verbs, POST and DELETE."""

    def __init__(self, cluster: LocalCluster, kind: Kind) -> None:
        self._cluster = cluster
        self._kind = kind
        self._before: dict[str, int] = {}

    async def read(self) -> dict[str, int]:
        """Return how many writes there were since the last reading, by verbs and subresources."""
        counts = await count_requests(self._cluster, self._kind)
        counts = {verb: count for verb, count in counts.items() if verb.startswith(_WRITES)}
        news = {verb: count - self._before.get(verb, 0) for verb, count in counts.items()}
        self._before = counts
        return {verb: count for verb, count in news.items() if count}


_WRITES = ("PATCH", "PUT", "APPLY")


@pytest.fixture
async def meter(webop_cluster: LocalCluster, widgets: Kind) -> Meter:
    meter = Meter(webop_cluster, widgets)
    await meter.read()
    return meter


@pytest.mark.feature("PAT-10", "HND-32", "HND-14", "RST-01")
@pytest.mark.parametrize("keys", ["a", "abc"])
async def test_the_quick_handlers_of_a_created_object_share_one_patch(
    run_operator: RunOperator, objects: Objects, meter: Meter, keys: str
) -> None:
    for key in keys:

        @webop.on.create("widgets", id=key)
        async def fn(patch: webop.Patch, **_: Any) -> str:
            patch.status["more"] = {"of": "it"}
            return "result"

    async with run_operator():
        for number in range(5):
            body = await objects.make(f"o{number}")
        counted = await meter.read()
    assert counted == {"PATCH": 5}
    assert body["status"] == {**dict.fromkeys(keys, "result"), "more": {"of": "it"}}


@pytest.mark.feature("HND-18", "HND-34", "PAT-10")
async def test_an_object_with_a_finalizer_costs_two_patches_and_its_deletion_one(
    run_operator: RunOperator, objects: Objects, meter: Meter
) -> None:
    webop.on.delete("widgets", id="deleted")(do_nothing)
    webop.on.create("widgets", id="created")(do_nothing)
    async with run_operator():
        await objects.make("one")
        assert await meter.read() == {"PATCH": 2}
        await objects.remove("one")
        assert await meter.read() == {"PATCH": 1}


@pytest.mark.feature("RST-09", "PAT-10")
async def test_a_status_with_an_endpoint_of_its_own_costs_a_patch_of_its_own(
    run_operator: RunOperator, with_status: Objects, webop_cluster: LocalCluster
) -> None:
    @webop.on.create("gadgets", id="fn")
    async def fn(**_: Any) -> str:
        return "result"

    meter = Meter(webop_cluster, with_status.kind)
    await meter.read()
    async with run_operator():
        body = await with_status.make("one")
        counted = await meter.read()
    assert counted == {"PATCH": 1, "PATCH status": 1}
    assert body["status"] == {"fn": "result"}
