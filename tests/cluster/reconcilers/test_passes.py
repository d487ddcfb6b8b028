"""When reconcilers are called: for all changes since the last call, and again after a while."""

from __future__ import annotations

import asyncio
import itertools
import time
from functools import partial
from typing import Any

import pytest

import webop
from tests.kit.operators import Json, Objects, RunOperator, build_settings, is_no_fence
from tests.kit.rows import rows
from tests.kit.waiting import eventually


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


def declare(seen: Seen, name: str = "look", **options: Any) -> None:
    webop.reconcile("widgets", id=name, when=is_no_fence, **options)(seen)


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
    declare(labelled, name="labels", fields=["metadata.labels"])
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
    assert labelled.reasons() == seen.reasons() == [("created",), ("changed",)]


async def test_failures_lead_to_growing_pauses_which_a_change_of_the_object_ends(
    objects: Objects, run_operator: RunOperator, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    declare(seen, backoff=webop.Backoff(first=0.2, factor=3, limit=60, jitter=0))
    seen.answers = [ValueError("x")] * 5
    async with run_operator():
        await objects.pass_fence()
        await objects.create("one", {"a": 0})
        await seen.until(4)
        told = [f"Retry {number} in {pause} s." for number, pause in ((1, 0.2), (2, 0.6), (3, 1.8))]
        assert all(text in caplog.text for text in told)
        least = zip(seen.pauses(), (0.2, 0.6, 1.8), strict=True)
        assert all(pause - 1 < expected < pause + 0.1 for pause, expected in least), seen.pauses()
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
    status = {"phase": "RollingOut"}
    first = webop.again(after=0.3, reason="RollingOut", status=status)
    seen.answers = [first, webop.again(after=3600)]
    settings = build_settings(posting={"enabled": True})
    async with run_operator(settings):
        await objects.pass_fence()
        await objects.create("one")
        await seen.until(2)
        assert seen.pauses()[0] >= 0.3
        await objects.wait("one", lambda body: "RollingOut" in str(body.get("status")))
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


async def test_what_a_reconciler_writes_does_not_call_it_again_even_if_it_counts(
    objects: Objects, run_operator: RunOperator
) -> None:
    calls: dict[str, list[Any]] = {"status": [], "spec": [], "annotations": []}

    def build(part: str) -> None:
        fields = ["metadata.annotations"] if part == "annotations" else None

        @webop.reconcile("widgets", id=part, labels={"part": part}, fields=fields)
        async def fn(patch: webop.Patch, because: Any, **_: Any) -> None:
            calls[part].append(because)
            count = str(len(calls[part]))
            patch.metadata.labels["count"] = count
            parts = {"status": patch.status, "spec": patch.spec}
            parts.get(part, patch.metadata.annotations)["count"] = count

    for part in calls:
        build(part)
    async with run_operator():
        await objects.pass_fence()
        for part in calls:
            await objects.create(part, {"a": 1}, labels={"part": part})
            await objects.wait(part, lambda body: body["metadata"]["labels"].get("count") == "1")
        await objects.pass_fence()
        assert {part: len(found) for part, found in calls.items()} == dict.fromkeys(calls, 1)
        for part, found in calls.items():
            patch = {"spec": {"a": 2}, "metadata": {"annotations": {"a": "2"}}}
            await objects.patch(part, patch)
            await eventually(partial(has_length, found, 2), f"a call for the change of {part}")
        await objects.pass_fence()
    assert calls == {part: [("created",), ("changed",)] for part in calls}


def has_length(found: list[Any], count: int) -> bool:
    return len(found) == count


async def test_handlers_of_changes_and_reconcilers_stand_side_by_side(
    objects: Objects, run_operator: RunOperator, seen: Seen
) -> None:
    handled: list[str] = []
    begun, released = asyncio.Event(), asyncio.Event()
    declare(seen)

    @webop.on.create("widgets", when=is_no_fence, backoff=0.2)
    async def made(retry: int, name: str, **_: Any) -> None:
        handled.append(f"create {name} {retry}")
        if name == "slow":
            begun.set()
            await released.wait()
        elif retry < 2:
            raise ValueError("not yet")

    @webop.on.delete("widgets", when=is_no_fence)
    async def removed(name: str, **_: Any) -> None:
        handled.append(f"delete {name}")

    async with run_operator():
        await objects.pass_fence()
        await objects.make("one")
        assert handled == ["create one 0", "create one 1", "create one 2"]
        assert seen.reasons() == [("created",)]
        await objects.remove("one")
        # What is deleted during the call of another handler is not reconciled any more.
        await objects.create("slow")
        await begun.wait()
        await objects.delete("slow")
        await objects.pass_fence()
        released.set()
        await objects.wait_gone("slow")
    assert handled[3:] == ["delete one", "create slow 0", "delete slow"]
    assert [call["name"] for call in seen.calls] == ["one"]


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
