"""How a watch gets the existing objects: streaming lists, or pages where there are none."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.kit.client_options import Watching
from tests.kit.faulty_cluster import (
    RESOURCE,
    FaultyCluster,
    Feed,
    build_error_event,
    encode_line,
    get_kinds,
)
from tests.kit.httpx_client import answer_json, answer_status
from tests.kit.mirrors import Mirror, following, mirroring
from tests.kit.virtual_time import in_virtual_time
from tests.kit.waiting import eventually
from webop.client.watch import ListingFinished, ListingStarted, State
from webop.client.watch_events import WatchEvent


def streaming(**options: float | bool | None) -> Watching:
    return Watching(streaming_list=True, **options)


def get_lists(cluster: FaultyCluster) -> list[str]:
    """Tell how the objects were asked for, request by request."""
    kinds = [get_kinds(request.url.params) for request in cluster.requests]
    return ["stream" if "stream" in kind else "pages" for kind in kinds if "list" in kind]


def get_changes(mirror: Mirror) -> list[WatchEvent]:
    return [item for item in mirror.items if isinstance(item, tuple)]


def get_events(mirror: Mirror) -> list[tuple[str | None, str]]:
    return [(kind, raw["metadata"]["name"]) for kind, raw in get_changes(mirror)]


def build_line(kind: str, name: str, version: int = 1, **more: Any) -> bytes:
    metadata = {"name": name, "resourceVersion": str(version), **more}
    return encode_line({"type": kind, "object": {"metadata": metadata}})


def build_end(version: int) -> bytes:
    annotations = {"k8s.io/initial-events-end": "true"}
    return build_line("BOOKMARK", "", version, annotations=annotations)


@pytest.mark.feature("EVT-02", "EVT-03")
@in_virtual_time
async def test_existing_objects_and_later_changes_come_by_one_request() -> None:
    cluster = FaultyCluster("a", "b")
    cluster.server.add_namespace("later")
    listed = cluster.version
    async with following(cluster, streaming()) as mirror:
        cluster.apply("a", value=1)
        await mirror.catch_up(cluster)
        assert mirror.items[0] == ListingStarted()
        assert mirror.items[3] == ListingFinished(listed)
        assert get_events(mirror) == [(None, "a"), (None, "b"), ("MODIFIED", "a")]
        assert len(cluster.requests) == 1
        assert "resourceVersion" not in cluster.requests[0].url.params
        assert mirror.status.failures == 0


@in_virtual_time
async def test_the_watch_continues_after_the_version_of_the_list_not_of_its_last_object() -> None:
    cluster = FaultyCluster("a")
    cluster.server.add_namespace("later")
    async with following(cluster, streaming()) as mirror:
        assert mirror.status.version == cluster.version
        await asyncio.sleep(2)
        cluster.cut()
        await eventually(lambda: bool(cluster.feeds))
        assert cluster.requests[-1].url.params["resourceVersion"] == cluster.version
        assert "sendInitialEvents" not in cluster.requests[-1].url.params
        assert mirror.items.count(ListingStarted()) == 1
        assert mirror.status.failures == 0


@in_virtual_time
async def test_what_changes_while_the_list_is_sent_comes_in_it() -> None:
    cluster, feed = FaultyCluster(), Feed()
    cluster.refuse("stream", feed.answer)
    feed.put(build_line("ADDED", "a") + build_line("ADDED", "b"))
    feed.put(build_line("MODIFIED", "a", 2) + build_line("DELETED", "b", 3))
    feed.put(build_line("FUTURE", "b", 3) + build_end(4))
    feed.put(build_line("DELETED", "a", 5))
    async with mirroring(cluster.connect(), streaming()) as mirror:
        await mirror.wait_for(lambda: mirror.deleted == ["b", "a"])
        assert mirror.items[5] == ListingFinished("4")
        assert get_events(mirror) == [
            (None, "a"),
            (None, "b"),
            (None, "a"),
            ("DELETED", "b"),
            ("DELETED", "a"),
        ]


@pytest.mark.parametrize("status", [400, 422])
@in_virtual_time
async def test_a_server_that_refuses_is_asked_for_pages_at_once(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="webop")
    cluster = FaultyCluster(*(f"x{i}" for i in range(1001)))
    cluster.refuse("stream", answer_status(status, message="sendInitialEvents: Forbidden"))
    begin = asyncio.get_running_loop().time()
    async with following(cluster, streaming()) as mirror:
        await mirror.catch_up(cluster)
        assert asyncio.get_running_loop().time() - begin < 0.7
        assert get_lists(cluster) == ["stream"] + ["pages"] * 3
        assert mirror.items.count(ListingStarted()) == 1
        assert mirror.status.failures == 0
        cluster.expire()
        await mirror.wait_for(lambda: mirror.items.count(ListingStarted()) == 2)
        assert get_lists(cluster).count("stream") == 1
    told = [r for r in caplog.records if "No streaming list" in r.getMessage()]
    assert [record.levelno for record in told] == [logging.DEBUG]


@pytest.mark.parametrize("sent", [("a", "deleted"), ()], ids=["ignored", "mute"])
@pytest.mark.parametrize("inactivity_timeout", [None, 70, 3])
@in_virtual_time
async def test_a_server_that_ignores_the_wish_is_asked_for_pages_soon(
    sent: tuple[str, ...], inactivity_timeout: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="webop")
    cluster, feed = FaultyCluster("a"), Feed()
    cluster.refuse("stream", feed.answer)
    for name in sent:
        feed.put(build_line("ADDED", name))
    options = streaming(inactivity_timeout=inactivity_timeout)
    begin = asyncio.get_running_loop().time()
    client = cluster.connect()
    async with mirroring(client, options) as mirror:
        await mirror.wait_for(lambda: mirror.status.state is State.WATCHING)
        assert asyncio.get_running_loop().time() - begin < 10.5
        await mirror.catch_up(cluster)
        assert get_lists(cluster) == ["stream", "pages"]
        assert mirror.deleted == [*sent[1:]]
        assert client.paging_groups == {RESOURCE.group}
    assert not caplog.records


@pytest.mark.parametrize(
    "last",
    [
        None,
        b'{"type":"ADDED","obj',
        b"<html>\n",
        encode_line(build_error_event(410, "Expired", "too old")),
    ],
    ids=["end", "half a line", "garbage", "error 410"],
)
@in_virtual_time
async def test_a_list_that_breaks_starts_anew_with_pages_and_the_next_one_is_streaming_again(
    last: bytes | Exception | None,
) -> None:
    cluster, feed = FaultyCluster("a", "b"), Feed()
    cluster.refuse("stream", feed.answer)
    feed.put(build_line("ADDED", "gone"))
    feed.put(last)
    feed.put(None)
    async with following(cluster, streaming()) as mirror:
        await mirror.catch_up(cluster)
        assert mirror.deleted == ["gone"]
        assert [kind for kind, _ in get_events(mirror)] == [None] * 3
        assert get_lists(cluster) == ["stream", "pages"]
        assert mirror.items.count(ListingStarted()) == 2
        cluster.delete("a")
        await mirror.catch_up(cluster)
        cluster.expire()
        await mirror.wait_for(lambda: ListingFinished(cluster.version) in mirror.items)
        assert get_lists(cluster) == ["stream", "pages", "stream"]


@pytest.mark.parametrize("status", [403, 404, 429, 500, 503])
@in_virtual_time
async def test_a_streaming_list_that_is_refused_for_now_is_replaced_by_pages_for_once(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """While an API server prepares its cache of a new kind, it answers 429 with a pause of 1 s."""
    caplog.set_level(logging.INFO, logger="webop")
    cluster = FaultyCluster("a")
    begin = asyncio.get_running_loop().time()
    cluster.refuse("stream", answer_status(status, message="initializing", retry_after="1"))
    async with following(cluster, streaming()) as mirror:
        await mirror.catch_up(cluster)
        assert asyncio.get_running_loop().time() - begin < 0.5
        assert mirror.items.count(ListingStarted()) == 1
        assert not caplog.records
        cluster.expire()
        await mirror.wait_for(lambda: mirror.items.count(ListingStarted()) == 2)
        await eventually(lambda: bool(cluster.feeds))
        assert get_lists(cluster) == ["stream", "pages", "stream"]


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("is_streaming", [False, True], ids=["pages", "streaming list"])
@in_virtual_time
async def test_managed_fields_are_kept_only_if_they_are_asked_for(
    is_streaming: bool, is_kept: bool
) -> None:
    cluster, feed = FaultyCluster(), Feed()
    managed: dict[str, Any] = {"managedFields": [{"manager": "test"}]}
    listed = {"metadata": {"name": "a", "resourceVersion": "1", **managed}}
    cluster.refuse("pages", answer_json({"metadata": {"resourceVersion": "2"}, "items": [listed]}))
    cluster.refuse("stream" if is_streaming else "watch", feed.answer)
    if is_streaming:
        feed.put(build_line("ADDED", "a", **managed) + build_end(2))
    feed.put(build_line("ADDED", "b", 3, **managed))
    options = Watching(streaming_list=is_streaming, managed_fields=is_kept)
    async with mirroring(cluster.connect(), options) as mirror:
        await mirror.wait_for(lambda: mirror.versions == {"a": "1", "b": "3"})
        options.managed_fields = not is_kept
        feed.put(build_line("MODIFIED", "b", 4, **managed))
        await mirror.wait_for(lambda: mirror.versions["b"] == "4")
    found = [raw["metadata"].get("managedFields") for _, raw in get_changes(mirror)]
    kept = managed["managedFields"]
    assert found == ([kept, kept, None] if is_kept else [None, None, kept])
