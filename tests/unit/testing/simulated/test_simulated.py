"""Whole operators in virtual time: the clock, threads, kills, faults, webhooks, replicas."""

from __future__ import annotations

import asyncio
import datetime as dt
import importlib
import random
import re
import socket
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

import webop
from tests.kit.rows import rows
from tests.unit.testing.simulated.operators import (
    HERE,
    Thing,
    build_config,
    build_thing,
    create_and_settle,
    get_status,
    run,
)
from webop.testing import SimulatedCluster, SimulationError, simulated

EPOCH = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def declare_nothing() -> None:
    webop.on.create(Thing)(lambda **_: None)


# The clock.


def tick_each(seconds: int) -> None:
    @webop.timer(Thing, interval=seconds, sharp=True)
    async def tick(patch: webop.Patch, status: Any, **_: Any) -> None:
        patch.status["times"] = [*status.get("times", []), webop.now().isoformat()]


def tick_each_hour() -> None:
    tick_each(3600)


def tick_each_minute() -> None:
    tick_each(60)


@simulated(tick_each_hour, given=[Thing, build_thing()])
def test_a_timer_is_called_at_its_times_for_three_days(cluster: SimulatedCluster) -> None:
    cluster.advance(days=3, minutes=1)
    times = [dt.datetime.fromisoformat(each) for each in get_status(cluster)["times"]]
    hours = [(moment - EPOCH).total_seconds() / 3600 for moment in times]
    assert hours == pytest.approx(range(73), abs=0.01)


def read_all_clocks() -> None:
    @webop.on.create(Thing)
    def read(patch: webop.Patch, **_: Any) -> None:
        began = time.monotonic()
        time.sleep(1000)
        patch.status["elapsed"] = round(time.monotonic() - began)
        patch.status["walls"] = [
            str(int((moment - EPOCH).total_seconds()))
            for moment in (
                webop.now(),
                dt.datetime.now(dt.UTC),
                dt.datetime.fromtimestamp(time.time(), dt.UTC),
            )
        ]


@simulated(read_all_clocks, given=[Thing])
def test_all_clocks_of_a_sync_handler_are_virtual(cluster: SimulatedCluster) -> None:
    began = time.perf_counter()
    cluster.create(build_thing())
    cluster.settle(within=2000)
    assert get_status(cluster) == {"elapsed": 1000, "walls": ["1000"] * 3}
    assert time.perf_counter() - began < 60
    assert cluster.now - EPOCH > dt.timedelta(seconds=1000)


@simulated(declare_nothing, now=dt.datetime(2028, 2, 29, 12, tzinfo=dt.UTC))
def test_the_time_begins_where_the_test_wants_it(cluster: SimulatedCluster) -> None:
    cluster.advance(hours=12)
    assert cluster.now.date() == dt.date(2028, 3, 1)
    assert dt.datetime.now(dt.UTC).date() == dt.date(2028, 3, 1)


def test_afterwards_all_clocks_are_real(tmp_path: Path) -> None:
    kept = time.sleep, time.time, socket.socket.connect
    simulated(declare_nothing)(lambda cluster: cluster.advance(days=1))()
    assert (time.sleep, time.time, socket.socket.connect) == kept
    (tmp_path / "file").touch()  # the system knows the real time
    known = (tmp_path / "file").stat().st_mtime
    assert abs(dt.datetime.now(dt.UTC).timestamp() - known) < 3600


def draw() -> None:
    @webop.on.create(Thing)
    async def create(patch: webop.Patch, **_: Any) -> None:
        patch.status["drawn"] = [str(uuid.uuid4()), str(random.random())]


def test_random_numbers_are_those_of_the_seed() -> None:
    seen: list[Any] = []

    def collect(cluster: SimulatedCluster) -> None:
        seen.append(create_and_settle(cluster)["drawn"])

    for _ in range(2):
        run(draw, test=collect, seeds=3, faults=False)
    assert seen[:3] == seen[3:]
    assert len({str(each) for each in seen}) == 3


