"""What the users of ``client.watch()`` see: each change once, whatever happens in between."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

import webop
from tests.kit.client_options import Watching
from tests.kit.faulty_cluster import RESOURCE, FaultyCluster
from tests.kit.httpx_client import Answer, answer_status
from tests.kit.mirrors import get_versions
from tests.kit.rows import rows
from tests.kit.virtual_time import in_virtual_time
from tests.kit.waiting import eventually
from tests.unit.client.test_watch import FAULTS, IN_BOTH_MODES, fail
from webop.client import Change
from webop.client.api import Client
from webop.client.objects import AsyncClient

Seen = tuple[str, str]


class User:
    """Whoever iterates over the changes."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.seen: list[Seen] = []
        self.listed: list[int] = []  # how many had been seen
        self._changed = asyncio.Condition()

    async def follow(self, client: AsyncClient, **options: Any) -> None:
        def note() -> None:
            self.listed.append(len(self.seen))

        async for change in client.watch(RESOURCE, on_listed=note, **options):
            self.accept(change)
            async with self._changed:
                self._changed.notify_all()

    def accept(self, change: Change[dict[str, Any]]) -> None:
        name = change.object["metadata"]["name"]
        before = self.objects.get(name)
        self.seen.append((change.type, name))
        if change.type == "DELETED":
            del self.objects[name]
            return
        assert (before is None) == (change.type == "ADDED")
        assert before is None or get_versions({"": before}) != get_versions({"": change.object})
        self.objects[name] = change.object

    async def catch_up(self, cluster: FaultyCluster) -> None:
        async with self._changed:
            await self._changed.wait_for(
                lambda: get_versions(self.objects) == get_versions(cluster.objects)
            )
        await eventually(lambda: bool(cluster.feeds))


@contextlib.asynccontextmanager
async def using(
    cluster: FaultyCluster, watching: Watching | None = None, **options: Any
) -> AsyncIterator[User]:
    """Give a user who has seen all objects that are selected."""
    user = User()
    async with cluster.connect() as requests, asyncio.TaskGroup() as group:
        client = AsyncClient(requests, watching=watching)
        task = group.create_task(user.follow(client, **options))
        await eventually(lambda: bool(user.listed and cluster.feeds))
        yield user
        task.cancel()


@rows("is_compacted", [False, True])  # whether the history is lost
@rows("name", ["end", "reset", "silence", "no metadata", "error event 410", "403 flap"])
@in_virtual_time
async def test_a_fault_hides_no_change_and_shows_none_twice(name: str, is_compacted: bool) -> None:
    cluster = FaultyCluster("kept", "changed", "deleted")
    async with using(cluster) as user:
        assert [kind for kind, _ in user.seen] == ["ADDED"] * 3
        user.seen.clear()
        FAULTS[name](cluster)
        cluster.delete("deleted")
        cluster.apply("changed", value=1)
        cluster.apply("created")
        if is_compacted:
            cluster.server.compact()
        await user.catch_up(cluster)
        changes = [("ADDED", "created"), ("DELETED", "deleted"), ("MODIFIED", "changed")]
        assert sorted(user.seen) == changes

        # And it is as alive as before.
        cluster.delete("kept")
        await user.catch_up(cluster)
        assert user.seen[-1] == ("DELETED", "kept")


@in_virtual_time
async def test_one_that_was_created_again_meanwhile_is_first_deleted_with_its_last_state() -> None:
    cluster = FaultyCluster()
    cluster.apply("one", value=1)
    async with using(cluster) as user:
        before = user.objects["one"]
        cluster.mute()
        cluster.delete("one")
        cluster.apply("one", value=2)
        cluster.server.compact()
        await user.catch_up(cluster)
        assert user.seen == [("ADDED", "one"), ("DELETED", "one"), ("ADDED", "one")]
        assert before["metadata"]["uid"] != user.objects["one"]["metadata"]["uid"]


@in_virtual_time
async def test_one_that_leaves_the_selection_is_deleted_in_it() -> None:
    cluster = FaultyCluster("one", "two")
    async with using(cluster, fields={"metadata.name": "one"}, namespace="default") as user:
        assert [*user.objects] == ["one"]
        cluster.delete("two")
        cluster.delete("one")
        await eventually(lambda: not user.objects)
        assert user.seen == [("ADDED", "one"), ("DELETED", "one")]
    (*_, last) = cluster.requests
    assert last.url.params["fieldSelector"] == "metadata.name=one"
    assert "/namespaces/default/" in last.url.path


