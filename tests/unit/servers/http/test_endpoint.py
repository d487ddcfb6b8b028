"""Reviews over HTTP: paths, sizes, malformed bodies, statuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.kit.waiting import eventually
from tests.kit.webhook_servers import (
    RESPONSE,
    REVIEW,
    Recorder,
    connect,
    post,
    read_answer,
    read_head,
)
from webop.errors import ReviewError
from webop.servers.http.endpoint import ReviewEndpoint
from webop.servers.http.listener import Listener
from webop.servers.http.protocol import ASGIApp
from webop.servers.limits import DefaultLimits, Hosting

MAX_BODY = 7 * 1024 * 1024


@contextlib.asynccontextmanager
async def serve(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        Listener(app, "127.0.0.1", 0) as listener,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}", verify=False) as client,
    ):
        yield client


@pytest.fixture
async def client(fn: Recorder) -> AsyncIterator[httpx.AsyncClient]:
    async with serve(ReviewEndpoint(fn)) as client:
        yield client


@pytest.fixture
async def port(fn: Recorder) -> AsyncIterator[int]:
    async with Listener(ReviewEndpoint(fn), "127.0.0.1", 0) as listener:
        yield listener.port


def get_reason(response: httpx.Response) -> str:
    """Check that a refusal is a Kubernetes Status; return its message."""
    status = response.json()
    assert response.headers["content-type"] == "application/json"
    assert status.keys() == {"kind", "apiVersion", "status", "message", "code"}
    assert status["kind"] == "Status"
    assert status["apiVersion"] == "v1"
    assert status["status"] == "Failure"
    assert status["code"] == response.status_code
    return str(status["message"])


@pytest.mark.feature("ADM-62", "ADM-88")
@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "application/json",
        "Application/JSON; charset=UTF-8",
        'application/json;charset="utf-8"',
        "application/vnd.example.v1+json",
        "application/x-www-form-urlencoded",
    ],
)
async def test_json_is_taken_under_all_of_its_names_and_the_one_that_curl_gives_it(
    client: httpx.AsyncClient, fn: Recorder, content_type: str | None
) -> None:
    headers = {"Content-Type": content_type} if content_type is not None else {}
    response = await client.post("/", content=json.dumps(REVIEW), headers=headers)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json() == RESPONSE
    assert fn.calls[0].request == REVIEW


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Content-Type": "text/plain"}, "not as 'text/plain'"),
        ({"Content-Type": "application/jsonp"}, "not as 'application/jsonp'"),
        ({"Content-Type": "application/yaml; charset=utf-8"}, "not as 'application/yaml'"),
        ({"Content-Type": "multipart/form-data; boundary=x"}, "not as 'multipart/form-data'"),
        ({"Content-Type": "application/json; charset=utf-16"}, "not in 'utf-16'"),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, "encoding 'gzip'"),
    ],
)
async def test_another_type_of_content_is_named_in_the_refusal(
    client: httpx.AsyncClient, fn: Recorder, headers: dict[str, str], reason: str
) -> None:
    response = await client.post("/", content=json.dumps(REVIEW), headers=headers)
    assert response.status_code == 415
    assert reason in get_reason(response)
    assert fn.calls == []


@pytest.mark.feature("ADM-10", "ADM-30", "ADM-45")
@pytest.mark.parametrize(
    ("path", "webhook"),
    [
        ("", None),
        ("/", None),
        ("/validate1", "validate1"),
        ("/validate1/", "validate1"),
        ("/fn/spec.field", "fn/spec.field"),
        ("/fn%2Fspec.field", "fn/spec.field"),
        ("/outer.%3Clocals%3E.fn", "outer.<locals>.fn"),
        ("/lambda%3A/app/handlers.py%3A12", "lambda:/app/handlers.py:12"),
        ("/na%C3%AFve", "naïve"),
        ("/a%2525b", "a%25b"),
        ("/fn?timeout=30s", "fn"),
    ],
)
async def test_the_path_is_the_id_of_the_webhook(
    client: httpx.AsyncClient, fn: Recorder, path: str, webhook: str | None
) -> None:
    assert (await client.post(path, json=REVIEW)).status_code == 200
    assert fn.calls[0].webhook == webhook


@pytest.mark.feature("ADM-70")
@pytest.mark.parametrize("root", ["p", "/p", "/p/", "p/"])
@pytest.mark.parametrize(
    ("path", "webhook"), [("/p", None), ("/p/", None), ("/p/fn/spec", "fn/spec"), ("/p/p", "p")]
)
async def test_a_root_path_precedes_the_id(
    fn: Recorder, root: str, path: str, webhook: str | None
) -> None:
    async with serve(ReviewEndpoint(fn, path=root)) as client:
        assert (await client.post(path, json=REVIEW)).status_code == 200
    assert fn.calls[0].webhook == webhook


@pytest.mark.feature("ADM-70")
@pytest.mark.parametrize("path", ["/", "/fn", "/px", "/px/fn", "/q/p"])
async def test_there_is_nothing_outside_of_the_root_path(fn: Recorder, path: str) -> None:
    async with serve(ReviewEndpoint(fn, path="/p")) as client:
        response = await client.post(path, json=REVIEW)
    assert response.status_code == 404
    assert path in get_reason(response)
    assert fn.calls == []


@pytest.mark.feature("ADM-25", "ADM-89")
async def test_headers_reach_the_function(client: httpx.AsyncClient, fn: Recorder) -> None:
    await client.post("/", json=REVIEW, auth=("ussser", "passsw"), headers={"X-Extra": "Value"})
    headers = fn.calls[0].headers
    assert headers["Authorization"] == "Basic dXNzc2VyOnBhc3Nzdw=="
    assert headers["Host"] == client.base_url.netloc.decode()
    assert headers["X-Extra"] == "Value"
    assert headers["Content-Length"].isdigit()


@pytest.mark.feature("ADM-31")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "is empty"),
        (b" ", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"kind": "AdmissionReview",}', "not valid JSON"),
        (b"{'kind': 1}", "not valid JSON"),
        (b'{"kind": 1} {"kind": 2}', "not valid JSON"),
        (b'{"kind": NaN}', "not valid JSON"),
        (b'{"kind": nul', "not valid JSON"),
        (b'{"kind": "\xff\xfe"}', "not valid JSON"),
        (b'{"kind": "\\ud800"}', "not valid JSON"),
        (b'{"kind": "a\x00b"}', "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a":' * 100_000, "not valid JSON"),
        (b"kind=AdmissionReview", "not valid JSON"),
        (b"\x1f\x8b\x08\x00", "not valid JSON"),
        (b"null", "must be a JSON object"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"1", "must be a JSON object"),
        (b"true", "must be a JSON object"),
    ],
)
async def test_a_malformed_body_is_refused_with_the_reason(
    client: httpx.AsyncClient, fn: Recorder, body: bytes, reason: str
) -> None:
    response = await client.post("/", content=body)
    assert response.status_code == 400
    assert reason in get_reason(response)
    assert fn.calls == []
    assert (await client.post("/", json=REVIEW)).status_code == 200


@pytest.mark.feature("ADM-31")
@pytest.mark.parametrize("status", [404, 409, 422])
async def test_a_refusal_has_the_status_and_the_reason_of_its_error(
    client: httpx.AsyncClient, fn: Recorder, status: int
) -> None:
    fn.error = ReviewError("There is no such webhook: 'fn'.", status=status)
    response = await client.post("/fn", json=REVIEW)
    assert response.status_code == status
    assert get_reason(response) == "There is no such webhook: 'fn'."


@pytest.mark.parametrize("status", [400, 413])
async def test_a_review_with_wrong_content_denies_its_request_and_is_no_failed_call(
    client: httpx.AsyncClient, fn: Recorder, status: int
) -> None:
    fn.error = ReviewError("request.name must be a string.", status=status)
    response = await client.post("/fn", json=REVIEW)
    assert response.status_code == 200
    assert response.json() == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {
            "uid": "1ca13837-ad60-4c9e-abb8-86f29d6c0e84",
            "allowed": False,
            "status": {"message": "request.name must be a string.", "code": status},
        },
    }


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"])
async def test_other_methods_are_not_allowed(
    client: httpx.AsyncClient, fn: Recorder, method: str
) -> None:
    response = await client.request(method, "/fn", json=REVIEW)
    # An unknown method is not even HTTP for the parser.
    assert response.status_code == (400 if method == "BREW" else 405)
    if method != "BREW":
        assert method in get_reason(response)
        assert response.headers["allow"] == "POST"
    assert fn.calls == []


async def test_a_head_request_is_answered_without_a_body(client: httpx.AsyncClient) -> None:
    response = await client.head("/")
    assert response.status_code == 405
    assert response.content == b""


async def test_a_failure_is_logged_with_a_traceback_and_answered_with_a_reason_only(
    client: httpx.AsyncClient, fn: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    fn.error = ZeroDivisionError("the secret")
    response = await client.post("/fn", json=REVIEW)
    assert response.status_code == 500
    assert "ZeroDivisionError" in get_reason(response)
    assert "secret" not in response.text
    assert [record.levelno for record in caplog.records if record.exc_info] == [logging.ERROR]
    assert "ZeroDivisionError: the secret" in caplog.text
    assert "/fn" in caplog.text


async def test_a_response_that_json_cannot_hold_is_a_failure(
    client: httpx.AsyncClient, fn: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    fn.response = {"response": {1, 2, 3}}
    response = await client.post("/fn", json=REVIEW)
    assert response.status_code == 500
    assert "TypeError" in caplog.text


async def test_a_chunked_review_is_served(client: httpx.AsyncClient, fn: Recorder) -> None:
    async def generate() -> AsyncIterator[bytes]:
        for char in json.dumps(REVIEW):
            yield char.encode()

    assert (await client.post("/", content=generate())).status_code == 200
    assert fn.calls[0].request == REVIEW


async def test_a_larger_review_is_refused_as_soon_as_its_head_is_sent(
    port: int, fn: Recorder
) -> None:
    async with connect(port) as (reader, writer):
        length = MAX_BODY + 1
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length)
        writer.write(b" " * 1000)
        head = await read_head(reader)
        assert head.startswith("HTTP/1.1 413 ")
        assert "connection: close" in head
    assert fn.calls == []


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_larger_review_of_an_api_server_is_denied(
    port: int, fn: Recorder, is_announced: bool
) -> None:
    review = json.dumps({**REVIEW, "padding": "x" * MAX_BODY}).encode()
    review = review.replace(b'"operation"', b'"name": "x", "operation"', 1)
    async with connect(port) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n")
        if is_announced:
            writer.write(b"Content-Length: %d\r\n\r\n" % len(review) + review[:1000])
        else:
            writer.write(b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(review) + review)
        head, body = await read_answer(reader)
        response = json.loads(body)["response"]
    assert head.startswith("HTTP/1.1 200 ")
    assert "connection: close" in head
    assert response["allowed"] is False
    assert response["uid"] == REVIEW["request"]["uid"]  # type: ignore[index]
    assert f"the limit is {MAX_BODY} bytes" in response["status"]["message"]
    assert response["status"]["code"] == 413
    assert fn.calls == []


async def test_a_review_that_is_announced_takes_no_memory_before_it_arrives(fn: Recorder) -> None:
    hosting = Hosting(DefaultLimits(max_body=10_000, max_held_bytes=10_000))
    async with (
        Listener(ReviewEndpoint(fn, hosting=hosting), "127.0.0.1", 0, hosting=hosting) as listener,
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(50):
            _, writer = await stack.enter_async_context(connect(listener.port))
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n{")
        answer = await post(f"http://127.0.0.1:{listener.port}")
    assert answer.status_code == 200


async def test_a_larger_chunked_review_is_refused_as_soon_as_it_is_too_large(
    client: httpx.AsyncClient, fn: Recorder
) -> None:
    sent = 0

    async def generate() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            yield b" " * 1024 * 1024
            sent += 1

    with contextlib.suppress(httpx.WriteError, httpx.ReadError):
        response = await client.post("/", content=generate())
        assert response.status_code == 413
    assert 7 <= sent < 200  # it is not read for ever
    assert fn.calls == []


async def test_a_client_that_expects_a_permission_gets_it(port: int) -> None:
    body = json.dumps(REVIEW).encode()
    async with connect(port) as (reader, writer):
        writer.write(
            b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        )
        assert (await read_head(reader)).startswith("HTTP/1.1 100 ")
        writer.write(body)
        assert (await read_head(reader)).startswith("HTTP/1.1 200 ")


async def test_a_client_that_leaves_in_the_middle_is_forgotten(
    fn: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "webop.servers.http.endpoint")
    async with Listener(ReviewEndpoint(fn), "127.0.0.1", 0) as listener:
        async with connect(listener.port) as (_, writer):
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n{")
            await writer.drain()
        await eventually(lambda: "has disconnected" in caplog.text)
    assert fn.calls == []
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


async def test_a_connection_serves_many_reviews_also_after_refusals(
    port: int, fn: Recorder
) -> None:
    good = json.dumps(REVIEW).encode()
    async with connect(port) as (reader, writer):
        for body, status in [(good, 200), (b"{", 400), (good, 200), (b"[]", 400), (good, 200)]:
            length = len(body)
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length)
            writer.write(body)
            head, _ = await read_answer(reader)
            assert head.startswith(f"HTTP/1.1 {status} ")
    assert len(fn.calls) == 3


async def test_reviews_are_served_in_parallel(client: httpx.AsyncClient, fn: Recorder) -> None:
    fn.gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.post(f"/fn{i}", json=REVIEW)) for i in range(10)]
        await eventually(lambda: len(fn.calls) == 10)
        fn.gate.set()
    assert {task.result().status_code for task in tasks} == {200}


async def test_a_large_deep_review_does_not_keep_others_waiting(fn: Recorder) -> None:
    deep = b"[" * 5000 + b"0" + b"]" * 5000
    state = b'{"deep":%b,"many":[%b0]}' % (deep, b"[[[[[[0]]]]]]," * 8_000)
    large = b'{"request":{"uid":"large","object":%b,"oldObject":%b}}' % (state, state)
    app = ReviewEndpoint(fn)

    async def send(_: Any) -> None:
        pass

    async def review(body: bytes) -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": body}

        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
        await app(scope, receive, send)

    await asyncio.gather(review(large), review(b'{"request":{"uid":"small"}}'))
    assert [call.request["request"]["uid"] for call in fn.calls] == ["small", "large"]


async def test_only_http_is_served(fn: Recorder) -> None:
    async def receive() -> dict[str, object]:
        return {"type": "lifespan.startup"}

    async def send(message: object) -> None:
        raise AssertionError

    with pytest.raises(RuntimeError, match="'lifespan'"):
        await ReviewEndpoint(fn)({"type": "lifespan"}, receive, send)
