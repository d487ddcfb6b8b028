"""Replicas that divide the objects, with a server that sends each only its own, and with others."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pytest

import webop
from tests.kit.http_relay import Relay, relay
from tests.kit.operators import (
    Calls,
    Json,
    Kind,
    Objects,
    build_settings,
    connect,
    define_kinds,
    open_http,
    operate,
)
from tests.kit.waiting import eventually
from webop.objects.shards import SHARDS, build_shard_selector, find_shard, parse_shards

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

GATE = "--feature-gates=ShardedListAndWatch=true"  # alpha in Kubernetes 1.36 (KEP-5866)
MANY = 24
TEAM: Json = {"lease_name": "team", "lease_namespace": "default", "sharded": True}
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/team-shards"

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def selecting() -> Iterator[LocalCluster]:
    """A cluster whose server knows ``shardSelector``."""
    from webop.controlplane.cluster import LocalCluster  # noqa: PLC0415 - only if it is used

    with LocalCluster(apiserver_flags=[GATE]) as started:
        yield started


@pytest.fixture(scope="module")
def tokens(selecting: LocalCluster) -> Kind:
    return next(define_kinds(selecting, [Kind("shards.tests.webop.dev", "tokens", "Token")]))


class Seen:
    """What one replica has received of a kind in its newest watch, by a relay.

    Attributes:
        selector: the selector of that watch.
        uids: those of the objects.
    """

    def __init__(self, relayed: Relay, plural: str) -> None:
        self.selector: str | None = None
        self.uids: set[str] = set()
        self._relay, self._plural = relayed, plural
        relayed.watch = self._watch

    async def _watch(self, request: httpx.Request) -> AsyncIterator[bytes]:
        rest, uids = b"", set[str]()
        if is_chosen := request.url.path.endswith(f"/{self._plural}"):
            self.selector, self.uids = request.url.params.get("shardSelector", ""), uids
        async for data in self._relay.pass_watch_on(request):
            if is_chosen:
                *lines, rest = (rest + data).split(b"\n")
                metas = [orjson.loads(line)["object"]["metadata"] for line in lines]
                uids |= {meta["uid"] for meta in metas if "uid" in meta}
            yield data


async def share(
    stack: AsyncExitStack, cluster: LocalCluster, registry: webop.OperatorRegistry, name: str
) -> Seen:
    """Run a replica behind a relay."""
    relayed = await stack.enter_async_context(relay(cluster))
    settings = build_settings(leadership={**TEAM, "retry_period": 0.2})
    options: Any = {"identity": name, "memo": webop.Memo(me=name), "namespaces": ["default"]}
    running = operate(relayed.info, registry, settings, beside=True, **options)
    await stack.enter_async_context(running)
    return Seen(relayed, "tokens")


async def wait_owned(http: httpx.AsyncClient, names: set[str]) -> dict[str, frozenset[int]]:
    """Wait until replicas own all shards in fair shares; return the shards of each."""

    async def read() -> dict[str, frozenset[int]]:
        raw = (await http.get(LEASE)).raise_for_status().json()
        owners = json.loads(raw["metadata"]["annotations"]["webop.dev/shards"])
        return {one["holder"]: parse_shards(one["shards"]) for one in owners}

    def is_fair(owners: dict[str, frozenset[int]]) -> bool:
        counts = [*map(len, owners.values())]
        return {*owners} == names and sum(counts) == SHARDS and max(counts) - min(counts) <= 1

    what = "fair shares"
    found: dict[str, frozenset[int]] = await eventually(
        read, what, 30, check=is_fair, ignoring=(httpx.HTTPError, KeyError)
    )
    return found


@pytest.fixture
def seen(calls: Calls) -> Calls:
    @webop.on.create("tokens")
    async def created(memo: Any, **kwargs: Any) -> None:
        calls.note("created", kwargs, by=memo.me)

    @webop.on.resume("tokens")
    async def resumed(memo: Any, **kwargs: Any) -> None:
        calls.note("resumed", kwargs, by=memo.me)

    @webop.on.delete("tokens")
    async def deleted(memo: Any, **kwargs: Any) -> None:
        calls.note("deleted", kwargs, by=memo.me)

    return calls


async def test_a_replica_gets_only_the_objects_of_its_shards_also_after_it_has_given_up_some(
    selecting: LocalCluster, tokens: Kind, registry: webop.OperatorRegistry, seen: Calls
) -> None:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(open_http(selecting))
        objects = Objects(await stack.enter_async_context(connect(selecting)), tokens, "default")
        received = {"one": await share(stack, selecting, registry, "one")}
        await wait_owned(http, {"one"})
        old = [f"old-{number}" for number in range(MANY)]
        await asyncio.gather(*(objects.make(name) for name in old))
        for name in ("two", "three"):
            received[name] = await share(stack, selecting, registry, name)
            owners = await wait_owned(http, {*received})
        wanted = {name: build_shard_selector("uid", own) for name, own in owners.items()}
        await eventually(
            lambda: {name: one.selector for name, one in received.items()} == wanted,
            lambda: f"the watches of {wanted}",
        )
        for one in received.values():
            one.uids.clear()
        new = [f"new-{number}" for number in range(MANY)]
        made = await asyncio.gather(*(objects.make(name) for name in new))
        for body in made:
            (call,) = seen.of(body["metadata"]["name"], "created")
            assert find_shard(body["metadata"]["uid"]) in owners[call["by"]]
        assert [len(seen.of(name, "created")) for name in old] == [1] * MANY
        assert {call["by"] for call in seen} == {"one", "two", "three"}
        await asyncio.gather(*(objects.remove(name) for name in (*old, *new)))
        assert [len(seen.of(name, "deleted")) for name in (*old, *new)] == [1] * 2 * MANY
        for name, own in owners.items():
            assert {find_shard(uid) for uid in received[name].uids} <= own, name
            assert len(received[name].uids) > MANY / 6


async def test_the_server_finds_the_same_shards_of_many_uids(
    selecting: LocalCluster, tokens: Kind
) -> None:
    async with open_http(selecting) as http:
        url = tokens.resource.get_url(namespace="default")
        head = {"apiVersion": tokens.resource.api_version, "kind": tokens.kind}

        async def create(numbers: range) -> list[str]:
            uids = []
            for number in numbers:
                body = {**head, "metadata": {"name": f"token-{number}"}}
                answer = await http.post(url, json=body)
                uids.append(answer.raise_for_status().json()["metadata"]["uid"])
            return uids

        made = await asyncio.gather(*(create(range(n, 100, 10)) for n in range(10)))
        uids = {uid for several in made for uid in several}
        assert len(uids) == 100
        for shard in range(0, SHARDS, 3):
            params = {"shardSelector": build_shard_selector("uid", [shard])}
            answer = (await http.get(url, params=params)).raise_for_status().json()
            found = {item["metadata"]["uid"] for item in answer["items"]} & uids
            assert found == {uid for uid in uids if find_shard(uid) == shard}
        (await http.delete(url)).raise_for_status()


async def test_the_server_finds_the_same_shards_of_namespaces(selecting: LocalCluster) -> None:
    names = [f"ns-{uuid.uuid4()}" for _ in range(20)]
    async with open_http(selecting) as http:
        for name in names:
            body = {"metadata": {"name": name}}
            (await http.post("/api/v1/namespaces", json=body)).raise_for_status()
            path = CONFIG_MAPS.replace("default", name)
            answer = await http.post(path, json={"metadata": {"name": "one"}})
            answer.raise_for_status()
        for shards in (range(20), [*range(20, 50, 3)], [63]):
            params = {"shardSelector": build_shard_selector("namespace", shards)}
            answer = (await http.get("/api/v1/configmaps", params=params)).raise_for_status()
            found = {item["metadata"]["namespace"] for item in answer.json()["items"]}
            assert found & {*names} == {name for name in names if find_shard(name) in shards}
