"""When reconcilers are called: for all changes since the last call, and again after a while."""

from __future__ import annotations

import asyncio
import itertools
import time
from functools import partial
from typing import Any

import pytest

import webop
from tests.cluster.reconcilers.conftest import Maps, build_map
from tests.kit.operators import Objects, RunOperator, build_settings, is_no_fence
from tests.kit.rows import rows
from tests.kit.waiting import eventually

Json = dict[str, Any]


class Seen:
    """What a reconciler has been called with, and what it does."""

    def __init__(self) -> None:
        self.calls: list[Json] = []
        self.answers: list[Any] = []
        self.released = asyncio.Event()
        self.released.set()

    async def __call__(self, **kwargs: Any) -> Any:
        spec = dict(kwargs["spec"])
        moment = time.monotonic()
        names = ("because", "retry", "name")
        self.calls.append({"spec": spec, "at": moment, **{key: kwargs[key] for key in names}})
        await self.released.wait()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def until(self, count: int) -> None:
        await eventually(lambda: len(self.calls) >= count, f"{count} calls; {self.calls}")

    def reasons(self) -> list[tuple[str, ...]]:
        return [call["because"] for call in self.calls]

    def pauses(self) -> list[float]:
        moments = [call["at"] for call in self.calls]
        return [later - earlier for earlier, later in itertools.pairwise(moments)]


@pytest.fixture
async def seen() -> Seen:
    return Seen()


def declare(seen: Seen, **options: Any) -> None:
    webop.reconcile("widgets", id="look", when=is_no_fence, **options)(seen)


async def test_changes_during_a_call_lead_to_one_more_with_the_newest_state(
    objects: Objects, run_operator: RunOperator, seen: Seen
) -> None:
    declare(seen)
    async with run_operator():
        await objects.pass_fence()
        seen.released.clear()
        await objects.create("one", {"a": 0})
        await seen.until(1)
        for number in range(1, 6):
            await objects.patch("one", {"spec": {"a": number}})
        await objects.pass_fence()
        seen.released.set()
        await seen.until(2)
        await objects.pass_fence()
    assert seen.reasons() == [("created",), ("changed",)]
    assert seen.calls[1]["spec"] == {"a": 5}


async def test_metadata_and_the_status_do_not_matter_but_chosen_fields_do(
    objects: Objects, run_operator: RunOperator, seen: Seen
) -> None:
    labelled = Seen()
    declare(seen)
    decorate = webop.reconcile("widgets", id="labels", fields=["metadata.labels"], when=is_no_fence)
    decorate(labelled)
    async with run_operator():
        await objects.pass_fence()
        await objects.create("one", {"a": 0})
        await seen.until(1)
        await labelled.until(1)
        await objects.patch("one", {"metadata": {"labels": {"a": "b"}}, "status": {"x": 1}})
        await labelled.until(2)
        await objects.patch("one", {"spec": {"a": 1}})
        await seen.until(2)
        await objects.pass_fence()
    assert labelled.reasons() == [("created",), ("changed",)]
    assert seen.reasons() == [("created",), ("changed",)]


async def test_failures_lead_to_growing_pauses_which_a_change_of_the_object_ends(
    objects: Objects, run_operator: RunOperator, seen: Seen
) -> None:
    declare(seen, backoff=webop.Backoff(first=0.2, factor=3, limit=60, jitter=0))
    seen.answers = [ValueError("x")] * 5
    async with run_operator():
        await objects.pass_fence()
        await objects.create("one", {"a": 0})
        await seen.until(4)
        assert [round(pause, 1) for pause in seen.pauses()] == pytest.approx(
            [0.2, 0.6, 1.8], abs=0.2
        )
        assert [call["retry"] for call in seen.calls] == [0, 1, 2, 3]
        assert seen.reasons()[1:] == [("failed",)] * 3
        changed_at = time.monotonic()
        await objects.patch("one", {"spec": {"a": 1}})
        await seen.until(5)  # the pause would take 5.4 s
        assert time.monotonic() - changed_at < 3
        await seen.until(6)
    assert seen.calls[4]["because"] == ("changed",)
    assert [call["retry"] for call in seen.calls[4:]] == [0, 1]


