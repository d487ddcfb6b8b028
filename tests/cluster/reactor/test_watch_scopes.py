"""What is watched of a cluster: no more than the namespaces and the scanning need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

import webop
from tests.kit.http_relay import Relay
from tests.kit.operators import Objects, RunOperator, build_settings, do_nothing
from tests.kit.waiting import eventually

RESOURCES = ("widgets", "namespaces", "customresourcedefinitions")


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
    relayed: Relay,
    run_relayed: RunOperator,
    objects: Objects,
    options: Any,
    is_scanning: bool,
    expected: Sequence[set[str]],
) -> None:
    webop.on.event("widgets", id="fn")(do_nothing)
    watched: dict[str, set[str]] = {resource: set() for resource in RESOURCES}

    def watch(request: httpx.Request) -> AsyncIterator[bytes]:
        *place, resource = request.url.path.split("/")
        watched[resource].add("namespace" if "namespaces" in place else "cluster")
        return relayed.pass_watch_on(request)

    relayed.watch = watch
    async with run_relayed(build_settings(scanning={"disabled": not is_scanning}), **options):
        await objects.pass_fence()
        await eventually(lambda: [*watched.values()] == expected, lambda: f"{expected}: {watched}")
    assert [*watched.values()] == expected
