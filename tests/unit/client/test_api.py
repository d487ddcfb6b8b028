"""The client: requests, retries, credentials, and verbs over resources."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import orjson
import pytest

from tests.kit.client_options import Networking
from tests.kit.httpx_client import HTTPXTransport, answer_status, connect
from tests.kit.rows import rows
from tests.kit.virtual_time import in_virtual_time
from webop import ConnectionInfo, Resource, Vault
from webop.client.api import Client
from webop.controlplane.cluster_client import find_free_port
from webop.errors import (
    APIConflictError,
    APIConnectionError,
    APIError,
    APIForbiddenError,
    APINotFoundError,
    APIServerError,
    APIStatusError,
    APITooManyRequestsError,
    APIUnauthorizedError,
    APIUnprocessableError,
)

Handler = Callable[[httpx.Request], httpx.Response]

CRON = Resource("batch", "v1", "cronjobs", namespaced=True)


class Recorder:
    """Answers with what is given, the last one repeated; remembers the requests."""

    def __init__(self, *answers: httpx.Response | Exception | object) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return answer_status(answer, message=f"server says {answer}")()
        if isinstance(answer, httpx.Response):
            return answer
        return httpx.Response(200, content=orjson.dumps(answer))

    @property
    def request(self) -> httpx.Request:
        return self.requests[-1]


@rows(
    ("status", "cls"),
    [
        (302, APIStatusError),
        (400, APIStatusError),
        (403, APIForbiddenError),
        (404, APINotFoundError),
        (409, APIConflictError),
        (422, APIUnprocessableError),
        (429, APITooManyRequestsError),
    ],
)
@pytest.mark.feature("CFG-52", "D-25", "D-56")
async def test_errors_of_the_client_escalate_at_once(
    status: int, cls: type[APIStatusError]
) -> None:
    server = Recorder(status)
    async with connect(server, Networking(error_backoffs=[1, 1, 1])) as client:
        with pytest.raises(cls, match=f"Cannot get /x: HTTP {status}: server says {status}") as e:
            await client.request("GET", "/x")
    assert e.value.status == status
    assert len(server.requests) == 1


@rows(
    "error",
    [
        500,
        503,
        httpx.ConnectError("refused"),
        httpx.ReadError("reset"),
        OSError("broken"),
        httpx.Response(200, content=b"<html>"),
    ],
)
@pytest.mark.feature("CFG-52", "CFG-53", "CFG-55")
@in_virtual_time
async def test_errors_of_the_server_are_retried_until_the_pauses_are_over(error: object) -> None:
    server = Recorder(error)
    async with connect(server, Networking(error_backoffs=[10, 20, 30])) as client:
        begin = asyncio.get_running_loop().time()
        with pytest.raises((APIServerError, APIConnectionError), match="Cannot get /x: "):
            await client.request("GET", "/x")
        assert asyncio.get_running_loop().time() - begin == pytest.approx(60, abs=0.5)
    assert len(server.requests) == 4


APPLY_PATCH, MERGE_PATCH = "application/apply-patch+yaml", "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
NAMED, UNNAMED = {"metadata": {"name": "a"}}, {"metadata": {"generateName": "a-"}}
MADE, OBJECT = "/api/v1/namespaces/a/pods", "/api/v1/namespaces/a/pods/one"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
APPEND = {"op": "add", "path": "/spec/list/-", "value": 1}
TEST = {"op": "test", "path": "/metadata/resourceVersion", "value": "1"}
LOST = (httpx.ReadError("reset"), 500, 503, 504, httpx.Response(200, content=b"{"))


@rows("failure", LOST)
@rows(
    ("method", "path", "body", "content_type", "is_repeated"),
    [
        ("POST", MADE, NAMED, "application/json", True),
        ("POST", MADE, UNNAMED, "application/json", False),
        ("POST", f"{OBJECT}/eviction", NAMED, "application/json", False),
        ("POST", REVIEWS, {"spec": {}}, "application/json", True),
        ("PUT", OBJECT, NAMED, "application/json", True),
        ("PATCH", OBJECT, {"spec": {}}, MERGE_PATCH, True),
        ("PATCH", OBJECT, NAMED, APPLY_PATCH, True),
        ("PATCH", OBJECT, [APPEND], JSON_PATCH, False),
        ("PATCH", OBJECT, [TEST, APPEND], JSON_PATCH, True),
        ("PATCH", OBJECT, [TEST | {"path": "/spec/a"}, APPEND], JSON_PATCH, False),
        ("PATCH", OBJECT, [APPEND | {"op": "replace", "path": "/spec/a"}], JSON_PATCH, True),
        ("DELETE", OBJECT, None, "application/json", False),
        ("DELETE", OBJECT, {"preconditions": {"uid": "1"}}, "application/json", True),
    ],
)
@in_virtual_time
async def test_a_request_that_may_have_been_executed_is_repeated_only_if_that_does_no_harm(
    method: str, path: str, body: Any, content_type: str, is_repeated: bool, failure: object
) -> None:
    server = Recorder(failure, {})
    async with connect(server, Networking(error_backoffs=[1])) as client:
        if is_repeated:
            await client.request(method, path, body=body, content_type=content_type)
        else:
            with pytest.raises(APIError, match="It is unknown whether the request was executed"):
                await client.request(method, path, body=body, content_type=content_type)
    assert len(server.requests) == 1 + is_repeated


@rows("failure", [429, 503])
@in_virtual_time
async def test_a_request_that_was_refused_because_of_load_is_repeated(failure: int) -> None:
    refusal = answer_status(failure, **{"Retry-After": "1"})()
    server = Recorder(refusal, {})
    async with connect(server, Networking(error_backoffs=[1])) as client:
        await client.request("POST", MADE, body=UNNAMED)
    assert len(server.requests) == 2


async def test_a_request_that_was_not_sent_is_repeated() -> None:
    info = ConnectionInfo(server=f"http://127.0.0.1:{find_free_port()}")
    networking = Networking(error_backoffs=[0.01])
    async with Client(Vault({"test": info}), networking) as client:
        with pytest.raises(APIConnectionError, match="Connection refused"):
            await client.request("POST", MADE, body=UNNAMED)
    assert client.counters.codes["POST", "<error>"] == 2


@rows(
    ("backoffs", "failures", "is_success"),
    [
        (1.5, 1, True),
        (1.5, 2, False),
        ((), 1, False),
        ([], 1, False),
        ((1, 2), 2, True),
        (itertools.repeat(1.0), 50, True),
    ],
)
@pytest.mark.feature("CFG-34", "CFG-53")
@in_virtual_time
async def test_pauses_can_be_a_number_or_any_iterable(
    backoffs: float | list[float], failures: int, is_success: bool
) -> None:
    server = Recorder(*[503] * failures, {"a": 1})
    async with connect(server, Networking(error_backoffs=backoffs)) as client:
        try:
            assert await client.request("GET", "/x") == {"a": 1}
        except APIServerError:
            assert not is_success
        else:
            assert is_success


@pytest.mark.feature("CFG-54")
@in_virtual_time
async def test_a_success_resets_the_pauses_and_others_are_not_blocked() -> None:
    server = Recorder(503, {}, 503, {})
    async with connect(server, Networking(error_backoffs=[5])) as client:
        begin = asyncio.get_running_loop().time()
        retried = asyncio.create_task(client.request("GET", "/x"))
        await asyncio.sleep(1)
        await client.request("GET", "/y")
        assert asyncio.get_running_loop().time() - begin < 2
        await client.request("GET", "/z")
        await retried


@pytest.mark.feature("CFG-32", "CFG-33")
@in_virtual_time
async def test_the_timeouts_of_requests() -> None:
    requests = []

    async def hang(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        await asyncio.sleep(10_000)
        raise AssertionError

    client = connect(hang, Networking(request_timeout=30, connect_timeout=3))
    for timeout, expected in ((None, 30), (5, 5)):
        begin = asyncio.get_running_loop().time()
        with pytest.raises(APIConnectionError, match="no response in time"):
            await client.request("GET", "/x", timeout=timeout)
        assert asyncio.get_running_loop().time() - begin == pytest.approx(expected, abs=0.5)
    assert requests[0].extensions["timeout"]["connect"] == 3


def forbid(*tokens: str) -> Handler:
    """Answer with 401 to these tokens."""
    refused = {f"Bearer {token}" for token in tokens}
    return lambda request: httpx.Response(
        401 if request.headers["authorization"] in refused else 200, content=b"{}"
    )


@pytest.mark.feature("AUT-16")
@rows("is_retried", [True, False])
@in_virtual_time
async def test_one_stray_401_is_forgiven(is_retried: bool) -> None:
    server = Recorder(401, {}, 401, {})
    vault = Vault({"x": ConnectionInfo(server="https://host", token="t")})
    async with connect(server, vault=vault) as client:
        for _ in range(2):
            begin = asyncio.get_running_loop().time()
            assert await client.patch(CRON, "ns", "x", {}, is_retried=is_retried) == {}
            assert 0.3 <= asyncio.get_running_loop().time() - begin < 1.1
    assert not vault.is_empty()
    assert len(server.requests) == 4


@in_virtual_time
async def test_an_answer_of_a_proxy_in_between_is_no_proof_of_good_credentials() -> None:
    server = Recorder(401, 503, 401, {})
    infos = [ConnectionInfo("https://host", token=token) for token in ("old", "new")]
    vault = Vault({"x": dataclasses.replace(infos[0], priority=1), "y": infos[1]})
    async with connect(server, Networking(error_backoffs=[1]), vault) as client:
        assert await client.request("GET", "/x") == {}
    tokens = [request.headers["authorization"] for request in server.requests]
    assert tokens == ["Bearer old"] * 3 + ["Bearer new"]


@in_virtual_time
async def test_a_server_behind_the_api_server_that_refuses_everybody_does_not_end_the_login() -> (
    None
):
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(401 if request.url.path == "/apis/odd" else 200, content=b"{}")

    vault = Vault({"x": ConnectionInfo(server="https://host", token="t")})

    async def ask_for_others(client: Client) -> None:
        while True:
            await client.request("GET", "/x")
            await asyncio.sleep(0.05)

    async with connect(handler, Networking(error_backoffs=[1, 2]), vault) as client:
        others = asyncio.create_task(ask_for_others(client))
        with pytest.raises(APIUnauthorizedError):
            await client.request("GET", "/apis/odd")
        others.cancel()
    assert not vault.is_empty()


@pytest.mark.feature("AUT-16")
@in_virtual_time
async def test_refused_credentials_are_replaced_by_the_next_ones() -> None:
    infos = {str(i): ConnectionInfo(server="https://host", token=str(i)) for i in range(10)}
    vault = Vault(infos)
    async with connect(forbid(*"012345689"), vault=vault) as client:
        for _ in range(20):
            assert await client.request("GET", "/x") == {}
    assert infos["7"] in vault


class Line:
    """The connections of each token; ``/slow`` and closing those of "old" take as long as said."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.begun, self.proceed = asyncio.Event(), asyncio.Event()

    def open(self, info: ConnectionInfo) -> HTTPXTransport:
        async def answer(request: httpx.Request) -> httpx.Response:
            if request.url.path == "/slow":
                await self.wait()
            self.events.append(f"{info.token} {request.url.path}")
            return httpx.Response(200, content=b"{}")

        transport = HTTPXTransport(httpx.MockTransport(answer), info.server)
        transport.aclose = partial(self.close, info.token)  # type: ignore[method-assign]
        return transport

    async def close(self, token: str | None) -> None:
        if token == "old-and-slow":
            await self.wait()
        self.events.append(f"{token} closed")

    async def wait(self) -> None:
        self.begun.set()
        await self.proceed.wait()

    async def log_in(self, client: Client, token: str) -> None:
        await client.vault.populate({"x": ConnectionInfo(server="https://host", token=token)})


