"""TLS with the API server: verification, client certificates, and no keys left behind."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit.certificates import Pair, issue, issue_by
from tests.kit.client_options import Networking
from tests.kit.rows import rows
from tests.kit.scripted_server import answer_by, playing
from webop import ConnectionInfo, Vault
from webop.client.api import Client
from webop.errors import APIConnectionError, LoginError

PAIR = issue("stranger")


@pytest.fixture(scope="module")
def ca() -> Pair:
    return issue("ca")


@contextlib.asynccontextmanager
async def serving(ca: Pair, folder: Path, *, needs_client_certificate: bool) -> AsyncIterator[str]:
    pair = issue_by(ca, "server")
    (folder / "server.pem").write_text(pair.cert + pair.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=ca.cert)
    context.load_cert_chain(folder / "server.pem")
    # Like the real API server: Python 3.13 would demand key identifiers of clients, Go does not.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if needs_client_certificate:
        context.verify_mode = ssl.CERT_REQUIRED

    async def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={})

    async with playing(answer_by(answer), context) as server:
        yield server.url


async def is_served(info: ConnectionInfo) -> bool:
    async with Client(Vault({"x": info}), Networking()) as client:
        try:
            await client.request("GET", "/version")
        except APIConnectionError:
            return False
    return True


def encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.feature("AUT-13")
async def test_the_server_is_verified_unless_told_otherwise(ca: Pair, tmp_path: Path) -> None:
    bundle = "# Főtanúsítvány, Autorité\n".encode() + ca.cert.encode()
    (tmp_path / "ca.pem").write_bytes(bundle)
    (tmp_path / "latin.pem").write_bytes(bundle.decode().encode("latin-1", "replace"))
    values: list[tuple[dict[str, Any], bool]] = [
        ({}, False),
        ({"insecure": True}, True),
        ({"ca_data": PAIR.cert}, False),
        ({"ca_data": ca.cert}, True),
        ({"ca_data": ca.cert.encode()}, True),
        ({"ca_data": bundle}, True),
        ({"ca_path": tmp_path / "latin.pem"}, True),
        ({"ca_data": encode(ca.cert)}, True),
        ({"ca_data": encode(ca.cert).encode()}, True),
        ({"ca_path": str(tmp_path / "ca.pem")}, True),
        ({"ca_path": tmp_path / "ca.pem"}, True),
        ({"ca_path": bytes(tmp_path / "ca.pem")}, True),
    ]
    async with serving(ca, tmp_path, needs_client_certificate=False) as server:
        for kwargs, expected in values:
            assert await is_served(ConnectionInfo(server=server, **kwargs)) is expected, kwargs


async def test_a_certificate_of_another_ca_is_not_told_as_an_error_of_the_operating_system(
    ca: Pair, tmp_path: Path
) -> None:
    """The errno of TLS for it is that of "Operation not permitted"."""
    async with serving(ca, tmp_path, needs_client_certificate=False) as server:
        info = ConnectionInfo(server=server, ca_data=PAIR.cert)
        async with Client(Vault({"x": info}), Networking()) as client:
            with pytest.raises(APIConnectionError, match=r"not trusted: .* Check the CA") as e:
                await client.request("GET", "/version")
    assert "permitted" not in str(e.value)


@pytest.mark.feature("AUT-13")
async def test_client_certificates_are_presented(ca: Pair, tmp_path: Path) -> None:
    pair = issue_by(ca, "client")
    (tmp_path / "both.pem").write_text(pair.key + pair.cert)
    (tmp_path / "cert.pem").write_text(pair.cert)
    (tmp_path / "key.pem").write_text(pair.key)
    cert_path, key_path = tmp_path / "cert.pem", str(tmp_path / "key.pem")
    values: list[tuple[dict[str, Any], bool]] = [
        ({}, False),
        ({"certificate_data": PAIR.cert, "private_key_data": PAIR.key}, False),
        ({"certificate_data": pair.cert, "private_key_data": pair.key}, True),
        ({"certificate_data": encode(pair.cert), "private_key_data": encode(pair.key)}, True),
        ({"certificate_data": pair.cert, "private_key_path": key_path}, True),
        ({"certificate_path": cert_path, "private_key_data": pair.key.encode()}, True),
        ({"certificate_path": cert_path, "private_key_path": key_path}, True),
        ({"certificate_path": tmp_path / "both.pem"}, True),
    ]
    async with serving(ca, tmp_path, needs_client_certificate=True) as server:
        for kwargs, expected in values:
            info = ConnectionInfo(server=server, ca_data=ca.cert, **kwargs)
            assert await is_served(info) is expected, kwargs


@rows(
    ("values", "reason"),
    [
        ({"ca_data": "garbage"}, "the CA certificate is neither PEM nor base64"),
        ({"ca_data": "YWJj"}, "the CA certificate is neither PEM nor base64"),
        ({"ca_path": "/absent/ca.pem"}, "/absent/ca.pem"),
        ({"certificate_data": "YWJj"}, "the client certificate is neither"),
        ({"certificate_path": "/absent/c.pem"}, "/absent/c.pem"),
        ({"private_key_path": "/absent/k.pem"}, "/absent/k.pem"),
        ({"private_key_data": PAIR.key}, "no client certificate"),
        ({"certificate_data": PAIR.cert}, "a client certificate, but no private key"),
    ],
)
def test_unusable_credentials_are_explained(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(LoginError, match=f"'https://host' cannot be used: .*{reason}"):
        ConnectionInfo("https://host", **values).as_ssl_context()


async def test_unusable_credentials_are_excluded(ca: Pair, tmp_path: Path) -> None:
    async with serving(ca, tmp_path, needs_client_certificate=False) as server:
        good = ConnectionInfo(server, insecure=True)
        bad = [ConnectionInfo(server, ca_data=f"{index}") for index in range(10)]
        vault = Vault({str(index): info for index, info in enumerate([*bad, good])})
        async with Client(vault, Networking()) as client:
            for _ in range(30):
                await client.request("GET", "/version")
            task = asyncio.create_task(vault.invalidate(good))
            await vault.wait_for_emptiness()
            await vault.populate({"x": bad[0]})
            with pytest.raises(LoginError):
                await task
