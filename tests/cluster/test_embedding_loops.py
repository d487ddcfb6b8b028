"""Several operators in one process, and loops that are not asyncio's own, on a real API server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvloop

import webop
from tests.kit.operators import Calls, Objects, build_settings

Options = dict[str, Any]


def run_by_webop(options: Options) -> None:
    loop = uvloop.new_event_loop()
    try:
        webop.run(loop=loop, **options)
    finally:
        loop.close()


def run_by_runner(options: Options) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(webop.operator(**options))


class Watcher:
    """An operator with a registry of its own, to be run in a thread."""

    def __init__(self, info: webop.ConnectionInfo, objects: Objects, label: str) -> None:
        self.registry = webop.OperatorRegistry()
        self.calls, self.loops = Calls(), set[str]()
        self.ready, self.stop = threading.Event(), threading.Event()
        self.options: Options = {
            "registry": self.registry,
            "settings": build_settings(),
            "vault": webop.Vault({"test": info}),
            "namespaces": [objects.namespace],
            "standalone": True,
            "ready_flag": self.ready,
            "stop_flag": self.stop,
        }
        labels = {"of": label}
        webop.on.create("widgets", registry=self.registry, id="fn", labels=labels)(self._take)

    async def _take(self, **kwargs: Any) -> None:
        self.loops.add(type(asyncio.get_running_loop()).__module__)
        self.calls.note("fn", kwargs)


@pytest.mark.feature("EMB-08", "EMB-06")
@pytest.mark.parametrize("run", [run_by_webop, run_by_runner])
async def test_operators_run_on_uvloop(
    info: webop.ConnectionInfo, objects: Objects, run: Callable[[Options], None]
) -> None:
    watcher = Watcher(info, objects, "one")
    running = asyncio.create_task(asyncio.to_thread(run, watcher.options))
    try:
        await objects.make("one", labels={"of": "one"})
    finally:
        watcher.stop.set()
        await running
    assert watcher.loops == {"uvloop"}


@pytest.mark.feature("EMB-09", "EMB-01")
async def test_operators_in_threads_have_their_own_loops_and_handlers(
    info: webop.ConnectionInfo, objects: Objects
) -> None:
    watchers = {name: Watcher(info, objects, name) for name in ("red", "blue")}
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(lambda w=watcher: asyncio.run(webop.operator(**w.options)))  # type: ignore[misc]
            for watcher in watchers.values()
        ]
        try:
            for name, watcher in watchers.items():
                await objects.create(name, labels={"of": name})
                await watcher.calls.wait(name)
                await objects.wait_handled(name)
            watchers["red"].stop.set()
            await asyncio.to_thread(futures[0].result, 20)
            await objects.create("late", labels={"of": "blue"})  # the other one goes on
            await watchers["blue"].calls.wait("late")
        finally:
            for watcher in watchers.values():
                watcher.stop.set()
    assert [f.exception() for f in futures] == [None, None]
    assert watchers["red"].calls.handlers("blue") == []
    assert watchers["blue"].calls.handlers("red") == []
