"""Operators that share a peering object with others, by the records that they see and write."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
from typing import Any

import pytest

import webop
from tests.kit.operators import Objects, RunOperator, build_settings
from tests.kit.peering_objects import PeeringObject, Seen, build_record
from tests.kit.processes import Workshop
from tests.kit.waiting import eventually


@pytest.mark.feature("PEE-01", "PEE-13", "PEE-15", "PEE-16", "CFG-06", "CFG-10", "CFG-11", "D-21")
@pytest.mark.parametrize("stealth", [False, True])
async def test_an_operator_keeps_a_record_and_removes_it_at_the_end(
    run_operator: RunOperator, shared: PeeringObject, seen: Seen, stealth: bool
) -> None:
    await shared.create(me=build_record(9, lifetime=600))  # of a killed predecessor
    peering = {"stealth": stealth, "lifetime": 2, "priority": 7}
    settings = build_settings(peering=peering)
    async with run_operator(settings, standalone=False, identity="me"):
        records = await shared.wait(lambda records: records["me"]["priority"] == 7)
        record = records["me"]
        assert record["lifetime"] == 2
        assert set(records) == {"me"}
        assert set(record) == {"priority", "lifetime", "lastseen"}
        await shared.wait(lambda records: records["me"]["lastseen"] > record["lastseen"])
    assert await shared.read() == {}
    assert ("Keep-alive" in seen.log.text) is not stealth
    assert "Pausing" not in seen.log.text
    assert "belongs to the peering 'default'" in seen.log.text


@pytest.mark.feature("PEE-02", "PEE-14", "CFG-08", "D-20")
async def test_it_pauses_for_a_higher_priority_until_that_one_is_gone_or_dead(
    run_operator: RunOperator, shared: PeeringObject, objects: Objects, seen: Seen
) -> None:
    dead = build_record(999, lifetime=-5)
    await shared.create(boss=build_record(100, message="maintenance"), dead=dead)
    async with run_operator(standalone=False, identity="me"):
        await seen.stay_out(objects)
        await shared.wait(lambda records: set(records) == {"me", "boss"}, "the dead are cleaned")
        assert "in favour of boss (priority 100, valid until" in seen.log.text
        assert "UTC): maintenance" in seen.log.text
        await shared.write("boss", build_record(100, message="maintenance"))
        await shared.write("boss", None)
        await seen.calls.wait("ignored")
        assert seen.log.text.count("Pausing") == seen.log.text.count("Resuming") == 1

        await shared.write("boss", build_record(100, lifetime=2))
        await eventually(lambda: seen.log.text.count("Pausing") == 2, "the pause")
        await eventually(lambda: seen.log.text.count("Resuming") == 2, "the end of the dead boss")
        await objects.create("later", labels={"x": "y"})
        await seen.calls.wait("later")
        await shared.write("low", build_record(-1))
        await shared.wait(lambda records: set(records) >= {"me", "low"})
        await objects.pass_fence()
    assert seen.log.text.count("Pausing") == 2
    assert set(await shared.read()) <= {"low", "boss"}


@pytest.mark.feature("PEE-03", "D-20")
async def test_with_the_same_priority_all_pause_and_warn(
    run_operator: RunOperator, shared: PeeringObject, objects: Objects, seen: Seen
) -> None:
    await shared.create()
    async with (
        run_operator(standalone=False, identity="one", beside=True) as one,
        run_operator(standalone=False, identity="two", beside=True),
    ):
        await eventually(lambda: seen.log.text.count("so all of them pause") == 2, "both warnings")
        await seen.stay_out(objects)
        warnings = [r.getMessage() for r in seen.log.records if r.levelno == logging.WARNING]
        assert any("also that of one (" in text for text in warnings)
        assert any("also that of two (" in text for text in warnings)
        await one.stop()
        await seen.calls.wait("ignored")


@pytest.mark.feature("PEE-03", "PEE-02")
async def test_operators_with_shards_pause_only_for_a_higher_priority(
    run_operator: RunOperator, shared: PeeringObject, objects: Objects, seen: Seen
) -> None:
    await shared.create()
    settings = build_settings()
    settings.watching.shard_selectors["widgets"] = (
        "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')"
    )
    async with run_operator(settings, standalone=False, identity="one"):
        await shared.write("two", build_record(0))
        await objects.create("a", labels={"x": "y"})
        await seen.calls.wait("a")
        assert "Pausing" not in seen.log.text
        await shared.write("boss", build_record(100))
        await eventually(lambda: "in favour of boss" in seen.log.text, "the pause")
        assert "two" not in seen.log.text


@pytest.mark.feature("PEE-12", "PEE-04", "CFG-08")
async def test_the_next_one_takes_over_and_priorities_can_change(
    run_operator: RunOperator, shared: PeeringObject, objects: Objects, seen: Seen
) -> None:
    await shared.create()
    one, two = (build_settings(peering={"priority": n, "lifetime": 4}) for n in (1, 2))
    async with (
        run_operator(one, standalone=False, identity="one", beside=True),
        run_operator(two, standalone=False, identity="two", beside=True) as second,
    ):
        await eventually(lambda: "in favour of two" in seen.log.text)
        await objects.create("first", labels={"x": "y"})
        await seen.calls.wait("first")
        one.peering.priority = 3  # the next renewal tells
        await eventually(lambda: "in favour of one (priority 3" in seen.log.text)
        await second.stop()
        await objects.pass_fence()
    assert len(seen.calls) == 1


@pytest.mark.feature("PEE-10", "CFG-09")
async def test_standalone_operators_have_nothing_to_do_with_it(
    run_operator: RunOperator, shared: PeeringObject, objects: Objects, seen: Seen
) -> None:
    await shared.create(boss=build_record(100))
    async with run_operator(standalone=True, identity="me"):
        await objects.pass_fence()
    assert set(await shared.read()) == {"boss"}
    assert "peering" not in seen.log.text


@pytest.mark.feature("PEE-15")
async def test_the_record_stays_until_the_work_has_ended(
    run_operator: RunOperator, shared: PeeringObject, objects: Objects
) -> None:
    ended = asyncio.Event()
    records: list[Any] = []

    @webop.daemon("widgets")
    async def daemon(stopped: webop.DaemonStopped, **_: Any) -> None:
        await stopped.wait()
        await ended.wait()
        records.append(await shared.read())

    await shared.create()
    async with run_operator(standalone=False, identity="me", beside=True) as running:
        await objects.create("one")
        await objects.wait("one", lambda body: body["metadata"].get("finalizers"))
        await shared.wait(lambda records: "me" in records)
        stopping = asyncio.create_task(running.stop())
        await asyncio.sleep(0.1)
        assert set(await shared.read()) == {"me"}
        ended.set()
        await stopping
    assert [set(record) for record in records] == [{"me"}]
    assert await shared.read() == {}


HANDLERS = """
import webop

