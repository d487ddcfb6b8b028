"""Progress is written in groups, but never held back by a handler that takes its time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import webop
from tests.kit.operators import (
    DIFFBASE,
    PREFIX,
    Objects,
    RunOperator,
    build_settings,
    get_annotations,
)
from tests.kit.waiting import eventually

PATIENT = {"execution": {"commit_window": 0.1}}


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

    async with run_operator(build_settings(**PATIENT)):
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
    async with run_operator(build_settings(execution={"commit_window": 60})):
        await objects.create("a")
        await eventually(lambda: found)
        raw = found[0]
        assert "labels" not in raw["metadata"], "not half of what it does"
        assert {k for k in get_annotations(raw) if k.startswith(PREFIX)} == records
        subrefs = json.loads(get_annotations(raw)[f"{PREFIX}/parent"])["subrefs"]
        assert subrefs == ["parent/group", "parent/group/first", "parent/group/second"]
    async with run_operator(build_settings(**PATIENT)):
        await eventually(lambda: len(found) == 2)
        version = found[1]["metadata"]["resourceVersion"]
        assert version == raw["metadata"]["resourceVersion"], "what is stored is not stored again"
        released.set()
        raw = await objects.wait("a", lambda raw: DIFFBASE in get_annotations(raw))
    assert {key for key in get_annotations(raw) if key.startswith(PREFIX)} == {DIFFBASE}
    assert starts[2:] == starts[:2]
