"""``webop.WebhookNgrokTunnel`` with a stand-in for the agent that really forwards."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from pyngrok import ngrok
from pyngrok.exception import PyngrokError

import webop
from tests.kit.ngrok_standin import GOOD_TOKEN
from tests.kit.tunnels import StandIn, prepare, review
from tests.kit.waiting import eventually
from tests.kit.webhook_servers import RESPONSE, REVIEW, Recorder, collect, get_url, serve
from webop.aio.backoff import Backoff
from webop.errors import ConfigurationError


@pytest.fixture
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    with prepare(tmp_path, monkeypatch) as prepared:
        yield prepared


@pytest.mark.feature("ADM-85", "REF-42")
async def test_a_review_to_the_public_address_is_answered_by_the_handlers(
    standin: StandIn, fn: Recorder
) -> None:
    async with serve(standin.build(path="/some/path", region="eu"), fn) as config:
        assert set(config) == {"url"}
        url = get_url(config)
        assert url.startswith("https://localhost:")
        assert url.endswith("/some/path")
        response = await review(f"{url}/fn")
        assert response.json() == RESPONSE
    assert fn.calls[0].request == REVIEW
    assert fn.calls[0].webhook == "fn"
    argv = " ".join(standin.calls[0]["argv"])
    assert "--region eu" in argv
    assert GOOD_TOKEN not in argv, "everybody on this host could read it"


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
    standin: StandIn, fn: Recorder, token: str | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with pytest.raises(ConfigurationError, match=words) as caught:
        async with serve(standin.build(token=token), fn):
            pass
    assert "\\n" not in str(caught.value)
    assert "my-own-token" not in str(caught.value) + caplog.text
    assert not standin.running


@pytest.mark.parametrize(
    ("mode", "binary", "words"),
    [
        ("insecure", None, "need https"),
        ("", "/nowhere/ngrok", r"binary='/nowhere/ngrok'.*ngrok\.com/download"),
        ("", "garbage", r"Exec format error.*garbage.*binary="),
    ],
)
async def test_an_agent_that_does_not_start_or_has_no_tls_is_told_of(
    standin: StandIn, fn: Recorder, tmp_path: Path, mode: str, binary: str | None, words: str
) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\x7fgarbage")
    garbage.chmod(0o755)
    standin.be(mode)
    options = {"binary": tmp_path / binary} if binary else {}
    with pytest.raises(ConfigurationError, match=words):
        async with serve(standin.build(**options), fn):
            pass
    assert not standin.running


async def test_without_pyngrok_it_is_told_how_to_install_it(
    fn: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyngrok", None)
    with pytest.raises(ConfigurationError, match=r"pip install pyngrok"):
        async with serve(webop.WebhookNgrokTunnel(port=0), fn):
            pass


@pytest.mark.feature("ADM-85")
async def test_without_an_executable_it_is_downloaded_and_the_log_says_so(
    standin: StandIn,
    fn: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "fetched"
    monkeypatch.setenv("PYNGROK_NGROK_PATH", str(path))
    monkeypatch.setattr(ngrok, "install_ngrok", lambda _: shutil.copy(standin.binary, path))
    with caplog.at_level(logging.INFO, logger="webop"):
        async with serve(standin.build(binary=None), fn) as config:
            assert (await review(get_url(config))).status_code == 200
    assert f"Downloading ngrok to {path}" in caplog.text
    path.unlink()
    monkeypatch.setattr(ngrok, "install_ngrok", Mock(side_effect=PyngrokError("No network.")))
    with pytest.raises(ConfigurationError, match=r"No network\. Install ngrok and set binary="):
        async with serve(standin.build(binary=None), fn):
            pass


@pytest.mark.feature("ADM-63")
async def test_when_the_agent_dies_a_new_tunnel_is_opened_and_its_address_is_told(
    standin: StandIn,
    fn: Recorder,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("webop.servers.tunnel.Backoff", lambda _: Backoff((0.05,)))
    async with collect(standin.build(), fn) as configs:
        first = get_url(await configs.get())
        standin.be("full")  # so that the first attempt is not a success
        os.kill(standin.pids[0], signal.SIGKILL)
        await eventually(lambda: "limited to 3 endpoints" in caplog.text)
        standin.be("")
        second = get_url(await configs.get())
        assert second != first
        assert (await review(second)).json() == RESPONSE
    assert "The ngrok agent has ended (exit code -9)" in caplog.text
    assert not standin.running
