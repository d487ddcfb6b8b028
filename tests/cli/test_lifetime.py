"""From the start of an operator to its end: flags, signals, what cleanup handlers can rely on."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

import webop
from tests.kit.operators import Calls, Objects, RunOperator, build_settings, operate
from tests.kit.processes import Workshop
from tests.kit.waiting import eventually
from webop.client.auth.vault import ConnectionInfo

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

CLEANING = """
import asyncio, webop

@webop.on.startup()
def configure(settings, **_):
    settings.process.ultimate_exiting_timeout = {limit}

@webop.on.cleanup()
async def clean(**_):
    print('cleaning', flush=True)
    await asyncio.sleep({seconds})
    print('cleaned up', flush=True)
"""


@pytest.mark.feature("STA-11", "ASY-02")
async def test_what_belongs_to_a_loop_can_be_made_in_startup_handlers_and_used_in_others(
    run_operator: RunOperator, objects: Objects
) -> None:
    crowd, most, handled = 0, 0, 0

    @webop.on.startup()
    async def start(memo: webop.Memo, **_: Any) -> None:
        memo.lock = asyncio.Lock()
        memo.future = asyncio.get_running_loop().create_future()
        memo.future.set_result("from the startup")

    @webop.on.create("widgets", id="fn")
    async def fn(memo: webop.Memo, **_: Any) -> None:
        nonlocal crowd, most, handled
        assert await memo.future == "from the startup"
        async with memo.lock:  # the objects wait for each other, which binds a lock to its loop
            crowd += 1
            most = max(most, crowd)
            await asyncio.sleep(0.02)
            crowd -= 1
            handled += 1

    async with run_operator():
        for name in ("one", "two", "three"):
            await objects.create(name)
        for name in ("one", "two", "three"):
            await objects.wait_handled(name)
    assert most == 1
    assert handled >= 3


@pytest.mark.feature("STA-12", "CFG-01", "STA-06")
async def test_an_operator_that_takes_too_long_to_stop_kills_itself(workshop: Workshop) -> None:
    path = workshop.write(CLEANING.format(limit=0.5, seconds=1000))
    async with workshop.start("-A", path) as command:
        await command.wait_for("'configure' succeeded")
        began = time.monotonic()
        assert await command.stop(signal.SIGTERM) == -signal.SIGKILL
        assert time.monotonic() - began >= 0.5
    assert "cleaning" in command.output
    assert "cleaned up" not in command.output


@pytest.mark.feature("STA-07", "STA-05", "CFG-01")
async def test_cleanup_handlers_have_all_the_time_that_they_need(workshop: Workshop) -> None:
    # Longer than what is granted on the exit to anything else: five seconds.
    path = workshop.write(CLEANING.format(limit=None, seconds=6))
    async with workshop.start("-A", path) as command:
        await command.wait_for("'configure' succeeded")
        assert await command.stop(signal.SIGTERM) == 0
    assert "cleaned up" in command.output


FORKING = """
import multiprocessing, time, webop

@webop.on.startup()
def fork(logger, **_):
    context = multiprocessing.get_context('fork')
    for pause in (0, 0.3):
        process = context.Process(target=time.sleep, args=(60,))
        process.start()
        time.sleep(pause)
        process.terminate()
        process.join(20)
        logger.info(f'the child ended with {process.exitcode}')
"""


async def test_a_handler_that_terminates_its_child_process_does_not_stop_the_operator(
    workshop: Workshop,
) -> None:
    async with workshop.start("-A", workshop.write(FORKING)) as command:
        await command.wait_for("'fork' succeeded")
        assert command.output.count(f"the child ended with {-signal.SIGTERM}") == 2
        assert "Stopping" not in command.output
        assert await command.stop(signal.SIGINT) == 0
    assert "Stopping (SIGINT)" in command.output


PLAIN = """
import sys, webop

@webop.on.login()
def login(**_):
    return webop.login_with_kubeconfig()

@webop.on.create('widgets', labels={'a': 'b'}, retries=3)
def create(**_):
    print('loaded', *sys.modules, 'that is all', flush=True)
"""
UNUSED = {
    *("pydantic", "pydantic_core", "starlette", "uvicorn", "httpx", "cryptography"),
    *("prometheus_client", "opentelemetry", "webop.context.children", "webop.models.schema"),
    *("webop.app", "webop.testing.apiserver", "webop.admission.configurations.management"),
}


async def test_an_operator_without_models_and_webhooks_does_not_load_what_these_need(
    connected: Workshop, objects: Objects
) -> None:
    program = ("webop.__main__", "run")  # not forked from a process that has loaded everything
    path = connected.write(PLAIN)
    async with connected.start_module(program, "-n", objects.namespace, path) as command:
        await objects.create("one", labels={"a": "b"})
        await command.wait_for("that is all")
    assert not UNUSED & {*command.output.partition("loaded ")[2].split()}


@pytest.mark.feature("SCP-16", "EMB-13")
@pytest.mark.parametrize("is_spawned", [False, True])
@pytest.mark.parametrize("way", ["namespaces", "namespace", "clusterwide"])
async def test_the_scope_is_chosen_in_code(
    registry: webop.OperatorRegistry,
    info: ConnectionInfo,
    webop_cluster: LocalCluster,
    objects: Objects,
    calls: Calls,
    way: str,
    *,
    is_spawned: bool,
) -> None:
    @webop.on.create("widgets", registry=registry, id="fn", labels={"scope": way})
    async def fn(namespace: str, **kwargs: Any) -> None:
        calls.note(namespace, kwargs)

    name = objects.namespace
    ways: dict[str, dict[str, Any]] = {
        "namespaces": {"namespaces": (name,)},
        "namespace": {"namespace": name},
        "clusterwide": {"clusterwide": True},
    }
    options = ways[way]
    elsewhere = Objects(objects.client, objects.kind, webop_cluster.create_namespace())
    async with operate(info, registry, beside=is_spawned, **options):
        await elsewhere.create("one", labels={"scope": way})
        await objects.make("one", labels={"scope": way})
        if way == "clusterwide":
            await elsewhere.wait_handled("one")
    expected = {name, elsewhere.namespace} if way == "clusterwide" else {name}
    assert set(calls.handlers("one")) == expected


@pytest.mark.feature("CFG-18")
async def test_a_handler_that_changes_its_object_again_and_again_does_not_keep_others_waiting(
    run_operator: RunOperator, objects: Objects
) -> None:
    called: list[str] = []

    @webop.on.create("widgets", id="create")
    @webop.on.update("widgets", id="update")
    async def fn(name: str, patch: webop.Patch, **_: Any) -> None:
        called.append(name)
        if name == "busy":
            patch.spec["a"] = len(called)

    async with run_operator(build_settings(batching={"worker_limit": 1})):
        await objects.create("busy", {"a": 0})
        await eventually(lambda: called.count("busy") > 2)
        await objects.make("quiet")
        before = len(called)
        await eventually(lambda: len(called) > before + 2)
    assert called.count("quiet") == 1
