"""Replicas that divide the objects by shards, on a real API server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

import webop
from tests.kit.operators import Calls, Objects, Running, RunOperator, build_settings
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.coordination.timed_requests import LEASES
from webop.errors import APINotFoundError
from webop.objects.shards import SHARDS, find_shard, parse_shards

Json = dict[str, Any]

FAST: Json = {"lease_duration": 2, "renew_deadline": 1.5, "retry_period": 0.1}
MANY = 40  # objects; with random uids, each of three replicas has some of them


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "webop.coordination")
    return caplog


def share(objects: Objects, name: str = "team", **more: Any) -> webop.OperatorSettings:
    """Return the settings of a replica that shares the work."""
    names = {"lease_name": name, "lease_namespace": objects.namespace, "sharded": True}
    return build_settings(leadership={**FAST, **names, **more})


class Team:
    """The replicas of an operator, by their names."""

    def __init__(self, stack: AsyncExitStack, run: RunOperator, objects: Objects) -> None:
        self._stack, self._run, self.objects = stack, run, objects
        self.running: dict[str, Running] = {}

    async def add(self, name: str, **settings: Any) -> None:
        chosen = share(self.objects, **settings)
        options = {"identity": name, "memo": webop.Memo(me=name), "settings": chosen}
        entered = await self._stack.enter_async_context(self._run(beside=True, **options))
        self.running[name] = entered

    async def stop(self, name: str) -> None:
        await self.running.pop(name).stop()

    async def read_owners(self) -> dict[str, frozenset[int]]:
        """Return the shards of the replicas, as the Lease says."""
        try:
            raw = await self.objects.client.get(LEASES, self.objects.namespace, "team-shards")
        except APINotFoundError:
            return {}
        text = raw["metadata"]["annotations"]["webop.dev/shards"]
        return {one["holder"]: parse_shards(one["shards"]) for one in json.loads(text)}

    async def wait_balanced(self) -> dict[str, frozenset[int]]:
        """Wait until all running replicas own the same number of shards, or one more."""

        def is_fair(owners: dict[str, frozenset[int]]) -> bool:
            counts = [len(owners.get(name, ())) for name in self.running]
            return sum(counts) == SHARDS and max(counts) - min(counts) <= 1

        found: dict[str, frozenset[int]] = await eventually(
            self.read_owners, "fair shares", 20, check=is_fair
        )
        return found


@pytest.fixture
async def team(objects: Objects, run_operator: RunOperator) -> Any:
    async with AsyncExitStack() as stack:
        yield Team(stack, run_operator, objects)


@pytest.fixture
def seen(calls: Calls) -> Calls:
    """The calls of handlers of creation and resumption, with the names of the replicas."""

    @webop.on.create("widgets")
    async def created(memo: Any, **kwargs: Any) -> None:
        calls.note("created", kwargs, by=memo.me)

    @webop.on.resume("widgets")
    async def resumed(memo: Any, **kwargs: Any) -> None:
        calls.note("resumed", kwargs, by=memo.me)

    return calls


async def test_each_object_is_handled_by_the_replica_that_owns_its_shard(
    team: Team, objects: Objects, seen: Calls
) -> None:
    for name in ("one", "two", "three"):
        await team.add(name)
    owners = await team.wait_balanced()
    made = await asyncio.gather(*(objects.make(f"w-{number}") for number in range(MANY)))
    for body in made:
        meta = body["metadata"]
        (call,) = seen.of(meta["name"], "created")
        assert find_shard(meta["uid"]) in owners[call["by"]]
    assert len({call["by"] for call in seen}) == 3


async def test_a_replica_that_comes_gets_its_share_and_one_that_stops_leaves_it_at_once(
    team: Team, objects: Objects, seen: Calls
) -> None:
    await team.add("one")
    await objects.pass_fence()  # what comes now is new, and not resumed
    await asyncio.gather(*(objects.make(f"w-{number}") for number in range(MANY)))
    await team.add("two")
    owners = await team.wait_balanced()
    moved = [
        f"w-{number}"
        for number in range(MANY)
        if find_shard((await objects.get(f"w-{number}"))["metadata"]["uid"]) in owners["two"]
    ]
    assert 0 < len(moved) < MANY
    for name in moved:
        (call,) = await seen.wait(name, "resumed")
        assert call["by"] == "two"
    await team.stop("one")
    for name in {f"w-{number}" for number in range(MANY)}.difference(moved):
        (call,) = await seen.wait(name, "resumed")
        assert call["by"] == "two"
    found = Counter(call["handler"] for call in seen if call["name"].startswith("w-"))
    assert found == {"created": MANY, "resumed": MANY}


async def test_a_change_during_a_move_is_handled_once(
    team: Team, objects: Objects, seen: Calls
) -> None:
    @webop.on.update("widgets", field="spec.x")
    async def updated(memo: Any, **kwargs: Any) -> None:
        seen.note("updated", kwargs, by=memo.me)
        await asyncio.sleep(0.01)

    await team.add("one")
    await asyncio.gather(*(objects.make(f"w-{number}") for number in range(MANY)))
    done = asyncio.Event()

    async def churn(name: str) -> None:
        count = 0
        while not done.is_set():
            count += 1
            await objects.change(name, {"spec": {"x": count}})
            assert len(seen.of(name, "updated")) == count
            assert seen.of(name, "updated")[-1]["new"] == count

    async with asyncio.TaskGroup() as group:
        for number in range(MANY):
            group.create_task(churn(f"w-{number}"))
        await team.add("two")
        await team.wait_balanced()
        await team.add("three")
        await team.wait_balanced()
        await team.stop("one")
        await team.wait_balanced()
        done.set()
    assert {call["by"] for call in seen if call["handler"] == "updated"} == {"one", "two", "three"}


async def test_daemons_stop_before_those_of_the_next_owner_begin(
    team: Team, objects: Objects
) -> None:
    running: dict[str, set[str]] = {}

    @webop.daemon("widgets")
    async def work(name: str, memo: Any, stopped: webop.DaemonStopped, **_: Any) -> None:
        assert not running.setdefault(name, set())
        running[name].add(memo.me)
        try:
            await stopped.wait()
        finally:
            running[name].discard(memo.me)

    await team.add("one")
    await asyncio.gather(*(objects.create(f"w-{number}") for number in range(MANY)))
    names = {f"w-{number}" for number in range(MANY)}

    def list_of(owner: str) -> set[str]:
        return {name for name, by in running.items() if by == {owner}}

    await eventually(lambda: list_of("one") == names, "all daemons")
    await team.add("two")
    await eventually(lambda: list_of("two") and list_of("one") | list_of("two") == names, "moves")
    await team.wait_balanced()
    await team.stop("one")
    await eventually(lambda: list_of("two") == names, "all daemons at the second one")


async def test_an_object_whose_handler_runs_for_long_stays_and_others_move(
    team: Team, objects: Objects, calls: Calls, log: pytest.LogCaptureFixture
) -> None:
    released = asyncio.Event()
    webop.on.create("widgets", id="long")(calls.noting("long", released))
    await team.add("one")
    await objects.create("busy")
    await calls.wait("busy")
    shard = find_shard((await objects.get("busy"))["metadata"]["uid"])
    await team.add("two")
    owners = await team.wait_balanced()
    assert shard in owners["one"]
    assert len(calls.of("busy")) == 1
    released.set()
    await objects.wait_handled("busy")
    assert len(calls.of("busy")) == 1


async def test_without_the_lease_of_owners_all_begin_anew_and_nobody_acts_twice(
    team: Team, objects: Objects, seen: Calls, client: Client, log: pytest.LogCaptureFixture
) -> None:
    for name in ("one", "two"):
        await team.add(name)
    await team.wait_balanced()
    await asyncio.gather(*(objects.make(f"w-{number}") for number in range(MANY)))
    await client.delete(LEASES, objects.namespace, "team-shards")
    await eventually(lambda: log.text.count("Leadership is lost") == 2, "both notice it")
    await team.wait_balanced()
    for number in range(MANY):
        await seen.wait(f"w-{number}", "resumed")
    await objects.make("later")
    assert len(seen.of("later", "created")) == 1


async def test_the_lease_of_a_replica_that_is_deleted_comes_back_and_its_shards_stay(
    team: Team, objects: Objects, seen: Calls, client: Client
) -> None:
    await team.add("one")
    await team.add("two")
    before = await team.wait_balanced()
    (slot,) = [
        name
        for name in ("team-member-00", "team-member-01")
        if (await client.get(LEASES, objects.namespace, name))["spec"]["holderIdentity"] == "one"
    ]
    await client.delete(LEASES, objects.namespace, slot)

    async def is_back() -> bool:
        async for page in client.list_pages(LEASES, objects.namespace):
            if any(raw["metadata"]["name"] == slot for raw in page.items):
                return True
        return False

    await eventually(is_back, "the lease")
    await objects.make("later")
    assert await team.read_owners() == before


async def test_replicas_with_a_leader_and_replicas_with_shards_exclude_each_other(
    team: Team, objects: Objects, seen: Calls, log: pytest.LogCaptureFixture
) -> None:
    await team.add("leader", sharded=False)
    await objects.make("a")
    await team.add("sharer")
    await eventually(lambda: "owns no more shards" in log.text, "a word")
    await objects.make("b")
    await team.stop("leader")
    await seen.wait("b", "resumed")
    await team.add("leader", sharded=False)
    await eventually(lambda: "--shards is used" in log.text, "a word")
    await objects.make("c")
    await team.stop("sharer")
    await seen.wait("c", "resumed")
    assert [call["by"] for call in seen.of("b")] == ["leader", "sharer", "leader"]
    assert [call["by"] for call in seen.of("c")] == ["sharer", "leader"]


async def test_a_canary_gives_up_its_shards_when_its_calls_fail(
    team: Team, objects: Objects, calls: Calls, log: pytest.LogCaptureFixture
) -> None:
    @webop.on.create("widgets", backoff=0.1)
    async def created(memo: Any, **kwargs: Any) -> None:
        calls.note("created", kwargs, by=memo.me)
        if memo.me == "canary":
            raise RuntimeError("the new version is wrong")

    await team.add("one")
    await team.add("canary", canary_shards=2)

    def has_two(owners: dict[str, frozenset[int]]) -> bool:
        return len(owners.get("canary", ())) == 2

    await eventually(team.read_owners, "two shards", check=has_two)
    await asyncio.gather(*(objects.create(f"w-{number}") for number in range(300)))
    await eventually(lambda: "The canary gives up its shards" in log.text, "its end", 20)
    for number in range(300):
        await objects.wait_handled(f"w-{number}")
    assert "canary" not in await team.read_owners()
    assert {call["by"] for call in calls} == {"one", "canary"}
