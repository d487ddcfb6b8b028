"""A stand-in for the agent of ngrok: its command line and its log; and it forwards.

Run as ``ngrok_standin.py FOLDER [arguments of ngrok]``. The public side is a port of this host
that speaks TLS with ``FOLDER/tls.pem``. What it was called with is told in ``FOLDER/calls``, one
JSON a line; ``FOLDER/mood`` has the way to misbehave: "insecure" or "full".

Only the standard library is used, so that it starts fast. The words are those of the real one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import sys
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
    stamp = "2026-01-01T00:00:00Z"
    print(json.dumps({"lvl": level, "msg": msg, "t": stamp, **fields}), flush=True)  # noqa: T201


async def forward(folder: Path, local: str, *, is_secure: bool) -> None:
    """Run a tunnel to a local URL: hand decrypted bytes over to its server, and back."""
    parts = urlsplit(local)

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(parts.hostname, parts.port or 80)
        await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.pem")
    listener = await asyncio.start_server(join, "127.0.0.1", 0, ssl=context)
    port = listener.sockets[0].getsockname()[1]
    public = f"{'https' if is_secure else 'http'}://localhost:{port}"
    fields = {"name": "command_line", "addr": local, "url": public}
    log("info", "client session established", obj="tunnels.session")
    log("info", "started tunnel", obj="tunnels", **fields)
    await listener.serve_forever()


async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while chunk := await source.read(65536):
            target.write(chunk)
            await target.drain()
    finally:
        target.close()


def main(home: str, *arguments: Any) -> int:
    folder = Path(home)
    with (folder / "calls").open("a") as stream:
        stream.write(json.dumps({"argv": arguments, "pid": os.getpid()}) + "\n")
    parser = argparse.ArgumentParser(prog="ngrok")
    command = parser.add_subparsers(required=True).add_parser("http")
    command.add_argument("local")
    command.add_argument("--log", choices=["stdout"], required=True)
    command.add_argument("--log-format", choices=["json"], required=True)
    command.add_argument("--region")
    local: str = parser.parse_args(arguments).local
    mood, token = (folder / "mood").read_text(), os.environ.get("NGROK_AUTHTOKEN")
    log("info", "no configuration paths supplied")
    if token != GOOD_TOKEN or mood == "full":
        reason = NO_MORE if token == GOOD_TOKEN else BAD_TOKEN.format(token) if token else NO_TOKEN
        log("eror", "terminating with error", obj="app", err=reason)
        return 1
    asyncio.run(forward(folder, local, is_secure=mood != "insecure"))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
