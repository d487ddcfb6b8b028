"""Certificates in files that change while ``webop.WebhookServer`` serves."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import functools
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import webop
from tests.kit.waiting import eventually
from tests.kit.webhook_servers import (
    REVIEW,
    Recorder,
    connect,
    get_bundle,
    get_port,
    get_url,
    post,
    save,
    trust,
)
from webop.servers.certificates.certs import (
    KeyPair,
    build_ca,
    build_certificate_self_signed,
    build_certificate_signed,
    read_certificate,
)
from webop.servers.limits import Hosting, current_hosting

INTERVAL = 0.05


@pytest.fixture
def hosting() -> Hosting:
    async def confirm(config: webop.WebhookClientConfig) -> None:
        get_bundle(config)  # it is trusted at once

    return Hosting(confirm=confirm)


class Configs:
    """What a server yields, as an operator takes it."""

    def __init__(self) -> None:
        self.all: list[webop.WebhookClientConfig] = []

    @property
    def bundle(self) -> bytes:
        return get_bundle(self.all[-1])


@contextlib.asynccontextmanager
async def operate(
    server: webop.WebhookServer, fn: Recorder, hosting: Hosting
) -> AsyncIterator[Configs]:
    """Run a server in a task, as an operator does."""
    configs = Configs()

    async def iterate() -> None:
        current_hosting.set(hosting)
        async for config in server(fn):
            configs.all.append(config)

    task = asyncio.create_task(iterate())
    try:
        await eventually(lambda: bool(configs.all) or task.done())
        if task.done():
            task.result()
        yield configs
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait({task})


def build_server(pair: KeyPair, folder: Path, **options: Any) -> webop.WebhookServer:
    """Write a certificate to files, and return a server that watches them."""
    certfile, pkeyfile = save(pair, folder)
    return webop.WebhookServer(
        port=0, certfile=certfile, pkeyfile=pkeyfile, file_check_interval=INTERVAL, **options
    )


def sign(ca: KeyPair, **options: Any) -> KeyPair:
    return build_certificate_signed(ca, common_name="server", hostnames=["localhost"], **options)


async def fetch_certificate(port: int) -> bytes:
    """Return the certificate that is shown to new connections, in DER."""
    context = trust(build_ca("x").cert, checks_hostname=False)
    context.verify_mode = context.verify_mode.CERT_NONE
    async with connect(port, context) as (_, writer):
        shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return shown


def to_der(pair: KeyPair) -> bytes:
    lines = pair.cert.decode().strip().splitlines()[1:-1]
    return base64.b64decode("".join(lines))


async def until_shown(port: int, pair: KeyPair) -> None:
    await eventually(lambda: fetch_certificate(port), check=to_der(pair).__eq__)


@pytest.mark.feature("ADM-91")
async def test_a_changed_certificate_is_used_with_no_connection_refused_or_closed(
    fn: Recorder, hosting: Hosting, tmp_path: Path
) -> None:
    ca = build_ca("authority")
    first, second = sign(ca), sign(ca, days=100)
    cafile = tmp_path / "ca.pem"
    cafile.write_bytes(ca.cert)
    server = build_server(first, tmp_path, cafile=cafile)
    async with operate(server, fn, hosting) as configs:
        url, port = get_url(configs.all[0]), get_port(configs.all[0])
        assert hosting.expiry == read_certificate(first.cert).end
        context = trust(ca.cert)

        async def knock() -> int:
            count = 0
            while not is_over:
                assert (await post(url, context)).status_code == 200
                count += 1
            return count

        is_over = False
        knocking = asyncio.create_task(knock())
        async with httpx.AsyncClient(verify=context, trust_env=False) as client:
            assert (await client.post(url, json=REVIEW)).status_code == 200
            save(second, tmp_path)
            await until_shown(port, second)
            assert hosting.expiry == read_certificate(second.cert).end
            assert (await client.post(url, json=REVIEW)).status_code == 200
        is_over = True
        assert await knocking > 0
    assert len(configs.all) == 1  # the authorities are the same


@functools.cache
def make_rsa(number: int = 1) -> KeyPair:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    cert = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=90))
        .sign(key, hashes.SHA256())
    )
    pem, encoding = serialization.NoEncryption(), serialization.Encoding.PEM
    text = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, pem)
    return KeyPair(cert.public_bytes(encoding), text)


@pytest.mark.feature("ADM-91")
async def test_a_changed_certificate_of_another_type_of_key_is_shown_when_the_log_says_so(
    fn: Recorder, hosting: Hosting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second = make_rsa(), build_certificate_self_signed(["localhost"])
    server = build_server(first, tmp_path)
    async with operate(server, fn, hosting) as configs:
        port = get_port(configs.all[0])
        assert await fetch_certificate(port) == to_der(first)
        for pair in (second, make_rsa(2), second):
            caplog.clear()
            save(pair, tmp_path)
            await eventually(lambda: "is in use" in caplog.text)
            assert await fetch_certificate(port) == to_der(pair)
            serial = x509.load_pem_x509_certificate(pair.cert).serial_number
            assert f"is in use: serial number {serial:X}, valid until " in caplog.text


@pytest.mark.feature("ADM-79", "ADM-91")
@pytest.mark.parametrize(
    ("ciphers", "complaint"),
    [("DEFAULT", "restart the operator"), ("DEFAULT@SECLEVEL=3", "KEY_TOO_SMALL")],
    ids=["old one is still shown", "new one is too weak"],
)
async def test_a_certificate_that_the_context_of_the_user_cannot_show_is_logged_as_an_error(
    fn: Recorder,
    hosting: Hosting,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    ciphers: str,
    complaint: str,
) -> None:
    caplog.set_level(logging.INFO)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_ciphers(ciphers)
    first = build_certificate_self_signed(["localhost"])
    server = build_server(first, tmp_path, context=context)
    async with operate(server, fn, hosting) as configs:
        save(make_rsa(), tmp_path)
        await eventually(lambda: complaint in caplog.text)
        assert await fetch_certificate(get_port(configs.all[0])) == to_der(first)
    assert "is in use" not in caplog.text


@pytest.mark.feature("ADM-91")
async def test_a_half_written_pair_is_left_out_until_it_fits(
    fn: Recorder, hosting: Hosting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = build_ca("authority")
    first, second = sign(ca), sign(ca)
    server = build_server(first, tmp_path, cadata=ca.cert)
    certfile = tmp_path / "server-cert.pem"
    async with operate(server, fn, hosting) as configs:
        port = get_port(configs.all[0])
        for content in (second.cert, second.cert[:100]):
            caplog.clear()
            certfile.write_bytes(content)
            await eventually(lambda: "Cannot load the certificate" in caplog.text)
            assert await fetch_certificate(port) == to_der(first)
        caplog.clear()
        certfile.unlink()
        await eventually(lambda: "Cannot load the certificate" in caplog.text)
        assert (await post(get_url(configs.all[0]), trust(ca.cert))).status_code == 200
        save(second, tmp_path)
        await until_shown(port, second)
    assert "server-cert.pem" in caplog.text
    assert len(configs.all) == 1


@pytest.mark.feature("ADM-91")
async def test_new_authorities_are_trusted_before_their_certificate_is_used(
    fn: Recorder, tmp_path: Path
) -> None:
    old_ca, new_ca = build_ca("old"), build_ca("new")
    old, new = sign(old_ca), sign(new_ca)
    cafile, cadump = tmp_path / "ca.pem", tmp_path / "dump.pem"
    cafile.write_bytes(old_ca.cert)
    asked, permitted = asyncio.Event(), asyncio.Event()

    async def confirm(config: webop.WebhookClientConfig) -> None:
        assert old_ca.cert.strip() in get_bundle(config)
        assert new_ca.cert.strip() in get_bundle(config)
        asked.set()
        await permitted.wait()

    server = build_server(old, tmp_path, cafile=cafile, cadump=cadump)
    async with operate(server, fn, Hosting(confirm=confirm)) as configs:
        port = get_port(configs.all[0])
        save(new, tmp_path)
        cafile.write_bytes(new_ca.cert)
        await asked.wait()
        assert await fetch_certificate(port) in (to_der(old), to_der(new))
        assert old_ca.cert.strip() in configs.bundle
        assert new_ca.cert.strip() in configs.bundle
        assert configs.all[-1]["url"] == configs.all[0]["url"]
        permitted.set()
        await until_shown(port, new)
        await eventually(lambda: configs.bundle == new_ca.cert)
        await eventually(lambda: cadump.read_bytes() == new_ca.cert)
        assert (await post(get_url(configs.all[0]), trust(new_ca.cert))).status_code == 200


@pytest.mark.parametrize(
    ("days", "message"), [(0.0001, "expires soon"), (-0.001, "has expired"), (365, "")]
)
async def test_an_old_certificate_is_warned_about(
    fn: Recorder, hosting: Hosting, caplog: pytest.LogCaptureFixture, days: Any, message: str
) -> None:
    class Server(webop.WebhookServer):
        @staticmethod
        def build_certificate(hostnames: Any, password: str | None = None) -> tuple[bytes, bytes]:
            pair = build_certificate_self_signed(hostnames, password, days=days)
            return pair.cert, pair.key

    caplog.set_level(logging.WARNING)
    # It began five minutes ago, as the clocks of others may be late.
    async with operate(Server(port=0), fn, hosting):
        assert hosting.expiry is not None
        assert abs(hosting.expiry - dt.datetime.now(dt.UTC) - dt.timedelta(days=days)).seconds < 60
    assert message in caplog.text
    assert bool(caplog.records) == bool(message)


@pytest.mark.feature("ADM-68")
def test_all_documented_parameters_are_there() -> None:
    names = "addr port path host cadata cafile cadump context insecure certfile pkeyfile password"
    names += " extra_sans verify_mode verify_cafile verify_capath verify_cadata"
    names += " verify_subjects file_check_interval"
    server = webop.WebhookServer()
    assert [name for name in vars(server) if not name.startswith("_")] == names.split()
    assert server.file_check_interval == 60.0
    with pytest.raises(TypeError):
        webop.WebhookServer("localhost")  # type: ignore[call-arg]
