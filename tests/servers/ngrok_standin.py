"""A stand-in for the agent of ngrok: its command line, its log, its local API; and it forwards.

Run as ``ngrok_standin.py FOLDER [arguments of ngrok]``. The public side is a port of this host
that speaks TLS with ``FOLDER/tls.pem``. What it was called with is told in ``FOLDER/calls``, one
JSON a line; ``FOLDER/mood`` has the way to misbehave, and is read at each use.

Only the standard library is used, so that it starts fast. The words are those of the real one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

GOOD_TOKEN = "2good_token"
NO_TOKEN = (
    "authentication failed: Usage of ngrok requires a verified account and authtoken."
    "\\n\\nERR_NGROK_4018\\r\\n"
)
BAD_TOKEN = (
    "authentication failed: The authtoken you specified is properly formed, but it is invalid."
    "\\nYour authtoken: {}\\n\\nERR_NGROK_107\\r\\n"
)
NO_MORE = "Your account is limited to 3 endpoints.\n\nERR_NGROK_324\n"


def log(level: str, msg: str, **fields: str) -> None:
    """Write a line as the agent does with ``--log stdout``."""
    pairs = "".join(f" {key}={_quote(value)}" for key, value in fields.items())
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S+0000", time.gmtime())
    sys.stdout.write(f't={stamp} lvl={level} msg="{msg}"{pairs}\n')
    sys.stdout.flush()


def _quote(value: str) -> str:
    return f'"{value}"' if " " in value else value


class Agent:
    """The tunnels, and the API to manage them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tunnels: dict[str, dict[str, Any]] = {}
        self._listeners: dict[str, asyncio.Server] = {}
        self._forwards: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        api = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        host, port = api.sockets[0].getsockname()
        log("info", "open config file", path="/nowhere/ngrok.yml", err="nil")
        log("info", "starting web service", obj="web", addr=f"{host}:{port}", allow_hosts="[]")
        note(self._folder, {"api": f"http://{host}:{port}", "pid": os.getpid()})
        log("info", "client session established", obj="tunnels.session")
        log("info", "tunnel session started", obj="tunnels.session")
        await asyncio.Event().wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        status, answer = await self._dispatch(method, path, json.loads(body or "null"))
        content = b"" if answer is None else json.dumps(answer).encode()
        log("info", "end", obj="web", path=path, status=str(status))
        writer.write(
            f"HTTP/1.1 {status} Whatever\r\nContent-Length: {len(content)}\r\n"
            "Content-Type: application/json\r\nConnection: close\r\n\r\n".encode()
        )
        writer.write(content)
        await writer.drain()
        writer.close()

    async def _dispatch(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        collection, _, name = path.removeprefix("/api/").partition("/")
        if not path.startswith("/api/") or collection not in ("tunnels", "endpoints"):
            return 404, {"msg": "not found"}
        match method, unquote(name):
            case "GET", "":
                return 200, {collection: list(self._tunnels.values()), "uri": f"/api/{collection}"}
            case "POST", "":
                return await self._open(collection, body)
            case "DELETE", name if name in self._tunnels:
                del self._tunnels[name]
                self._listeners.pop(name).close()
                return 204, None
        return 404, {"msg": "not found", "details": {"err": f"no tunnel {name}"}}

    async def _open(self, collection: str, body: dict[str, Any]) -> tuple[int, Any]:
        mood = get_mood(self._folder)
        if mood == "full":
            log("eror", "failed to start tunnel", err=NO_MORE.replace("\n", "\\n"))
            details = {"err": NO_MORE}
            return 502, {"error_code": 103, "msg": "failed to start tunnel", "details": details}
        name: str = body["name"]
        local = body["upstream"]["url"] if "upstream" in body else body["addr"]
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._folder / "tls.pem")

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._forward(local, reader, writer)

        listener = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
        port = listener.sockets[0].getsockname()[1]
        public = f"{'http' if mood == 'insecure' else 'https'}://localhost:{port}"
        tunnel: dict[str, Any] = {"name": name, "uri": f"/api/{collection}/{quote(name)}"}
        if collection == "endpoints":
            tunnel |= {"url": public, "upstream": {"url": local}}
        else:
            tunnel |= {"public_url": public, "proto": "https", "config": {"addr": local}}
        self._tunnels[name], self._listeners[name] = tunnel, listener
        log("info", "started tunnel", obj="tunnels", name=name, addr=local, url=public)
        return 201, tunnel

    async def _forward(
        self, local: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Hand the decrypted bytes over to the local server, and back."""
        log("info", "join connections", obj="join", l=local)
        parts = urlsplit(local)
        try:
            there, back = await asyncio.open_connection(parts.hostname, parts.port or 80)
        except OSError as exc:
            log("warn", "failed to open private leg", err=str(exc))
            writer.close()
            return
        await asyncio.gather(_pump(reader, back), _pump(there, writer), return_exceptions=True)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while chunk := await source.read(65536):
            target.write(chunk)
            await target.drain()
    finally:
        target.close()


def note(folder: Path, what: dict[str, Any]) -> None:
    with (folder / "calls").open("a") as stream:
        stream.write(json.dumps(what) + "\n")


def get_mood(folder: Path) -> str:
    path = folder / "mood"
    return path.read_text() if path.exists() else ""


def start(folder: Path, token: str | None) -> int:
    """Run the agent; return its exit code when it has not come up."""
    mood = get_mood(folder)
    if mood == "mute":
        note(folder, {"pid": os.getpid()})
        time.sleep(600)
    if mood == "ill":
        return 3
    log("info", "no configuration paths supplied")
    if token != GOOD_TOKEN:
        reason = BAD_TOKEN.format(token) if token else NO_TOKEN
        log("eror", "failed to auth", obj="tunnels.session", err=reason)
        log("eror", "terminating with error", obj="app", err=reason)
        return 1
    asyncio.run(Agent(folder).run())
    return 0


def main(arguments: Iterable[str]) -> int:
    folder, *rest = arguments
    note(Path(folder), {"argv": rest})
    parser = argparse.ArgumentParser(prog="ngrok")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("start")
    command.add_argument("--none", action="store_true", required=True)
    command.add_argument("--log", choices=["stdout"], required=True)
    command.add_argument("--config")
    command.add_argument("--authtoken")
    command.add_argument("--region")
    token = parser.parse_args(rest).authtoken or os.environ.get("NGROK_AUTHTOKEN")
    return start(Path(folder), token)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