# Threads.


def run_a_sync_daemon() -> None:
    @webop.daemon(Thing)
    def follow(stopped: Any, client: webop.SyncClient, name: str, **_: Any) -> None:
        while not stopped:
            client.apply(build_config(name, at=webop.now().isoformat()))
            stopped.wait(3600)
        client.delete("configmaps", name, **HERE)


@simulated(run_a_sync_daemon, given=[Thing, build_thing()])
def test_a_sync_daemon_waits_in_virtual_time_and_stops(cluster: SimulatedCluster) -> None:
    cluster.advance(hours=10, minutes=1)
    config = cluster.get("configmaps", "one", **HERE)
    assert config["data"]["at"].startswith("2030-01-01T10:00:0")
    cluster.delete(Thing, "one", **HERE)
    cluster.settle()
    assert not cluster.list("configmaps", **HERE)


def block() -> None:
    @webop.on.create(Thing)
    async def wait(patch: webop.Patch, **_: Any) -> None:
        time.sleep(20)  # noqa: ASYNC251
        patch.status["done"] = True


@simulated(block, given=[Thing])
def test_a_blocked_loop_is_warned_of(cluster: SimulatedCluster) -> None:
    cluster.create(build_thing())
    with pytest.warns(UserWarning, match=r"wait\(\) blocks the event loop with time\.sleep"):
        cluster.settle()
    assert cluster.now > EPOCH + dt.timedelta(seconds=20)


def call_in_a_thread(**_: Any) -> None:
    socket.create_connection(("db.example.com", 5432))


async def call_in_the_loop(**_: Any) -> None:
    await asyncio.open_connection("db.example.com", 5432)


@pytest.mark.parametrize("call", [call_in_a_thread, call_in_the_loop])
def test_the_network_is_refused_with_host_and_line(call: Any) -> None:
    def connect() -> None:
        webop.on.create(Thing)(call)

    place = rf"{call.__name__}\(\) connects to db\.example\.com, at {re.escape(__file__)}:\d+"
    with pytest.raises(SimulationError, match=place):
        simulated(connect, given=[Thing, build_thing()])(lambda cluster: cluster.settle())()


# Kills and restarts.

_FILE = """
import webop

starts = []

@webop.on.startup()
def begin(**_):
    starts.append(1)

@webop.on.update("things", id="update")
async def update(patch, **_):
    patch.status["starts"] = len(starts)

@webop.on.create("things", id="create")
async def create(**_): ...
"""


def test_a_restart_imports_the_modules_afresh(tmp_path: Path) -> None:
    file = tmp_path / "kept_in_memory.py"
    file.write_text(_FILE)

    def restart(cluster: SimulatedCluster) -> Any:
        for end in (cluster.kill, cluster.stop, cluster.start):
            cluster.settle()
            end()
            cluster.restart()
        cluster.settle()
        cluster.patch(Thing, "one", {"spec": {"changed": True}}, **HERE)
        cluster.settle()
        return get_status(cluster)

    assert run(str(file), test=restart, given=[Thing, build_thing()]) == {"starts": 1}


def test_afterwards_all_modules_are_those_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "simulated_shop"
    package.mkdir()
    (package / "__init__.py").write_text("from simulated_shop.sell import sell\n")
    (package / "sell.py").write_text(f"{_FILE}\nsell = create\n")
    monkeypatch.syspath_prepend(tmp_path)
    shop = importlib.import_module("simulated_shop")
    before = shop.sell, sys.modules["simulated_shop.sell"]
    simulated("simulated_shop.sell", given=[Thing])(lambda cluster: None)()
    assert sys.modules["simulated_shop"] is shop
    assert (shop.sell, sys.modules["simulated_shop.sell"]) == before


