"""A second stream brings changes while a long list is read: nothing is lost or repeated by it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson

from tests.kit.fake_cluster import (
    FakeCluster,
    Feed,
    Watching,
    build_bookmark,
    wait_until,
)
from tests.kit.virtual_time import in_virtual_time
from webop.reactor.cluster_changes import watch_namespaces


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
        following = watch_namespaces(
            client, Watching(streaming_list=True), lambda names: known.append(set(names))
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
