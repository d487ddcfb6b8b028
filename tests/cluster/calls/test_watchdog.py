"""Handlers that block the event loop are named in the log, with what they are doing."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

import webop
from tests.kit.operators import Objects, RunOperator, build_settings
from tests.kit.reviews import serve
from tests.kit.waiting import eventually

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [
    asyncio.new_event_loop,
    uvloop.new_event_loop,
]


def find(caplog: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if text in record.getMessage()]


def block(seconds: float) -> None:
    time.sleep(seconds)


def await_thread_end() -> None:
    deadline = time.monotonic() + 10
    while any(thread.name == "webop-watchdog" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def run_once(threshold: float | None, loop_factory: Any = None) -> None:
    """Run an operator that only starts and ends."""

    async def operate() -> None:
        flag = asyncio.Event()
        flag.set()
        settings = build_settings(process={"blocked_loop_threshold": threshold})
        await webop.operator(settings=settings, stop_flag=flag, clusterwide=True)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(operate())


@pytest.fixture
def many_threads() -> Iterator[None]:
    """Keep as many threads running as a pool for sync handlers can have."""
    ended = threading.Event()
    for _ in range(150):
        threading.Thread(target=ended.wait).start()
    yield
    ended.set()


@pytest.mark.parametrize("loop_factory", LOOPS, ids=["asyncio", "uvloop"])
def test_an_async_handler_that_blocks_the_loop_is_named_with_its_stack(
    caplog: pytest.LogCaptureFixture, loop_factory: Any, many_threads: None
) -> None:
    caplog.set_level(logging.INFO)

    @webop.on.cleanup(id="tidy")
    async def tidy(**_: Any) -> None:
        block(0.8)

    run_once(0.2, loop_factory)
    (warning,) = find(caplog, "so far")
    assert warning.levelname == "WARNING"
    beginning = "Cleanup handler 'tidy' blocks the event loop for 0.2 s so far"
    assert warning.getMessage().startswith(beginning)
    stack = (warning.stack_info or "").splitlines()
    assert [line.split()[-1] for line in stack if line.startswith('  File "')] == ["tidy", "block"]
    assert stack[-1].strip() == "time.sleep(seconds)"
    await_thread_end()
    (end,) = find(caplog, "no longer")
    assert 0.5 < float(end.getMessage().split()[-2]) < 3


def test_neither_one_that_does_not_block_nor_a_sync_one_nor_any_without_a_threshold_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @webop.on.startup(id="patient")
    async def patient(**_: Any) -> None:
        await asyncio.sleep(0.6)

    @webop.on.startup(id="sync")
    def sync(**_: Any) -> None:
        block(0.6)

    @webop.on.startup(id="switch")
    async def switch(settings: webop.OperatorSettings, **_: Any) -> None:
        settings.process.blocked_loop_threshold = None
        block(0.6)

    run_once(0.3)
    assert not find(caplog, "event loop")
    await_thread_end()


def test_a_filter_or_anything_else_that_blocks_is_shown_by_its_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @webop.on.cleanup(id="spawn")
    async def spawn(**_: Any) -> None:
        async def count() -> None:
            block(0.5)

        await asyncio.gather(count())

    run_once(0.2)
    (warning,) = find(caplog, "so far")
    assert (warning.stack_info or "").endswith("time.sleep(seconds)")
    # Contexts of tasks can be asked for since then.
    assert ("'spawn'" in warning.getMessage()) == (sys.version_info >= (3, 12))


async def test_a_handler_of_an_object_is_warned_of_once_with_the_object(
    run_operator: RunOperator, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "webop.calls.blocked_loop")

    @webop.on.create("widgets", id="fn")
    async def fn(**_: Any) -> None:
        block(0.5)

    settings = build_settings(process={"blocked_loop_threshold": 0.1})
    async with run_operator(settings):
        for name in ("one", "two"):
            await objects.make(name)
        await eventually(lambda: len(find(caplog, "no longer")) >= 2)
    warnings = [r for r in find(caplog, "Handler 'fn' blocks the") if "so far" in r.getMessage()]
    assert warnings[0].levelname == "WARNING"
    assert getattr(warnings[0], "k8s_ref")["name"] == "one"  # noqa: B009  for the prefix
    assert len([r for r in warnings if r.levelname == "WARNING"]) <= 2  # the minute may change


async def test_a_review_that_blocks_the_loop_of_an_asgi_server_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @webop.on.validate("kopfexamples", id="check")
    async def check(**_: Any) -> None:
        block(0.5)

    settings = build_settings(process={"blocked_loop_threshold": 0.2})
    async with serve(settings=settings) as site:
        await site.review()
        await eventually(lambda: find(caplog, "Webhook 'check' blocks the event loop"))
