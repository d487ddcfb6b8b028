"""Operators with storages of their own, such as those that must not write on objects."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

import webop
from tests.kit.operators import Calls, Objects, RunOperator, build_settings


class NoProgress(webop.ProgressStorage):
    """As operators write it: any arguments, and nothing returned."""

    def fetch(self, **_: Any) -> None: ...

    def store(self, **_: Any) -> None: ...

    def purge(self, **_: Any) -> None: ...

    def touch(self, **_: Any) -> None: ...

    def clear(self, *, essence: webop.BodyEssence) -> webop.BodyEssence:
        essence = super().clear(essence=essence)
        self.remove_annotations(essence, {"noise"})
        self.remove_empty_stanzas(essence)
        return essence


class ClearedToNothing(NoProgress):
    def clear(self, **_: Any) -> Any: ...


class InMemory(webop.DiffBaseStorage):
    def __init__(self) -> None:
        super().__init__()
        self.essences: dict[str | None, webop.BodyEssence] = {}

    def fetch(self, *, body: webop.Body) -> webop.BodyEssence | None:
        return self.essences.get(body.meta.uid)

    def store(self, *, body: webop.Body, essence: webop.BodyEssence, **_: Any) -> None:
        self.essences[body.meta.uid] = essence


class NoDiffBase(webop.DiffBaseStorage):
    def fetch(self, **_: Any) -> None: ...

    def store(self, **_: Any) -> None: ...


@pytest.mark.feature("CFG-62", "REF-51", "REF-56")
async def test_changes_are_noticed_by_a_state_in_memory_with_nothing_written_on_the_object(
    run_operator: RunOperator, objects: Objects, calls: Calls
) -> None:
    @webop.on.create("widgets")
    @webop.on.update("widgets")
    def changed(**kwargs: Any) -> None:
        calls.note("changed", kwargs, diff=kwargs["diff"])

    settings = build_settings()
    settings.persistence.progress_storage = NoProgress()
    settings.persistence.diffbase_storage = InMemory()
    async with run_operator(settings):
        await objects.create("one", {"a": 1}, annotations={"noise": "1"})
        await calls.wait("one")
        await objects.patch("one", {"metadata": {"annotations": {"noise": "2"}}})
        await objects.patch("one", {"spec": {"a": 2}})
        created, updated = await calls.wait("one", count=2)
    assert (created["reason"], updated["reason"]) == ("create", "update")
    assert updated["diff"] == [("change", ("spec", "a"), 1, 2)]
    assert updated["old"] == {"spec": {"a": 1}}
    assert (await objects.get("one"))["metadata"]["annotations"] == {"noise": "2"}


@pytest.mark.feature("CFG-59", "CON-04", "RST-02")
async def test_a_restart_between_the_removal_of_records_and_the_last_handled_state_repeats_nothing(
    run_relayed: RunOperator, with_status: Objects, calls: Calls
) -> None:
    """The progress is in the status, the state in an annotation: these are two requests."""
    is_away = True
    tried = asyncio.Event()
    webop.on.create("gadgets", id="first")(calls.noting("first"))

    @webop.on.create("gadgets", id="second", backoff=0.1)
    async def second(retry: int, **_: Any) -> None:
        if not retry:
            raise webop.TemporaryError("again", delay=0.1)

    async def refuse(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or not is_away or b"last-handled" not in request.content:
            return None
        tried.set()
        return httpx.Response(503)

    settings = build_settings()
    settings.persistence.progress_storage = webop.StatusProgressStorage()
    async with run_relayed(settings, meddle=refuse):
        await with_status.create("one")
        await tried.wait()
    is_away = False
    async with run_relayed(settings, meddle=refuse):
        await with_status.wait_handled("one")
    assert calls.handlers("one") == ["first"]


async def test_a_progress_storage_that_clears_an_essence_to_nothing_does_not_stop_handlers(
    run_operator: RunOperator, objects: Objects, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    webop.on.create("widgets")(calls.noting("created"))

    settings = build_settings()
    settings.persistence.progress_storage = ClearedToNothing()
    settings.persistence.diffbase_storage = NoDiffBase()
    async with run_operator(settings):
        await objects.create("one")
        await calls.wait("one")
        await objects.patch("one", {"spec": {"a": 2}})
        await calls.wait("one", count=2)
    assert not [record for record in caplog.records if record.levelname in {"WARNING", "ERROR"}]
