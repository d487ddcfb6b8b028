"""``webop.WebhookNgrokTunnel`` with a stand-in for the agent that really forwards."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import logging
import os
import signal
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyngrok import installer

import webop
from tests.kit.ngrok_standin import GOOD_TOKEN
from tests.kit.processes import find_free_port
from tests.kit.tunnels import StandIn, prepare, review
from tests.kit.webhook_servers import (
    RESPONSE,
    REVIEW,
    Recorder,
    collect,
    get_url,
    post,
    serve,
    until,
)
from webop.errors import ConfigurationError


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    with prepare(tmp_path, monkeypatch) as prepared:
        yield prepared


@pytest.fixture
def fn() -> Recorder:
    return Recorder()


# The way of a review.


@pytest.mark.feature("ADM-85", "REF-42")
async def test_a_review_to_the_public_address_is_answered_by_the_handlers(
    standin: StandIn, fn: Recorder
) -> None:
    async with serve(standin.build(path="/some/path"), fn) as config:
        assert set(config) == {"url"}
        url = get_url(config)
        assert url.startswith("https://localhost:")
        assert url.endswith("/some/path")
        response = await review(f"{url}/fn")
        assert response.json() == RESPONSE
    assert fn.calls[0].request == REVIEW
    assert fn.calls[0].webhook == "fn"


@pytest.mark.feature("ADM-85")
async def test_the_local_server_speaks_plain_http_where_it_is_told_to(
    standin: StandIn, fn: Recorder
) -> None:
    port = find_free_port()
    async with serve(standin.build(addr="127.0.0.1", port=port), fn) as config:
        response = await post(f"http://127.0.0.1:{port}/direct")
        assert response.json() == RESPONSE
        assert (await review(get_url(config))).json() == RESPONSE
    with pytest.raises(httpx.ConnectError):
        await post(f"http://127.0.0.1:{port}/direct")


@pytest.mark.feature("ADM-85")
async def test_the_token_and_the_region_are_handed_to_the_agent(
    standin: StandIn, fn: Recorder
) -> None:
    async with serve(standin.build(region="eu"), fn):
        pass
    argv = " ".join(standin.calls[0]["argv"])
    assert "--region eu" in argv
    assert GOOD_TOKEN not in argv, "everybody on this host could read it"


async def test_the_token_of_the_environment_is_used_unless_there_is_another(
    standin: StandIn, fn: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NGROK_AUTHTOKEN", GOOD_TOKEN)
    async with serve(standin.build(token=None), fn) as config:
        assert (await review(get_url(config))).status_code == 200
    assert "--region" not in standin.calls[0]["argv"]


async def test_the_executable_is_found_by_its_name(
    standin: StandIn, fn: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(standin.folder), prepend=os.pathsep)
    async with serve(standin.build(binary="ngrok"), fn) as config:
        assert (await review(get_url(config))).status_code == 200


# What can be wrong at the start.


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (None, r"requires a verified account and authtoken\. ERR_NGROK_4018\. Give.*token="),
        (
            "my-own-token",
            r"but it is invalid\. Your authtoken: \*\*\* ERR_NGROK_107\. Give your authtoken",
        ),
    ],
)
async def test_a_refused_token_is_told_of_in_the_words_of_the_agent(
    standin: StandIn,
    fn: Recorder,
    token: str | None,
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    with pytest.raises(ConfigurationError, match=words) as caught:
        async with serve(standin.build(token=token), fn):
            pass
    assert "\\n" not in str(caught.value)
    assert "my-own-token" not in str(caught.value) + caplog.text
    assert not standin.running


async def test_a_refused_tunnel_is_told_of_and_its_agent_is_ended(
    standin: StandIn, fn: Recorder
) -> None:
    standin.be("full")
    with pytest.raises(ConfigurationError, match=r"limited to 3 endpoints\. ERR_NGROK_324"):
        async with serve(standin.build(), fn):
            pass
    assert standin.pids
    assert not standin.running


async def test_an_agent_that_fails_without_a_word_is_told_of(
    standin: StandIn, fn: Recorder
) -> None:
    standin.be("ill")
    with pytest.raises(ConfigurationError, match=r"ended \(exit code 3\).*by hand"):
        async with serve(standin.build(), fn):
            pass


async def test_an_address_without_tls_is_refused(standin: StandIn, fn: Recorder) -> None:
    standin.be("insecure")
    with pytest.raises(ConfigurationError, match="need https"):
        async with serve(standin.build(), fn):
            pass
    assert not standin.running


async def test_an_absent_executable_is_told_of(standin: StandIn, fn: Recorder) -> None:
    with pytest.raises(ConfigurationError, match=r"binary='/nowhere/ngrok'.*ngrok\.com/download"):
        async with serve(standin.build(binary="/nowhere/ngrok"), fn):
            pass


async def test_a_line_of_any_length_in_the_log_of_the_agent_does_not_end_the_server(
    fn: Recorder, tmp_path: Path
) -> None:
    agent = tmp_path / "agent"
    code = (
        "import json, time",
        "for line in {'url': 'https://a.io'}, {'x': 'x' * 100_000}, {'url': 'https://b.io'}:",
        "    print(json.dumps({'msg': 'started tunnel', **line}), flush=True)",
        "time.sleep(60)",
    )
    agent.write_text("\n".join((f"#!{sys.executable}", *code)))
    agent.chmod(0o755)
    async with collect(webop.WebhookNgrokTunnel(port=0, binary=agent), fn) as configs:
        async with asyncio.timeout(10):
            assert [(await configs.get())["url"] for _ in "ab"] == ["https://a.io", "https://b.io"]


async def test_a_file_that_is_no_program_is_told_of(
    standin: StandIn, fn: Recorder, tmp_path: Path
) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\x7fgarbage")
    garbage.chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"Exec format error.*garbage.*binary="):
        async with serve(standin.build(binary=garbage), fn):
            pass


async def test_without_pyngrok_it_is_told_how_to_install_it(
    fn: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyngrok", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'webop\[ngrok\]'"):
        async with serve(webop.WebhookNgrokTunnel(port=0), fn):
            pass


# The download.


@contextlib.contextmanager
def _serve_folder(folder: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...

    handler = partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _redirect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str) -> Path:
    """Make pyngrok download from there; return where the executable is to be."""
    for name in installer.PLATFORMS:
        monkeypatch.setitem(installer.PLATFORMS, name, url)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / "fetched" / "ngrok"
    monkeypatch.setenv("PYNGROK_NGROK_PATH", str(path))
    return path


@pytest.mark.feature("ADM-85")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pyngrok's use of tarfile
async def test_without_an_executable_it_is_downloaded_and_the_log_says_so(
    standin: StandIn,
    fn: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "site").mkdir()
    with tarfile.open(tmp_path / "site" / "ngrok.tgz", "w:gz") as archive:
        archive.add(standin.binary, "ngrok")
    with _serve_folder(tmp_path / "site") as url, caplog.at_level(logging.INFO, logger="webop"):
        path = _redirect(monkeypatch, tmp_path, f"{url}/ngrok.tgz")
        async with serve(standin.build(binary=None), fn) as config:
            assert (await review(get_url(config))).status_code == 200
    assert path.exists()
    assert f"Downloading ngrok to {path}" in caplog.text


async def test_a_failed_download_is_told_of(
    standin: StandIn, fn: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    with _serve_folder(tmp_path / "site") as url:
        _redirect(monkeypatch, tmp_path, f"{url}/ngrok.tgz")
        with pytest.raises(ConfigurationError, match=r"while downloading ngrok.*binary="):
            async with serve(standin.build(binary=None), fn):
                pass


# A tunnel that breaks.


@pytest.mark.feature("ADM-63")
async def test_when_the_agent_dies_a_new_tunnel_is_opened_and_its_address_is_told(
    standin: StandIn, fn: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    async with collect(standin.build(), fn) as configs:
        first = get_url(await configs.get())
        standin.be("full")  # so that the first attempt is not a success
        os.kill(standin.pids[0], signal.SIGKILL)
        await until(lambda: "limited to 3 endpoints" in caplog.text)
        standin.be("")
        second = get_url(await configs.get())
        assert second != first
        assert (await review(second)).json() == RESPONSE
    assert "The ngrok agent has ended (exit code -9)" in caplog.text
    assert not standin.running


async def test_when_the_agent_reconnects_its_new_address_is_told(
    standin: StandIn, fn: Recorder
) -> None:
    async with collect(standin.build(), fn) as configs:
        first = get_url(await configs.get())
        os.kill(standin.pids[0], signal.SIGHUP)
        second = get_url(await configs.get())
        assert second != first
        assert (await review(second)).json() == RESPONSE
    assert len(standin.pids) == 1


# The end.


@pytest.mark.feature("ADM-66", "ADM-67")
async def test_the_agent_ends_with_the_task_that_serves(standin: StandIn, fn: Recorder) -> None:
    async with collect(standin.build(), fn) as configs:
        await configs.get()
        assert standin.running
    assert not standin.running


async def test_a_cancellation_does_not_wait_for_an_agent_that_hangs(
    standin: StandIn, fn: Recorder
) -> None:
    standin.be("mute")
    async with asyncio.timeout(20):
        async with collect(standin.build(), fn):
            await until(lambda: bool(standin.running))
    assert not standin.running


@pytest.mark.feature("ADM-65", "ADM-67")
@pytest.mark.parametrize("is_awaited", [False, True])
async def test_the_exit_from_the_context_closes_the_tunnel(
    standin: StandIn, fn: Recorder, is_awaited: bool
) -> None:
    async with standin.build() as tunnel:
        generator = tunnel(fn)
        url = get_url(await anext(generator))
        step = asyncio.ensure_future(anext(generator)) if is_awaited else None
        await asyncio.sleep(0)
        assert (await review(url)).json() == RESPONSE
    if step is not None:
        with pytest.raises(StopAsyncIteration):
            await step
    assert not standin.running
    with pytest.raises(httpx.ConnectError):
        await review(url)
