"""Leadership by a Lease of a real API server: what is written into it, and who acts by it."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

import webop
from tests.kit.forwarder import Forwarder
from tests.kit.leases import LEASES
from tests.kit.operators import Calls, Json, Objects, RunOperator, build_settings
from tests.kit.processes import Command, Workshop
from tests.kit.reviews import serve
from tests.kit.rights import grant, read_vault
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.testing import LocalCluster

FAST: Json = {"lease_duration": 2, "renew_deadline": 1.5, "retry_period": 0.1}
STEADY: Json = {"lease_duration": 3, "renew_deadline": 2.5, "retry_period": 0.2}
LONG: Json = {"lease_duration": 20, "renew_deadline": 15, "retry_period": 0.2}

BLOCKING = """
import time
import webop

@webop.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False

@webop.on.create('widgets')
def in_a_thread(name, **_):
    if name == 'a':
        print('it blocks a thread', flush=True)
        time.sleep(60)
"""


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "webop.coordination")
    return caplog


def lead(objects: Objects, name: str = "lead", **more: Any) -> webop.OperatorSettings:
    """Return the settings of a replica."""
    names = {"lease_name": name, "lease_namespace": objects.namespace}
    return build_settings(leadership={**FAST, **names, **more})


async def read_lease(objects: Objects, name: str = "lead") -> Json:
    lease = await objects.client.get(LEASES, objects.namespace, name)
    spec: Json = lease["spec"]
    return spec


@pytest.fixture(autouse=True)
def _handlers(registry: webop.OperatorRegistry, calls: Calls) -> None:
    webop.on.create("widgets", id="created")(calls.noting("created"))
    webop.on.resume("widgets", id="resumed")(calls.noting("resumed"))


async def test_of_two_replicas_one_acts_and_hands_over_when_it_stops(
    objects: Objects, run_operator: RunOperator, calls: Calls
) -> None:
    async with AsyncExitStack() as stack:
        # The Lease is in the only served namespace, if nothing says otherwise.
        settings = [lead(objects, lease_namespace=None, **LONG) for _ in range(2)]
        names = ("one", "two")
        options = [{"settings": s, "identity": n} for s, n in zip(settings, names, strict=True)]
        first = await stack.enter_async_context(run_operator(beside=True, **options[0]))
        await objects.pass_first_list(calls)
        await objects.make("a")
        lease = await read_lease(objects)
        assert lease["holderIdentity"] == "one"
        assert lease["leaseDurationSeconds"] == 20
        assert lease["leaseTransitions"] == 0
        assert lease["acquireTime"] <= lease["renewTime"]
        await stack.enter_async_context(run_operator(beside=True, **options[1]))
        await objects.make("b")
        assert (await read_lease(objects))["holderIdentity"] == "one"
        await first.stop()
        await objects.make("c")
        for name in ("a", "b"):
            await calls.wait(name, "resumed")
        lease = await read_lease(objects)
        assert (lease["holderIdentity"], lease["leaseTransitions"]) == ("two", 1)
    created = [call["name"] for call in calls if call["handler"] == "created"]
    assert [name for name in created if name in "abc"] == ["a", "b", "c"]
    assert calls.handlers("a") == calls.handlers("b") == ["created", "resumed"]
    lease = await read_lease(objects)
    assert (lease["holderIdentity"], lease["leaseDurationSeconds"]) == ("", 1)


async def test_an_operator_without_the_right_to_its_lease_is_not_ready_until_it_has_it(
    webop_cluster: LocalCluster, objects: Objects, log: pytest.LogCaptureFixture
) -> None:
    user = f"{objects.namespace}-late"
    vault = read_vault(webop_cluster, user)
    verbs, client = "get,list,watch,patch", objects.client
    await grant(client, user, objects.kind.crd_name, verbs, objects.namespace)
    settings = lead(objects)
    settings.scanning.disabled = True
    async with serve(settings=settings, vault=vault, namespaces=[objects.namespace]) as site:
        await eventually(lambda: site.answers(503, '"not ready":["the lease'), "the obstacle alone")
        assert await site.answers(503, f"the lease {objects.namespace}/lead cannot be acquired: ")
        assert f'User "{user}" cannot get resource "leases"' in log.text
        assert "Needed: get, create and update; better also list and watch." in log.text
        assert log.text.count("cannot be acquired") == 1
        leases = "leases.coordination.k8s.io"
        await grant(client, user, leases, "get,create,update", objects.namespace)
        await eventually(lambda: site.answers(200), "readiness")


async def test_the_rights_of_the_manual_suffice(
    webop_cluster: LocalCluster,
    objects: Objects,
    run_operator: RunOperator,
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = (Path(__file__).parents[3] / "docs" / "concepts" / "leadership.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    role = yaml.safe_load(block)
    role["metadata"]["namespace"] = objects.namespace
    api, user = role["apiVersion"], f"{objects.namespace}-replica"
    reference = {"apiGroup": api.split("/")[0], "kind": "Role", "name": role["metadata"]["name"]}
    binding = {
        "apiVersion": api,
        "kind": "RoleBinding",
        "metadata": role["metadata"],
        "roleRef": reference,
        "subjects": [{"kind": "User", "name": user}],
    }
    webop_cluster.apply(role, binding)
    vault = read_vault(webop_cluster, user)
    caplog.set_level(logging.INFO)
    async with run_operator(settings=lead(objects, name="my-operator"), vault=vault):
        await eventually(lambda: "This replica is leading" in caplog.text, "leadership")
        await asyncio.sleep(0.3)  # for the watch, and some renewals
    assert "Released the lease" in caplog.text
    assert not [r for r in caplog.records if "leases" in r.getMessage()]


async def test_an_absent_namespace_is_named(
    objects: Objects, run_operator: RunOperator, log: pytest.LogCaptureFixture
) -> None:
    async with run_operator(settings=lead(objects, lease_namespace="nowhere")):
        await eventually(lambda: "cannot be acquired" in log.text, "a word")
    assert 'namespaces "nowhere" not found' in log.text


async def test_a_lost_lease_that_comes_back_begins_a_new_turn_with_the_daemons(
    objects: Objects, run_operator: RunOperator, client: Client
) -> None:
    running: list[str] = []

    @webop.daemon("widgets")
    async def work(stopped: webop.DaemonStopped, **_: Any) -> None:
        running.append("begun")
        try:
            await stopped.wait()
        finally:
            running.append("ended")

    async with run_operator(settings=lead(objects, **STEADY), identity="me"):
        await objects.create("a")
        await eventually(lambda: running == ["begun"], "a daemon")
        lease = await client.get(LEASES, objects.namespace, "lead")
        spec = {**lease["spec"], "holderIdentity": "thief"}
        await client.patch(LEASES, objects.namespace, "lead", {"spec": spec})
        await eventually(lambda: running == ["begun", "ended"], "the end of the daemon")
        await eventually(lambda: running == ["begun", "ended", "begun"], "the next turn")
    assert running[-1] == "ended"


@pytest.fixture
async def stuck(
    webop_cluster: LocalCluster, objects: Objects, workshop: Workshop
) -> AsyncIterator[Callable[[], Awaitable[tuple[Command, Forwarder]]]]:
    """Runs a process that leads, and has a handler that blocks a thread."""
    async with AsyncExitStack() as stack:

        async def run() -> tuple[Command, Forwarder]:
            proxy = await stack.enter_async_context(Forwarder(webop_cluster.server).listen())
            kubeconfig = workshop.folder / "kubeconfig"
            text = webop_cluster.kubeconfig.read_text()
            kubeconfig.write_text(text.replace(webop_cluster.server, proxy.url))
            variables = {f"WEBOP_LEADERSHIP__{key.upper()}": str(v) for key, v in FAST.items()}
            variables["WEBOP_LEADERSHIP__LEASE_NAMESPACE"] = objects.namespace
            variables["KUBECONFIG"] = str(kubeconfig)
            scope = ("--standalone", "-n", objects.namespace, "--lease", "stuck")
            running = workshop.start(*scope, workshop.write(BLOCKING), **variables)
            command = await stack.enter_async_context(running)
            await command.wait_for("This replica is leading")
            await objects.create("a")
            await command.wait_for("it blocks")
            return command, proxy

        yield run


async def test_a_process_ends_at_the_end_of_its_lease_if_a_handler_blocks_beyond_it(
    stuck: Callable[[], Awaitable[tuple[Command, Forwarder]]],
) -> None:
    command, proxy = await stuck()
    proxy.is_refusing = True
    proxy.cut()
    assert await command.wait_for_exit() == 1
    assert "work continues that cannot be stopped" in command.output


async def test_a_process_that_stops_keeps_the_lease_for_work_that_cannot_be_ended(
    stuck: Callable[[], Awaitable[tuple[Command, Forwarder]]], objects: Objects
) -> None:
    command, _ = await stuck()
    command.process.send_signal(signal.SIGTERM)
    await command.wait_for("is not released")
    assert (await read_lease(objects, "stuck"))["holderIdentity"]
    assert await command.wait_for_exit() == 1
    assert (await read_lease(objects, "stuck"))["holderIdentity"]
