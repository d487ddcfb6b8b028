"""Peering objects and their kinds: which one is meant, absent, created, deleted."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import webop
from tests.kit.operators import (
    CRDS,
    Kind,
    Objects,
    RunOperator,
    build_settings,
    connect,
    get_connection,
    operate,
)
from tests.kit.peering_objects import (
    PEERINGS,
    PeeringObject,
    Seen,
    build_record,
    define_peerings,
    undefine_peerings,
)
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.testing import LocalCluster


@pytest.mark.feature("PEE-07", "PEE-09", "CFG-07", "D-62")
async def test_a_peering_that_must_be_there_is_waited_for_and_joined_at_once(
    run_operator: RunOperator, shared: PeeringObject, objects: Objects, seen: Seen
) -> None:
    mine = PeeringObject(shared.client, shared.namespace, "mine")
    await shared.create(boss=build_record(100))  # the boss of others
    async with run_operator(standalone=False, peering_name="mine", identity="me"):
        await seen.stay_out(objects)
        assert (
            "kubectl create -f - <<< '{apiVersion: kopf.dev/v1, kind: KopfPeering" in seen.log.text
        )
        assert f"metadata: {{namespace: {mine.namespace}, name: mine}}" in seen.log.text
        await mine.create()
        await mine.wait(lambda records: "me" in records)
        await seen.calls.wait("ignored")
        await mine.delete()
        await eventually(lambda: seen.log.text.count("is paused: there is no peering object") == 2)
        await mine.create()
        await mine.wait(lambda records: "me" in records)
        await objects.pass_fence()
    assert set(await shared.read()) == {"boss"}


@pytest.mark.feature("PEE-08", "PEE-11", "CFG-06", "D-62")
@pytest.mark.parametrize("name", ["default", "custom"])
async def test_a_peering_that_may_be_absent_is_joined_as_soon_as_it_appears(
    run_operator: RunOperator, shared: PeeringObject, objects: Objects, seen: Seen, name: str
) -> None:
    shared.name = name
    settings = build_settings(peering={"name": name})
    async with run_operator(settings, standalone=False, identity="me"):
        await objects.pass_fence()
        (record,) = [
            r for r in seen.log.records if "is not found, falling back to" in r.getMessage()
        ]
        assert record.getMessage().endswith(
            "One copy? Add --standalone. Several? Add --lease NAME."
        )
        assert record.getMessage().startswith("Default peering object") is (name == "default")
        assert record.levelno == (logging.INFO if name == "default" else logging.WARNING)
        expires = time.time() + 3
        await shared.create(boss=build_record(100, lifetime=3))
        await shared.wait(lambda records: "me" in records)
        await seen.stay_out(objects)
        await shared.delete()  # the boss is there all the same, until the record expires
        await seen.calls.wait("ignored")
        assert time.time() >= expires
    assert "Resuming" in seen.log.text


@pytest.mark.feature("PEE-05", "CFG-12")
async def test_operators_of_namespaces_are_paused_if_any_of_them_says_so(
    client: Client, run_operator: RunOperator, shared: PeeringObject, objects: Objects, seen: Seen
) -> None:
    await shared.create()
    patterns = [objects.namespace, f"{objects.namespace}-*"]
    async with run_operator(standalone=False, identity="me", namespaces=patterns):
        await objects.pass_fence()
        name = f"{objects.namespace}-other"
        other = PeeringObject(client, name)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await client.request("POST", "/api/v1/namespaces", body=namespace)
        await other.create(boss=build_record(100))
        await seen.stay_out(objects)
        await other.wait(lambda records: "me" in records)
        await shared.wait(lambda records: "me" in records)
        body = await client.request("DELETE", f"/api/v1/namespaces/{name}")
        body["spec"]["finalizers"] = []  # what the controller manager would do
        await client.request("PUT", f"/api/v1/namespaces/{name}/finalize", body=body)
        await seen.calls.wait("ignored")


@pytest.mark.feature("PEE-05", "CFG-12")
async def test_operators_of_the_whole_cluster_have_a_kind_of_their_own(
    client: Client, run_operator: RunOperator, shared: PeeringObject, objects: Objects, seen: Seen
) -> None:
    await shared.create(boss=build_record(100))
    wide = PeeringObject(client, None, objects.namespace)
    await wide.create(boss=build_record(100))
    # It must not handle the objects of other tests.
    own = {"field_selectors": {"widgets": f"metadata.namespace={objects.namespace}"}}
    scope: Any = {"peering_name": wide.name, "clusterwide": True, "namespaces": []}
    try:
        settings = build_settings(watching=own)
        async with run_operator(settings, standalone=False, identity="me", **scope):
            await seen.stay_out(objects)
            await wide.write("boss", None)
            await seen.calls.wait("ignored")
            assert set(await wide.read()) == {"me"}
        assert set(await shared.read()) == {"boss"}
    finally:
        await wide.delete()


@dataclass
class Apart:
    """A cluster without kinds of peering, which tests of other workers need in the usual one."""

    client: Client
    objects: Objects
    run: RunOperator


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
async def apart(
    own_cluster: LocalCluster, registry: webop.OperatorRegistry
) -> AsyncIterator[Apart]:
    kind = Kind("tests.webop.dev")
    async with connect(own_cluster) as client:
        await kind.define(client)
        objects = Objects(client, kind, own_cluster.create_namespace())
        info, namespaces = get_connection(own_cluster), [objects.namespace]
        yield Apart(client, objects, partial(operate, info, registry, namespaces=namespaces))


@pytest.mark.feature("PEE-06", "PEE-07", "PEE-11", "D-19", "D-62")
async def test_kinds_come_and_go(apart: Apart, seen: Seen) -> None:
    client, objects, run_operator = apart.client, apart.objects, apart.run
    shared = PeeringObject(client, objects.namespace)
    mandatory = PeeringObject(client, objects.namespace, "mine")
    async with run_operator(standalone=False, identity="free", beside=True):
        await objects.create("first", labels={"x": "y"})
        await seen.calls.wait("first")
        assert "Default peering object is not found, falling back" in seen.log.text
        async with run_operator(standalone=False, identity="me", peering_name="mine", beside=True):
            await eventually(lambda: "is paused: there is no kind KopfPeering" in seen.log.text)
            await define_peerings(client)
            await shared.create()
            await shared.wait(lambda records: "free" in records)
            await eventually(
                lambda: "is paused: there is no peering object 'mine'" in seen.log.text
            )
            await mandatory.create()
            await mandatory.wait(lambda records: "me" in records)
            await client.delete(CRDS, None, f"{PEERINGS.plural}.{PEERINGS.group}")
            await eventually(lambda: seen.log.text.count("is paused: there is no kind") == 2)
        await objects.create("second", labels={"x": "y"})
        await seen.calls.wait("second")
    await undefine_peerings(client)  # wait for the end of the deletion


@pytest.mark.feature("PEE-06", "D-19")
async def test_the_legacy_group_serves_as_well_and_so_does_a_status_endpoint(
    apart: Apart, seen: Seen
) -> None:
    place = apart.objects.namespace
    legacy = PeeringObject(apart.client, place, group="zalando.org", has_status=True)
    await define_peerings(apart.client, "zalando.org", has_status=True)
    await legacy.create(boss=build_record(100))
    async with apart.run(standalone=False, identity="me"):
        await seen.stay_out(apart.objects)
        await legacy.write("boss", None)
        await seen.calls.wait("ignored")
        assert set(await legacy.read()) == {"me"}
