"""Tunnels of ngrok in tests: a stand-in for the agent, installed where pyngrok finds it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import webop
from tests.kit import ngrok_standin
from tests.kit.exec_plugins import is_running
from tests.kit.ngrok_standin import GOOD_TOKEN
from tests.kit.webhook_servers import REVIEW, trust
from webop.servers.certificates.certs import build_certificate_self_signed

# Of the public side of all tunnels.
_TLS = build_certificate_self_signed(["localhost"])


@dataclass
class StandIn:
    folder: Path

    @property
    def binary(self) -> Path:
        return self.folder / "ngrok"

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    @property
    def pids(self) -> list[int]:
        return [call["pid"] for call in self.calls]

    @property
    def running(self) -> list[int]:
        return [pid for pid in self.pids if is_running(pid)]

    def be(self, mood: str) -> None:
        """Misbehave from now on; see the stand-in for the moods."""
        (self.folder / "mood").write_text(mood)

    def build(self, **options: Any) -> webop.WebhookNgrokTunnel:
        chosen = {"port": 0, "token": GOOD_TOKEN, "binary": self.binary, **options}
        return webop.WebhookNgrokTunnel(**chosen)


@contextlib.contextmanager
def prepare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Make the stand-in; keep pyngrok from the files and the token of whoever runs the tests."""
    monkeypatch.setattr("pyngrok.conf.DEFAULT_NGROK_CONFIG_PATH", str(folder / "ngrok.yml"))
    monkeypatch.delenv("NGROK_AUTHTOKEN", raising=False)
    home = folder / "bin"
    home.mkdir()
    made = StandIn(home)
    made.be("")
    (home / "calls").touch()
    command = [sys.executable, ngrok_standin.__file__, str(home)]
    made.binary.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    made.binary.chmod(0o755)
    (home / "tls.pem").write_bytes(_TLS.cert + _TLS.key)
    yield made
    for pid in made.running:
        os.kill(pid, signal.SIGKILL)


async def review(url: str, body: Any = None) -> httpx.Response:
    """Send a review to a public address, as API servers do."""
    context = trust(_TLS.cert)
    async with httpx.AsyncClient(verify=context, trust_env=False) as client:
        return await client.post(url, json=body or REVIEW)
