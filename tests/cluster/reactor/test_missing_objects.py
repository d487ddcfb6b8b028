"""Objects that are gone though no event says so, and those that only seem to be gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

import webop
from tests.cluster.reactor.observations import Names
from tests.kit.http_relay import Relay, fail
from tests.kit.operators import Calls, Objects, RunOperator, build_settings, is_no_fence
from tests.kit.waiting import eventually


class SilentWatch:
    """A watch that can show nothing, or end so that the objects are listed again.

    Attributes:
        opened: how often it was opened.
        is_silent: whether it shows nothing.
        is_breaking: whether the next one ends after its first object.
    """

    def __init__(self, relayed: Relay, plural: str) -> None:
        self.opened = 0
        self.is_silent = self.is_breaking = False
        self._relayed = relayed
        self._plural = plural
        self._shown: asyncio.Queue[bytes] = asyncio.Queue()
        relayed.watch = self._watch

    def end(self) -> None:
        """Say that the resource version is too old; the next watch shows everything."""
        self.is_silent = False
        status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
        self._shown.put_nowait(orjson.dumps({"type": "ERROR", "object": status}) + b"\n")

    async def _watch(self, request: httpx.Request) -> AsyncIterator[bytes]:
        source = self._relayed.pass_watch_on(request)
        if not request.url.path.endswith(f"/{self._plural}"):
            async for data in source:
                yield data
            return
        self.opened += 1
        if self.is_breaking:
            self.is_breaking = False
            yield (await anext(source)).partition(b"\n")[0] + b"\n"
            return
        shown = self._shown = asyncio.Queue()

        async def read() -> None:
            async for data in source:
                if not self.is_silent:
                    shown.put_nowait(data)

        reading = asyncio.create_task(read())
        try:
            while True:
                yield await shown.get()
        finally:
            reading.cancel()


@pytest.mark.parametrize("who", ["handler", "event handler"])
async def test_a_webhook_that_misses_another_object_denies_a_patch_and_nothing_else(
    run_relayed: RunOperator,
    objects: Objects,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
    who: str,
) -> None:
    """Its denial has the details of that object: validating webhooks in Go often pass them on."""

    @webop.on.create("widgets", id="fn", when=is_no_fence)
    async def fn(retry: int, patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("fn", kwargs)
        if who == "handler" and not retry:
            patch.spec["wish"] = 1
        if retry < 2:
            raise webop.TemporaryError("not yet", delay=0.1)

    @webop.on.event("widgets", id="seen", when=is_no_fence)
    async def seen(patch: webop.Patch, **_: Any) -> None:
        if who == "event handler":
            patch.spec["wish"] = 1

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PATCH" and b"wish" in request.content:
            return fail(404, name="one", kind="secrets")
        return None

    async with run_relayed(meddle=meddle):
        await objects.make("one")
        body = await objects.get("one")
    assert calls.handlers("one") == ["fn"] * 3
    assert "wish" not in body["spec"]
    assert "refused the changes of" in caplog.text


async def test_the_next_list_shows_a_deletion_that_no_event_has_shown(
    relayed: Relay, run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    watch, index = SilentWatch(relayed, objects.resource.plural), Names("widgets")

    @webop.on.event("widgets", id="event", when=is_no_fence)
    async def event(type: str | None, **kwargs: Any) -> None:
        calls.note(f"{type}", kwargs)

    async with run_relayed():
        await objects.create("one")
        await calls.wait("one")
        watch.is_silent = True
        await objects.delete("one")
        await asyncio.sleep(0.2)  # in which its event gets lost
        watch.end()
        await calls.wait("one", "DELETED")
        await eventually(lambda: index() == set())


async def test_a_list_that_breaks_off_deletes_nothing(
    relayed: Relay, run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    """One in the watch ends after its first object, and the next one after its first page."""
    watch, index = SilentWatch(relayed, objects.resource.plural), Names("widgets")
    names, ended = ["a", "b", "c", "d"], list[str]()
    lists: list[str] = []

    @webop.daemon("widgets", id="daemon", when=is_no_fence)
    async def daemon(name: str, stopped: webop.DaemonStopped, **kwargs: Any) -> None:
        calls.note("daemon", {**kwargs, "name": name})
        await stopped.wait()
        ended.append(name)

    @webop.on.event("widgets", id="event", when=is_no_fence)
    async def event(type: str | None, **kwargs: Any) -> None:
        if type == "DELETED":
            calls.note(type, kwargs)

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if not request.url.path.endswith(f"/{objects.resource.plural}"):
            return None
        lists.append(token := request.url.params.get("continue", ""))
        if token:
            return fail(500)
        content = orjson.loads((await relayed.pass_on(request)).content)
        del content["items"][1:]
        content["metadata"]["continue"] = "more"
        return httpx.Response(200, json=content)

    quick: Any = {"networking": {"error_backoffs": []}, "watching": {"reconnect_backoff": 0.05}}
    async with run_relayed(build_settings(**quick), meddle=meddle):
        for name in names:
            await objects.create(name)
            await calls.wait(name, "daemon")
        watch.is_breaking = True
        watch.end()
        await eventually(lambda: lists == ["", "more"])
        await objects.pass_fence()  # the list after these is complete
        assert not ended
        assert index() >= {*names}
        await objects.remove("d")
        await calls.wait("d", "DELETED")
    assert [call["name"] for call in calls if call["handler"] == "DELETED"] == ["d"]
    assert [call["name"] for call in calls if call["handler"] == "daemon"] == names
    assert ended[0] == "d"


async def test_objects_of_a_restored_backup_are_handled_as_the_list_shows_them(
    relayed: Relay, run_relayed: RunOperator, objects: Objects, calls: Calls
) -> None:
    """Versions go back: objects have a former state, exist again, or have never existed."""
    watch, index = SilentWatch(relayed, objects.resource.plural), Names("widgets")
    url, backup = objects.resource.get_url(namespace=objects.namespace), dict[str, Any]()
    webop.on.update("widgets", id="updated")(calls.noting("updated"))

    @webop.on.event("widgets", id="event", when=is_no_fence)
    async def event(type: str | None, **kwargs: Any) -> None:
        calls.note(f"{type}", kwargs)

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.url.path == url and backup:
            watch.is_silent = True  # the real history follows
            return httpx.Response(200, json=backup)
        return None

    settings = build_settings(watching={"streaming_list": False})
    async with run_relayed(settings, meddle=meddle):
        await objects.make("changed", {"x": 1})
        await objects.make("removed")
        content = await objects.client.request("GET", url)
        (item,) = (one for one in content["items"] if one["metadata"]["name"] == "changed")
        item["spec"]["x"] = 3  # and was not handled when the backup was made
        await objects.change("changed", {"spec": {"x": 2}})
        await objects.remove("removed")
        await calls.wait("removed", "DELETED")
        await objects.make("younger")
        backup.update(content)
        watch.end()
        await calls.wait("younger", "DELETED")
        seen = await calls.wait("changed", "updated", 2)
        await calls.wait("removed", "None")
        await eventually(lambda: index() >= {"changed", "removed"} and "younger" not in index())
    assert [call["new"]["spec"]["x"] for call in seen[:2]] == [2, 3]


async def test_an_object_that_is_gone_does_not_come_back_into_indexes_with_a_late_response(
    relayed: Relay, run_relayed: RunOperator, objects: Objects
) -> None:
    """It is deleted while the response to a patch is on its way."""
    watch = SilentWatch(relayed, objects.kind.plural)
    written, released = asyncio.Event(), asyncio.Event()
    seen: list[list[str]] = []

    @webop.index("widgets", id="names", when=is_no_fence)
    async def names(name: str, **_: Any) -> dict[str, bool]:
        return {name: True}

    @webop.on.create("widgets", id="fn", when=is_no_fence)
    async def fn(names: webop.Index[str, bool], **_: Any) -> None:
        seen.append(sorted(names))
        watch.is_silent = True

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or not request.url.path.endswith("/one"):
            return None
        response = await relayed.pass_on(request)
        written.set()
        await released.wait()
        return response

    async with run_relayed(meddle=meddle):
        await objects.create("one")
        await asyncio.wait_for(written.wait(), 10)
        await objects.delete("one")
        opened = watch.opened
        watch.end()
        await eventually(lambda: watch.opened > opened)
        await objects.pass_fence()  # the list is over
        released.set()
        for _ in range(3):  # in the meantime, the response has its effects
            await objects.pass_fence()
        await objects.create("two")
        await eventually(lambda: len(seen) == 2)
    assert seen == [["one"], ["two"]]
