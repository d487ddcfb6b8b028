"""The watch under all faults: afterwards, the memory of its consumer equals the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.kit.client_options import Networking, Watching
from tests.kit.faulty_cluster import (
    RESOURCE,
    FaultyCluster,
    Feed,
    build_error_event,
    encode_line,
)
from tests.kit.httpx_client import Answer, answer_json, answer_status
from tests.kit.mirrors import following, mirroring
from tests.kit.rows import rows
from tests.kit.virtual_time import in_virtual_time
from tests.kit.waiting import eventually
from webop import ConnectionInfo, Vault
from webop.client.watch import ListingFinished, ListingStarted, State, watch

Fault = Callable[[FaultyCluster], None]

IN_BOTH_MODES = pytest.mark.parametrize(
    "is_streaming", [False, True], ids=["pages", "streaming list"]
)


def fail(error: Exception) -> Answer:
    def answer() -> httpx.Response:
        raise error

    return answer


def cut_with(error: Exception | None) -> Fault:
    return lambda cluster: cluster.cut(error)


def send_and_cut(data: bytes) -> Fault:
    def fault(cluster: FaultyCluster) -> None:
        cluster.send_raw(data)
        cluster.cut()

    return fault


def send_event(event: object) -> Fault:
    def fault(cluster: FaultyCluster) -> None:
        # Nothing comes after it on this connection: the client must not wait for more.
        cluster.send(event)
        cluster.mute()

    return fault


def cut_and_refuse(what: str, answer: Answer, times: int = 1) -> Fault:
    def fault(cluster: FaultyCluster) -> None:
        cluster.refuse(what, answer, times)
        cluster.cut(httpx.ReadError("reset"))

    return fault


def cut_and_list_with(answer: Answer) -> Fault:
    def fault(cluster: FaultyCluster) -> None:
        cluster.refuse("watch", answer_status(410, "Expired"))
        cluster.refuse("list", answer)
        cluster.cut(httpx.ReadError("reset"))

    return fault


GONE = build_error_event(410, "Expired", "too old resource version")
FAULTS: dict[str, Fault] = {
    "end": cut_with(None),
    "reset": cut_with(httpx.ReadError("Connection reset by peer")),
    "protocol error": cut_with(httpx.RemoteProtocolError("bad chunk")),
    "unknown error of the transport": cut_with(RuntimeError("Session is closed")),
    "silence": FaultyCluster.mute,
    "truncated line": send_and_cut(b'{"type":"MODIFIED","object":{"metadata":{"na'),
    "broken line": send_event("not an event"),
    "a line of garbage": send_and_cut(b"\xff\x00 garbage\n"),
    "an event of null": send_event(None),
    "no metadata": send_event({"type": "MODIFIED", "object": {"spec": {}}}),
    "metadata of null": send_event({"type": "ADDED", "object": {"metadata": None}}),
    "no name": send_event({"type": "ADDED", "object": {"metadata": {}}}),
    "no object": send_event({"type": "MODIFIED"}),
    "error event 500": send_event(build_error_event(500, "InternalError", "etcd is sad")),
    "error event 410": send_event(GONE),
    "error event of garbage": send_event({"type": "ERROR", "object": None}),
    "refused connection": cut_and_refuse("all", fail(httpx.ConnectError("refused")), 5),
    "503 for long": cut_and_refuse("all", answer_status(503, message="overloaded"), 20),
    "429": cut_and_refuse("all", answer_status(429, retry_after="3"), 2),
    "403 flap": cut_and_refuse("all", answer_status(403, "Forbidden", "no"), 4),
    "404": cut_and_refuse("all", answer_status(404), 2),
    "one stray 401": cut_and_refuse("watch", answer_status(401)),
    "one stray 401 on a list": cut_and_list_with(answer_status(401)),
    "not JSON, on any request": cut_and_refuse(
        "all", lambda: httpx.Response(200, content=b"<html>captive portal</html>\n"), 3
    ),
    "a redirect": cut_and_refuse("all", lambda: httpx.Response(302), 2),
    "410 on a list": cut_and_refuse("list", answer_status(410, "Expired"), 2),
}


@pytest.mark.feature("RES-18")
@IN_BOTH_MODES
@pytest.mark.parametrize("is_compacted", [False, True], ids=["history kept", "history lost"])
@rows("name", FAULTS)
@in_virtual_time
async def test_the_memory_equals_the_cluster_after_a_fault(
    name: str, is_compacted: bool, is_streaming: bool
) -> None:
    cluster = FaultyCluster("kept", "changed", "deleted")
    async with following(cluster, Watching(streaming_list=is_streaming)) as mirror:
        await mirror.catch_up(cluster)

        FAULTS[name](cluster)
        cluster.delete("deleted")
        cluster.apply("changed", value=1)
        cluster.apply("created")
        if is_compacted:
            cluster.server.compact()

        await mirror.catch_up(cluster)
        assert mirror.deleted == ["deleted"]

        # And it is as alive as before.
        await eventually(lambda: bool(cluster.feeds))
        cluster.delete("kept")
        await mirror.catch_up(cluster)
        assert mirror.deleted == ["deleted", "kept"]
        assert mirror.status.state is State.WATCHING
        assert mirror.status.failures == 0
        assert mirror.status.error == ""


@pytest.mark.feature("EVT-02", "EVT-03")
@in_virtual_time
async def test_a_listing_is_marked_and_its_objects_have_no_type() -> None:
    cluster = FaultyCluster("a", "b")
    async with following(cluster) as mirror:
        listed = cluster.version
        cluster.apply("c")
        await mirror.catch_up(cluster)
        started, first, second, finished, added = mirror.items
        assert started == ListingStarted()
        assert finished == ListingFinished(listed)
        assert isinstance(first, tuple)
        assert isinstance(second, tuple)
        assert isinstance(added, tuple)
        assert [kind for kind, _ in (first, second, added)] == [None, None, "ADDED"]
        assert first[1]["metadata"]["name"] == "a"
        assert first[1]["kind"] == "KopfExample"


@in_virtual_time
async def test_a_disconnect_continues_without_a_new_listing() -> None:
    cluster = FaultyCluster("a")
    async with following(cluster) as mirror:
        cluster.apply("a", value=1)
        await mirror.catch_up(cluster)
        cluster.cut(httpx.ReadError("reset"))
        version = cluster.version
        cluster.apply("a", value=2)
        await mirror.catch_up(cluster)
        assert mirror.items.count(ListingStarted()) == 1
        assert cluster.requests[-1].url.params["resourceVersion"] == version


@in_virtual_time
async def test_a_bookmark_moves_the_version_only() -> None:
    cluster = FaultyCluster("a")
    async with following(cluster) as mirror:
        cluster.server.add_namespace("other")
        cluster.bookmark()
        cluster.server.compact()
        cluster.cut()
        await eventually(lambda: bool(cluster.feeds))
        assert cluster.requests[-1].url.params["allowWatchBookmarks"] == "true"
        assert cluster.requests[-1].url.params["resourceVersion"] == cluster.version
        assert len(mirror.items) == 3


@pytest.mark.feature("CFG-17")
@rows(("options", "limit"), [({"inactivity_timeout": 20}, 20), ({}, 70)])
@in_virtual_time
async def test_silence_is_noticed_after_the_inactivity_timeout(
    options: dict[str, Any], limit: float
) -> None:
    """By default, after the time in which API servers send a bookmark."""
    cluster = FaultyCluster("a")
    async with following(cluster, Watching(**options)) as mirror:
        cluster.mute()
        begin = asyncio.get_running_loop().time()
        await eventually(lambda: bool(cluster.feeds))
        assert limit <= asyncio.get_running_loop().time() - begin <= limit + 2
        cluster.apply("b")
        await mirror.catch_up(cluster)


@pytest.mark.feature("CFG-17")
@in_virtual_time
async def test_a_busy_consumer_is_not_taken_for_a_silent_server() -> None:
    cluster, feed = FaultyCluster("a"), Feed()
    async with cluster.connect() as client:
        items = watch(client, RESOURCE, None, Watching(inactivity_timeout=20))
        async with contextlib.aclosing(items):
            for _ in range(3):
                await anext(items)
            cluster.refuse("watch", feed.answer)
            feed.put(encode_line({"type": "ADDED", "object": cluster.objects["a"]}))
            await anext(items)
            await asyncio.sleep(1000)
            feed.put(encode_line({"type": "MODIFIED", "object": cluster.objects["a"]}))
            await anext(items)
            assert len(cluster.requests) == 2


@in_virtual_time
async def test_a_version_from_which_nothing_ever_comes_is_given_up() -> None:
    """After a restore of etcd from a backup, versions can be lower than those seen before."""
    cluster = FaultyCluster("a", "deleted")
    async with following(cluster) as mirror:
        cluster.cut()
        cluster.server = FaultyCluster("a").server
        for _ in range(3):
            await eventually(lambda: bool(cluster.feeds))
            cluster.mute()
            await asyncio.sleep(60)
        await mirror.catch_up(cluster)
        assert mirror.deleted == ["deleted"]


@pytest.mark.feature("CFG-13", "CFG-14", "CFG-16")
@in_virtual_time
async def test_the_timeouts_of_the_server_and_of_the_client() -> None:
    cluster = FaultyCluster("a")
    options = Watching(server_timeout=123, client_timeout=30, reconnect_backoff=5)
    async with following(cluster, options) as mirror:
        begin = asyncio.get_running_loop().time()
        await eventually(lambda: len(cluster.requests) == 3)
        assert 34.9 <= asyncio.get_running_loop().time() - begin <= 35.1
        assert cluster.requests[-1].url.params["timeoutSeconds"] == "123"
        assert mirror.status.failures == 0
        options.server_timeout = None
        await eventually(lambda: len(cluster.requests) == 4)
        assert "timeoutSeconds" not in cluster.requests[-1].url.params


@pytest.mark.feature("CFG-15")
@rows(
    ("watching", "connect", "request_", "expected"),
    [(1, 2, 3, 1), (None, 2, 3, 2), (None, None, 3, 3), (None, None, None, None), (0, 2, 3, 0)],
)
@in_virtual_time
async def test_the_connect_timeout_falls_back_to_those_of_requests(
    watching: float | None, connect: float | None, request_: float | None, expected: float | None
) -> None:
    cluster = FaultyCluster("a")
    networking = Networking(connect_timeout=connect, request_timeout=request_)
    async with mirroring(cluster.connect(networking), Watching(connect_timeout=watching)):
        await eventually(lambda: len(cluster.requests) == 2)
        assert cluster.requests[-1].extensions["timeout"]["connect"] == expected


@in_virtual_time
async def test_pauses_grow_up_to_a_limit_and_shrink_after_health() -> None:
    cluster = FaultyCluster("a")
    async with following(cluster) as mirror:
        await asyncio.sleep(1)
        cluster.refuse("all", fail(httpx.ConnectError("refused")), 12)
        cluster.cut()
        times = []
        for count in range(3, 15):
            await eventually(lambda count=count: len(cluster.requests) >= count)  # type: ignore[misc]
            times.append(asyncio.get_running_loop().time())
        pauses = [b - a for a, b in itertools.pairwise(times)]
        assert 0.8 <= pauses[0] <= 1.7
        assert all(15 <= pause <= 30.1 for pause in pauses[5:])
        assert mirror.status.failures == 12

        await eventually(lambda: bool(cluster.feeds))
        cluster.apply("b")
        await mirror.catch_up(cluster)
        assert mirror.status.failures == 0


@in_virtual_time
async def test_a_server_that_ends_streams_at_once_is_not_flooded() -> None:
    cluster = FaultyCluster("a")
    async with following(cluster):
        cluster.refuse("watch", lambda: httpx.Response(200, content=b""), 1000)
        cluster.cut()
        await asyncio.sleep(600)
        assert len(cluster.requests) < 50


@pytest.mark.parametrize(
    "answer",
    [answer_status(410, "Expired"), lambda: httpx.Response(200, content=encode_line(GONE))],
    ids=["status", "event"],
)
@in_virtual_time
async def test_a_lost_version_is_replaced_at_once_but_not_in_circles(answer: Answer) -> None:
    cluster = FaultyCluster("a")
    async with following(cluster) as mirror:
        cluster.refuse("watch", answer)
        cluster.cut()
        cluster.delete("a")
        begin = asyncio.get_running_loop().time()
        await mirror.catch_up(cluster)
        assert asyncio.get_running_loop().time() - begin < 2
        assert mirror.items.count(ListingStarted()) == 2
        cluster.refuse("watch", answer, 1000)
        cluster.cut()
        await asyncio.sleep(600)
        assert len(cluster.requests) < 100


@in_virtual_time
async def test_the_pauses_of_requests_do_not_hide_the_troubles_of_a_listing() -> None:
    cluster = FaultyCluster("a")
    cluster.refuse("list", answer_status(503), 3)
    networking = Networking(error_backoffs=[1000] * 9)
    async with mirroring(cluster.connect(networking)) as mirror:
        await asyncio.sleep(0.5)
        assert mirror.status.failures == 1
        await asyncio.sleep(30)
        await mirror.catch_up(cluster)


@in_virtual_time
async def test_the_wish_of_the_server_for_a_pause_is_respected() -> None:
    cluster = FaultyCluster("a")
    async with following(cluster):
        cluster.refuse("watch", answer_status(429, retry_after="17"))
        cluster.cut()
        await eventually(lambda: len(cluster.requests) == 3)
        begin = asyncio.get_running_loop().time()
        await eventually(lambda: len(cluster.requests) == 4)
        assert 16 <= asyncio.get_running_loop().time() - begin <= 18


@pytest.mark.feature("AUT-16")
@in_virtual_time
async def test_credentials_are_blamed_for_the_second_401_in_a_row() -> None:
    cluster = FaultyCluster("a")
    vault = Vault({"x": ConnectionInfo(server="https://fake", token="1")})
    async with following(cluster, vault=vault) as mirror:
        cluster.refuse("watch", answer_status(401), 2)
        cluster.cut()
        await vault.wait_for_emptiness()
        assert mirror.status.failures == 2
        await vault.populate({"x": ConnectionInfo(server="https://fake", token="2")})
        await eventually(lambda: bool(cluster.feeds))
        assert cluster.requests[-1].headers["authorization"] == "Bearer 2"


@in_virtual_time
async def test_a_trouble_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="webop")
    cluster = FaultyCluster("a")
    async with following(cluster) as mirror:
        await asyncio.sleep(1)
        cluster.refuse("watch", answer_status(403, "Forbidden", "user is not allowed"), 10)
        cluster.cut()
        await eventually(lambda: bool(cluster.feeds))
        cluster.apply("b")
        await mirror.catch_up(cluster)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "watch kopfexamples.kopf.dev" in messages[0]
    assert "user is not allowed" in messages[0]
    assert "Grant the verb 'watch' on 'kopfexamples' of the API group 'kopf.dev'" in messages[0]
    assert "Back to normal" in messages[1]


@rows(
    "answer",
    [
        {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"},
        {"metadata": {"resourceVersion": "5"}, "items": {"a": 1}},
        *({"metadata": {"resourceVersion": "5"}}, {"items": []}, [], None),
    ],
)
@in_virtual_time
async def test_what_is_no_list_is_not_taken_for_an_empty_one(answer: object) -> None:
    cluster = FaultyCluster("a")
    async with following(cluster) as mirror:
        cluster.refuse("list", answer_json(answer), 3)
        cluster.expire()
        await eventually(lambda: not cluster.refusals and bool(cluster.feeds))
        await mirror.catch_up(cluster)
        assert not mirror.deleted


@in_virtual_time
async def test_a_list_of_nothing_may_be_null() -> None:
    cluster = FaultyCluster()
    metadata = {"resourceVersion": cluster.version}
    body = {"kind": "KopfExampleList", "metadata": metadata, "items": None}
    cluster.refuse("list", answer_json(body))
    async with following(cluster) as mirror:
        assert mirror.items == [ListingStarted(), ListingFinished(cluster.version)]
