"""Handlers that fail: what is tried again, when, and what is not (chapter "Error handling")."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import math
import time
from collections import Counter
from typing import Any

import pytest

import webop
from tests.kit.causes import FailedTest, UnreadableError
from tests.kit.operators import (
    Calls,
    Objects,
    RunOperator,
    build_settings,
    do_nothing,
    is_no_fence,
)
from tests.kit.waiting import eventually
from tools.simulation.virtual import Datetime
from webop import ErrorsMode


class Failing:
    """A handler that fails so many times, in a certain way."""

    def __init__(
        self, exc: Exception, times: int = 1000, key: str = "failing", **options: Any
    ) -> None:
        self.exc = exc
        self.times = times
        self.moments: list[float] = []
        self.retries: list[int] = []
        for decorator in (webop.on.create, webop.on.update):
            decorator("widgets", id=key, when=is_no_fence, **options)(self._fail)

    async def _fail(self, retry: int, **_: Any) -> str:
        self.moments.append(time.monotonic())
        self.retries.append(retry)
        if len(self.moments) <= self.times:
            raise self.exc
        return "done"

    @property
    def pauses(self) -> list[float]:
        """The seconds between the calls."""
        return [b - a for a, b in zip(self.moments, self.moments[1:], strict=False)]


RETRIED: list[tuple[Exception, dict[str, Any], float]] = [
    (webop.TemporaryError("boo", delay=0.3), {}, 0.3),
    (webop.TemporaryError("boo", delay=0.3), {"backoff": 100}, 0.3),
    (webop.TemporaryError("boo", delay=None), {}, 0),
    (ValueError("boo"), {"backoff": 0.3}, 0.3),
    (ValueError("boo"), {"errors": ErrorsMode.TEMPORARY}, 0.2),
    (TimeoutError("boo"), {}, 0.2),
]


@pytest.mark.feature("ERR-03", "ERR-06", "ERR-12", "ERR-13", "KWA-01", "CFG-28", "ERR-14", "D-46")
async def test_a_failing_handler_is_called_again_after_its_pause(
    run_operator: RunOperator, objects: Objects
) -> None:
    every = {
        f"failing{number}": (Failing(exc, 2, f"failing{number}", **options), pause)
        for number, (exc, options, pause) in enumerate(RETRIED)
    }
    async with run_operator(build_settings(execution={"default_backoff": 0.2})):
        body = await objects.make("one")
        await objects.pass_fence()
    for failing, pause in every.values():
        assert failing.retries == [0, 1, 2]
        assert all(pause <= actual < pause + 5 for actual in failing.pauses)
    assert body["status"] == dict.fromkeys(every, "done")


GIVEN_UP: list[tuple[Exception, dict[str, Any], int]] = [
    (webop.PermanentError("boo"), {}, 1),
    (ValueError("boo"), {"errors": ErrorsMode.PERMANENT}, 1),
    (ValueError("boo"), {"errors": ErrorsMode.IGNORED}, 1),
    (ValueError("boo"), {"retries": 3, "backoff": 0}, 3),
    (webop.TemporaryError("boo", delay=0), {"retries": 1}, 1),
    (ValueError("boo"), {"timeout": 0.25, "backoff": 0.1}, 3),
]


@pytest.mark.feature(
    "ERR-04", "ERR-05", "ERR-07", "ERR-08", "ERR-09", "ERR-11", "ERR-16", "ERR-23", "ERR-17"
)
async def test_a_failure_for_good_stops_no_other_handler_and_is_for_the_present_change_only(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    every = [
        (Failing(exc, key=f"failing{number}", **options), count, "timeout" in options)
        for number, (exc, options, count) in enumerate(GIVEN_UP)
    ]
    webop.on.create("widgets", id="other")(calls.noting("other"))
    async with run_operator():
        body = await objects.make("one")
        await objects.pass_fence()
        for failing, count, is_timed in every:
            assert 1 <= len(failing.moments) <= count
            assert is_timed or len(failing.moments) == count
            failing.moments.clear()
        await objects.change("one", {"spec": {"a": 1}})
        assert all(failing.moments for failing, *_ in every)
    assert calls.handlers("one") == ["other"]
    assert "status" not in body


@pytest.mark.feature("ERR-09", "ERR-10", "D-08")
async def test_an_async_handler_that_hangs_is_cut_off_at_its_time_out(
    run_operator: RunOperator, objects: Objects
) -> None:
    cleaned: list[str] = []

    @webop.on.create("widgets", id="fn", timeout=0.2)
    async def fn(name: str, **_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(name)

    async with run_operator():
        await objects.make("one")
    assert cleaned == ["one"]


RAISED: list[BaseException] = [
    SystemExit(3),
    asyncio.CancelledError(),
    StopIteration(),
    StopAsyncIteration(),
    GeneratorExit(),
    ExceptionGroup("boo", [ValueError()]),
    BaseExceptionGroup("boo", [KeyboardInterrupt()]),
    FailedTest("boo"),
    UnreadableError(5),
]


@pytest.mark.feature("ERR-01", "ERR-18", "CFG-26")
async def test_whatever_handlers_raise_the_operator_and_the_object_go_on(
    run_operator: RunOperator, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = Counter[str]()

    def fail(param: BaseException, retry: int, **_: Any) -> None:
        attempts[type(param).__name__] += 1
        if not retry:
            raise param

    async def fail_async(**kwargs: Any) -> None:
        fail(**kwargs)

    for number, exc in enumerate(RAISED):
        options: Any = {"param": exc, "backoff": 0.1, "when": is_no_fence}
        webop.on.create("widgets", id=f"sync{number}", **options)(fail)
        webop.on.create("widgets", id=f"async{number}", **options)(fail_async)
    async with run_operator():
        await objects.make("one")
        await objects.pass_fence()
    assert attempts == {type(exc).__name__: 4 for exc in RAISED}
    assert not [text for text in caplog.messages if "str() failed" in text]


@pytest.mark.feature("CON-08", "PAT-05", "DMN-35")
async def test_the_patch_of_a_handler_is_applied_although_it_fails(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    marker = "tests.webop.dev/never-again"
    webop.on.create("widgets", id="created")(do_nothing)

    @webop.on.update("widgets", id="fn", annotations={marker: webop.ABSENT})
    async def fn(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("fn", kwargs)
        patch.metadata.annotations[marker] = "yes"
        raise webop.PermanentError("never again")

    async with run_operator():
        await objects.make("one", {"a": 0})
        await objects.patch("one", {"spec": {"a": 1}})
        await objects.wait("one", lambda body: marker in body["metadata"]["annotations"])
    async with run_operator():
        await objects.change("one", {"spec": {"a": 2}})
        await objects.pass_fence()
    assert len(calls.of("one")) == 1


@pytest.mark.feature("CFG-56", "CFG-54", "CFG-22", "CFG-57", "FLT-19")
async def test_of_what_happens_to_an_object_during_its_pause_only_the_last_state_is_handled(
    run_operator: RunOperator, objects: Objects, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    def choose(spec: webop.Spec, **_: Any) -> bool:
        if spec.get("a") == 0:
            raise ValueError("a broken filter")
        return True

    webop.on.create("widgets", id="fn", when=choose)(calls.noting("fn"))
    async with run_operator(build_settings(batching={"error_delays": [1.0]})):
        await objects.create("one", {"a": 0})
        await eventually(lambda: "a broken filter" in caplog.text)
        began = time.monotonic()
        for value in (1, 2, 3):
            await objects.patch("one", {"spec": {"a": value}})
        await objects.pass_fence()  # others are not held up
        assert not calls.of("one")
        await objects.wait_handled("one")
        assert time.monotonic() - began > 0.8
    assert [call["spec"] for call in calls.of("one")] == [{"a": 3}]


@pytest.mark.feature("HND-27", "ERR-01")
async def test_an_event_handler_is_not_held_up_by_the_filter_or_the_patch_of_another(
    run_operator: RunOperator, objects: Objects
) -> None:
    seen: list[Any] = []

    def fail(**_: Any) -> bool:
        raise ValueError("a broken filter")

    webop.on.event("widgets", id="broken", when=fail)(do_nothing)

    @webop.on.event("widgets", id="fn")
    async def fn(name: str, patch: webop.Patch, **kwargs: Any) -> None:
        if name == "one":
            seen.append(kwargs["type"])
            patch.metadata.labels["not a label!"] = "\n"

    async with run_operator(build_settings(batching={"error_delays": [0.1]})):
        await objects.pass_fence()
        await objects.create("one")
        await eventually(lambda: seen == ["ADDED"])
        await objects.patch("one", {"spec": {"a": 1}})
        await eventually(lambda: seen == ["ADDED", "MODIFIED"])
        await objects.delete("one")
        await eventually(lambda: seen == ["ADDED", "MODIFIED", "DELETED"])


@pytest.mark.feature("PAT-01", "RST-02", "ERR-01")
async def test_a_patch_or_result_with_what_json_cannot_hold_is_lost_and_named_and_nothing_else(
    run_operator: RunOperator, objects: Objects, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    content: dict[str, Any] = {}
    content["again"] = content
    deep: Any = 1
    for _ in range(1500):
        deep = [deep]

    for key, value in {"nan": math.nan, "set": {1}, "circular": content, "deep": deep}.items():

        @webop.on.create("widgets", id=key, param=value)
        async def odd(patch: webop.Patch, param: Any, **kwargs: Any) -> None:
            calls.note("odd", kwargs)
            patch.spec.update(a=param, b=2)

    results = {"object": object(), "sets": {"a": {1}}, "infinity": math.inf, "half": "\ud800"}
    for key, value in results.items():

        @webop.on.create("widgets", id=key, param=value)
        async def result(param: Any, **kwargs: Any) -> Any:
            calls.note("result", kwargs)
            return param

    @webop.on.create("widgets", id="function")
    async def function(patch: webop.Patch, **_: Any) -> None:
        patch.fns.append(lambda body: body["spec"].update(c=-math.inf))

    @webop.on.create("widgets", id="fine")
    async def fine(patch: webop.Patch, **kwargs: Any) -> dict[int, int]:
        calls.note("fine", kwargs)
        patch.spec["d"] = (2,)
        return {200: 1}

    async with run_operator():
        body = await objects.make("one", {"a": 1, "b": 1, "c": 1, "d": 1})
        await objects.pass_fence()
    assert body["spec"] == {"a": 1, "b": 1, "c": 1, "d": [2]}
    assert body["status"] == {"fine": {"200": 1}, "half": "\ufffd"}
    assert calls.handlers("one") == ["odd"] * 4 + ["result"] * 4 + ["fine"]
    assert "a value that JSON cannot represent: spec.a (" in caplog.text


@pytest.mark.feature("ERR-03", "ERR-09")
@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_clock_that_is_set_back_or_forward_neither_stops_retries_nor_ends_handlers(
    run_operator: RunOperator, objects: Objects, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    failing = Failing(webop.TemporaryError("boo", delay=0.5), times=3, timeout=60)
    jump, read = 0, time.time
    monkeypatch.setattr(time, "time", lambda: read() + jump)
    monkeypatch.setattr(dt, "datetime", Datetime)
    async with run_operator():
        await objects.create("one")
        await eventually(lambda: failing.moments)
        jump = hours * 3600
        body = await objects.wait_handled("one")
    assert body["status"]["failing"] == "done"
    assert failing.retries == [0, 1, 2, 3]
    assert min(failing.pauses) > 0.4


@pytest.mark.feature("FLT-19")
@pytest.mark.parametrize("exc", [KeyError("x"), FailedTest("x")], ids=repr)
async def test_the_handler_whose_filter_fails_is_named_in_the_log(
    run_operator: RunOperator,
    objects: Objects,
    caplog: pytest.LogCaptureFixture,
    exc: BaseException,
) -> None:
    def choose(spec: webop.Spec, **_: Any) -> bool:
        if "x" not in spec:
            raise exc
        return True

    webop.on.create("widgets", id="fine")(do_nothing)
    webop.on.create("widgets", id="fragile", when=choose)(do_nothing)

    def find_complaints() -> list[str]:
        messages = [r.getMessage() for r in caplog.records if hasattr(r, "k8s_ref")]
        return [text for text in messages if "Retrying in" in text]

    async with run_operator():
        await objects.create("one")
        await eventually(find_complaints)
        await objects.change("one", {"spec": {"x": 1}})
    assert repr(exc) in find_complaints()[0]
    assert "filter of Handler 'fragile'" in find_complaints()[0]


@pytest.mark.parametrize("is_on", [True, False])
async def test_a_change_of_the_object_leads_to_a_retry_only_if_asked_for(
    objects: Objects, run_operator: RunOperator, is_on: bool
) -> None:
    calls = Calls()

    @webop.on.create("widgets", id="make", backoff=3600, when=is_no_fence)
    async def make(**kwargs: Any) -> None:
        calls.note("make", kwargs)
        if kwargs["spec"]["size"] == "huge":
            raise ValueError("too large")

    async with run_operator(build_settings(execution={"retry_on_change": is_on})):
        await objects.create("one", {"size": "huge"})
        await calls.wait("one", "make")
        await objects.patch("one", {"metadata": {"labels": {"a": "b"}}, "status": {"x": 1}})
        await objects.pass_fence()
        assert len(calls.of("one")) == 1
        await objects.patch("one", {"spec": {"size": "small"}})
        if is_on:
            await objects.wait_handled("one")
        await objects.pass_fence()
    assert [call["retry"] for call in calls.of("one")] == ([0, 1] if is_on else [0])


async def test_own_writes_are_no_reason_for_a_retry_and_changes_are_one_only_once_a_second(
    objects: Objects, run_operator: RunOperator
) -> None:
    moments: list[float] = []

    @webop.on.create("widgets", id="make", backoff=3600, when=is_no_fence)
    async def make(patch: webop.Patch, **_: Any) -> None:
        moments.append(time.monotonic())
        patch.spec["attempts"] = len(moments)
        raise ValueError("never")

    async with run_operator(build_settings(execution={"retry_on_change": True})):
        await objects.create("one", {"size": 0})
        await objects.wait("one", lambda body: body["spec"].get("attempts") == 1)
        await objects.pass_fence()
        assert len(moments) == 1
        for number in range(1, 5):
            await objects.patch("one", {"spec": {"size": number}})
        await eventually(lambda: len(moments) >= 2)
        await objects.pass_fence()
    assert all(later - earlier > 0.9 for earlier, later in itertools.pairwise(moments))