@webop.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    settings.admission.server = webop.WebhookServer()

@webop.on.validate('widgets')
@webop.on.create('widgets', labels={'x': 'y'})
def check(**_):
    pass
"""


@pytest.mark.feature("PEE-15")
async def test_at_sigterm_others_take_over_at_once_while_webhooks_are_served_on(
    connected: Workshop, shared: PeeringObject
) -> None:
    await shared.create()
    delay = {"WEBOP_ADMISSION__SHUTDOWN_DELAY": "60"}
    file = connected.write(HANDLERS)
    async with connected.start("-n", str(shared.namespace), file, **delay) as command:
        await shared.wait(bool, "a record")
        command.process.send_signal(signal.SIGTERM)
        await shared.wait(lambda records: not records, "no record")
        assert command.process.returncode is None


@pytest.mark.feature("PEE-12", "PEE-13")
@pytest.mark.parametrize("sharded", [False, True])
async def test_replicas_that_share_a_lease_are_one_peer(
    run_operator: RunOperator, shared: PeeringObject, objects: Objects, seen: Seen, sharded: bool
) -> None:
    lease = {
        "sharded": sharded,
        "lease_name": "ours",
        "lease_namespace": objects.namespace,
        "lease_duration": 4,
        "renew_deadline": 3,
        "retry_period": 0.2,
    }
    one, two = (build_settings(leadership=lease) for _ in range(2))
    ours = f"lease/{objects.namespace}/ours"
    await shared.create()
    async with (
        run_operator(one, standalone=False, identity="one", beside=True) as first,
        run_operator(two, standalone=False, identity="two", beside=True) as second,
    ):
        await objects.create("first", labels={"x": "y"})
        await seen.calls.wait("first")
        before = await shared.wait(lambda records: ours in records)
        is_first = (await read_holder(objects)).startswith("one")
        await (first if is_first else second).stop()
        await shared.wait(lambda records: records[ours]["lastseen"] > before[ours]["lastseen"])
        await objects.create("second", labels={"x": "y"})
        await seen.calls.wait("second")
        assert set(await shared.read()) == {ours}
        assert "Pausing" not in seen.log.text
        await shared.write("boss", build_record(100))
        await eventually(lambda: "Pausing in favour of boss" in seen.log.text)
        await objects.create("third", labels={"x": "y"})
        await asyncio.sleep(0.2)
        assert not seen.calls.of("third")
        await shared.write("boss", None)
        await seen.calls.wait("third")
    assert set(await shared.read()) == {ours}
    assert len(seen.calls) == 3


async def read_holder(objects: Objects) -> str:
    """Return the leader; with shards, the owner of the first one."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{objects.namespace}/leases/ours"
    try:
        lease = await objects.client.request("GET", path)
    except webop.APINotFoundError:
        lease = await objects.client.request("GET", f"{path}-shards")
        owners = json.loads(lease["metadata"]["annotations"]["webop.dev/shards"])
        (owner,) = (one["holder"] for one in owners if re.match(r"0\b", one["shards"]))
        return str(owner)
    return str(lease["spec"]["holderIdentity"])
