"""The keeper of the login: when login handlers are run, and what becomes of what they bring."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import webop
from tests.kit.exec_plugins import PluginFolder
from tests.kit.httpx_client import connect
from tests.kit.operators import build_settings
from tests.kit.virtual_time import in_virtual_time
from tests.kit.waiting import eventually
from webop import ConnectionInfo
from webop.errors import APIUnauthorizedError
from webop.handlers.model import Activity
from webop.runtime.authentication import Authenticator
from webop.runtime.operator import Operator, OperatorOptions

ACTIVITY = "webop.activities.authentication"


def build_info(token: str = "t", **values: Any) -> ConnectionInfo:
    return ConnectionInfo("https://host", token=token, **values)


def build_keeper(**networking: Any) -> Authenticator:
    """Return the one of an operator with the handlers of the test."""
    settings = build_settings(networking=networking)
    return Operator(OperatorOptions(settings=settings)).login


@contextlib.asynccontextmanager
async def keeping(keeper: Authenticator) -> AsyncIterator[asyncio.Task[None]]:
    """Run a keeper while somebody needs the cluster."""
    keeper.wanted.set()
    task = asyncio.create_task(keeper.run(needs_cluster=lambda: True), name="keeper under test")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


def provide(*infos: ConnectionInfo | None) -> list[int]:
    """Register a login handler that brings these, one after another; return its calls."""
    calls: list[int] = []

    @webop.on.login(id="my_login")
    def my_login(**_: Any) -> ConnectionInfo | None:
        calls.append(len(calls))
        return infos[min(len(calls), len(infos)) - 1]

    return calls


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginFolder:
    """A plugin in the kubeconfig of those that have no login handlers."""
    folder = PluginFolder(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(folder.kubeconfig))
    return folder


@pytest.mark.feature("AUT-18", "AUT-25")
async def test_the_same_refused_credentials_end_the_operator_and_say_why() -> None:
    calls = provide(build_info())
    keeper = build_keeper()
    async with keeping(keeper) as task:
        refusal = APIUnauthorizedError("Cannot list x: HTTP 401: Unauthorized", status=401)
        waiting = keeper.vault.invalidate(await keeper.vault.get(), error=refusal)
        with pytest.raises(webop.LoginError) as e:
            await waiting
        with pytest.raises(webop.LoginError) as e2:
            await task
    assert str(e.value) == str(e2.value)
    for part in ("HTTP 401", "refused before", "@webop.on.login()"):
        assert part in str(e.value)
    assert calls == [0, 1]


@pytest.mark.feature("AUT-03", "AUT-18")
@pytest.mark.parametrize(
    ("brought", "message"),
    [
        (None, "returned nothing: my_login"),
        ("token", "'my_login' must return a ConnectionInfo or None, got str"),
    ],
)
async def test_login_handlers_that_bring_nothing_of_use_are_named(
    brought: Any, message: str
) -> None:
    provide(brought)
    async with keeping(build_keeper()) as task:
        with pytest.raises(webop.LoginError, match=message):
            await task


@pytest.mark.feature("AUT-05")
async def test_a_login_handler_that_fails_for_good_is_told_to_those_who_wait() -> None:
    @webop.on.login(retries=1)
    def my_login(**_: Any) -> None:
        raise ValueError("no luck")

    keeper = build_keeper()
    getting = asyncio.create_task(keeper.vault.get())
    async with keeping(keeper) as task:
        with pytest.raises(webop.ActivityError, match="my_login"):
            await task
    with pytest.raises(webop.LoginError, match="no luck"):
        await getting


@pytest.mark.feature("AUT-20")
async def test_logins_are_logged_by_one_logger_and_not_at_all_above_debugging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "webop")
    provide(build_info("old"), build_info("new"))
    keeper = build_keeper()
    async with keeping(keeper):
        await keeper.vault.invalidate(await keeper.vault.get())
    found = {(record.name, record.levelno) for record in caplog.records}
    assert found == {(ACTIVITY, logging.DEBUG)}


@pytest.mark.feature("AUT-17")
async def test_a_source_that_fails_for_a_moment_is_tried_again_when_it_worked_before(
    plugin: PluginFolder, caplog: pytest.LogCaptureFixture
) -> None:
    plugin.write_answer(token="old")
    path = plugin.write_kubeconfig()
    keeper = build_keeper(error_backoffs=[0.02] * 500)
    async with keeping(keeper):
        old = await keeper.vault.get()
        good = path.read_text()
        path.write_text("{")
        waiting = asyncio.create_task(keeper.vault.invalidate(old))
        await eventually(lambda: "Retrying the login in 0.02 s" in caplog.text)
        plugin.write_answer(token="new")
        path.write_text(good)
        assert (await waiting).token == "new"
    assert "is not YAML" in caplog.text


async def test_the_first_login_fails_at_once_and_leaves_the_registry_as_it_is(
    registry: webop.OperatorRegistry, plugin: PluginFolder
) -> None:
    plugin.write_script("echo 'session expired' >&2", "exit 1")
    plugin.write_kubeconfig()
    async with keeping(build_keeper()) as task:
        with pytest.raises(webop.LoginError) as e:
            await asyncio.wait_for(task, 10)
    assert str(e.value).count("session expired") == 1
    assert "\n" not in str(e.value)
    assert not registry.select_activities(Activity.AUTHENTICATION)


class Server:
    """Accepts the tokens that are good at the moment; counts the requests that it refuses."""

    def __init__(self, keeper: Authenticator, *good: str) -> None:
        self.good = set(good)
        self.refused = 0
        self.client = connect(self._answer, vault=keeper.vault)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        is_good = request.headers["authorization"].removeprefix("Bearer ") in self.good
        self.refused += not is_good
        return httpx.Response(200 if is_good else 401, json={})


@pytest.mark.feature("AUT-17", "AUT-18")
@in_virtual_time
async def test_a_token_that_stays_refused_is_tried_with_pauses_and_ends_the_operator(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = provide(build_info("t"))
    keeper = build_keeper(error_backoffs=[0.01, 0.02])
    server = Server(keeper, "t")
    async with server.client, keeping(keeper) as task:
        await server.client.request("GET", "/x")
        server.good.clear()
        with pytest.raises(webop.LoginError, match=r"HTTP 401.*keeps returning"):
            await server.client.request("GET", "/x")
        with pytest.raises(webop.LoginError, match="keeps returning"):
            await task
    assert len(calls) == 5  # the first one, two more at once, one after each pause
    assert server.refused == 2 * 5
    assert [message.split()[-2] for message in caplog.messages] == ["0.01", "0.02"]