async def test_connections_of_outdated_credentials_are_closed_after_their_last_request() -> None:
    line = Line()
    client = Client(Vault(), Networking(), transport_factory=line.open)
    await line.log_in(client, "old")
    slow = asyncio.create_task(client.request("GET", "/slow"))
    await line.begun.wait()
    await client.request("GET", "/1")
    await line.log_in(client, "new")
    await client.request("GET", "/2")
    line.proceed.set()
    await slow
    await client.aclose()
    assert line.events == ["old /1", "new /2", "old /slow", "old closed", "new closed"]


async def test_no_request_is_sent_through_connections_that_were_closed_before_it() -> None:
    """New credentials are replaced while those who open them still close the old ones."""
    line = Line()
    client = Client(Vault(), Networking(), transport_factory=line.open)
    await line.log_in(client, "old-and-slow")
    await client.request("GET", "/1")
    await line.log_in(client, "b")
    first = asyncio.create_task(client.request("GET", "/2"))
    await line.begun.wait()
    second = asyncio.create_task(client.request("GET", "/3"))
    await line.log_in(client, "c")
    await second
    await client.request("GET", "/4")
    line.proceed.set()
    await first
    await client.aclose()
    for token in ("old-and-slow", "b", "c"):
        events = [event for event in line.events if event.startswith(token)]
        assert events.index(f"{token} closed") == len(events) - 1