def leave_traces() -> None:
    @webop.on.create(Thing)
    async def create(client: webop.AsyncClient, **_: Any) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await client.apply(build_config("trace"))

    @webop.daemon(Thing)
    def follow(client: webop.SyncClient, stopped: Any, **_: Any) -> None:
        try:
            stopped.wait()
        finally:
            client.apply(build_config("trace-of-a-thread"))


@simulated(leave_traces, given=[Thing, build_thing()])
def test_what_was_killed_does_nothing_more_to_the_cluster(cluster: SimulatedCluster) -> None:
    cluster.advance(seconds=5)
    cluster.kill()
    cluster.advance(hours=1)
    assert not cluster.list("configmaps", **HERE)


def fail_sometimes() -> None:
    @webop.on.create(Thing, backoff=10)
    async def create(client: webop.AsyncClient, patch: webop.Patch, retry: int, **_: Any) -> None:
        await client.create(build_config("made"))
        patch.status["retry"] = retry


@rows(
    ("options", "retry"),
    [({"status": 409}, 1), ({"status": 422, "times": 2}, 2), ({"status": 403}, 1)],
)
def test_ordered_failures_come_so_often(options: Any, retry: int) -> None:
    def test(cluster: SimulatedCluster) -> Any:
        cluster.fail("POST", "configmaps", **options)
        return create_and_settle(cluster)

    assert run(fail_sometimes, test=test) == {"retry": retry}


@simulated(fail_sometimes, given=[Thing])
def test_a_lost_answer_is_that_of_a_request_that_was_carried_out(cluster: SimulatedCluster) -> None:
    cluster.fail("POST", "configmaps", lost=True)
    cluster.create(build_thing())
    cluster.advance(seconds=5)
    assert cluster.list("configmaps", **HERE)
    assert not get_status(cluster)


def settle_never() -> None:
    @webop.on.create(Thing, id="create", backoff=30)
    async def create(**_: Any) -> None:
        raise ValueError("not yet")


@simulated(settle_never, given=[Thing, build_thing()])
def test_what_never_settles_is_named(cluster: SimulatedCluster) -> None:
    text = r"has not settled within 100 s: things\.simulated\.webop\.dev default/one: create has"
    with pytest.raises(SimulationError, match=text):
        cluster.settle(within=100)


@rows("kind", ["configmaps", "namespaces"])  # not what is in a namespace
def test_a_failure_that_never_comes_makes_the_test_fail(kind: str) -> None:
    def order(cluster: SimulatedCluster) -> None:
        cluster.fail("POST", kind)
        create_and_settle(cluster)

    with pytest.raises(SimulationError, match=f"the operator sent no POST of {kind}"):
        run(declare_nothing, test=order)


# The cluster.


def review() -> None:
    @webop.on.validate(Thing)
    def check(spec: Any, **_: Any) -> None:
        if spec.get("forbidden"):
            raise webop.AdmissionError("it is forbidden")

    @webop.on.mutate(Thing)
    async def complete(patch: webop.Patch, **_: Any) -> None:
        patch.spec["completed"] = True


@simulated(review, given=[Thing])
def test_requests_of_the_test_pass_through_the_webhooks(cluster: SimulatedCluster) -> None:
    assert cluster.create(build_thing())["spec"] == {"completed": True}
    with pytest.raises(webop.APIError, match="it is forbidden"):
        cluster.create(build_thing("two", forbidden=True))
    cluster.kill()
    with pytest.raises(webop.APIError, match="no endpoints available"):
        cluster.create(build_thing("two"))
    cluster.start()
    cluster.settle()
    cluster.create(build_thing("two"))


def build_jobs() -> None:
    @webop.reconcile(Thing, owns=["jobs.batch"], reads=["jobs.batch"])
    async def build(name: str, children: webop.Children, patch: webop.Patch, **_: Any) -> None:
        pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x"}]}
        head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
        job = await children.apply({**head, "spec": {"template": {"spec": pod}}})
        patch.status["succeeded"] = job.object.get("status", {}).get("succeeded", 0)


