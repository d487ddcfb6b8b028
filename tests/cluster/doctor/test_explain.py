"""``webop explain``: why nothing happens to an object, by the object and by a replica."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

import webop
from tests.kit.cli_runner import invoke
from tests.kit.leases import LEASES, hold_lease
from tests.kit.operators import Objects, RunOperator, build_settings
from tests.kit.rows import rows
from tests.kit.waiting import eventually
from webop.controlplane.cluster_client import find_free_port
from webop.objects.shards import find_shard
from webop.testing import LocalCluster

KIND = "widgets.tests.webop.dev"
IDLE = "idle: nothing is left to do until something changes"


class Explainer:
    """The command, for an object, and the operator that it asks."""

    def __init__(self, objects: Objects, run: RunOperator, env: dict[str, str]) -> None:
        self.objects, self.url = objects, f"http://127.0.0.1:{find_free_port()}"
        self.options: Any = {"liveness_endpoint": f"{self.url}/healthz", "beside": True}
        self._run, self._env = run, env

    def operating(self, **settings: Any) -> AbstractAsyncContextManager[Any]:
        return self._run(build_settings(**settings), **self.options)

    async def __call__(self, what: str = f"{KIND}/orders", *args: str, code: int = 0) -> str:
        args = ("-n", self.objects.namespace, f"--status={self.url}/ui", what, *args)
        result = await asyncio.to_thread(invoke, "explain", *args, env=self._env)
        assert result.exit_code == code, result.output
        return " ".join(result.output.split())

    async def wait(self, *texts: str) -> str:
        """Return the explanation of the object that has all of these texts."""
        return str(await eventually(self, str(texts), check=lambda s: all(t in s for t in texts)))


@pytest.fixture
def explain(
    webop_cluster: LocalCluster, objects: Objects, run_operator: RunOperator, tmp_path: Path
) -> Explainer:
    env = {"KUBECONFIG": str(webop_cluster.kubeconfig), "HOME": str(tmp_path)}
    return Explainer(objects, run_operator, env)


async def test_an_object_is_idle_if_it_is_handled_or_waits_for_others(explain: Explainer) -> None:
    webop.on.create("widgets", id="create_database")(lambda **_: None)
    webop.on.update("widgets", id="follow", field="status.size")(lambda **_: None)
    webop.on.delete("widgets", id="drop")(lambda **_: None)
    async with explain.operating(persistence={"prefix": "shop.example.com"}):
        await explain.objects.create("orders", {"size": 1}, finalizers=["example.com/other"])
        await explain.objects.patch("orders", {"status": {"size": 1}})
        said = await explain.wait("it is handled: nothing has changed since", IDLE)
        assert "create create_database, update follow" in said
        assert ": acting" in said
        assert "warning" not in said
    await explain.objects.patch("orders", {"spec": {"size": 2}})
    assert "a change of spec.size is not handled yet (shop.example.com)" in await explain()
    async with explain.operating(persistence={"prefix": "shop.example.com"}):
        await explain.objects.delete("orders")
        await explain.wait("waits for example.com/other -> ", IDLE)
    await explain.objects.patch("orders", {"metadata": {"finalizers": None}})


async def test_a_handler_that_fails_has_a_record_and_an_attempt_to_come(explain: Explainer) -> None:
    @webop.on.create("widgets", id="create_database")
    async def create(**_: Any) -> None:
        raise webop.TemporaryError("the disk is full", delay=3600)

    async with explain.operating():
        await explain.objects.create("orders", {"size": 1})
        said = await explain.wait(
            "create_database create began",
            "attempts: 1, the next one in 60 min: the disk is full",
            "failed attempts in a row: 1, the last one with TemporaryError",
            "its next turn is in 60 min",
        )
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.get(f"{explain.url}/status.json?object={KIND}/no-such-uid")
    assert "none is stored" in said
    assert answer.json()["object"] is None
    await explain.wait("the disk is full", f"none was asked: {explain.url}", "kubectl port-forward")


async def test_a_handler_that_runs_is_named(explain: Explainer) -> None:
    released = asyncio.Event()

    @webop.on.create("widgets", id="slow")
    async def create(**_: Any) -> None:
        await released.wait()

    @webop.daemon("widgets", id="guard")
    async def guard(stopped: Any, **_: Any) -> None:
        await stopped.wait()

    @webop.reconcile("widgets", id="build")
    async def build(**_: Any) -> Any:
        return webop.again(after=3600, reason="the database starts")

    async with explain.operating():
        await explain.objects.create("orders", {"size": 1})
        await explain.wait("slow has run for", "running: guard")
        released.set()
        await explain.wait("build is called again in 60 min: the database starts")


class Sized(webop.Struct):
    size: int = 1


async def test_an_object_that_does_not_fit_its_model_has_failed(explain: Explainer) -> None:
    @webop.on.create("widgets", id="create")
    async def create(spec: Sized, **_: Any) -> None: ...

    async with explain.operating():
        await explain.objects.create("orders", {"size": "secret-size"})
        await explain.objects.create("others", {"size": "secret-size"})
        said = await explain.wait("(model) failed for good", "with MisfitError")
    assert (said.count("(model)"), said.count("secret")) == (1, 0)


async def test_objects_are_held_until_the_indexes_have_all_others(explain: Explainer) -> None:
    released = asyncio.Event()

    @webop.index("widgets", id="by_name")
    async def index(name: str, **_: Any) -> None:
        if name == "slow":
            await released.wait()

    webop.on.create("widgets", id="create")(lambda **_: None)
    await asyncio.gather(*map(explain.objects.create, ("orders", "slow")))

    async def operate_held() -> None:
        async with explain.operating():
            await explain.objects.wait_handled("orders")

    running = asyncio.create_task(operate_held())
    await explain.wait("it waits for the list of widgets", "not ready the indexes are not filled")
    released.set()
    await running


async def test_a_standby_says_who_holds_the_lease(explain: Explainer) -> None:
    namespace = explain.objects.namespace
    await hold_lease(explain.objects.client, namespace, "leader")
    webop.on.create("widgets", id="create")(lambda **_: None)
    await explain.objects.create("orders")
    leadership = {"lease_name": "leader", "lease_namespace": namespace}
    async with explain.operating(leadership=leadership):
        await explain.wait("standing by", "boss", "it does not act: it calls no handlers")


async def test_the_selectors_that_exclude_an_object_are_named(explain: Explainer) -> None:
    webop.on.create("widgets", id="create")(lambda **_: None)
    async with explain.operating(watching={"label_selectors": {"widgets": "tier=gold"}}):
        await explain.objects.create("orders", labels={"tier": "tin"})
        await explain.wait("does not see the object: it serves only", "labelSelector=tier=gold")
        await explain.objects.patch("orders", {"metadata": {"labels": {"tier": "gold"}}})
        await explain.wait(IDLE)


@rows(
    ("args", "code", "text"),
    [
        ((f"{KIND}/nothing",), 1, "There is no widgets.v1.tests.webop.dev"),
        (("widgetz.tests.webop.dev/orders",), 2, "Did you mean widgets.v1.tests.webop.dev?"),
        ((KIND,), 2, "Name an object"),
        (("a/b/orders",), 2, "must not have a slash"),
        ((f"{KIND}/orders", "-n", "default"), 1, ": add -n "),
        ((f"{KIND}/orders", "--status", "nonsense"), 0, "none was asked: nonsense:"),
    ],
)
async def test_what_is_not_there_has_a_hint(
    explain: Explainer, args: tuple[str, ...], code: int, text: str
) -> None:
    with contextlib.suppress(webop.APIConflictError):  # of the row before
        await explain.objects.create("orders")
    assert text in await explain(*args, code=code)


async def test_the_shard_of_an_object_and_its_owner_are_named(
    explain: Explainer, run_operator: RunOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    webop.on.create("widgets", id="create")(lambda **_: None)
    namespace, team = explain.objects.namespace, {"lease_name": "team", "sharded": True}
    leadership = {**team, "lease_namespace": namespace, "retry_period": 0.1}
    settings = build_settings(leadership=leadership)
    async with explain.operating(leadership=leadership):
        await explain.objects.make("orders")
        meta = (await explain.objects.get("orders"))["metadata"]
        shard = find_shard(meta["uid"])
        await explain.wait(f"shard {shard}, owned by ", IDLE, "owning 64 of 64 shards")
        async with run_operator(settings, identity="second", beside=True):

            async def count() -> int:
                lease = await explain.objects.client.get(LEASES, namespace, "team-shards")
                return len(json.loads(lease["metadata"]["annotations"]["webop.dev/shards"]))

            await eventually(count, "two owners", check=lambda found: found == 2)
            for number in itertools.count():
                made = await explain.objects.make(f"w-{number}")
                moved = find_shard(made["metadata"]["uid"])
                said = await explain(f"{KIND}/w-{number}")
                if f"shard {moved}, owned by second" in said:
                    break
            assert "another replica handles the objects of its shard" in said
            assert "port-forward pod/NAME" in said
            monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")  # the replica is in a pod
            assert "port-forward pod/second 8081" in await explain(f"{KIND}/w-{number}")
