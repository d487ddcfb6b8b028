"""Threads of sync handlers and of sync daemons: neither starves the other, full pools are told."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

import webop
from tests.kit.causes import Unhashable
from tests.kit.operators import Calls, Objects, RunOperator, build_settings
from tests.kit.timeline import Timeline
from tests.kit.waiting import eventually


def sync(**_: Any) -> str:
    return threading.current_thread().name


async def coroutine(**_: Any) -> str:
    return threading.current_thread().name


@functools.wraps(coroutine)
def wrapping(**kwargs: Any) -> Any:
    return coroutine(**kwargs)


class Callables:
    async def method(self, **_: Any) -> str:
        return threading.current_thread().name

    async def __call__(self, **_: Any) -> str:
        return threading.current_thread().name


SYNC: list[Callable[..., Any]] = [
    sync,
    functools.partial(sync, x=1),
    lambda **_: threading.current_thread().name,
    Unhashable(),
]
ASYNC: list[Callable[..., Any]] = [
    coroutine,
    functools.partial(coroutine, x=1),
    functools.partial(functools.partial(coroutine, x=1), y=2),
    wrapping,
    Callables().method,
    functools.partial(Callables().method, x=1),
    Callables(),
]


@pytest.mark.feature("ASY-01", "ASY-02", "ASY-03", "ASY-04", "HND-04", "HND-11", "KWA-04", "HIE-09")
async def test_async_functions_run_in_the_loop_and_others_in_threads_and_all_know_their_owner(
    run_operator: RunOperator, objects: Objects
) -> None:
    for number, fn in enumerate([*SYNC, *ASYNC]):
        webop.on.create("widgets", id=f"fn{number}")(fn)

    def label(param: Any, **_: Any) -> Any:
        child: dict[str, Any] = {}
        webop.label(child)
        return {**child, "param": param}

    async def label_async(**kwargs: Any) -> Any:
        return label(**kwargs)

    webop.on.create("widgets", id="label", param={"any": "thing"})(label)
    webop.on.create("widgets", id="label-async")(label_async)
    async with run_operator():
        status = (await objects.make("one", labels={"l": "1"}))["status"]
    labels = {"metadata": {"labels": {"l": "1"}}}
    assert status.pop("label") == {**labels, "param": {"any": "thing"}}
    assert status.pop("label-async") == labels
    here = threading.current_thread().name
    in_the_loop = [status[f"fn{number}"] == here for number in range(len(status))]
    assert in_the_loop == [False] * len(SYNC) + [True] * len(ASYNC)
    with pytest.raises(LookupError):
        label(None)  # nobody is its owner here


@pytest.mark.feature("DMN-02", "CFG-26", "HND-04")
async def test_fifty_sync_daemons_run_and_sync_handlers_too(
    run_operator: RunOperator,
    objects: Objects,
    calls: Calls,
    timeline: Timeline,
    caplog: pytest.LogCaptureFixture,
) -> None:
    threads: set[str] = set()

    @webop.daemon("widgets", id="daemon", labels={"with": "daemon"})
    def run(stopped: webop.DaemonStopped, **kwargs: Any) -> None:
        threads.add(threading.current_thread().name)
        timeline.note("begun")
        stopped.wait()
        timeline.note("ended")

    @webop.on.create("widgets", id="created")
    def created(**kwargs: Any) -> None:
        calls.note("created", kwargs)

    @webop.timer("widgets", id="tick", interval=1)
    def tick(name: str, **_: Any) -> None:
        timeline.note(f"tick {name}")

    names = [f"obj-{number}" for number in range(50)]
    async with run_operator():
        await asyncio.gather(*(objects.create(n, labels={"with": "daemon"}) for n in names))
        await timeline.wait("begun", 50)
        assert len(threads) == 50
        await objects.create("late")
        await calls.wait("late")
        await timeline.wait("tick late", 2)
        assert {call["name"] for call in calls if call["name"] in names} == set(names)
    assert len(timeline.of("ended")) == 50
    assert "sync daemons are busy" not in caplog.text


@pytest.mark.feature("DMN-02", "CFG-27", "DMN-03")
async def test_a_full_pool_of_daemons_is_told_about_and_holds_no_object_back(
    run_operator: RunOperator, objects: Objects, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    @webop.daemon("widgets", id="daemon", labels={"with": "daemon"})
    def run(stopped: webop.DaemonStopped, **kwargs: Any) -> None:
        calls.note("begun", kwargs)
        stopped.wait()

    settings = build_settings(background={"max_workers": 2})
    names = ["a", "b", "c", "d"]
    async with run_operator(settings):
        for name in names:
            await objects.create(name, labels={"with": "daemon"})
            await objects.pass_fence()
        await eventually(lambda: "busy" in caplog.text)
        assert "All 2 threads for sync daemons are busy; 2 more calls are waiting" in caplog.text
        assert "settings.background.max_workers" in caplog.text
        assert [call["name"] for call in calls] == ["a", "b"]
        # One that waits for a thread can be deleted, and never begins.
        await objects.remove("c")
        # A thread that is free again is for the next one.
        await objects.delete("a")
        await calls.wait("d")
    assert [call["name"] for call in calls] == ["a", "b", "d"]
    assert caplog.text.count("threads for sync daemons are busy") == 1  # not again and again


@pytest.mark.feature("CFG-26", "CFG-27")
async def test_the_number_of_threads_can_be_changed_while_handlers_run(
    run_operator: RunOperator,
    objects: Objects,
    timeline: Timeline,
    released: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    @webop.on.create("widgets", id="fn", labels={"slow": "yes"})
    def fn(name: str, **_: Any) -> str:
        timeline.note(f"begun {name}")
        released.wait(20)
        return "done"

    settings = build_settings(execution={"max_workers": 1})
    async with run_operator(settings):
        await objects.create("a", labels={"slow": "yes"})
        await timeline.wait("begun a")
        settings.execution.max_workers = 2
        for name in ("b", "c", "d"):
            await objects.create(name, labels={"slow": "yes"})
        await timeline.wait("begun b")
        await timeline.wait("begun c")
        await eventually(lambda: "threads for sync handlers are busy" in caplog.text)
        assert "settings.execution.max_workers" in caplog.text
        await objects.pass_fence()
        assert timeline.list_names() == ["begun a", "begun b", "begun c"]
        released.set()
        for name in ("a", "b", "c", "d"):
            body = await objects.wait_handled(name)
            assert body["status"] == {"fn": "done"}
