"""Operators whose good credentials are refused for a while by a real API server."""

from __future__ import annotations

import contextlib
import dataclasses
import ssl
from pathlib import Path
from typing import Any

import pytest

import webop
from tests.kit.certificates import Pair, issue, issue_by
from tests.kit.forwarder import Forwarder
from tests.kit.operators import Objects, RunOperator, build_settings, build_tls
from tests.kit.waiting import eventually

_REFUSAL = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def forward(
    info: webop.ConnectionInfo, tls: ssl.SSLContext | None = None
) -> contextlib.AbstractAsyncContextManager[Forwarder]:
    """Forward to the API server without TLS, or with that of the test; it can answer with 401."""
    forwarder = Forwarder(info.server, tls=tls, server_tls=build_tls(str(info.ca_data)))
    forwarder.refusal = _REFUSAL
    return forwarder.listen()


@pytest.fixture
def handled() -> list[str]:
    names: list[str] = []

    @webop.on.create("widgets")
    def created(name: str, **_: Any) -> None:
        names.append(name)

    return names


@pytest.mark.feature("AUT-17")
async def test_an_operator_outlasts_a_time_in_which_its_only_credentials_are_refused(
    objects: Objects, handled: list[str], info: webop.ConnectionInfo, run_operator: RunOperator
) -> None:
    async with forward(info) as proxy:
        only = dataclasses.replace(info, server=proxy.url, ca_data=None)
        webop.on.login()(lambda **_: only)
        settings = build_settings(networking={"error_backoffs": [0.2] * 100})
        async with run_operator(settings, vault=None) as running:
            await objects.create("before")
            await eventually(lambda: "before" in handled)
            proxy.is_refusing = True
            proxy.cut()
            await eventually(lambda: proxy.refused >= 10)
            proxy.is_refusing = False
            await objects.create("after")
            await eventually(lambda: "after" in handled)
            assert not any(task.done() for task in running.tasks)


@pytest.mark.feature("AUT-13", "AUT-17")
async def test_an_operator_goes_on_after_the_ca_of_the_server_was_replaced_in_its_file(
    run_operator: RunOperator,
    objects: Objects,
    handled: list[str],
    info: webop.ConnectionInfo,
    tmp_path: Path,
) -> None:
    first, second = issue("ca"), issue("ca")
    logins = 0

    @webop.on.login()
    def log_in(**_: Any) -> webop.ConnectionInfo:
        nonlocal logins
        logins += 1
        return dataclasses.replace(info, server=proxy.url, ca_data=None, ca_path=tmp_path / "ca")

    def serve_with(ca: Pair) -> None:
        pair = issue_by(ca, "server")
        (tmp_path / "server").write_text(pair.cert + pair.key)
        context.load_cert_chain(tmp_path / "server")
        proxy.cut()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    async with forward(info, context) as proxy:
        (tmp_path / "ca").write_text(first.cert)
        serve_with(first)
        settings = build_settings(networking={"error_backoffs": [0.1]})
        async with run_operator(settings, vault=None):
            await objects.create("before")
            await eventually(lambda: "before" in handled)
            serve_with(second)
            await eventually(lambda: logins > 3)
            (tmp_path / "ca").write_text(second.cert)
            await objects.create("after")
            await eventually(lambda: "after" in handled)