@simulated(build_jobs, given=[Thing, build_thing()], seeds=2)
def test_jobs_finish_and_garbage_is_collected(cluster: SimulatedCluster) -> None:
    cluster.settle()
    assert get_status(cluster) == {"succeeded": 0}
    cluster.finish("jobs.batch", "one")
    cluster.settle()
    assert get_status(cluster) == {"succeeded": 1}
    cluster.play("jobs", after=60)
    cluster.create(build_thing("two"))
    cluster.settle(within=300)
    assert get_status(cluster, "two") == {"succeeded": 1}
    cluster.delete(Thing, "two", **HERE)
    cluster.settle()
    assert [job["metadata"]["name"] for job in cluster.list("jobs.batch", **HERE)] == ["one"]


@simulated(tick_each_minute, given=[Thing, build_thing()], replicas=2)
def test_of_two_replicas_one_acts_and_the_other_takes_over(cluster: SimulatedCluster) -> None:
    cluster.advance(seconds=10)
    assert len(get_status(cluster)["times"]) == 1
    cluster.kill(0)
    cluster.advance(minutes=2)
    assert len(get_status(cluster)["times"]) in {2, 3, 4}


def tick_on_all_replicas() -> None:
    @webop.on.startup()
    def share(settings: webop.OperatorSettings, **_: Any) -> None:
        settings.leadership.sharded = True

    tick_each_hour()


THINGS = [f"thing-{number}" for number in range(9)]


@simulated(tick_on_all_replicas, given=[Thing, *(build_thing(name) for name in THINGS)], replicas=3)
def test_replicas_that_share_the_work_tick_once_for_each_object(cluster: SimulatedCluster) -> None:
    cluster.settle()
    cluster.kill(0)
    cluster.settle()
    cluster.start()
    cluster.settle()
    for name in THINGS:
        times = get_status(cluster, name)["times"]
        assert 1 <= len(times) <= 4  # timers start again with each move


# The decorator.


def test_wrong_use_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(cluster: Any) -> None: ...

    with pytest.raises(TypeError, match=r"wait\(\) must not be async"):
        simulated(declare_nothing)(wait)
    with pytest.raises(TypeError, match=r"must have an argument `cluster`"):
        simulated(declare_nothing)(lambda: None)
    with pytest.raises(ValueError, match="time zone"):
        simulated(declare_nothing, now=dt.datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(webop.ConfigurationError, match="no file"):
        simulated("absent.py")(lambda cluster: None)()
    with pytest.raises(ValueError, match="seeds= must be at least 1"):
        simulated(declare_nothing, seeds=0)
    with pytest.raises(ValueError, match="replicas"):
        simulated(declare_nothing, replicas=0)
    with pytest.raises(ValueError, match="Time cannot go back"):
        simulated(declare_nothing)(lambda cluster: cluster.advance(hours=-1))()
    monkeypatch.setenv("WEBOP_SEED", "-3")
    with pytest.raises(ValueError, match="WEBOP_SEED must be the number of a seed, got '-3'"):
        simulated(declare_nothing)(lambda cluster: None)()


def test_a_file_is_found_beside_its_test(tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text(_FILE)
    names: dict[str, Any] = {}
    code = compile("def test(cluster): ...", tmp_path / "test_it.py", "exec")
    exec(code, names)
    simulated("handlers.py", given=[Thing])(names["test"])()


@pytest.mark.parametrize("value", ["one", "two"])
@simulated(declare_nothing, seeds=2)
def test_other_arguments_are_fixtures_and_parameters(
    cluster: SimulatedCluster, value: str, tmp_path: Path
) -> None:
    assert value in {"one", "two"}
    assert tmp_path.is_dir()
    assert cluster.seed in {0, 1}


async def test_it_also_runs_where_a_loop_is_running() -> None:
    seen: list[int] = []
    simulated(declare_nothing, seeds=2)(lambda cluster: seen.append(cluster.seed))()
    assert seen == [0, 1]
