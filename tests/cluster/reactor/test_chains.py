"""Several handlers of one object: their order, their patches, and changes that come in between."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

import webop
from tests.kit.operators import (
    DIFFBASE,
    PREFIX,
    Calls,
    Objects,
    RunOperator,
    get_annotations,
    get_progress,
    is_no_fence,
)
from tests.kit.waiting import eventually


class Chain:
    """Handlers a, b, c of updates (and of creations); b can be held up, or told to fail."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.entered = asyncio.Event()
        self.released = asyncio.Event()
        self.released.set()
        self.failing: set[int] = set()
        for key in "abc":
            webop.on.create("widgets", id=key, when=is_no_fence)(self._build(key))
            webop.on.update("widgets", id=key, when=is_no_fence)(self._build(key))

    def _build(self, key: str) -> Any:
        async def fn(spec: webop.Spec, **kwargs: Any) -> None:
            self.calls.note(key, {**kwargs, "spec": spec})
            if key == "b":
                self.entered.set()
                await self.released.wait()
                if spec["a"] in self.failing:
                    raise webop.TemporaryError("not yet", delay=1000)

        return fn

    def list_values(self, key: str, name: str = "one") -> list[int]:
        """Return which values of the spec a handler has seen, in order."""
        return [call["spec"]["a"] for call in self.calls.of(name, key)]


@pytest.fixture
def chain(calls: Calls) -> Chain:
    return Chain(calls)


def last_first(handlers: Any, **kwargs: Any) -> Any:
    assert {"spec", "name", "reason", "state"} <= kwargs.keys()
    return handlers[-1:]


@pytest.mark.feature("HND-10", "HND-14", "REF-29", "REF-30", "EMB-07")
@pytest.mark.parametrize(("lifecycle", "order"), [(None, "abc"), (last_first, "cba")])
async def test_handlers_of_one_object_are_called_in_their_order_or_as_the_lifecycle_says(
    chain: Chain,
    run_operator: RunOperator,
    objects: Objects,
    lifecycle: Any,
    order: str,
) -> None:
    async with run_operator(lifecycle=lifecycle):
        await objects.make("one", {"a": 0})
        await objects.pass_fence()
    assert chain.calls.handlers("one") == [*order]


@dataclass
class Noting:
    """A handler without a hash, as all instances of dataclasses are."""

    reasons: list[str] = field(default_factory=list)

    def __call__(self, name: str, reason: str = "none", **_: Any) -> str:
        if name == "one":
            self.reasons.append(reason)
        return name


@pytest.mark.feature("HND-07", "HND-09")
async def test_a_handler_without_a_hash_is_called_once_for_each_reason(
    run_operator: RunOperator, objects: Objects
) -> None:
    noting, other = Noting(), Noting()
    webop.on.resume("widgets", id="fn")(noting)
    webop.on.create("widgets", id="fn")(noting)
    webop.on.update("widgets", id="fn")(noting)
    webop.index("widgets", id="names")(other)
    webop.on.event("widgets", id="event")(other)
    webop.timer("widgets", id="timer", interval=100)(other)
    await objects.create("one", {"a": 1})
    async with run_operator():
        await objects.wait_handled("one")
        await objects.change("one", {"spec": {"a": 2}})
        await objects.pass_fence()
    assert noting.reasons == ["create", "update"]
    assert len(other.reasons) > 3


@pytest.mark.feature("D-67", "EVT-12")
async def test_a_change_in_the_middle_of_a_creation_is_an_update_afterwards(
    chain: Chain, run_operator: RunOperator, objects: Objects
) -> None:
    chain.released.clear()
    async with run_operator():
        await objects.create("one", {"a": 1})
        await chain.entered.wait()
        await objects.patch("one", {"spec": {"a": 2}})
        await objects.pass_fence()
        chain.released.set()
        await objects.wait_handled("one")
        await objects.pass_fence()
    assert [call["reason"] for call in chain.calls.of("one", "a")] == ["create", "update"]
    assert chain.list_values("a") == [1, 2]
    assert chain.list_values("b") == [1, 2]
    assert chain.list_values("c")[-1] == 2


@pytest.mark.feature("ERR-20", "ERR-18")
@pytest.mark.parametrize(("is_waiting", "called"), [(True, "abc"), (False, "ab")])
async def test_a_deletion_supersedes_what_waits_for_its_retry_and_follows_what_runs(
    chain: Chain, run_operator: RunOperator, objects: Objects, is_waiting: bool, called: str
) -> None:
    webop.on.delete("widgets", id="deleted")(chain.calls.noting("deleted"))
    if is_waiting:
        chain.failing = {0}
    else:
        chain.released.clear()
    async with run_operator():
        await objects.create("one", {"a": 0})
        await chain.entered.wait()
        if is_waiting:
            await chain.calls.wait("one", "c")  # records of all come after the first one
        await objects.delete("one")
        await objects.pass_fence()
        await asyncio.sleep(0.3)  # in which the outcome of the first one is written
        chain.released.set()
        await objects.wait_gone("one")
    assert chain.calls.handlers("one") == [*called, "deleted"]


