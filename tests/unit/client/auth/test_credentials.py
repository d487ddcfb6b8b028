"""Credentials, and the vault that hands them out."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from tests.kit.client_options import Networking
from tests.kit.rows import rows
from webop import ConnectionInfo, Vault
from webop.client.api import Client
from webop.errors import LoginError

SERVER = "https://host"
PAST = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
FUTURE = dt.datetime(2999, 1, 1, tzinfo=dt.UTC)


def build_info(token: str = "t", **values: Any) -> ConnectionInfo:
    return ConnectionInfo(SERVER, token=token, **values)


async def use(info: ConnectionInfo) -> None:
    """Send a request with credentials that no login replaces."""
    vault = Vault({"x": info})
    async with Client(vault, Networking()) as client:
        call = asyncio.create_task(client.request("GET", "/api"))
        await vault.wait_for_emptiness()
        await vault.populate({})
        await call


@pytest.mark.feature("AUT-24", "D-32")
@rows("name", ["ca", "certificate", "private_key"])
def test_a_path_and_data_for_the_same_thing_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}_path and {name}_data"):
        ConnectionInfo(SERVER, **{f"{name}_path": "x", f"{name}_data": "x"})  # type: ignore[arg-type]


@pytest.mark.feature("AUT-14")
@rows(
    "expiration",
    [
        dt.datetime(2020, 1, 1),  # noqa: DTZ001 - naive on purpose
        dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2020, 1, 1, 5, tzinfo=dt.timezone(dt.timedelta(hours=5))),
    ],
)
def test_naive_expiration_times_are_utc(expiration: dt.datetime) -> None:
    assert build_info(expiration=expiration).expires_at == 1577836800
    assert build_info().expires_at == float("inf")


@pytest.mark.feature("AUT-04", "AUT-15")
async def test_credentials_are_drawn_at_random() -> None:
    vault = Vault({str(i): build_info(str(i)) for i in range(3)})
    assert {(await vault.get()).token for _ in range(200)} == {"0", "1", "2"}


async def test_credentials_of_the_highest_priority_are_preferred() -> None:
    low, high = build_info("low"), build_info("high", priority=10)
    vault = Vault({"low": low, "high": high})
    assert {(await vault.get()).token for _ in range(50)} == {"high"}
    assert await vault.invalidate(high) is low


@pytest.mark.feature("AUT-14")
async def test_expired_credentials_are_ignored_and_removed() -> None:
    expired, valid = build_info("1", expiration=PAST), build_info("2", expiration=FUTURE)
    vault = Vault({"1": expired, "2": valid})
    assert {(await vault.get()).token for _ in range(20)} == {"2"}
    assert expired not in vault
    assert valid in vault
    assert not vault.is_empty()
    assert Vault({"1": expired}).is_empty()


@pytest.mark.feature("AUT-17", "AUT-26")
async def test_an_empty_vault_waits_for_the_first_login() -> None:
    vault = Vault()
    getting = asyncio.create_task(vault.get())
    await vault.wait_for_emptiness()
    assert vault.is_empty()
    await vault.populate({"x": build_info()})
    assert await getting == build_info()
    assert await vault.get() is await vault.get()


@pytest.mark.feature("AUT-17")
async def test_the_same_refused_credentials_are_not_accepted_again() -> None:
    old, new = build_info("old"), build_info("new")
    vault = Vault({"x": old})
    waiting = asyncio.create_task(vault.invalidate(old))
    await vault.wait_for_emptiness()
    await vault.populate({"x": build_info("old"), "y": new})
    assert await waiting is new
    assert {(await vault.get()).token for _ in range(20)} == {"new"}


@pytest.mark.feature("AUT-18", "AUT-25", "REF-19")
async def test_without_new_credentials_everybody_fails() -> None:
    info, error = build_info(), RuntimeError("401")
    vault = Vault({"x": info})
    waiting = [asyncio.create_task(vault.invalidate(info, error=error)) for _ in range(3)]
    await vault.wait_for_emptiness()
    await vault.populate({})
    for task in waiting:
        with pytest.raises(LoginError, match="login handler") as e:
            await task
        assert e.value.__cause__ is error
    with pytest.raises(LoginError):
        await vault.get()


@pytest.mark.feature("AUT-16", "AUT-17")
async def test_another_content_of_the_same_files_makes_other_credentials(tmp_path: Path) -> None:
    paths = {"certificate_path": tmp_path / "c", "private_key_path": tmp_path / "k"}
    infos = [ConnectionInfo(SERVER, **paths) for _ in range(3)]  # type: ignore[arg-type]
    for path in paths.values():
        path.write_text("old")
    vault = Vault({"x": infos[0]})
    old = await vault.get()
    waiting = asyncio.create_task(vault.invalidate(old))
    await vault.wait_for_emptiness()
    assert not vault.is_usable(infos[1])
    (tmp_path / "c").write_text("new")
    assert vault.is_usable(infos[1])
    await vault.populate({"x": infos[1]})
    new = await waiting
    assert new is not old
    await vault.invalidate(old)  # a late report is not about what is in the files now
    assert vault.is_usable(infos[2])
    await vault.populate({"x": infos[2]})
    assert await vault.get() is new


@pytest.mark.feature("AUT-18")
@rows(
    ("source", "reason", "expected"),
    [
        ({}, "", "HTTP 401. Check that"),
        ({}, "Because.", r"HTTP 401\. Because\.$"),
        ({"x": build_info("old")}, "", "HTTP 401. The login returned only .* refused before"),
        ({"x": build_info("new", expiration=PAST)}, "", "HTTP 401. .* expired at 2020-01-01"),
    ],
)
async def test_why_there_is_nothing_is_told(
    source: dict[str, ConnectionInfo], reason: str, expected: str
) -> None:
    old = build_info("old")
    vault = Vault({"x": old})
    waiting = asyncio.create_task(vault.invalidate(old, error=RuntimeError("HTTP 401.")))
    await vault.wait_for_emptiness()
    await vault.populate(source, reason=reason)
    with pytest.raises(LoginError, match=expected):
        await waiting
    assert "HTTP 401" in str(vault.build_error())
    await vault.populate({"x": build_info("new")})
    assert "HTTP 401" not in str(vault.build_error())


@rows(
    ("values", "message"),
    [
        ({"expiration": "2030-01-01T00:00:00Z"}, "expiration must be a datetime, got str"),
        ({"priority": "high"}, "priority must be a number, got str"),
        ({"headers": {"A": "b"}}, "headers must be a tuple of pairs, got dict"),
        ({"token": b"secret"}, "token must be a string, got bytes"),
        ({"insecure": "false"}, "insecure must be True or False"),
    ],
)
def test_values_of_wrong_types_are_told_where_they_are_given(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message) as e:
        ConnectionInfo("https://host", **values)
    assert "secret" not in str(e.value)


@rows(
    ("info", "message"),
    [
        (ConnectionInfo("https://host", token="a\n"), "token cannot be sent: it has line breaks"),
        (ConnectionInfo("https://host", token="tokén"), "token cannot be sent: .* ASCII"),
        (ConnectionInfo("https://host", proxy_url="foo"), "proxy 'foo' is not a URL"),
        (ConnectionInfo("host:6443"), "'host:6443' is not a URL"),
    ],
)
async def test_credentials_that_no_request_can_be_made_with_are_told_instead_of_a_traceback(
    info: ConnectionInfo, message: str
) -> None:
    with pytest.raises(LoginError, match=message):
        await use(info)


@pytest.mark.parametrize(
    "url", ["socks5://user:secret@host:1", "http://user:secret/@host:1", "user:sec@secret@host:1"]
)
@pytest.mark.parametrize("where", ["server", "proxy", "environment"])
async def test_the_password_in_a_bad_url_is_not_told(
    url: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = ConnectionInfo("https://host", trust_env=True)
    if where == "environment":
        monkeypatch.setenv("https_proxy", url if "//" in url else f"socks5://{url}")
    elif where == "server":
        info = ConnectionInfo(url)
    else:
        info = ConnectionInfo("https://host", proxy_url=url)
        assert "secret" not in repr(info)
    with pytest.raises(LoginError, match=r"\*\*\*@.* is not a URL") as e:
        await use(info)
    assert "secret" not in str(e.value)


async def test_the_namespace_is_that_of_the_best_credentials_that_have_one() -> None:
    vault = Vault()
    namespaces = [vault.default_namespace]
    lesser = dataclasses.replace(build_info("1"), default_namespace="no", priority=1)
    bare = dataclasses.replace(build_info("2"), priority=2)
    full = dataclasses.replace(build_info("3"), default_namespace="yes", priority=2)
    await vault.populate({"a": lesser, "b": bare, "c": full})
    namespaces.append(vault.default_namespace)
    assert namespaces == [None, "yes"]
