"""Cycles of handlers that one begins and the other ends."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.kit.operators import DIFFBASE, FINALIZER, get_annotations
from tests.kopf.relay import SWAPS, Relay, Swap, get_records


@pytest.mark.feature("CON-01", "CON-03", "CON-04", "ERR-19", "CFG-37", "CFG-68", "D-33")
@pytest.mark.parametrize("swap", SWAPS, ids=str)
async def test_only_what_is_pending_or_interrupted_is_called_by_the_other_and_not_too_early(
    relay: Relay, swap: Swap
) -> None:
    relay.write("""
import asyncio

@kopf.on.create(KIND, labels={'relay': kopf.ABSENT})
def finished(**kwargs):
    note('finished', kwargs)
    return {'by': TURN}

@kopf.on.create(KIND, labels={'relay': kopf.ABSENT})
def refused(**kwargs):
    note('refused', kwargs)
    raise kopf.PermanentError('never')

@kopf.on.create(KIND, labels={'relay': kopf.ABSENT}, retries=2)
def pending(retry, **kwargs):
    note('pending', {**kwargs, 'retry': retry})
    if TURN == 1:
        raise kopf.TemporaryError('later', delay=3)

@kopf.on.create(KIND, labels={'relay': kopf.ABSENT})
async def interrupted(**kwargs):
    note('interrupted', kwargs)
    if TURN == 1:
        await asyncio.Event().wait()
""")
    async with relay.run(swap.first) as command:
        await relay.objects.create("one", {"x": 1})
        await relay.wait_for_call("one", "interrupted", turn=1)
        await relay.wait_for_records(
            "one", finished="success", refused="failure", pending="delayed"
        )
        await command.stop(swap.stop)
    records = get_records(await relay.objects.get("one"))
    assert not records.get("interrupted", {}).get("stopped")
    assert records["pending"]["retries"] == 1
    assert records["pending"]["message"] == "later"
    assert records["refused"]["message"] == "never"

    async with relay.run(swap.second):
        body = await relay.objects.wait_handled("one")
        await relay.pass_fence()
    due = datetime.fromisoformat(records["pending"]["delayed"]).timestamp()
    calls = {call["handler"]: call for call in relay.read_calls("one", turn=2)}
    assert relay.list_handlers("one", turn=2) == ["interrupted", "pending"]
    assert (calls["pending"]["retry"], calls["pending"]["reason"]) == (1, "create")
    assert calls["pending"]["time"] >= due
    assert calls["interrupted"]["retry"] == 0
    assert relay.list_handlers("one", turn=1) == ["finished", "interrupted", "pending", "refused"]
    assert set(get_annotations(body)) == {DIFFBASE}
    assert body["status"] == {"finished": {"by": 1}}


@pytest.mark.feature("CON-04", "CON-05", "HND-16")
@pytest.mark.parametrize("swap", SWAPS, ids=str)
async def test_the_other_sees_the_same_update(relay: Relay, swap: Swap) -> None:
    relay.write("""
@kopf.on.update(KIND)
def finished(**kwargs):
    note('finished', kwargs)

@kopf.on.update(KIND)
def pending(spec, **kwargs):
    note('pending', kwargs)
    if TURN == 1 and spec.get('x') == 'new':
        raise kopf.TemporaryError('later', delay=0.5)
""")
    async with relay.run(swap.first) as command:
        for name in ("begun", "away"):
            await relay.objects.make(name, {"x": "old", "y": [1, {"z": "ж"}]})
        await relay.objects.patch("begun", {"spec": {"x": "new"}})
        await relay.wait_for_records("begun", finished="success", pending="delayed")
        await command.stop(swap.stop)
    for value in ("newer", "new"):
        await relay.objects.patch("away", {"spec": {"x": value}})
    async with relay.run(swap.second):
        for name in ("begun", "away"):
            await relay.objects.wait_handled(name)
        await relay.pass_fence()

    assert relay.list_handlers("begun", turn=2) == ["pending"]
    assert relay.list_handlers("away") == ["finished", "pending"]
    for call in (*relay.read_calls("begun"), *relay.read_calls("away")):
        assert call["old"] == {"spec": {"x": "old", "y": [1, {"z": "ж"}]}}
        assert call["new"] == {"spec": {"x": "new", "y": [1, {"z": "ж"}]}}
        assert call["diff"] == [["change", ["spec", "x"], "old", "new"]]
        assert call["reason"] == "update"


@pytest.mark.feature("CON-04", "CON-06", "CFG-36", "ERR-19")
@pytest.mark.parametrize("swap", SWAPS, ids=str)
async def test_a_deletion_is_ended_by_the_other_whether_or_not_there_is_a_daemon(
    relay: Relay, swap: Swap
) -> None:
    relay.write("""
@kopf.daemon(KIND, labels={'with': 'daemon'}, cancellation_timeout=1.0)
async def daemon(stopped, **kwargs):
    note('daemon', kwargs)
    await stopped.wait()

@kopf.on.create(KIND, labels={'relay': kopf.ABSENT})
def created(name, **kwargs):
    if name == 'early':
        raise kopf.TemporaryError('not before it is deleted', delay=0.5)
    note('created', {**kwargs, 'name': name})

@kopf.on.delete(KIND, labels={'relay': kopf.ABSENT})
def finished(**kwargs):
    note('finished', kwargs)