@pytest.mark.feature("EMB-07", "SUB-05")
@pytest.mark.parametrize("is_for_children", [False, True])
async def test_a_lifecycle_that_chooses_nobody_is_asked_again_after_pauses_and_loses_no_handler(
    run_operator: RunOperator,
    objects: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
    *,
    is_for_children: bool,
) -> None:
    asked: list[float] = []
    is_choosing = False

    def hesitate(handlers: Any, **_: Any) -> Any:
        asked.append(time.monotonic())
        return handlers if is_choosing else []

    async def fn(**kwargs: Any) -> None:
        calls.note("fn", kwargs)

    @webop.on.create("widgets", id="parent", when=is_no_fence)
    async def parent(**kwargs: Any) -> None:
        if is_for_children:
            await webop.execute(fns={"fn": fn}, lifecycle=hesitate)
        else:
            await fn(**kwargs)

    async with run_operator(lifecycle=None if is_for_children else hesitate):
        await objects.create("one")
        await eventually(lambda: len(asked) >= 4)
        is_choosing = True
        await objects.wait_handled("one")
    assert len(calls) == 1
    assert asked[3] - asked[2] > 0.9  # the first records come back as an event
    texts = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert texts == ["The lifecycle has chosen none of 1 due handlers. Asking again in 1 s."]


@pytest.mark.feature("SUB-06", "SUB-07", "SUB-08", "SUB-09", "SUB-16", "SUB-17", "CON-07", "RST-07")
async def test_sub_handlers_go_on_where_they_were_after_a_restart(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    ready = False

    @webop.on.create("widgets", id="parent", when=is_no_fence)
    async def parent(**kwargs: Any) -> str:
        @webop.subhandler(id="fine")
        async def fine(**kwargs: Any) -> str:
            calls.note("fine", kwargs)
            return "fine too"

        @webop.subhandler(id="flaky")
        def flaky(**kwargs: Any) -> None:
            calls.note("flaky", kwargs)
            if not ready:
                raise webop.TemporaryError("not yet", delay=0.1)

        await webop.execute()
        calls.note("end", kwargs)
        return "all done"

    async with run_operator():
        await objects.create("one")
        await calls.wait("one", "flaky", count=2)
        body = await objects.wait("one", lambda body: '"retries":2' in get_progress(body)["parent"])
    assert get_progress(body).keys() == {"parent", "parent.fine", "parent.flaky"}
    ready = True
    async with run_operator():
        body = await objects.wait_handled("one")
        await objects.pass_fence()
    assert len(calls.of("one", "fine")) == 1
    assert len(calls.of("one", "end")) == 1
    assert body["status"] == {"parent": "all done", "parent/fine": "fine too"}


@pytest.mark.feature("CON-04", "CFG-68", "PAT-10")
async def test_what_is_finished_is_written_down_while_a_slower_handler_runs(
    objects: Objects, run_operator: RunOperator
) -> None:
    released = asyncio.Event()

    @webop.on.create("widgets", id="quick")
    async def quick(patch: webop.Patch, **_: Any) -> str:
        patch.metadata.labels["quick"] = "done"
        return "result"

    @webop.on.create("widgets", id="slow")
    async def slow(patch: webop.Patch, **_: Any) -> None:
        patch.metadata.labels["slow"] = "half"
        await released.wait()
        patch.metadata.labels["slow"] = "done"

    async with run_operator():
        await objects.create("a")
        raw = await objects.wait("a", lambda raw: f"{PREFIX}/quick" in get_annotations(raw))
        assert '"success":true' in get_annotations(raw)[f"{PREFIX}/quick"]
        assert f"{PREFIX}/slow" not in get_annotations(raw)
        assert raw["metadata"]["labels"] == {"quick": "done"}, "not half of what the other does"
        assert raw["status"] == {"quick": "result"}
        released.set()
        raw = await objects.wait("a", lambda raw: DIFFBASE in get_annotations(raw))
        assert raw["metadata"]["labels"] == {"quick": "done", "slow": "done"}
        kept = {key for key in get_annotations(raw) if key.startswith(PREFIX)}
        assert kept == {DIFFBASE}, "the progress is gone after the cycle"


@pytest.mark.feature("SUB-06", "CON-04", "CFG-68")
async def test_a_restart_during_the_first_sub_handler_does_not_start_the_timeout_of_parents_anew(
    objects: Objects, run_operator: RunOperator
) -> None:
    starts: list[tuple[str, Any]] = []
    found: list[Any] = []
    released = asyncio.Event()

    async def wait(**_: Any) -> None:
        await asyncio.sleep(0.5)  # what is before a long call is written
        found.append(await objects.get("a"))
        await released.wait()

    async def group(started: Any, **_: Any) -> None:
        starts.append(("group", started))
        await webop.execute(fns={"first": wait, "second": lambda **_: None})

    @webop.on.create("widgets", id="parent", timeout=60)
    async def parent(started: Any, patch: webop.Patch, **_: Any) -> None:
        starts.append(("parent", started))
        patch.metadata.labels["parent"] = "half"
        await webop.execute(fns={"group": group})
        patch.metadata.labels["parent"] = "done"

    records = {f"{PREFIX}/parent", f"{PREFIX}/parent.group"}
    async with run_operator():
        await objects.create("a")
        await eventually(lambda: found)
        raw = found[0]
        assert "labels" not in raw["metadata"], "not half of what it does"
        assert {k for k in get_annotations(raw) if k.startswith(PREFIX)} == records
        subrefs = json.loads(get_annotations(raw)[f"{PREFIX}/parent"])["subrefs"]
        assert subrefs == ["parent/group", "parent/group/first", "parent/group/second"]
    async with run_operator():
        await eventually(lambda: len(found) == 2)
        version = found[1]["metadata"]["resourceVersion"]
        assert version == raw["metadata"]["resourceVersion"], "what is stored is not stored again"
        released.set()
        raw = await objects.wait("a", lambda raw: DIFFBASE in get_annotations(raw))
    assert {key for key in get_annotations(raw) if key.startswith(PREFIX)} == {DIFFBASE}
    assert starts[2:] == starts[:2]
