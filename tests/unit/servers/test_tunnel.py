"""Tunnels of other providers: the one that the documentation shows."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

import webop
from tests.kit.pages import find_snippets
from tests.kit.webhook_servers import RESPONSE, Recorder, collect, get_url, post, serve
from webop.aio.backoff import Backoff
from webop.errors import ConfigurationError

AGENT = """#!/bin/sh
echo $$ $* >> {folder}/calls
echo "INF |  https://quiet-river-$$.trycloudflare.com  |" >&2
exec sleep 600
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[list[str]]]:
    """The processes of a stand-in for cloudflared, each with its arguments."""
    script = tmp_path / "cloudflared"
    script.write_text(AGENT.format(folder=tmp_path))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return lambda: [line.split() for line in (tmp_path / "calls").read_text().splitlines()]


def build_documented(**options: Any) -> Any:
    (code,) = [block.code for block in find_snippets() if "CloudflaredTunnel(" in block.code]
    names: dict[str, Any] = {"__name__": "documented"}
    exec(compile(code, "webhook_servers.md", "exec"), names)
    return names["CloudflaredTunnel"](**options)


@pytest.mark.feature("ADM-63", "ADM-66")
async def test_the_documented_provider_tells_its_address_and_the_next_one_when_the_agent_dies(
    calls: Callable[[], list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webop.servers.tunnel.Backoff", lambda _: Backoff((0.05,)))
    fn = Recorder()
    async with collect(build_documented(port=0, path="/x"), fn) as configs:
        first = get_url(await configs.get())
        pid, *arguments = calls()[0]
        assert first == f"https://quiet-river-{pid}.trycloudflare.com/x"
        assert arguments[:2] == ["tunnel", "--url"]
        assert (await post(f"{arguments[2]}/x/fn")).json() == RESPONSE
        os.kill(int(pid), signal.SIGKILL)
        second = get_url(await configs.get())
        pid = calls()[1][0]
        assert second == f"https://quiet-river-{pid}.trycloudflare.com/x"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    assert fn.calls[0].webhook == "fn"


async def test_the_documented_provider_says_that_its_agent_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="Cannot open the tunnel: Install cloudflared"):
        async with serve(build_documented(port=0), Recorder()):
            pass


class Silent(webop.WebhookTunnel):
    START_LIMIT = 0.05

    async def open(self, upstream: str) -> Any:
        await asyncio.Event().wait()
        yield upstream


async def test_a_tunnel_that_is_never_ready_is_told_of() -> None:
    with pytest.raises(ConfigurationError, match=r"tunnel: It was not ready after 0\.05 s"):
        async with serve(Silent(port=0), Recorder()):
            pass


def test_a_provider_with_an_own_post_init_calls_that_of_the_tunnel() -> None:
    @dataclasses.dataclass(kw_only=True)
    class Provider(webop.WebhookTunnel):
        def __post_init__(self) -> None:
            super().__post_init__()

        async def open(self, upstream: str) -> AsyncGenerator[str, None]:
            yield upstream

    assert Provider(port=1).port == 1
