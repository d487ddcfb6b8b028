"""What is wrong with records, permissions and the API server does not end peering."""

from __future__ import annotations

import logging

import pytest

from tests.kit.forwarder import Forwarder
from tests.kit.operators import Objects, RunOperator, build_settings, get_connection
from tests.kit.peering_objects import PeeringObject, Seen, build_record
from tests.kit.rights import grant
from tests.kit.waiting import eventually
from webop import ConnectionInfo
from webop.client.auth.kubeconfig import read_kubeconfig
from webop.testing import LocalCluster

LOST = {"error_backoffs": [0.05] * 20}


async def test_garbage_in_the_status_is_told_once_and_ignored(
    run_operator: RunOperator, shared: PeeringObject, objects: Objects, seen: Seen
) -> None:
    await shared.create(kopf={"progress": {}}, x="text", y={"priority": "high"})  # type: ignore[arg-type]
    async with run_operator(standalone=False, identity="me"):
        await objects.pass_fence()
        await shared.write("z", {"priority": 1, "lastseen": "yesterday"})
        await eventually(lambda: "'z'" in seen.log.text)
        await objects.pass_fence()
    for identity in ("kopf", "x", "y", "z"):
        assert seen.log.text.count(f"Ignoring the record of {identity!r}") == 1
    assert "Traceback" not in seen.log.text
    assert set(await shared.read()) == {"kopf", "x", "y", "z"}


class TestWithoutTheServer:
    @pytest.fixture
    def info(self, webop_cluster: LocalCluster, proxy: Forwarder) -> ConnectionInfo:
        return get_connection(webop_cluster, proxy.url)

    @pytest.mark.feature("PEE-14")
    async def test_records_count_and_expire_while_it_is_away(
        self,
        run_operator: RunOperator,
        proxy: Forwarder,
        shared: PeeringObject,
        objects: Objects,
        seen: Seen,
    ) -> None:
        await shared.create(boss=build_record(100, lifetime=3))
        settings = build_settings(networking=LOST, peering={"lifetime": 2})
        async with run_operator(settings, standalone=False, identity="me"):
            await seen.stay_out(objects)
            proxy.is_refusing = True
            proxy.cut()
            await eventually(lambda: "Cannot renew the record" in seen.log.text)
            await eventually(lambda: "Resuming" in seen.log.text)
            proxy.is_refusing = False
            await seen.calls.wait("ignored")
            await shared.wait(lambda records: set(records) == {"me"})
        warnings = [r for r in seen.log.records if "Cannot renew the record" in r.getMessage()]
        assert [r.levelno for r in warnings].count(logging.WARNING) == 1


READING = "get,list,watch"


class TestWithFewRights:
    @pytest.fixture
    async def user(self, shared: PeeringObject, objects: Objects) -> str:
        """Somebody who may do all with widgets, but nothing yet with peerings."""
        user = f"user-of-{objects.namespace}"
        await shared.create()
        await grant(shared.client, user, objects.kind.crd_name, "*", objects.namespace)
        return user

    @pytest.fixture
    def info(self, webop_cluster: LocalCluster, user: str) -> ConnectionInfo:
        info = read_kubeconfig([webop_cluster.kubeconfig_for(user)])
        assert info is not None
        return info

    async def test_without_the_right_to_look_it_says_which_one_and_goes_on(
        self,
        run_operator: RunOperator,
        shared: PeeringObject,
        objects: Objects,
        user: str,
        seen: Seen,
    ) -> None:
        async with run_operator(standalone=False, identity="me"):
            await objects.pass_fence()
            assert "cannot be read, falling back to the standalone mode" in seen.log.text
            assert "Grant the verb 'list' on 'kopfpeerings'" in seen.log.text
            peerings = "kopfpeerings.kopf.dev"
            await grant(shared.client, user, peerings, f"{READING},patch", objects.namespace)
            await shared.wait(lambda records: "me" in records)

    @pytest.mark.feature("CFG-07")
    async def test_if_it_must_be_there_it_acts_only_when_it_may_write(
        self,
        run_operator: RunOperator,
        shared: PeeringObject,
        objects: Objects,
        user: str,
        seen: Seen,
    ) -> None:
        peerings = "kopfpeerings.kopf.dev"
        await grant(shared.client, user, peerings, READING, objects.namespace)
        async with run_operator(standalone=False, identity="me", peering_name="default"):
            await seen.stay_out(objects)
            assert "Grant the verb 'patch' on 'kopfpeerings'" in seen.log.text
            await grant(shared.client, user, peerings, "patch", objects.namespace)
            await seen.calls.wait("ignored")
        assert await shared.read() == {}
