"""Replicas that divide the objects by shards, on a real API server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import httpx
import pytest

import webop
from tests.kit.http_relay import fail
from tests.kit.leases import LEASES
from tests.kit.operators import Calls, Json, Objects, Running, RunOperator, build_settings
from tests.kit.reviews import serve
from tests.kit.rights import grant, read_vault
from tests.kit.scrapes import scrape
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.controlplane.cluster_client import find_free_port
from webop.objects.shards import SHARDS, find_shard, parse_shards
from webop.testing import LocalCluster

SHORT: Json = {"lease_duration": 4, "renew_deadline": 3}
TIMES: Json = {"lease_duration": 10, "renew_deadline": 8, "retry_period": 0.1}
MANY = 24  # objects; with random uids, each of three replicas has some of them


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "webop.coordination")
    return caplog


def share(objects: Objects, name: str = "team", **more: Any) -> webop.OperatorSettings:
    """Return the settings of a replica that shares the work."""
    names = {"lease_name": name, "lease_namespace": objects.namespace, "sharded": True}
    return build_settings(leadership={**TIMES, **names, **more})


class Team:
    """The replicas of an operator, by their names."""

    def __init__(self, stack: AsyncExitStack, run: RunOperator, objects: Objects) -> None:
        self._stack, self._run, self.objects = stack, run, objects
        self.running: dict[str, Running] = {}

    async def add(self, name: str, options: Json | None = None, **settings: Any) -> None:
        chosen = share(self.objects, **settings)
        own = {"identity": name, "memo": webop.Memo(me=name), "settings": chosen, **(options or {})}
        entered = await self._stack.enter_async_context(self._run(beside=True, **own))
        self.running[name] = entered

    async def stop(self, name: str) -> None:
        await self.running.pop(name).stop()

    async def read_owners(self) -> dict[str, frozenset[int]]:
        """Return the shards of the replicas, as the Lease says."""
        try:
            raw = await self.objects.client.get(LEASES, self.objects.namespace, "team-shards")
        except webop.APINotFoundError:
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


async def test_a_replica_that_comes_gets_its_share_and_one_that_stops_leaves_it_at_once(
    team: Team, objects: Objects, seen: Calls
) -> None:
    await team.add("one")
    await objects.pass_first_list(seen)
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
        assert [call["by"] for call in await seen.wait(name, "resumed")] == ["two"], owners
    await team.stop("one")
    for name in {f"w-{number}" for number in range(MANY)}.difference(moved):
        assert [call["by"] for call in await seen.wait(name, "resumed")] == ["two"], owners
    found = Counter(call["handler"] for call in seen if call["name"].startswith("w-"))
    assert found == {"created": MANY, "resumed": MANY}


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


async def test_a_leader_that_cannot_see_whether_an_owner_of_shards_runs_names_the_remedy(
    webop_cluster: LocalCluster, objects: Objects, seen: Calls
) -> None:
    client, place, user = objects.client, objects.namespace, f"{objects.namespace}-leader"
    await grant(client, user, objects.kind.crd_name, "get,list,watch,patch", place)
    leases = "leases.coordination.k8s.io"  # as webop manifests grants them with --lease
    await grant(client, user, leases, "get,update", place, "team")
    await grant(client, user, leases, "get", place, "team-shards")
    await grant(client, user, leases, "create", place)
    killed = {"slot": "team-member-00", "holder": "killed", "shards": f"0-{SHARDS - 1}"}
    owners = json.dumps([{**killed, "since": "2026-11-30T00:00:00.000000Z"}])
    meta = {"labels": {"webop.dev/shards": "team"}, "annotations": {"webop.dev/shards": owners}}
    head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    await client.create(LEASES, place, {**head, "metadata": {"name": "team-shards", **meta}})
    settings = share(objects, sharded=False)
    settings.scanning.disabled = True
    vault = read_vault(webop_cluster, user)
    async with serve(settings=settings, vault=vault, namespaces=[place]) as site:
        remedy = f"If no replica with --shards runs, delete the lease {place}/team-shards"
        await eventually(lambda: site.answers(503, remedy), "the remedy")
        assert await site.answers(503, f"killed owns shards, as the lease {place}/team-shards says")
        await client.delete(LEASES, place, "team-shards")
        await eventually(lambda: site.answers(200), "readiness")


async def test_a_canary_gives_up_its_shards_when_its_calls_fail(
    team: Team, objects: Objects, calls: Calls, log: pytest.LogCaptureFixture
) -> None:
    @webop.on.create("widgets", backoff=0.1)
    async def created(memo: Any, **kwargs: Any) -> None:
        calls.note("created", kwargs, by=memo.me)
        if memo.me == "canary":
            raise RuntimeError("the new version is wrong")

    await team.add("one")
    url = f"http://127.0.0.1:{find_free_port()}/metrics"
    await team.add("canary", {"metrics_endpoint": url}, canary_shards=2)

    def has_two(owners: dict[str, frozenset[int]]) -> bool:
        return len(owners.get("canary", ())) == 2

    await eventually(team.read_owners, "two shards", check=has_two)
    await asyncio.gather(*(objects.create(f"w-{number}") for number in range(300)))
    async with httpx.AsyncClient(trust_env=False) as http:
        assert (await scrape(http, url)).get("webop_canary_failed") in {0, 1}
        await eventually(lambda: "The canary gives up its shards" in log.text, "its end", 20)
        assert (await scrape(http, url)).get("webop_canary_failed") == 1
    for number in range(300):
        await objects.wait_handled(f"w-{number}")
    assert "canary" not in await team.read_owners()
    assert "; before: 2 shards." in log.text
    assert {call["by"] for call in calls} == {"one", "canary"}


CONFIG_MAP: Json = {"apiVersion": "v1", "kind": "ConfigMap"}


async def test_reconcilers_of_all_replicas_see_their_children_and_watched_kinds(
    team: Team, objects: Objects, client: Client, registry: webop.OperatorRegistry
) -> None:
    reconciled: dict[str, set[str]] = {}
    owner: dict[str, str] = {}
    passes = Counter[str]()

    def name_parents(name: str, **_: Any) -> list[str]:
        return [f"w-{number}" for number in range(MANY)] if name == "shared" else []

    @webop.reconcile("widgets", owns=["configmaps"], watches={"secrets": name_parents})
    async def apply(
        name: str, memo: Any, children: webop.Children, because: tuple[str, ...], **_: Any
    ) -> None:
        if owner.setdefault(name, memo.me) != memo.me:
            owner[name] = memo.me
            reconciled[name] = set()
        reconciled.setdefault(name, set()).update(because)
        passes[name] += 1
        await children.apply({**CONFIG_MAP, "metadata": {"name": name}, "data": {"x": "wanted"}})

    for name in ("one", "two", "three"):
        await team.add(name)
    await team.wait_balanced()
    names = [f"w-{number}" for number in range(MANY)]
    await asyncio.gather(*(objects.create(name) for name in names))
    await eventually(lambda: reconciled.keys() == {*names}, "all are reconciled")
    maps = webop.Resource("", "v1", "configmaps", kind="ConfigMap", namespaced=True)

    async def read(name: str) -> Json:
        found: Json = (await client.get(maps, objects.namespace, name))["data"]
        return found

    for name in names:
        await eventually(partial(read, name), f"child of {name}", ignoring=webop.APINotFoundError)
        await client.patch(maps, objects.namespace, name, {"data": {"x": "changed"}})
    for name in names:
        await eventually(partial(read, name), f"{name}", check=lambda data: data["x"] == "wanted")
    secrets = webop.Resource("", "v1", "secrets", kind="Secret", namespaced=True)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "shared"}}
    await client.create(secrets, objects.namespace, secret)
    await eventually(
        lambda: [name for name in names if "secrets" not in reconciled[name]] == [],
        lambda: f"the watched kind calls all parents: {reconciled}",
    )
    assert len({*owner.values()}) == 3


async def test_an_index_has_the_objects_of_all_shards_in_each_replica(
    team: Team, objects: Objects, seen: Calls
) -> None:
    @webop.index("widgets", id="everything")
    async def index(name: str, **_: Any) -> dict[str, str]:
        return {"all": name}

    @webop.on.update("widgets", field="spec.x")
    async def look(memo: Any, everything: webop.Index[str, str], **kwargs: Any) -> None:
        seen.note("look", kwargs, by=memo.me, count=len(everything.get("all", ())))

    for name in ("one", "two"):
        await team.add(name)
    await team.wait_balanced()
    for number in range(MANY):
        await objects.create(f"w-{number}")
    for number in range(MANY):
        await objects.wait_handled(f"w-{number}")
    for number in range(0, MANY, 2):
        await objects.remove(f"w-{number}")
    for number in range(1, MANY, 2):
        await objects.change(f"w-{number}", {"spec": {"x": 1}})
    looks = [call for call in seen if call["handler"] == "look"]
    assert len(looks) == MANY // 2
    assert {call["count"] for call in looks} == {MANY // 2}
    assert {call["by"] for call in looks} == {"one", "two"}


async def test_one_replica_handles_all_objects_of_a_namespace_and_kinds_that_are_not_divided(
    team: Team, objects: Objects, client: Client, seen: Calls, stack_of_namespaces: list[str]
) -> None:
    @webop.on.create("configmaps", labels={"shards": "no"})
    async def single(memo: Any, **kwargs: Any) -> None:
        seen.note("single", kwargs, by=memo.me)

    names = {"namespaces": [objects.namespace, *stack_of_namespaces]}
    for name in ("one", "two", "three"):
        await team.add(name, options=names, shard_by="namespace", unsharded=["configmaps"])
    owners = await team.wait_balanced()
    for namespace in stack_of_namespaces:
        there = Objects(client, objects.kind, namespace)
        for number in range(3):
            await there.make(f"{namespace}-{number}")
        by = {call["by"] for call in seen if str(call["name"]).startswith(namespace)}
        (owner,) = by
        assert find_shard(namespace) in owners[owner]
    maps = webop.Resource("", "v1", "configmaps", kind="ConfigMap", namespaced=True)
    for number in range(10):
        body = {**CONFIG_MAP, "metadata": {"name": f"m-{number}", "labels": {"shards": "no"}}}
        await client.create(maps, objects.namespace, body)
    await eventually(lambda: sum(c["handler"] == "single" for c in seen) == 10, "all maps")
    (owner,) = {call["by"] for call in seen if call["handler"] == "single"}
    assert 0 in owners[owner]


@pytest.fixture
async def stack_of_namespaces(client: Client, objects: Objects) -> Any:
    namespaces = webop.Resource("", "v1", "namespaces", kind="Namespace")
    names = [f"{objects.namespace}-{number}" for number in range(6)]
    for name in names:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await client.create(namespaces, None, body)
    yield names
    for name in names:
        await client.delete(namespaces, None, name)


async def test_a_replica_without_a_right_to_leases_gets_no_share_and_says_why_until_it_has_it(
    webop_cluster: LocalCluster,
    team: Team,
    objects: Objects,
    seen: Calls,
) -> None:
    await team.add("one")
    await objects.pass_fence()
    user, client = f"{objects.namespace}-mute", objects.client
    vault = read_vault(webop_cluster, user)
    await grant(client, user, objects.kind.crd_name, "get,list,watch,patch", objects.namespace)
    leases = "leases.coordination.k8s.io"
    await grant(client, user, leases, "get,create", objects.namespace)
    settings = share(objects)
    settings.scanning.disabled = True
    options: Any = {"vault": vault, "namespaces": [objects.namespace], "memo": webop.Memo(me="two")}
    async with serve(settings=settings, **options) as site:
        await eventually(
            lambda: site.answers(503, 'cannot list resource \\"leases\\"'), "the obstacle"
        )
        await grant(client, user, leases, "list,watch", objects.namespace)
        await eventually(lambda: site.answers(503, "cannot update resource"), "the next obstacle")
        await asyncio.gather(*(objects.make(f"w-{number}") for number in range(MANY)))
        assert (await team.read_owners()).keys() == {"one"}
        await grant(client, user, leases, "update", objects.namespace)
        await eventually(lambda: site.answers(200), "readiness")


async def test_replicas_that_divide_in_different_ways_do_not_share(
    team: Team, objects: Objects, seen: Calls, log: pytest.LogCaptureFixture
) -> None:
    await team.add("old")
    await objects.pass_fence()
    await team.add("new", shard_by="namespace")
    await eventually(lambda: "takes no shards: replicas with other settings" in log.text, "a word")
    await asyncio.gather(*(objects.make(f"w-{number}") for number in range(MANY)))
    assert {call["by"] for call in seen.of("w-0") + seen.of("w-1")} == {"old"}
    await team.stop("old")
    await team.wait_balanced()
    await objects.make("later")
    assert [call["by"] for call in seen.of("later", "created")] == ["new"]


async def test_wrong_combinations_of_settings_are_refused_at_the_start(
    objects: Objects, run_operator: RunOperator, seen: Calls
) -> None:
    nameless = build_settings(leadership={"sharded": True})
    both = share(objects)
    both.watching.shard_selectors["widgets"] = "shardRange(object.metadata.uid, '0x0', '0x1')"
    canary = build_settings(leadership={"canary_shards": 2, "lease_name": "team"})
    for settings, text in (
        (nameless, "--shards NAME"),
        (both, "exclude each other"),
        (canary, "WEBOP_CANARY"),
    ):
        with pytest.raises(webop.ConfigurationError, match=text):
            async with run_operator(settings=settings):
                pass


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


async def test_a_replica_without_connection_stops_and_another_one_goes_on(
    team: Team,
    objects: Objects,
    seen: Calls,
    run_relayed: RunOperator,
    relayed: Any,
    log: pytest.LogCaptureFixture,
) -> None:
    await team.add("one", **SHORT)
    async with run_relayed(
        share(objects, **SHORT), identity="cut", memo=webop.Memo(me="cut"), beside=True, meddle=None
    ):
        team.running["cut"] = team.running["one"]
        owners = await team.wait_balanced()
        made = await asyncio.gather(*(objects.make(f"w-{number}") for number in range(MANY)))
        del team.running["cut"]
        is_down = asyncio.Event()

        async def refuse(_: Any) -> Any:
            is_down.set()
            return fail(503)

        relayed.meddle = refuse
        for body in made:
            meta = body["metadata"]
            if find_shard(meta["uid"]) in owners["cut"]:
                look = partial(seen.of, meta["name"])
                await eventually(look, "takeover", check=lambda found: found[-1]["by"] == "one")
                await objects.change(meta["name"], {"spec": {"x": 1}})
        assert "The replica cut has not renewed the lease" in log.text
        relayed.meddle = None
        team.running["cut"] = team.running["one"]
        await team.wait_balanced()
        del team.running["cut"]


async def test_an_object_whose_handler_runs_for_long_stays_and_others_move(
    team: Team, objects: Objects, calls: Calls, log: pytest.LogCaptureFixture
) -> None:
    released = asyncio.Event()
    webop.on.create("widgets", id="long")(calls.noting("long", released))
    await team.add("one", **SHORT)
    await objects.create("busy")
    await calls.wait("busy")
    shard = find_shard((await objects.get("busy"))["metadata"]["uid"])
    await team.add("two", **SHORT)
    owners = await team.wait_balanced()
    assert shard in owners["one"]
    assert len(calls.of("busy")) == 1
    released.set()
    await objects.wait_handled("busy")
    assert len(calls.of("busy")) == 1


async def test_hostile_leases_take_no_share_and_end_nothing(
    team: Team, objects: Objects, seen: Calls, client: Client
) -> None:
    await team.add("one")
    await team.add("two")
    owners = await team.wait_balanced()
    stranger: Json = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "team-member-99", "labels": {"webop.dev/shards": "team"}},
        "spec": {"holderIdentity": "stranger", "leaseDurationSeconds": 1_000_000},
    }
    await client.create(LEASES, objects.namespace, stranger)
    stranger["metadata"]["name"] = "team-member-7"
    await client.create(LEASES, objects.namespace, stranger)
    absurd = {"metadata": {"annotations": {"webop.dev/canary": "9" * 5000}}}
    await client.patch(LEASES, objects.namespace, "team-member-01", absurd)
    await asyncio.gather(*(objects.make(f"w-{number}") for number in range(MANY)))
    assert await team.read_owners() == owners
    assert len(seen) == MANY
