"""Operators run by code: flags, loops, threads, and how they end (chapter "Embedding")."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import webop
from tests.kit.operators import build_settings
from tests.kit.waiting import eventually

FLAGS: list[Any] = [asyncio.Event, threading.Event, asyncio.Future, concurrent.futures.Future]


def is_raised(flag: Any) -> bool:
    return bool(flag.is_set() if hasattr(flag, "is_set") else flag.done())


def raise_flag(flag: Any) -> None:
    if hasattr(flag, "set"):
        flag.set()
    else:
        flag.set_result(None)


class Life:
    """An operator without a cluster that notes what happens in its life."""

    def __init__(self) -> None:
        self.registry = webop.OperatorRegistry()
        self.events: list[str] = []
        self.memo: Any = None
        webop.on.startup(registry=self.registry, id="startup")(self._start)
        webop.on.cleanup(registry=self.registry, id="cleanup")(self._clean)

    async def _start(self, memo: Any, **_: Any) -> None:
        self.memo = memo
        self.events.append("startup")

    async def _clean(self, **_: Any) -> None:
        self.events.append("cleanup")

    def build_options(self, **options: Any) -> Any:
        """Return options for all functions of the chapter."""
        common = {"registry": self.registry, "settings": build_settings(), "clusterwide": True}
        return {**common, **options}


@pytest.fixture
def life() -> Life:
    return Life()


@pytest.mark.feature("EMB-12", "STA-05", "STA-13", "EMB-05")
@pytest.mark.parametrize("build_flag", FLAGS)
async def test_flags_of_all_kinds_tell_of_the_start_and_order_the_end(
    life: Life, build_flag: Callable[[], Any]
) -> None:
    ready, stop = build_flag(), build_flag()
    options = life.build_options(ready_flag=ready, stop_flag=stop)
    task = asyncio.create_task(webop.operator(**options))
    await eventually(lambda: is_raised(ready))
    assert life.events == ["startup"]
    raise_flag(stop)
    async with asyncio.timeout(10):
        await task
    assert life.events == ["startup", "cleanup"]


@pytest.mark.feature("EMB-02", "STA-05")
async def test_a_cancelled_operator_cleans_up(life: Life) -> None:
    task = asyncio.create_task(webop.operator(**life.build_options()))
    await eventually(lambda: life.events)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert life.events == ["startup", "cleanup"]


@pytest.mark.feature("MEM-06", "MEM-09")
@pytest.mark.parametrize("memo", [webop.Memo(x=1), {"any": "thing"}, 5])
async def test_the_memo_can_be_anything_from_outside(life: Life, memo: Any) -> None:
    stop = asyncio.Event()
    stop.set()
    await webop.operator(**life.build_options(memo=memo, stop_flag=stop))
    assert life.memo is memo


@pytest.mark.feature("EMB-01", "EMB-02", "EMB-06")
@pytest.mark.parametrize("is_own_loop", [True, False])
def test_an_operator_runs_in_a_thread_with_a_loop_of_its_own_or_a_given_one(
    life: Life, is_own_loop: bool
) -> None:
    ready, stop = threading.Event(), threading.Event()
    loop = asyncio.new_event_loop() if is_own_loop else None
    options = life.build_options(ready_flag=ready, stop_flag=stop, loop=loop)
    thread = threading.Thread(target=lambda: webop.run(**options))
    thread.start()
    assert ready.wait(20)
    stop.set()
    thread.join(20)
    assert not thread.is_alive()
    assert life.events == ["startup", "cleanup"]
    if loop is not None:
        loop.close()


@pytest.mark.feature("EMB-03", "EMB-04", "EMB-05", "EMB-10", "REF-21", "REF-22")
async def test_tasks_of_an_operator_run_until_the_first_of_them_ends_and_others_are_left_alone(
    life: Life,
) -> None:
    mine = asyncio.create_task(asyncio.Event().wait())
    existing = asyncio.all_tasks()
    ready, stop = asyncio.Event(), asyncio.Event()
    tasks = await webop.spawn_tasks(**life.build_options(ready_flag=ready, stop_flag=stop))
    await ready.wait()
    stop.set()
    async with asyncio.timeout(4):  # nothing is left behind that would be waited for
        await webop.run_tasks(tasks, ignored=existing)
    assert all(task.done() for task in tasks)
    assert life.events == ["startup", "cleanup"]
    assert not mine.done()
    mine.cancel()


@pytest.mark.feature("EMB-02")
async def test_the_signal_handlers_of_before_are_back_after_an_operator_that_was_stopped(
    life: Life,
) -> None:
    def mine(*_: Any) -> None: ...

    previous = signal.signal(signal.SIGTERM, mine)
    try:
        ready, stop = asyncio.Event(), asyncio.Event()
        options = life.build_options(ready_flag=ready, stop_flag=stop)
        task = asyncio.create_task(webop.operator(**options))
        await ready.wait()
        assert signal.getsignal(signal.SIGTERM) is not mine
        stop.set()
        await task
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, previous)


@pytest.mark.feature("EMB-09", "STA-09")
async def test_a_signal_stops_all_operators_of_a_loop(life: Life) -> None:
    other, ready = Life(), [asyncio.Event(), asyncio.Event()]
    existing = asyncio.all_tasks()
    tasks = [
        *await webop.spawn_tasks(**life.build_options(ready_flag=ready[0])),
        *await webop.spawn_tasks(**other.build_options(ready_flag=ready[1])),
    ]
    for flag in ready:
        await flag.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(10):
        await asyncio.wait(tasks[1::2])  # those that wait for signals and flags
    assert all(task.exception() is None for task in tasks[1::2])
    await webop.run_tasks(tasks, ignored=existing)
    assert life.events == other.events == ["startup", "cleanup"]


@pytest.mark.feature("EMB-07", "PEE-04", "PEE-07", "PEE-10", "CFG-12")
async def test_options_are_put_into_the_settings(life: Life) -> None:
    settings, stop = build_settings(), asyncio.Event()
    stop.set()
    await webop.operator(
        registry=life.registry,
        settings=settings,
        stop_flag=stop,
        clusterwide=True,
        standalone=True,
        priority=5,
        peering_name="mine",
    )
    peering = settings.peering
    assert (peering.standalone, peering.priority, peering.name) == (True, 5, "mine")
    assert peering.mandatory
    assert peering.clusterwide


EXCLUSION = (webop.ConfigurationError, "exclude each other")


@pytest.mark.feature("EMB-07", "EMB-12", "MEM-06", "SCP-15", "SCP-16")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"namespaces": ["ns"]}, *EXCLUSION),
        ({"namespace": "ns"}, *EXCLUSION),
        ({"memo": threading.Lock()}, webop.ConfigurationError, r"Put it into .* memo=webop\.Memo"),
        ({"ready_flag": "x"}, TypeError, "ready_flag= must be an event .* got 'x'"),
        ({"stop_flag": "x"}, TypeError, "stop_flag= must be an event .* got 'x'"),
        ({"vault": {}}, TypeError, r"vault= must be a webop\.Vault"),
        ({"settings": {"a": 1}}, TypeError, r"settings= must be a webop\.OperatorSettings"),
    ],
)
async def test_options_that_do_not_fit_are_refused_before_the_start(
    life: Life, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await webop.operator(**life.build_options(**options))
    assert life.events == []


async def test_run_says_what_to_do_where_a_loop_runs(life: Life) -> None:
    with pytest.raises(RuntimeError, match=r"Await webop\.operator"):
        webop.run(**life.build_options())


_LIVING_ON = """
import os, signal, threading, time
import webop

@webop.on.startup()
def start(settings, **_):
    settings.process.ultimate_exiting_timeout = 0.2
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()

webop.run(standalone=True, clusterwide=True)
time.sleep(0.6)
print("alive")
"""


def test_a_process_that_lives_on_after_its_operator_is_not_killed_later() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LIVING_ON], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