@kopf.on.delete(KIND, labels={'relay': kopf.ABSENT})
def pending(**kwargs):
    note('pending', kwargs)
    if TURN == 1:
        raise kopf.TemporaryError('later', delay=0.5)
""")
    async with relay.run(swap.first) as command:
        for name in ("begun", "guarded", "away"):
            labels = {"with": "daemon"} if name == "guarded" else {}
            body = await relay.objects.make(name, {"x": 1}, labels=labels)
            assert body["metadata"]["finalizers"] == [FINALIZER]
        await relay.wait_for_call("guarded", "daemon", turn=1)
        await relay.objects.create("early", {"x": 1})
        await relay.wait_for_records("early", created="delayed")
        for name in ("begun", "guarded"):
            await relay.objects.delete(name)
        await relay.wait_for_records("begun", finished="success", pending="delayed")
        for handler in ("finished", "pending"):
            await relay.wait_for_call("guarded", handler, turn=1)
        await relay.objects.wait("guarded", lambda body: "pending" in get_records(body))
        await command.stop(swap.stop)
    for name in ("away", "early"):
        await relay.objects.delete(name)
    async with relay.run(swap.second):
        for name in ("begun", "guarded", "away", "early"):
            await relay.objects.wait_gone(name)

    for name in ("begun", "guarded"):
        assert relay.list_handlers(name, turn=2) == ["pending"]
        assert relay.list_handlers(name).count("created") == 1
        assert relay.list_handlers(name).count("finished") == 1
    assert relay.list_handlers("away") == ["created", "finished", "pending"]
    assert relay.list_handlers("early") == ["finished", "pending"]


@pytest.mark.feature("CON-04", "HND-20")
@pytest.mark.parametrize("swap", SWAPS, ids=str)
async def test_resuming_is_done_once_by_each_and_goes_on_where_it_was(
    relay: Relay, swap: Swap
) -> None:
    relay.write("""
@kopf.on.create(KIND, labels={'relay': kopf.ABSENT})
def created(**kwargs):
    note('created', kwargs)

@kopf.on.resume(KIND, labels={'relay': kopf.ABSENT})
def finished(**kwargs):
    note('finished', kwargs)

@kopf.on.resume(KIND, labels={'relay': kopf.ABSENT})
def pending(name, **kwargs):
    note('pending', {**kwargs, 'name': name})
    if TURN == 2 and name == 'begun':
        raise kopf.TemporaryError('later', delay=0.5)
""")
    async with relay.run(swap.first) as command:
        await relay.pass_fence()
        for name in ("begun", "rest"):
            await relay.objects.make(name, {"x": 1})
        await relay.pass_fence()
        await command.stop(swap.stop)
    async with relay.run(swap.second) as command:
        await relay.wait_for_records("begun", finished="success", pending="delayed")
        await relay.wait_for_call("rest", "pending", turn=2)
        await relay.pass_fence()
        await command.stop(swap.stop)
    async with relay.run(swap.first):
        await relay.wait_for_call("rest", "pending", turn=3)
        await relay.wait_for_call("begun", "pending", turn=3)
        await relay.objects.wait_handled("begun")
        await relay.pass_fence()

    assert relay.list_handlers("rest", turn=1) == ["created"]
    assert relay.list_handlers("rest", turn=2) == ["finished", "pending"]
    assert relay.list_handlers("rest", turn=3) == ["finished", "pending"]
    assert relay.list_handlers("begun", turn=1) == ["created"]
    assert set(relay.list_handlers("begun", turn=2)) == {"finished", "pending"}
    assert relay.list_handlers("begun", turn=3) == ["pending"]


@pytest.mark.feature("CON-02", "CON-04", "EVT-10", "CFG-38", "CFG-65")
@pytest.mark.parametrize("swap", SWAPS, ids=str)
async def test_objects_at_rest_are_left_alone_by_the_other(relay: Relay, swap: Swap) -> None:
    relay.write("""
@kopf.on.create(KIND)
@kopf.on.update(KIND)
@kopf.on.field(KIND, field='spec.a')
@kopf.on.field(KIND, field='status.seen')
@kopf.on.delete(KIND, optional=True)
def handler(**kwargs):
    note('handler', kwargs)
""")
    specs: dict[str, Any] = {
        "plain": {"a": 1},
        "empty": {},
        "nested": {"a": {"b": [1, 2.5, None, True, {"c": []}]}, "d": {}},
        "texts": {"a": 'ж🙂\u2028\t"q\\', "b": "x" * 3000},
        "numbers": {"a": 2**53 + 1, "b": -1.5e300, "c": 1e-7},
    }
    async with relay.run(swap.first) as command:
        for name, spec in specs.items():
            metadata = {"labels": {"l": "v"}, "annotations": {"note": "ж"}}
            await relay.objects.create(name, spec, **metadata)
        before = [await relay.objects.wait_handled(name) for name in specs]
        await relay.pass_fence()
        before = [await relay.objects.get(name) for name in specs]
        await command.stop(swap.stop)
    async with relay.run(swap.second):
        await relay.pass_fence()
        await relay.objects.change("plain", {"spec": {"a": 2}})

    for body in before[1:]:
        name = body["metadata"]["name"]
        assert await relay.objects.get(name) == body
        assert not relay.read_calls(name, turn=2)
    assert {call["reason"] for call in relay.read_calls("plain", turn=2)} == {"update"}