@pytest.mark.parametrize("names", [(), ("one", "two")], ids=["none", "two"])
@in_virtual_time
async def test_the_end_of_the_first_list_is_told_once_after_its_objects(
    names: tuple[str, ...],
) -> None:
    cluster = FaultyCluster(*names)
    async with using(cluster) as user:
        cluster.expire()
        cluster.apply("three")
        await user.catch_up(cluster)
        assert user.seen[-1] == ("ADDED", "three")
        assert user.listed == [len(names)]


@IN_BOTH_MODES
@rows(
    ("answer", "error", "text"),
    [
        (answer_status(403, "Forbidden", "no"), webop.APIForbiddenError, "'list'"),
        (answer_status(404), webop.APINotFoundError, "404"),
        (answer_status(400, "BadRequest", "bad"), webop.APIStatusError, "bad"),
        (fail(RuntimeError("broken")), RuntimeError, "broken"),
    ],
)
@in_virtual_time
async def test_a_watch_that_cannot_begin_says_why(
    answer: Answer, error: type[Exception], text: str, is_streaming: bool
) -> None:
    cluster = FaultyCluster("one")
    cluster.refuse("all", answer, 9)
    user = User()
    async with cluster.connect() as requests:
        client = AsyncClient(requests, watching=Watching(streaming_list=is_streaming))
        with pytest.raises(error, match=text):
            await user.follow(client)


@IN_BOTH_MODES
@in_virtual_time
async def test_who_may_list_but_not_watch_is_told_instead_of_waiting_forever(
    is_streaming: bool,
) -> None:
    cluster = FaultyCluster("one")
    for what in ("stream", "watch"):
        cluster.refuse(what, answer_status(403, "Forbidden", "no"), 9)
    user = User()
    async with cluster.connect() as requests:
        client = AsyncClient(requests, watching=Watching(streaming_list=is_streaming))
        with pytest.raises(webop.APIForbiddenError, match="Grant the verb 'watch'"):
            await user.follow(client)
    assert user.seen == [("ADDED", "one")]


@IN_BOTH_MODES
@rows(
    "answer",
    [
        *(answer_status(503), answer_status(429, retry_after="1"), answer_status(401)),
        *(fail(httpx.ConnectError("refused")), fail(TimeoutError())),
    ],
)
@in_virtual_time
async def test_what_passes_by_itself_delays_the_beginning(
    answer: Answer, is_streaming: bool
) -> None:
    cluster = FaultyCluster("one")
    cluster.refuse("all", answer, 1)
    async with using(cluster, Watching(streaming_list=is_streaming)) as user:
        assert user.seen == [("ADDED", "one")]


@in_virtual_time
async def test_a_watch_ends_with_the_connection_of_its_client() -> None:
    cluster = FaultyCluster("one")
    requests: Client = cluster.connect()
    changes = AsyncClient(requests).watch(RESOURCE)
    assert (await anext(changes)).type == "ADDED"
    await requests.aclose()
    cluster.cut(httpx.ReadError("closed"))
    with pytest.raises(webop.LoginError, match="has ended"):
        await anext(changes)


class Spec(webop.Struct):
    value: int


@webop.resource(RESOURCE.group, RESOURCE.version)
class KopfExample(webop.Model):
    spec: Spec


@in_virtual_time
async def test_an_object_that_does_not_fit_its_model_is_left_out_and_comes_when_it_fits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FaultyCluster()
    cluster.apply("fine", value=1)
    cluster.apply("wrong", value="x")
    seen: list[tuple[str, str, int]] = []

    async def follow(client: AsyncClient) -> None:
        async for kind, one in client.watch(KopfExample):
            seen.append((kind, one.metadata.name or "", one.spec.value))

    async def step(change: Callable[[], None], *expected: tuple[str, str, int]) -> None:
        seen.clear()
        change()
        await eventually(lambda: len(seen) == len(expected))
        assert seen == [*expected]

    async with cluster.connect() as requests, asyncio.TaskGroup() as group:
        task = group.create_task(follow(AsyncClient(requests)))
        await eventually(lambda: seen == [("ADDED", "fine", 1)])
        (said,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert "KopfExample default/wrong: spec.value" in said
        await step(lambda: cluster.apply("wrong", value=2), ("ADDED", "wrong", 2))
        await step(lambda: cluster.apply("wrong", value="y"), ("DELETED", "wrong", 2))
        cluster.delete("wrong")
        await step(lambda: cluster.apply("fine", value=3), ("MODIFIED", "fine", 3))
        await step(lambda: cluster.delete("fine"), ("DELETED", "fine", 3))
        task.cancel()