async def test_a_wish_to_be_called_again_is_neither_an_error_nor_an_event(
    objects: Objects, run_operator: RunOperator, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    declare(seen)
    seen.answers = [webop.again(after=0.3, reason="RollingOut"), webop.again(after=3600)]
    settings = build_settings(posting={"enabled": True})
    async with run_operator(settings):
        await objects.pass_fence()
        await objects.create("one")
        await seen.until(2)
        assert seen.pauses()[0] >= 0.3
        await objects.patch("one", {"spec": {"a": 1}})
        await seen.until(3)
    assert seen.reasons() == [("created",), ("again",), ("changed",)]
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_after_a_failure_for_good_it_is_called_for_the_next_reason(
    objects: Objects, run_operator: RunOperator, seen: Seen
) -> None:
    declare(seen, backoff=0.05, owns=["configmaps"])
    seen.answers = [ValueError("x"), webop.PermanentError("no")]
    async with run_operator():
        await objects.pass_fence()
        await objects.create("one")
        await seen.until(2)
        await objects.pass_fence()
        assert len(seen.calls) == 2
        await objects.patch("one", {"spec": {"a": 1}})
        await seen.until(3)
    assert [call["retry"] for call in seen.calls] == [0, 1, 0]
    assert seen.calls[-1]["because"] == ("changed",)


async def test_calls_for_one_object_keep_their_distance(
    objects: Objects, run_operator: RunOperator, seen: Seen
) -> None:
    declare(seen, min_interval=0.5)
    async with run_operator():
        await objects.pass_fence()
        await objects.create("one")
        for number in range(5):
            await objects.patch("one", {"spec": {"a": number}})
            await asyncio.sleep(0.05)
        await eventually(lambda: seen.calls and seen.calls[-1]["spec"] == {"a": 4})
    assert all(pause > 0.3 for pause in seen.pauses())  # a call can begin late, not the next one


@pytest.mark.parametrize("part", ["status", "spec", "annotations"])
async def test_what_a_reconciler_writes_does_not_call_it_again_even_if_it_counts(
    objects: Objects, run_operator: RunOperator, part: str
) -> None:
    calls: list[Any] = []
    fields = ["metadata.annotations"] if part == "annotations" else None

    @webop.reconcile("widgets", when=is_no_fence, fields=fields)
    async def build(patch: webop.Patch, because: Any, **_: Any) -> None:
        calls.append(because)
        patch.meta["labels"] = {"count": str(len(calls))}
        parts = {"status": patch.status, "spec": patch.spec}
        parts.get(part, patch.metadata.annotations)["count"] = str(len(calls))

    async with run_operator():
        await objects.pass_fence()
        await objects.create("one", {"a": 1})
        await objects.wait("one", lambda body: body["metadata"].get("labels") == {"count": "1"})
        await objects.pass_fence()
        assert calls == [("created",)]
        await objects.patch("one", {"spec": {"a": 2}, "metadata": {"annotations": {"a": "2"}}})
        await eventually(lambda: len(calls) > 1, "a call for the change")
        await objects.pass_fence()
    assert calls == [("created",), ("changed",)]


async def test_a_change_during_a_call_is_not_taken_for_the_own_one(
    objects: Objects, run_operator: RunOperator
) -> None:
    calls: list[Any] = []
    released = asyncio.Event()

    @webop.reconcile("widgets", when=is_no_fence)
    async def build(patch: webop.Patch, spec: webop.Spec, **_: Any) -> None:
        calls.append(spec.get("a"))
        patch.spec["count"] = len(calls)
        await released.wait()

    async with run_operator():
        await objects.pass_fence()
        await objects.create("one", {"a": 1})
        await eventually(lambda: bool(calls), "a call")
        await objects.patch("one", {"spec": {"a": 2}})
        await objects.pass_fence()
        released.set()
        await eventually(lambda: calls[-1] == 2, "a call for the change")
        await objects.pass_fence()
    assert calls == [1, 2]


@pytest.mark.parametrize(
    ("decorate", "is_deleted"), [(webop.on.create, True), (webop.reconcile, False)]
)
async def test_what_happens_during_the_call_of_another_handler_can_make_a_call_needless(
    objects: Objects, run_operator: RunOperator, seen: Seen, *, decorate: Any, is_deleted: bool
) -> None:
    order: list[str] = []
    is_begun, is_free = asyncio.Event(), asyncio.Event()

    async def slow(**_: Any) -> None:
        is_begun.set()
        await is_free.wait()

    decorate("widgets", id="slow", when=is_no_fence)(slow)
    declare(seen, labels={"in-use": "yes"})

    @webop.on.delete("widgets", when=is_no_fence)
    async def removed(**_: Any) -> None:
        order.append("delete")

    async with run_operator():
        await objects.pass_fence()
        await objects.create("one", labels={"in-use": "yes"})
        await is_begun.wait()
        if is_deleted:
            await objects.delete("one")
        else:
            await objects.patch("one", {"metadata": {"labels": {"in-use": "no"}}})
        await objects.pass_fence()
        is_free.set()
        if is_deleted:
            await objects.wait_gone("one")
        await objects.pass_fence()
        assert seen.calls == []
        if not is_deleted:
            await objects.patch("one", {"metadata": {"labels": {"in-use": "yes"}}})
            await seen.until(1)
    assert order == (["delete"] if is_deleted else [])


async def test_handlers_of_changes_and_reconcilers_stand_side_by_side(
    objects: Objects, run_operator: RunOperator, seen: Seen
) -> None:
    handled: list[str] = []
    declare(seen)

    @webop.on.create("widgets", when=is_no_fence, backoff=0.2)
    async def made(retry: int, **_: Any) -> None:
        handled.append(f"create {retry}")
        if retry < 2:
            raise ValueError("not yet")

    @webop.on.delete("widgets", when=is_no_fence)
    async def removed(**_: Any) -> None:
        handled.append("delete")

    async with run_operator():
        await objects.pass_fence()
        await objects.make("one")
        assert handled == ["create 0", "create 1", "create 2"]
        assert seen.reasons() == [("created",)]
        await objects.remove("one")
    assert handled[-1] == "delete"
    assert len(seen.calls) == 1


@rows(
    ("options", "problem"),
    [
        ({"owns": "configmaps"}, "owns="),
        ({"owns": ["configmaps"], "reads": ["services"]}, "reads= has services"),
        ({"backoff": "fast"}, "backoff="),
        ({"backoff": []}, "backoff="),
        ({"retries": 3}, "There is no option 'retries' of reconcilers"),
        ({"min_interval": -1}, "min_interval="),
        ({"watches": ["secrets"]}, "watches="),
        ({"own": ["configmaps"]}, "did you mean 'owns'?"),
        ({"owns": [webop.EVERYTHING]}, "A kind must be a name"),
        (
            {"owns": ["configmaps"], "accumulates": ["services"]},
            "accumulates= has services, which is not in owns=",
        ),
        ({"own_writes": "yes"}, "own_writes="),
    ],
)
def test_wrong_options_are_refused_at_import(options: Json, problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem.replace("?", "\\?")):
        webop.reconcile("widgets", registry=webop.OperatorRegistry(), **options)


async def test_after_an_outage_of_two_seconds_a_reconciler_succeeds_as_without_these_changes(
    objects: Objects, maps: Maps, run_operator: RunOperator
) -> None:
    """Without them, it is called after 0, 0.25, 1.25 and 5.25 s."""
    kinds, backoff = ["configmaps"], webop.Backoff(first=0.25, factor=4, jitter=0)
    calls: list[float] = []
    succeeded: list[float] = []

    @webop.reconcile("widgets", owns=kinds, reads=kinds, backoff=backoff, when=is_no_fence)
    async def build(children: webop.Children, **_: Any) -> None:
        calls.append(time.monotonic())
        await children.apply(build_map("a", {"text": "1"}))
        if time.monotonic() - calls[0] < 2:
            raise ValueError("The database is away.")
        succeeded.append(time.monotonic())

    def has_called(number: int) -> bool:
        return len(calls) >= number

    async with run_operator():
        await objects.create("one")
        for number in (1, 2, 3):  # others change its labels three times
            await eventually(partial(has_called, number))
            await maps.wait("a", bool)
            await maps.patch("a", {"metadata": {"labels": {"seen": str(number)}}})
        await eventually(lambda: succeeded, lambda: f"a success, calls: {calls}", timeout=7)
