"""One POST request to an ASGI app in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import quote

_Message = MutableMapping[str, Any]
_App = Callable[
    [_Message, Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]],
    Awaitable[None],
]


async def post(
    app: _App, path: str, body: bytes, *, headers: Mapping[str, str], query: str = ""
) -> tuple[int, bytes]:
    """Return the status and the body of the response; errors of the app are raised.

    The client stays connected until the response is complete.
    """
    given = {"Host": "webop", "Accept": "application/json, */*", **headers}
    given["Content-Length"] = str(len(body))
    scope: _Message = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": quote(path).encode("ascii"),
        "query_string": query.encode("ascii"),
        "root_path": "",
        "headers": [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in given.items()],
        "server": ("webop", 80),
        "client": ("127.0.0.1", 123),
    }
    requests: list[_Message] = [{"type": "http.request", "body": body, "more_body": False}]
    is_complete = asyncio.Event()
    status, parts = 0, list[bytes]()

    async def receive() -> _Message:
        if requests:
            return requests.pop()
        await is_complete.wait()
        return {"type": "http.disconnect"}

    async def send(message: _Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                is_complete.set()

    await app(scope, receive, send)
    return status, b"".join(parts)
