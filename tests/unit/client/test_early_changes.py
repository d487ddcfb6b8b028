"""A second stream brings changes while a long list is read: nothing is lost or repeated by it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson

from tests.kit.fake_cluster import (
    FakeCluster,
    Feed,
    Mirror,
    Watching,
    build_bookmark,
    wait_until,
)
from tests.kit.operators import Kind
from tests.kit.virtual_time import in_virtual_time
from webop.client.http.requests import Selection
from webop.client.watch import State
from webop.objects.resources import Resource
from webop.reactor.cluster_changes import Definitions, watch_namespaces


def build_line(kind: str, name: str, version: object, uid: str | None = None) -> bytes:
    metadata: dict[str, Any] = {"name": name, "resourceVersion": str(version)}
    if uid is not None:
        metadata["uid"] = uid
    return orjson.dumps({"type": kind, "object": {"metadata": metadata}}) + b"\n"


def answer_page(version: object, *names: str) -> httpx.Response:
    items = [{"metadata": {"name": name, "resourceVersion": "1"}} for name in names]
    metadata = {"resourceVersion": str(version), "continue": ""}
    return httpx.Response(200, content=orjson.dumps({"metadata": metadata, "items": items}))


class LongList:
    """A streaming list that is still being read while the second stream is there already."""

    def __init__(self, cluster: FakeCluster, *, version: int = 200) -> None:
        self.main, self.early = Feed(), Feed()
        cluster.refuse("stream", lambda: httpx.Response(200, content=aiter(self.main)))
        cluster.refuse("pages", lambda: answer_page(version))
        cluster.refuse("watch", lambda: httpx.Response(200, content=aiter(self.early)))
        self.main.put(b"".join(build_line("ADDED", f"x{i}", 1, f"x{i}") for i in range(500)))


@in_virtual_time
async def test_a_namespace_that_was_created_again_while_all_were_listed_stays_known() -> None:
    cluster = FakeCluster()
    listed = LongList(cluster)
    listed.main.put(build_line("ADDED", "again", 50, "old"))
    known: list[set[str]] = []
    async with cluster.connect() as client, asyncio.TaskGroup() as group:
        options = Watching(streaming_list=True)
        following = watch_namespaces(
            client, options, Selection(), lambda names: known.append(set(names))
        )
        task = group.create_task(following)
        await wait_until(lambda: not cluster.refusals)
        listed.early.put(build_line("ADDED", "again", 220, "new"))
        await asyncio.sleep(1)
        listed.main.put(build_line("ADDED", "last", 50, "last"))
        listed.main.put(build_bookmark(190, is_end_of_list=True))
        listed.main.put(build_line("DELETED", "again", 195, "old"))
        listed.main.put(build_line("ADDED", "again", 220, "new"))
        listed.main.put(build_line("ADDED", "end", 230, "end"))
        await wait_until(lambda: bool(known) and "end" in known[-1])
        task.cancel()
    assert "again" in known[-1]


@in_virtual_time
async def test_a_definition_that_was_created_again_while_all_were_listed_stays_known() -> None:
    cluster = FakeCluster()
    listed = LongList(cluster)

    def build(kind: str, name: str, version: int, uid: str) -> bytes:
        event = orjson.loads(build_line(kind, name, version, uid))
        event["object"] |= Kind("x.dev", name.partition(".")[0]).build_crd() | event["object"]
        event["object"]["status"] = {
            "conditions": [{"type": "Established", "status": "True"}],
            "acceptedNames": {},
        }
        return orjson.dumps(event) + b"\n"

    listed.main.put(build("ADDED", "again.x.dev", 50, "old"))
    definitions = Definitions()
    async with cluster.connect() as client, asyncio.TaskGroup() as group:
        following = definitions.follow(client, Watching(streaming_list=True), lambda: None)
        task = group.create_task(following)
        await wait_until(lambda: not cluster.refusals)
        listed.early.put(build("ADDED", "again.x.dev", 220, "new"))
        await asyncio.sleep(1)
        listed.main.put(build("ADDED", "last.x.dev", 50, "last"))
        listed.main.put(build_bookmark(190, is_end_of_list=True))
        listed.main.put(build("DELETED", "again.x.dev", 195, "old"))
        listed.main.put(build("ADDED", "again.x.dev", 220, "new"))
        listed.main.put(build("ADDED", "end.x.dev", 240, "end"))
        shown = [Resource("x.dev", "v1", name) for name in ("again", "last", "end")]
        await wait_until(lambda: not definitions.are_shown_by(shown[:2], ["x.dev"]))
        task.cancel()
    assert definitions.are_shown_by(shown)


@in_virtual_time
async def test_objects_without_versions_do_not_stop_changing_after_a_long_list() -> None:
    cluster = FakeCluster()
    listed = LongList(cluster)
    mirror = Mirror()
    async with cluster.connect() as client, asyncio.TaskGroup() as group:
        task = group.create_task(mirror.follow(client, Watching(streaming_list=True)))
        await wait_until(lambda: not cluster.refusals)
        listed.early.put(build_line("MODIFIED", "x1", "", "x1"))
        await asyncio.sleep(1)
        listed.main.put(build_line("ADDED", "last", "", "last"))
        listed.main.put(build_bookmark(190, is_end_of_list=True))
        await mirror.wait_for(lambda: mirror.status.state is State.WATCHING)
        listed.main.put(build_line("DELETED", "x1", "", "x1"))
        listed.main.put(build_line("ADDED", "end", "", "end"))
        await mirror.wait_for(lambda: "end" in mirror.objects)
        task.cancel()
    assert mirror.deleted == ["x1"]
