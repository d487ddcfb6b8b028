"""Children that accumulate, as the runs of a job do; and what an apply and a call lead to."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
import pytest

import webop
from tests.cluster.reconcilers.conftest import MAPS, Maps, build_map
from tests.kit.http_relay import Relay
from tests.kit.operators import Json, Objects, RunOperator, is_no_fence
from tests.kit.waiting import eventually


def build_run(number: int, **labels: str) -> Json:
    made = build_map(f"run-{number}", {"number": str(number)})
    made["metadata"]["labels"] = labels
    return made


async def test_children_that_accumulate_stay_until_the_reconciler_deletes_them(
    objects: Objects, maps: Maps, run_operator: RunOperator
) -> None:
    seen: list[Any] = []
    kinds = ["configmaps"]

    @webop.reconcile("widgets", owns=kinds, reads=kinds, accumulates=kinds, when=is_no_fence)
    async def build(children: webop.Children, spec: webop.Spec, **_: Any) -> None:
        number = spec["number"]
        await children.apply(build_run(number, parity="odd" if number % 2 else "even"))
        assert await children.prune() == []
        odd = await children.list("configmaps", labels={"parity": "odd"})
        names = [one["metadata"]["name"] for one in odd]
        if len(names) > 1:
            assert await children.delete("configmaps", names[0])
            assert not await children.delete("configmaps", names[0])
            assert not await children.delete("configmaps", "of-somebody-else")
        seen.append((names, len(await children.list("configmaps", labels="parity in (even)"))))

    async with run_operator():
        await maps.create("of-somebody-else", {})
        await objects.create("one", {"number": 1})
        for number in (2, 3):
            await maps.wait(f"run-{number - 1}", bool)
            await objects.patch("one", {"spec": {"number": number}})
        await maps.wait("run-1", lambda found: found is None)
        await maps.wait("run-3", bool)
        assert await maps.find("of-somebody-else")
        assert await maps.find("run-2")
    assert [each for each, _ in itertools.groupby(seen)][:3] == [
        (["run-1"], 0),
        (["run-1"], 1),
        (["run-1", "run-3"], 1),
    ]


@pytest.mark.parametrize("is_read", [True, False])
async def test_an_apply_returns_whether_it_was_a_write_and_the_child(
    objects: Objects, relayed: Relay, run_relayed: RunOperator, *, is_read: bool
) -> None:
    seen: list[webop.Applied] = []
    reads = ["configmaps"] if is_read else []

    @webop.reconcile("widgets", owns=["configmaps"], reads=reads, when=is_no_fence)
    async def build(children: webop.Children, **_: Any) -> None:
        seen.append(await children.apply(build_map("a", {"text": "1"})))

    async with run_relayed():
        await objects.create("one", {"a": 1})
        await eventually(lambda: seen)
        await objects.patch("one", {"spec": {"a": 2}})
        await eventually(lambda: len(seen) > 1)
    first, second = seen[:2]
    assert (bool(first), bool(second)) == (True, False)
    assert first.object == second.object
    meta = first.object["metadata"]
    assert (first.object["kind"], meta["name"], len(meta["uid"])) == ("ConfigMap", "a", 36)
    assert ("data" in first.object, "labels" in meta) == (is_read, is_read)
    assert len(relayed.list_requests("GET", "a")) == 1  # whether it was there before


async def test_what_a_reconciler_writes_calls_it_again_if_it_says_so_until_nothing_is_written(
    objects: Objects, maps: Maps, run_operator: RunOperator
) -> None:
    calls: list[tuple[Any, float]] = []

    @webop.reconcile("widgets", owns=["configmaps"], own_writes=True, when=is_no_fence)
    async def build(
        because: Any, patch: webop.Patch, children: webop.Children, status: Any, **_: Any
    ) -> None:
        calls.append((because, time.monotonic()))
        if not status.get("step"):
            patch.status["step"] = 1
        elif not await children.apply(build_map("a", {"step": "2"})):
            patch.status["done"] = True

    async with run_operator():
        await objects.pass_fence()
        await objects.create("one")
        await objects.wait("one", lambda body: body.get("status", {}).get("done"))
        await eventually(lambda: len(calls) == 4)
        await objects.pass_fence()
    assert [because for because, _ in calls] == [("created",), *[("own_writes",)] * 3]
    pauses = [later - earlier for (_, earlier), (_, later) in itertools.pairwise(calls)]
    assert min(pauses) > 0.9


async def test_a_change_of_a_child_ends_the_pause_after_a_failure_but_not_more_than_once_a_second(
    objects: Objects, maps: Maps, run_operator: RunOperator
) -> None:
    calls: list[float] = []

    @webop.reconcile("widgets", owns=["configmaps"], backoff=600, when=is_no_fence)
    async def build(children: webop.Children, **_: Any) -> None:
        calls.append(time.monotonic())
        await children.apply(build_map("a", {"text": "1"}))
        if len(calls) < 3:
            raise ValueError("no")

    def has_called(number: int) -> bool:
        return len(calls) == number

    async with run_operator():
        await objects.create("one")
        for number in (1, 2):
            await maps.wait("a", lambda found: found and found["data"]["text"] == "1")
            await eventually(partial(has_called, number))
            await maps.patch("a", {"data": {"text": "2"}})
        await eventually(lambda: len(calls) == 3)
    assert all(later - earlier > 0.9 for earlier, later in itertools.pairwise(calls))


async def test_a_handler_of_a_change_cannot_apply_or_prune_what_the_reconciler_would_prune(
    objects: Objects, maps: Maps, run_operator: RunOperator
) -> None:
    refused: list[str] = []

    @webop.reconcile("widgets", owns=["configmaps"], when=is_no_fence)
    async def build(children: webop.Children, **_: Any) -> None:
        await children.apply(build_map("a", {"text": "1"}))

    @webop.on.create("widgets", when=is_no_fence)
    async def created(children: webop.Children, **_: Any) -> None:
        for call in (children.apply(build_map("b", {})), children.prune()):
            try:
                await call
            except webop.ConfigurationError as exc:
                refused.append(str(exc))

    async with run_operator():
        await objects.make("one")
        await maps.wait("a", bool)
        await eventually(lambda: len(refused) == 2)
    assert all("are for functions with @webop.reconcile" in text for text in refused)


def _hold_deletions(relayed: Relay) -> asyncio.Event:
    """Let events of deletions of ConfigMaps come only when the event is set that this returns."""
    may_tell = asyncio.Event()

    async def watch(request: httpx.Request) -> AsyncIterator[bytes]:
        async for data in relayed.pass_watch_on(request):
            is_end = b'"DELETED"' in data or b"deletionTimestamp" in data
            if is_end and "configmaps" in request.url.path:
                await may_tell.wait()
            yield data

    relayed.watch = watch
    return may_tell


async def test_after_a_deletion_a_child_is_gone_or_said_to_be_in_deletion(
    objects: Objects, relayed: Relay, run_relayed: RunOperator
) -> None:
    """The event of the deletion comes late. Results are never older than own writes."""
    seen: list[Any] = []
    may_tell = _hold_deletions(relayed)

    @webop.reconcile("widgets", owns=["configmaps"], reads=["configmaps"], when=is_no_fence)
    async def build(children: webop.Children, **_: Any) -> None:
        await children.apply(build_map("a", {"text": "1"}))
        assert await children.delete("configmaps", "a")
        found = [await children.get("configmaps", "a"), *await children.list("configmaps")]
        seen.append([one for one in found if one and "deletionTimestamp" not in one["metadata"]])

    async with run_relayed():
        await objects.create("one")
        await eventually(lambda: seen)
        may_tell.set()
    assert seen[0] == []


async def test_an_apply_of_a_child_in_deletion_does_not_say_that_it_is_as_wanted(
    objects: Objects, relayed: Relay, run_relayed: RunOperator
) -> None:
    """Webop does not create it before it is gone: a run that counts on it would be lost."""
    seen: list[Any] = []
    may_tell = _hold_deletions(relayed)

    @webop.reconcile("widgets", owns=["configmaps"], reads=["configmaps"], when=is_no_fence)
    async def build(children: webop.Children, **_: Any) -> None:
        child = build_map("a", {"text": "1"})
        child["metadata"]["finalizers"] = ["tests.webop.dev/hold"]
        if seen:
            return
        await children.apply(child)
        assert await children.delete("configmaps", "a")
        try:
            applied = await children.apply(child)
        except webop.TemporaryError:
            seen.append("not yet")
        else:
            is_told = "deletionTimestamp" in applied.object["metadata"]
            seen.append("in deletion" if is_told else "as wanted")

    async with run_relayed():
        await objects.create("one")
        await eventually(lambda: seen)
        may_tell.set()
        patch = {"metadata": {"finalizers": None}}
        await objects.client.patch(MAPS, objects.namespace, "a", patch)
    assert seen != ["as wanted"]


async def test_a_change_of_the_object_of_an_apply_is_not_what_get_returns_afterwards(
    objects: Objects, relayed: Relay, run_relayed: RunOperator
) -> None:
    """The event of the apply comes after its response, as it mostly does."""
    seen: list[Json | None] = []
    may_tell = asyncio.Event()

    async def watch(request: httpx.Request) -> AsyncIterator[bytes]:
        async for data in relayed.pass_watch_on(request):
            if b'"uid"' in data and "configmaps" in request.url.path and b"text" in data:
                await may_tell.wait()
            yield data

    relayed.watch = watch

    @webop.reconcile("widgets", owns=["configmaps"], reads=["configmaps"], when=is_no_fence)
    async def build(children: webop.Children, **_: Any) -> None:
        applied = await children.apply(build_map("a", {"text": "1"}))
        applied.object["data"]["text"] = "forged"
        applied.object["metadata"].pop("labels", None)
        seen.append((await children.get("configmaps", "a") or {}).get("data"))

    async with run_relayed():
        await objects.create("one", {"a": 1})
        await eventually(lambda: seen)
        may_tell.set()
        await objects.patch("one", {"spec": {"a": 2}})
        await eventually(lambda: len(seen) > 1)
    assert seen[:2] == [{"text": "1"}] * 2
