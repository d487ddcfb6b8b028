"""HTTP/1.1 through the client, on both event loops, with and without TLS."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import cast

import pytest

import webop
from tests.kit.certificates import Pair, issue, issue_by
from tests.kit.rows import rows
from tests.kit.scripted_server import Connection, ScriptedServer, answer_with, build_answer, playing
from tests.kit.virtual_time import AdvancingLoop
from tests.kit.waiting import eventually
from webop import ConnectionInfo
from webop.errors import APIConnectionError, APIStatusError


@pytest.fixture(scope="module")
def ca() -> Pair:
    return issue("ca")


@pytest.fixture(scope="module")
def tls(ca: Pair, tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    pair = issue_by(ca, "server")
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_text(pair.cert + pair.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)
    return context


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def context(request: pytest.FixtureRequest, tls: ssl.SSLContext) -> ssl.SSLContext | None:
    return tls if request.param else None


async def echo(connection: Connection) -> None:
    """Answer as usual, with what has come."""
    while True:
        _, body = await connection.read()
        await connection.write(build_answer(body or b"{}"))


async def test_requests_of_all_kinds_share_a_connection(context: ssl.SSLContext | None) -> None:
    async with playing(echo, context) as server:
        async with server.connect() as client:
            assert await client.request("GET", "/x") == {}
            for method in ("POST", "PUT", "PATCH", "DELETE"):
                assert await client.request(method, "/x", body={"a": method}) == {"a": method}
            assert await client.request("POST", "/x") == {}
            assert server.accepted == 1
        await server.wait_for_closing()


async def test_a_request_says_what_http_demands() -> None:
    heads: list[str] = []

    async def note(connection: Connection) -> None:
        while True:
            head, _ = await connection.read()
            heads.append(head)
            await connection.write(build_answer())

    async with playing(note) as server:
        info = ConnectionInfo(f"{server.url}/base/", token="secret")
        async with server.connect(info) as client:
            await client.request("GET", "/apis", params={"a": "ü &"})
            await client.request("POST", "/apis?dryRun=All", body={}, params={"b": "1"})
            await client.request(
                "PATCH", "/x", body=[], content_type="application/apply-patch+yaml"
            )
    first, *lines = heads[0].split("\r\n")
    assert first == "GET /base/apis?a=%C3%BC+%26 HTTP/1.1"
    assert lines[0] == f"Host: 127.0.0.1:{server.port}"
    assert "Authorization: Bearer secret" in lines
    assert f"User-Agent: webop/{webop.__version__}" in lines
    assert "Accept: application/json" in lines
    assert not any(line.startswith("Content-") for line in lines)
    assert heads[1].startswith("POST /base/apis?dryRun=All&b=1 HTTP/1.1\r\n")
    assert "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n" in heads[1]
    assert "Content-Type: application/apply-patch+yaml\r\n" in heads[2]


@rows("path", ["/a b", "/a\r\nX: y", "/a\nX", "/\x00"])
async def test_no_path_can_smuggle_headers_or_requests(path: str) -> None:
    async with playing(echo) as server, server.connect() as client:
        with pytest.raises(ValueError, match="quote blanks"):
            await client.request("GET", path)
        with pytest.raises(ValueError, match="media type"):
            await client.request("POST", "/", body={}, content_type="a\r\nX: y")
        assert not server.accepted


ANSWERS = {
    "with a length": build_answer(b'{"a": 1}'),
    "in chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'3;ext=1\r\n{"a\r\n5\r\n": 1}\r\n0\r\nTrailer: x\r\n\r\n',
    "after 100 Continue": b"HTTP/1.1 100 Continue\r\n\r\n" + build_answer(b'{"a": 1}'),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
@pytest.mark.parametrize("size", [1, 7, 10_000], ids=["byte by byte", "in pieces", "at once"])
async def test_answers_are_read_however_they_come(
    answer: bytes, size: int, context: ssl.SSLContext | None
) -> None:
    async def script(connection: Connection) -> None:
        while True:
            await connection.read()
            pieces = [answer[start : start + size] for start in range(0, len(answer), size)]
            await connection.write(*pieces)

    async with playing(script, context) as server, server.connect() as client:
        for _ in range(3):
            assert await client.request("GET", "/x") == {"a": 1}
        assert server.accepted == 1


async def test_an_answer_may_last_until_the_server_closes(context: ssl.SSLContext | None) -> None:
    script = answer_with(b"HTTP/1.1 200 OK\r\n\r\n", b'{"a"', b": 1}")
    async with playing(script, context) as server, server.connect() as client:
        for _ in range(2):
            assert await client.request("GET", "/x") == {"a": 1}
        assert server.accepted == 2


@pytest.mark.parametrize(
    "part",
    [
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{}",
    ],
)
async def test_half_an_answer_is_no_answer(part: bytes, context: ssl.SSLContext | None) -> None:
    async with playing(answer_with(part), context) as server, server.connect() as client:
        with pytest.raises(APIConnectionError, match="in the middle of the response"):
            await client.request("GET", "/x")
        assert server.accepted == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nx", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\n" + b"X-Header: value\r\n" * 10_000, "headers .* too long"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, "headers .* too long"),
        (b"", "closed the connection before it responded"),
    ],
    ids=["SSH", "bad length", "an upgrade", "many headers", "a long header", "nothing"],
)
async def test_what_is_no_http_is_told(answer: bytes, reason: str) -> None:
    script = answer_with(answer, stays_open=bool(answer))
    async with playing(script) as server, server.connect() as client:
        with pytest.raises(APIConnectionError, match=reason):
            await client.request("GET", "/x")
        await server.wait_for_closing()


@rows("head", ["HTTP/1.1 200 OK\r\nConnection: close", "HTTP/1.0 200 OK"])
async def test_a_connection_that_the_server_wants_to_close_is_not_used_again(head: str) -> None:
    script = answer_with(f"{head}\r\nContent-Length: 2\r\n\r\n{{}}".encode(), stays_open=True)
    async with playing(script) as server, server.connect() as client:
        for _ in range(3):
            assert await client.request("PATCH", "/x", body={}) == {}
        assert server.accepted == 3
        await server.wait_for_closing()


async def test_a_connection_that_was_closed_while_idle_is_not_used_again(
    context: ssl.SSLContext | None,
) -> None:
    async with playing(answer_with(build_answer()), context) as server, server.connect() as client:
        for number in range(5):
            assert await client.request("PATCH", "/x", body={}) == {}
            assert server.accepted == number + 1
            await server.wait_for_closing()


@pytest.mark.parametrize(
    ("method", "is_repeated"),
    [("GET", True), ("PUT", True), ("DELETE", False), ("PATCH", True), ("POST", False)],
)
async def test_a_request_into_a_kept_connection_that_is_closed_is_repeated_if_it_does_no_harm(
    method: str, is_repeated: bool, context: ssl.SSLContext | None
) -> None:
    requests = []

    async def script(connection: Connection) -> None:
        await connection.read()
        await connection.write(build_answer())
        requests.append(await connection.read())

    async with playing(script, context) as server, server.connect() as client:
        await client.request("GET", "/x")
        if is_repeated:
            assert await client.request(method, "/x") == {}
        else:
            with pytest.raises(APIConnectionError, match="before it responded"):
                await client.request(method, "/x")
        assert len(requests) == 1
        assert server.accepted == 1 + is_repeated


@pytest.mark.parametrize("junk", [b"x", build_answer(b'{"stolen": 1}')])
@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "later"])
async def test_what_nobody_has_asked_for_is_the_answer_to_nothing(
    junk: bytes, is_late: bool
) -> None:
    pieces = [build_answer(), junk] if is_late else [build_answer() + junk]
    async with playing(answer_with(*pieces, stays_open=True)) as server, server.connect() as client:
        for number in range(3):
            assert await client.request("PATCH", "/x", body={}) == {}
            assert server.accepted == number + 1
            await server.wait_for_closing()


PHASES = {
    "before the head": b"",
    "in the head": b"HTTP/1.1 200 OK\r\nContent",
    "in the content": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{",
    "in a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
}


@pytest.mark.parametrize("part", PHASES.values(), ids=PHASES.keys())
async def test_a_connection_is_closed_if_its_request_is_cancelled(
    part: bytes, context: ssl.SSLContext | None
) -> None:
    is_written = asyncio.Event()

    async def script(connection: Connection) -> None:
        head, _ = await connection.read()
        if "/slow" in head:
            await connection.write(part)
            is_written.set()
        else:
            await connection.write(build_answer())
        await connection.reader.read()

    async with playing(script, context) as server, server.connect() as client:
        task = asyncio.create_task(client.request("GET", "/slow"))
        await is_written.wait()
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.wait_for_closing()
        with pytest.raises(APIConnectionError, match="no response in time"):
            await client.request("GET", "/slow", timeout=0.4)
        await server.wait_for_closing()
        assert await client.request("GET", "/fast") == {}
        assert server.accepted == 3


async def test_a_request_that_was_given_up_does_not_arrive_later(
    context: ssl.SSLContext | None,
) -> None:
    """As in a network that is down for some seconds: the kernel has it, and cannot send it."""
    size = 200_000
    is_there, is_back = asyncio.Event(), asyncio.Event()
    received = 0

    async def script(connection: Connection) -> None:
        nonlocal received
        await connection.reader.readuntil(b"\r\n\r\n")
        transport = cast("asyncio.Transport", connection.writer.transport)
        transport.pause_reading()
        is_there.set()
        await is_back.wait()
        transport.resume_reading()
        while data := await connection.reader.read(65536):
            received += len(data)

    async with playing(script, context, receive_buffer=8192) as server, server.connect() as client:
        task = asyncio.create_task(client.request("PATCH", "/x", body={"a": "x" * size}))
        await is_there.wait()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.01)  # the event loop closes the socket
        is_back.set()
        await server.wait_for_closing()
    assert received < size


async def test_a_server_that_does_not_shake_hands_is_given_up() -> None:
    async def script(connection: Connection) -> None:
        await connection.reader.read()  # the first words of TLS
        await connection.reader.read()

    async with playing(script) as server:
        info = ConnectionInfo(f"https://127.0.0.1:{server.port}")
        async with server.connect(info, connect_timeout=0.1) as client:
            with pytest.raises(APIConnectionError, match=rf":{server.port}: no response in time"):
                await client.request("GET", "/x")
            await server.wait_for_closing()


async def test_a_name_that_cannot_be_resolved_is_told() -> None:
    for name in ("absent.invalid", "a..b"):
        async with ScriptedServer(echo).connect(ConnectionInfo(f"https://{name}")) as client:
            with pytest.raises(APIConnectionError, match=f"no connection to {name}:443: "):
                await client.request("GET", "/x")


async def test_a_certificate_for_another_name_is_not_trusted(ca: Pair, tls: ssl.SSLContext) -> None:
    async with playing(echo, tls) as server:
        for host, name, is_trusted in (
            ("127.0.0.1", None, True),
            ("localhost", "127.0.0.1", True),
            ("127.0.0.1", "localhost", False),
            ("localhost", None, False),
        ):
            url = f"https://{host}:{server.port}"
            info = ConnectionInfo(url, ca_data=ca.cert, tls_server_name=name)
            async with server.connect(info) as client:
                if is_trusted:
                    assert await client.request("GET", "/x") == {}
                    continue
                with pytest.raises(APIConnectionError, match=r"is not trusted: .*'localhost'"):
                    await client.request("GET", "/x")


async def test_an_answer_before_the_request_has_gone_out_ends_the_connection() -> None:
    async def script(connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.write(build_answer(b"too large", status=400))
        await asyncio.sleep(0.2)

    async with playing(script) as server, server.connect() as client:
        for number in range(2):
            with pytest.raises(APIStatusError, match="too large"):
                await client.request("PUT", "/x", body={"a": "x" * 30_000_000})
            assert server.accepted == number + 1


async def test_a_slow_consumer_of_a_stream_slows_down_the_server(
    context: ssl.SSLContext | None,
) -> None:
    line = b"x" * 999 + b"\n"
    chunk = b"%x\r\n%s\r\n" % (100 * len(line), 100 * line)
    count, written = 400, 0

    async def script(connection: Connection) -> None:
        nonlocal written
        await connection.read()
        await connection.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(count):
            await connection.write(chunk)
            written += 1
        await connection.write(b"0\r\n\r\n")
        await echo(connection)

    async with playing(script, context) as server, server.connect() as client:
        async with client.stream("/x") as lines:
            assert set(await anext(lines)) == {line[:-1]}
            last = -1
            while last < written:
                last = written
                await asyncio.sleep(0.2)
            assert written < count / 2
            assert sum([len(batch) async for batch in lines]) > 100 * (count - 50)
        assert await client.request("GET", "/x") == {}
        assert server.accepted == 1


async def test_a_stream_that_is_left_early_is_cut_off(context: ssl.SSLContext | None) -> None:
    begun = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na\nb\r\n"
    script = answer_with(begun, stays_open=True)
    async with playing(script, context) as server, server.connect() as client:
        async with client.stream("/x") as lines:
            assert await anext(lines) == [b"a"]
        await server.wait_for_closing()


class Proxy:
    """Notes the requests for connections, and connects if it likes the credentials."""

    def __init__(self, credentials: str = "") -> None:
        self.requests: list[str] = []
        self._credentials = credentials

    async def play(self, connection: Connection) -> None:
        head, _ = await connection.read()
        self.requests.append(head)
        expected = base64.b64encode(self._credentials.encode()).decode()
        if self._credentials and f"Proxy-Authorization: Basic {expected}\r\n" not in head:
            await connection.write(build_answer(status=407))
            return
        host, _, port = head.split(" ")[1].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await connection.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(pump(connection.reader, writer))
                group.create_task(pump(reader, connection.writer))
        finally:
            writer.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


@pytest.fixture
async def secure_server(tls: ssl.SSLContext) -> AsyncIterator[ScriptedServer]:
    async with playing(echo, tls) as server:
        yield server


@pytest.mark.parametrize("way", ["credentials", "environment"])
async def test_https_goes_through_a_proxy(
    way: str,
    secure_server: ScriptedServer,
    ca: Pair,
    context: ssl.SSLContext | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy = Proxy("user:p@ss")
    async with playing(proxy.play, context) as proxy_server:
        url = proxy_server.url.replace("//", "//user:p%40ss@")
        if way == "environment":
            monkeypatch.setenv("https_proxy", url)
            monkeypatch.setenv("no_proxy", "elsewhere")
        info = ConnectionInfo(
            secure_server.url,
            ca_data=ca.cert,
            proxy_url=url if way == "credentials" else None,
            trust_env=way == "environment",
        )
        async with secure_server.connect(info) as client:
            for _ in range(3):
                assert await client.request("PUT", "/x", body={"a": 1}) == {"a": 1}
            body = {"a": "x" * 3_000_000}
            assert await client.request("PUT", "/x", body=body) == body
    [head] = proxy.requests
    assert head.startswith(f"CONNECT 127.0.0.1:{secure_server.port} HTTP/1.1\r\n")
    assert secure_server.accepted == 1


async def test_the_environment_says_what_needs_no_proxy(
    secure_server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    info = ConnectionInfo(secure_server.url, insecure=True, trust_env=True)
    async with secure_server.connect(info) as client:
        assert await client.request("GET", "/x") == {}


def test_idle_connections_are_closed_before_the_server_does_it() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AdvancingLoop)
        async with playing(echo) as server, server.connect() as client, asyncio.timeout(600):
            await asyncio.gather(*(client.request("GET", "/x") for _ in range(3)))
            assert server.open == 3
            loop.advance += 50
            await client.request("GET", "/x")
            assert server.open == 3
            loop.advance += 11
            await eventually(lambda: server.open <= 1)
            await client.request("GET", "/x")
            assert server.accepted == 3
            loop.advance += 61
            await server.wait_for_closing()

    with asyncio.Runner(loop_factory=AdvancingLoop) as runner:
        runner.run(run())
