"""A second stream brings changes while a long list is read: nothing is lost or repeated by it."""

from __future__ import annotations

import asyncio

import httpx
import orjson

from tests.kit.fake_cluster import FakeCluster, Feed, Watching, build_bookmark
from tests.kit.virtual_time import in_virtual_time
from tests.kit.waiting import eventually
from webop.client.http.requests import Selection
from webop.reactor.cluster_changes import watch_namespaces


def build_line(kind: str, name: str, version: int, uid: str) -> bytes:
    metadata = {"name": name, "resourceVersion": str(version), "uid": uid}
    return orjson.dumps({"type": kind, "object": {"metadata": metadata}}) + b"\n"


@in_virtual_time
async def test_a_namespace_that_was_created_again_while_all_were_listed_stays_known() -> None:
    cluster = FakeCluster()
    main, early = Feed(), Feed()  # the early stream begins while the list is still being read
    cluster.refuse("stream", lambda: httpx.Response(200, content=aiter(main)))
    page = {"metadata": {"resourceVersion": "200", "continue": ""}, "items": []}
    cluster.refuse("pages", lambda: httpx.Response(200, content=orjson.dumps(page)))
    cluster.refuse("watch", lambda: httpx.Response(200, content=aiter(early)))
    main.put(b"".join(build_line("ADDED", f"x{i}", 1, f"x{i}") for i in range(500)))
    main.put(build_line("ADDED", "again", 50, "old"))
    known: list[set[str]] = []
    async with cluster.connect() as client, asyncio.TaskGroup() as group:
        options = Watching(streaming_list=True)
        following = watch_namespaces(
            client, options, Selection(), lambda names: known.append(set(names))
        )
        task = group.create_task(following)
        await eventually(lambda: not cluster.refusals)
        early.put(build_line("ADDED", "again", 220, "new"))
        await asyncio.sleep(1)
        main.put(build_line("ADDED", "last", 50, "last"))
        main.put(build_bookmark(190, is_end_of_list=True))
        main.put(build_line("DELETED", "again", 195, "old"))
        main.put(build_line("ADDED", "again", 220, "new"))
        main.put(build_line("ADDED", "end", 230, "end"))
        await eventually(lambda: bool(known) and "end" in known[-1])
        task.cancel()
    assert "again" in known[-1]
