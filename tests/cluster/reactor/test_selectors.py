"""Which kinds are served: by groups, of the cluster itself, and without looking for changes."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from tests.kit.operators import Calls, Objects, RunOperator
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.objects.resources import Resource

CLUSTER_ROLES = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterroles", kind="ClusterRole", namespaced=False
)


@pytest.mark.feature("RES-11", "RES-15", "RES-12")
async def test_everything_of_a_group_is_served(
    run_operator: RunOperator, objects: Objects, with_status: Objects
) -> None:
    seen: set[tuple[str, str]] = set()

    @webop.on.event(objects.kind.group, webop.EVERYTHING, id="fn")
    async def fn(resource: webop.Resource, name: str, **_: Any) -> None:
        seen.add((resource.plural, name))

    async with run_operator():
        await objects.create("one")
        await with_status.create("two")
        await eventually(lambda: {("widgets", "one"), ("gadgets", "two")} <= seen)


@pytest.mark.feature("RES-24")
async def test_kinds_can_be_chosen_by_a_function(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    def choose(resource: webop.Resource) -> bool:
        return resource.kind == "Widget"

    webop.on.create(choose, id="fn")(calls.noting("fn"))
    async with run_operator():
        await objects.make("one")
    assert len(calls.of("one")) == 1


@pytest.mark.feature("SCP-14", "RES-01", "KWA-08", "KWA-10")
async def test_kinds_of_the_cluster_are_served_whatever_the_namespaces_are(
    run_operator: RunOperator, client: Client, objects: Objects
) -> None:
    seen: list[Any] = []
    name, labels = f"role-{objects.namespace}", {"tests.webop.dev/of": objects.namespace}

    @webop.on.create("clusterroles", id="created", labels=labels)
    @webop.on.delete("clusterroles", id="deleted", labels=labels)
    async def fn(reason: str, namespace: str | None, **_: Any) -> None:
        seen.append((str(reason), namespace))

    async with run_operator():
        await client.create(CLUSTER_ROLES, None, {"metadata": {"name": name, "labels": labels}})
        await eventually(lambda: len(seen) == 1)
        await client.delete(CLUSTER_ROLES, None, name)
        await eventually(lambda: len(seen) == 2)
    assert seen == [("create", None), ("delete", None)]
