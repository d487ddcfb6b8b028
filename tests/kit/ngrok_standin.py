"""A stand-in for the agent of ngrok: its command line and its log; and it forwards.

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
from urllib.parse import urlsplit

GOOD_TOKEN = "2good_token"
NO_TOKEN = (
    "authentication failed: Usage of ngrok requires a verified account and authtoken."
    "\n\nERR_NGROK_4018\r\n"
)
BAD_TOKEN = (
    "authentication failed: The authtoken you specified is properly formed, but it is invalid."
    "\nYour authtoken: {}\n\nERR_NGROK_107\r\n"
)
NO_MORE = "Your account is limited to 3 endpoints.\n\nERR_NGROK_324\n"


def log(level: str, msg: str, **fields: str) -> None:
    """Write a line as the agent does with ``--log stdout --log-format json``."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sys.stdout.write(json.dumps({"lvl": level, "msg": msg, "t": stamp, **fields}) + "\n")
    sys.stdout.flush()


class Agent:
    """A tunnel to a local URL."""

    def __init__(self, folder: Path, local: str) -> None:
        self._folder = folder
        self._local = local
        self._listener: asyncio.Server | None = None

    async def run(self) -> None:
        log("info", "open config file", path="/nowhere/ngrok.yml")
        log("info", "client session established", obj="tunnels.session")
        await self._open()
        await asyncio.Event().wait()

    async def _open(self) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._folder / "tls.pem")
        self._listener = await asyncio.start_server(self._forward, "127.0.0.1", 0, ssl=context)
        port = self._listener.sockets[0].getsockname()[1]
        scheme = "http" if get_mood(self._folder) == "insecure" else "https"
        public = f"{scheme}://localhost:{port}"
        fields = {"name": "command_line", "addr": self._local, "url": public}
        log("info", "started tunnel", obj="tunnels", **fields)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hand the decrypted bytes over to the local server, and back."""
        log("info", "join connections", obj="join", l=self._local)
        parts = urlsplit(self._local)
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


def start(folder: Path, local: str) -> int:
    """Run the agent; return its exit code when it has not come up."""
    mood, token = get_mood(folder), os.environ.get("NGROK_AUTHTOKEN")
    log("info", "no configuration paths supplied")
    reason = ""
    if token != GOOD_TOKEN:
        reason = BAD_TOKEN.format(token) if token else NO_TOKEN
        log("eror", "failed to auth", obj="tunnels.session", err=reason)
    elif mood == "full":
        reason = NO_MORE
    if reason:
        log("eror", "terminating with error", obj="app", err=reason)
        return 1
    asyncio.run(Agent(folder, local).run())
    return 0


def main(arguments: Iterable[str]) -> int:
    folder, *rest = arguments
    note(Path(folder), {"argv": rest, "pid": os.getpid()})
    parser = argparse.ArgumentParser(prog="ngrok")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("http")
    command.add_argument("local")
    command.add_argument("--log", choices=["stdout"], required=True)
    command.add_argument("--log-format", choices=["json"], required=True)
    command.add_argument("--region")
    return start(Path(folder), parser.parse_args(rest).local)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
