"""How many writes an object costs, as a relay before the API server sees them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import webop
from tests.kit.http_relay import Relay
from tests.kit.operators import Objects, RunOperator, do_nothing


def count_writes(relayed: Relay, plural: str) -> Counter[str]:
    """Return how often the operator has written since the last time: "PATCH", "PATCH status"."""
    counts = Counter[str]()
    for request in relayed.requests:
        if request.method in {"PATCH", "PUT"} and f"/{plural}/" in request.url.path:
            suffix = " status" if request.url.path.endswith("/status") else ""
            counts[f"{request.method}{suffix}"] += 1
    relayed.requests.clear()
    return counts


@pytest.mark.feature("PAT-10", "HND-32", "HND-14", "RST-01")
@pytest.mark.parametrize("keys", ["a", "abc"])
async def test_the_quick_handlers_of_a_created_object_share_one_patch(
    run_relayed: RunOperator, relayed: Relay, objects: Objects, keys: str
) -> None:
    for key in keys:

        @webop.on.create("widgets", id=key)
        async def fn(patch: webop.Patch, **_: Any) -> str:
            patch.status["more"] = {"of": "it"}
            return "result"

    async with run_relayed():
        for number in range(5):
            body = await objects.make(f"o{number}")
        counted = count_writes(relayed, "widgets")
    assert counted == {"PATCH": 5}
    assert body["status"] == {**dict.fromkeys(keys, "result"), "more": {"of": "it"}}


@pytest.mark.feature("HND-18", "HND-34", "PAT-10")
async def test_an_object_with_a_finalizer_costs_two_patches_and_its_deletion_one(
    run_relayed: RunOperator, relayed: Relay, objects: Objects
) -> None:
    webop.on.delete("widgets", id="deleted")(do_nothing)
    webop.on.create("widgets", id="created")(do_nothing)
    async with run_relayed():
        await objects.make("one")
        assert count_writes(relayed, "widgets") == {"PATCH": 2}
        await objects.remove("one")
        assert count_writes(relayed, "widgets") == {"PATCH": 1}


@pytest.mark.feature("RST-09", "PAT-10")
async def test_a_status_with_an_endpoint_of_its_own_costs_a_patch_of_its_own(
    run_relayed: RunOperator, relayed: Relay, with_status: Objects
) -> None:
    @webop.on.create("gadgets", id="fn")
    async def fn(**_: Any) -> str:
        return "result"

    async with run_relayed():
        body = await with_status.make("one")
        counted = count_writes(relayed, "gadgets")
    assert counted == {"PATCH": 1, "PATCH status": 1}
    assert body["status"] == {"fn": "result"}
