"""Credentials that are of no use: neither the log nor the probes quote anything of them."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

import webop
from tests.kit.exec_plugins import V1, build_kubeconfig
from tests.kit.operators import build_settings
from tests.kit.reviews import serve
from tests.kit.rows import rows
from tests.kit.waiting import eventually
from webop import AiohttpSession, ConnectionInfo, Vault
from webop.client.auth.exec_plugins import parse_plugin
from webop.client.auth.kubeconfig import choose_context
from webop.errors import LoginError
from webop.logs.sanitizing import hide_secrets

SECRET = "hunter2-Zx9"
TOKEN = f"eyJhbGciOiJSUzI1NiIsImtpZCI6{SECRET}"
KEY = f"-----BEGIN PRIVATE KEY-----\n{TOKEN}\n-----END PRIVATE KEY-----\n"


def with_plugin(*lines: str, **config: Any) -> Any:
    """Return a kubeconfig with an exec plugin of these lines of shell."""
    described = {"apiVersion": V1, "interactiveMode": "Never", **config}
    described |= {"command": "sh", "args": ["-c", "\n".join(lines)]}
    return build_kubeconfig({"exec": described})


def answer(**fields: Any) -> str:
    status = {"apiVersion": V1, "kind": "ExecCredential", **fields}
    return f"cat <<'END'\n{json.dumps(status)}\nEND"


PLUGIN = "The exec plugin failed."
KUBECONFIG = "The kubeconfig is not usable."


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (with_plugin(f'echo \'{{"token": "{SECRET}"\''), PLUGIN),
        (with_plugin(answer(kind=SECRET)), PLUGIN),
        (with_plugin(answer(status={SECRET: 1})), PLUGIN),
        (with_plugin(answer(status={"token": "t", "expirationTimestamp": SECRET})), PLUGIN),
        (with_plugin(f"echo 'got: token={SECRET}' >&2; exit 1"), PLUGIN),
        (with_plugin(f"echo 'no such user: {TOKEN}' >&2; exit 1"), PLUGIN),
        (with_plugin(f"echo 'GET https://joe:{SECRET}@host/ failed' >&2; exit 1"), PLUGIN),
        (f"just text: with a {SECRET}: in it", KUBECONFIG),
        ([SECRET], KUBECONFIG),
        (f"users:\n- user: {{password: *{SECRET}}}\n", KUBECONFIG),
        (f"users:\n- user:\n    token: {SECRET}\n   password: x\n", KUBECONFIG),
        (build_kubeconfig({"token": [SECRET]}), KUBECONFIG),
        (build_kubeconfig({"client-key": KEY, "client-certificate": KEY}), KUBECONFIG),
        (build_kubeconfig({"tokenFile": TOKEN * 10}), KUBECONFIG),
        (build_kubeconfig(server=f"ftp://joe:{SECRET}@host"), KUBECONFIG),
        (
            build_kubeconfig({"token": "t"}, **{"proxy-url": f"socks5://joe:{SECRET}@proxy"}),
            "The URL of the proxy is wrong.",
        ),
        (build_kubeconfig({"token": f"{SECRET}\nx"}), "The token cannot be sent."),
    ],
)
async def test_neither_the_log_nor_the_probes_quote_credentials(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    config: Any,
    kind: str,
) -> None:
    path = tmp_path / "config"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    for library in ("kubernetes", "kubernetes_asyncio", "pykube"):
        monkeypatch.setitem(sys.modules, library, None)  # as if it was not installed
    caplog.set_level(logging.DEBUG)
    webop.on.create("kopfexamples")(lambda **_: None)
    async with serve(settings=build_settings()) as site:
        await eventually(lambda: "only admission and probes are served" in caplog.text)
        pages = [await site.get(page) for page in ("/readyz", "/", "/healthz", "/livez")]
    assert kind in pages[0].text
    trace = ""
    try:
        await asyncio.to_thread(webop.login_with_kubeconfig)
    except LoginError:
        trace = traceback.format_exc()
    for text in (caplog.text, trace, *(page.text for page in pages)):
        assert SECRET not in text
        assert KEY.splitlines()[0] not in text
    assert str(tmp_path) not in pages[0].text + pages[1].text


async def test_a_plugin_that_hangs_is_not_shown_with_its_arguments() -> None:
    described = {"apiVersion": V1, "command": "sh", "args": ["-c", "sleep 300", SECRET]}
    plugin = parse_plugin(described, owner="us", cluster={"server": SECRET})
    try:
        plugin.fetch(time_limit=0.1)
    except LoginError:
        assert SECRET not in traceback.format_exc()
    assert SECRET not in repr(plugin)


def test_no_repr_shows_credentials(tmp_path: Path) -> None:
    values: Any = {
        "ca_data": KEY,
        "certificate_data": KEY,
        "private_key_data": KEY,
        "token": SECRET,
        "username": "joe",
        "password": SECRET,
        "proxy_url": f"http://joe:{SECRET}@proxy",
        "server": f"https://joe:{SECRET}@host:6443/path",
    }
    info = ConnectionInfo(**values)
    session = AiohttpSession(**values, aiohttp_session=object())
    alone = ConnectionInfo("https://host", scheme=f"Bearer {SECRET}")
    vault = Vault({"x": info})
    path = tmp_path / "config"
    path.write_text(json.dumps(build_kubeconfig({"token": SECRET})))
    for shown in map(repr, ([info], alone, vault, vars(vault), session, choose_context([path]))):
        assert SECRET not in shown
    assert "ConnectionInfo(server='https://***@host:6443/path', " in repr(info)
    assert repr(session).startswith("AiohttpSession(server=")


@rows(
    ("text", "shown"),
    [
        ("unknown key: name, no data: none", "unknown key: name, no data: none"),
        (f"client-key-data: {SECRET}", "client-key-data: ***"),
        (f"Your authtoken: {SECRET}", "Your authtoken: ***"),
        (f"{{'access_token': '{SECRET}'}}", "{'access_token': '***'}"),
        (f"Authorization: Bearer {SECRET}", "Authorization: Bearer ***"),
        (f"GET https://joe:{SECRET}@host/x", "GET https://***@host/x"),
        (f"GET https://joe:x@{SECRET}@host/x", "GET https://***@host/x"),
        (rf'answer: "{{\"id_token\":\"{SECRET}\"}}"', r'answer: "{\"id_token\":\"***"}"'),
        (f'password="of two {SECRET}" x', 'password="***" x'),
        (f"&refresh_token%3D{SECRET}", "&refresh_token%3D***"),
        (f"login --client-secret {SECRET}: exit code 1", "login --client-secret *** exit code 1"),
        (f"Authorization: Token {SECRET}", "Authorization: Token ***"),
        (f"key {TOKEN} is wrong", "key *** is wrong"),
        ("0123456789abcdef" * 2, "***"),
        *((text, text) for text in (
            "The SSO session has expired. Run: aws sso login --profile Prod-1",
            "lookup sts.us-east-1.amazonaws.com: no such host",
            "open /home/Joe1/.kube/cache/Oidc-Login/0123456789: permission denied",
            "your token has expired at 2026-11-22T10:00:00.000Z",
        )),
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_is_hidden(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown


def test_a_key_in_the_place_of_its_path_is_not_quoted() -> None:
    info = ConnectionInfo("https://host", certificate_path=KEY, private_key_path=KEY * 100)
    with pytest.raises(LoginError, match="cannot be used") as e:
        info.as_ssl_context()
    assert "PRIVATE KEY" not in "".join(traceback.format_exception(e.value))
    assert "PRIVATE KEY" not in repr(ConnectionInfo("https://host", private_key_path=KEY))


def test_what_a_login_handler_returns_is_not_quoted() -> None:
    with pytest.raises(TypeError, match="not a dict") as e:
        Vault({"x": {"token": SECRET}})  # type: ignore[dict-item]
    assert SECRET not in str(e.value)