async def test_a_request_about_an_object_is_sent_once_if_it_is_not_to_be_retried() -> None:
    server = Recorder(503)
    async with connect(server, Networking(error_backoffs=[0, 0])) as client:
        with pytest.raises(APIServerError):
            await client.patch(CRON, "ns", "x", {}, is_retried=False, is_queued=True)
    assert len(server.requests) == 1


@pytest.mark.feature("PAT-13")
async def test_patching_an_object_that_is_gone_is_no_error() -> None:
    gone = {"kind": "Status", "reason": "NotFound", "details": {"name": "x", "kind": "cronjobs"}}
    server = Recorder(httpx.Response(404, content=orjson.dumps(gone)))
    async with connect(server) as client:
        assert await client.patch(CRON, "ns", "x", {}) is None
        assert await client.patch(CRON, "ns", "x", []) is None


async def test_patching_a_subresource_that_does_not_exist_is_an_error() -> None:
    server = Recorder(httpx.Response(404, content=b"404 page not found\n"))
    async with connect(server) as client:
        with pytest.raises(APINotFoundError, match="page not found"):
            await client.patch(CRON, "ns", "x", {}, "status")


@rows("body", [{"a": object()}, {"a": {1, 2}}])
async def test_bodies_that_json_cannot_hold_are_not_sent(body: object) -> None:
    async with connect(lambda _: pytest.fail("There was a request.")) as client:
        with pytest.raises(TypeError):
            await client.request("POST", "/x", body=body)
