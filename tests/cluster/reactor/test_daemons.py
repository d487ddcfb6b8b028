"""Daemons: when they are started, what they see of their object, how they end on their own."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import webop
from tests.kit.operators import (
    FINALIZER,
    Calls,
    Objects,
    RunOperator,
    has_finalizer,
)
from tests.kit.timeline import Timeline
from tests.kit.waiting import eventually


@pytest.mark.feature(
    "DMN-01", "DMN-03", "DMN-04", "DMN-05", "DMN-06", "DMN-07", "DMN-24", "DMN-32", "KWA-16", "D-57"
)
@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_daemon_lives_as_long_as_its_object(
    run_operator: RunOperator, objects: Objects, calls: Calls, *, is_sync: bool
) -> None:
    flags: dict[str | None, webop.DaemonStopped] = {}
    looping: set[str] = set()

    def begin(stopped: webop.DaemonStopped, kwargs: Any) -> None:
        assert isinstance(stopped, webop.SyncDaemonStopperChecker) is is_sync
        assert isinstance(stopped, webop.AsyncDaemonStopperChecker) is not is_sync
        assert not stopped
        assert not stopped.is_set()
        assert stopped.reason is None
        flags[kwargs["name"]] = stopped
        calls.note("begun", kwargs)

    def run_sync(stopped: webop.DaemonStopped, **kwargs: Any) -> None:
        begin(stopped, kwargs)
        assert not stopped.wait(0.01)
        looping.add(kwargs["name"])
        while not stopped:
            stopped.wait(100)
        calls.note("ended", kwargs)

    async def run_async(stopped: webop.DaemonStopped, **kwargs: Any) -> None:
        begin(stopped, kwargs)
        assert not await stopped.wait(0.01)
        looping.add(kwargs["name"])
        while not stopped:
            await stopped.wait(100)
        calls.note("ended", kwargs)

    webop.daemon("widgets", id="fn")(run_sync if is_sync else run_async)
    async with run_operator():
        for name in ("one", "two"):
            await objects.create(name)
            await calls.wait(name)
            assert has_finalizer(await objects.get(name))
        await eventually(lambda: looping == {"one", "two"}, "both have waited in vain")
        began = time.monotonic()
        await objects.remove("one")
        assert time.monotonic() - began < 3  # at once, not at the next poll
        assert calls.handlers("one") == ["begun", "ended"]
        assert calls.handlers("two") == ["begun"]
    reasons = webop.DaemonStoppingReason
    assert calls.handlers("two") == ["begun", "ended"]
    signalled = reasons.DAEMON_SIGNALLED | reasons.DONE
    assert flags["one"].reason == reasons.RESOURCE_DELETED | signalled
    assert flags["two"].reason == reasons.OPERATOR_EXITING | signalled
    assert flags["two"].is_set(reasons.OPERATOR_EXITING)
    assert not flags["two"].is_set(reasons.RESOURCE_DELETED)


@pytest.mark.feature("DMN-01", "DMN-19", "D-42", "DMN-21")
@pytest.mark.parametrize("is_failing", [False, True])
async def test_a_daemon_that_ends_is_not_started_again_but_by_a_new_operator(
    run_operator: RunOperator, objects: Objects, calls: Calls, *, is_failing: bool
) -> None:
    @webop.daemon("widgets", id="fn", labels={"of": "interest"})
    async def fn(**kwargs: Any) -> None:
        calls.note("fn", kwargs)
        if is_failing:
            raise webop.PermanentError("Bye-bye!")

    labels = {"of": "interest"}
    async with run_operator():
        await objects.create("one", {"a": 0}, labels=labels)
        await calls.wait("one")
        # There is nothing to be waited for any more before the object may go.
        await objects.wait("one", lambda body: not has_finalizer(body))
        await objects.patch("one", {"spec": {"a": 1}})
        for value in ("nothing", "interest"):
            await objects.patch("one", {"metadata": {"labels": {"of": value}}})
            await objects.pass_fence()
        assert len(calls.of("one")) == 1
        await objects.remove("one")
        await objects.create("one", labels=labels)  # another one
        await calls.wait("one", count=2)
    async with run_operator():
        await calls.wait("one", count=3)
        await objects.pass_fence()
    assert len(calls.of("one")) == 3


@pytest.mark.feature("DMN-20", "DMN-22", "DMN-23", "ERR-09", "D-46", "KWA-02", "KWA-03", "KWA-10")
async def test_the_errors_of_a_daemon_are_treated_as_its_options_say(
    run_operator: RunOperator, objects: Objects, timeline: Timeline, calls: Calls
) -> None:
    options: Any = {"errors": webop.ErrorsMode.TEMPORARY, "backoff": 0.6, "retries": 30}

    @webop.daemon("widgets", id="fn", **options)
    def monitor(name: str, retry: int, started: Any, runtime: Any, **_: Any) -> None:
        timeline.note(name)
        calls.note("fn", {"name": name, "retry": retry}, started=started, runtime=runtime)
        if retry < 3:
            raise webop.TemporaryError("I'll be back!", delay=0.3)
        if retry < 5:
            raise OSError("Something happened!")
        if retry < 25:
            raise webop.TemporaryError("Again, at once!", delay=None)
        raise webop.PermanentError("Bye-bye!")

    async with run_operator():
        await objects.create("one")
        await timeline.wait("one", 26)
        await objects.wait("one", lambda body: not has_finalizer(body))
        await objects.pass_fence()
    noted = calls.of("one")
    assert [call["retry"] for call in noted] == list(range(26))
    assert len({call["started"] for call in noted}) == 1
    assert noted[0]["runtime"] < noted[-1]["runtime"]
    gaps = timeline.measure_gaps("one")
    assert all(gap > 0.29 for gap in gaps[:3]), gaps
    assert all(gap > 0.59 for gap in gaps[3:5]), gaps
    assert min(gaps[:5]) < 0.59  # the shortest, as the machine may be busy
    assert max(gaps[:5]) < 10
    assert sum(gaps[5:]) < 3


LIMITS: list[tuple[dict[str, Any], int]] = [
    ({"errors": webop.ErrorsMode.IGNORED}, 1),
    ({"errors": webop.ErrorsMode.PERMANENT}, 1),
    ({"retries": 3, "backoff": 0.05}, 3),
    ({"timeout": 1.5, "backoff": 1.0}, 2),
]


@pytest.mark.feature("DMN-22", "ERR-04", "ERR-05", "ERR-09", "ERR-11", "DMN-34")
async def test_limits_of_daemons_that_fail(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    for number, (options, _) in enumerate(LIMITS):

        @webop.daemon("widgets", id=f"fn{number}", param=f"fn{number}", **options)
        async def fn(param: str, **kwargs: Any) -> None:
            calls.note(param, kwargs)
            raise ValueError("a mistake")

    async with run_operator():
        await objects.create("one")
        await calls.wait("one", "fn3", count=2)
        await objects.wait("one", lambda body: not has_finalizer(body))
    called = [len(calls.of("one", f"fn{number}")) for number in range(len(LIMITS))]
    assert called == [expected for _, expected in LIMITS]


@pytest.mark.feature("DMN-25", "KWA-20")
async def test_a_daemon_sees_its_object_as_it_is_now(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    seen: dict[str, Any] = {}

    @webop.daemon("widgets", id="fn", labels={"watched": webop.PRESENT})
    async def fn(stopped: webop.DaemonStopped, **kwargs: Any) -> None:
        seen.update(kwargs)
        await stopped.wait()

    async with run_operator():
        await objects.create("one", {"a": 0}, labels={"watched": "1"})
        await eventually(lambda: seen)
        assert seen["spec"] == {"a": 0}
        change = {
            "metadata": {"labels": {"watched": "2"}, "annotations": {"note": "x"}},
            "spec": {"a": 1},
            "status": {"b": 2},
        }
        await objects.patch("one", change)
        await eventually(lambda: seen["spec"]["a"] == 1, "the new spec is seen")
        assert seen["body"]["spec"] == {"a": 1}
        assert seen["status"] == {"b": 2}
        assert seen["labels"]["watched"] == seen["meta"]["labels"]["watched"] == "2"
        assert seen["annotations"]["note"] == seen["meta"].annotations["note"] == "x"
        assert (seen["name"], seen["namespace"]) == ("one", objects.namespace)
        assert seen["uid"] == seen["body"]["metadata"]["uid"]
        # Also what others change again while nothing else is to be done.
        await objects.patch("one", {"status": {"b": 3}})
        await eventually(lambda: seen["status"]["b"] == 3, "the new status is seen")


async def test_of_two_daemons_with_one_id_the_first_is_called_and_a_warning_says_so(
    run_operator: RunOperator, objects: Objects, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    for number in ("first", "second"):

        @webop.daemon(objects.kind.crd_name, id="fn")
        async def fn(number: str = number, **kwargs: Any) -> None:
            calls.note(number, kwargs)

    async with run_operator():
        await objects.create("one")
        await calls.wait("one")
    assert calls.handlers("one") == ["first"]
    assert "have the id 'fn'" in caplog.text


@pytest.mark.feature("DMN-26", "RST-05")
async def test_the_result_of_a_daemon_goes_to_the_status(
    run_operator: RunOperator, objects: Objects
) -> None:
    @webop.daemon("widgets")
    async def monitor(**_: Any) -> dict[str, bool]:
        return {"finished": True}

    stem = "test_the_result_of_a_daemon_goes_to_the_status.<locals>.monitor"
    async with run_operator():
        await objects.create("one")
        body = await objects.wait("one", lambda body: body.get("status"))
    assert body["status"] == {stem: {"finished": True}}


@pytest.mark.feature("DMN-36")
async def test_no_daemon_begins_for_an_object_that_is_being_deleted(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    webop.daemon("widgets", id="fn")(calls.noting("fn"))
    await objects.create("theirs", finalizers=["tests.webop.dev/theirs"])
    await objects.create("ours", finalizers=[FINALIZER])
    for name in ("theirs", "ours"):
        await objects.delete(name)
    async with run_operator():
        await objects.wait_gone("ours")
        await objects.pass_fence()
    assert not calls.of("theirs")
    assert not calls.of("ours")
    await objects.patch("theirs", {"metadata": {"finalizers": []}})


@pytest.mark.feature("ERR-01", "DMN-22")
async def test_a_daemon_or_handler_that_cancels_itself_has_failed_and_is_called_again(
    run_operator: RunOperator, objects: Objects, timeline: Timeline
) -> None:
    async def cancel(what: str, retry: int) -> None:
        timeline.note(f"{what} {retry}")
        task = asyncio.current_task()
        assert task is not None
        if retry in (0, 2):
            task.cancel()
        if retry == 0:
            await asyncio.sleep(0)
        if retry == 1:
            raise GeneratorExit

    @webop.daemon("widgets", id="daemon", backoff=0.1)
    async def daemon(retry: int, stopped: webop.DaemonStopped, **_: Any) -> None:
        await cancel("daemon", retry)
        await stopped.wait()

    @webop.timer("widgets", id="timer", backoff=0.1, interval=0.1)
    async def timer(retry: int, **_: Any) -> None:
        await cancel("timer", retry)

    @webop.on.create("widgets", id="create", backoff=0.1, timeout=100)
    async def create(retry: int, **_: Any) -> None:
        await cancel("create", retry)

    async with run_operator():
        await objects.create("one")
        for what in ("daemon", "create", "timer"):
            await timeline.wait(f"{what} 3")
        await timeline.wait("timer 0", 2)
        await objects.wait_handled("one")
