"""The certificates of ``webop.WebhookServer``: its own ones, and those of its clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

import webop
from tests.kit.rows import rows
from tests.kit.waiting import eventually
from tests.kit.webhook_servers import (
    REVIEW,
    Recorder,
    build_context,
    collect,
    connect,
    get_bundle,
    get_port,
    get_url,
    post,
    save,
    serve,
    trust,
)
from webop.errors import ConfigurationError
from webop.servers.certificates.certs import (
    KeyPair,
    build_ca,
    build_certificate_self_signed,
    build_certificate_signed,
)


@pytest.fixture(scope="module")
def ca() -> KeyPair:
    return build_ca("the-authority")


@pytest.fixture(scope="module")
def pair(ca: KeyPair) -> KeyPair:
    return build_certificate_signed(ca, common_name="server", hostnames=["localhost"])


@pytest.fixture(scope="module")
def client_pair(ca: KeyPair) -> KeyPair:
    return build_certificate_signed(ca, common_name="Example Common Name", client=True)


# The server's certificate.


@pytest.mark.feature("ADM-74")
async def test_the_self_signed_authority_is_dumped_for_other_clients(
    fn: Recorder, tmp_path: Path
) -> None:
    cadump = tmp_path / "selfsigned.pem"
    async with serve(webop.WebhookServer(port=0, cadump=cadump), fn) as config:
        assert cadump.read_bytes() == get_bundle(config)
        assert b"PRIVATE" not in cadump.read_bytes()
        context = ssl.create_default_context(cafile=str(cadump))
        assert (await post(get_url(config), context)).status_code == 200


@pytest.mark.feature("ADM-76")
async def test_extra_names_get_into_the_self_signed_certificate(fn: Recorder) -> None:
    sans = ["hooks.example", "10.1.2.3"]
    async with serve(webop.WebhookServer(port=0, extra_sans=sans), fn) as config:
        for hostname in (*sans, "localhost"):
            async with connect(get_port(config), trust(get_bundle(config)), hostname):
                pass


@pytest.mark.feature("ADM-66", "ADM-81")
async def test_a_subclass_can_build_certificates_its_own_way(
    fn: Recorder, pair: KeyPair, ca: KeyPair
) -> None:
    class Server(webop.WebhookServer):
        @staticmethod
        def build_certificate(hostnames: Any, password: str | None = None) -> tuple[bytes, bytes]:
            assert list(hostnames) == ["localhost", "localhost"]
            return pair.cert, pair.key

    async with serve(Server(port=0), fn) as config:
        assert get_bundle(config) == pair.cert
        assert (await post(get_url(config), trust(ca.cert))).status_code == 200


@pytest.mark.feature("ADM-82")
def test_without_the_library_for_certificates_the_startup_fails_with_advice() -> None:
    script = """
import asyncio, sys
sys.modules["cryptography"] = None
from webop.servers.local import WebhookServer
async def main(**options):
    async for _ in WebhookServer(port=0, **options)(None):
        return
asyncio.run(main(insecure=True))
asyncio.run(main())
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "ConfigurationError" in result.stderr
    assert "pip install cryptography" in result.stderr
    assert "insecure=True" in result.stderr


@pytest.mark.feature("ADM-73", "ADM-75", "ADM-80")
@pytest.mark.parametrize("password", [None, "secret"])
async def test_a_certificate_from_files_is_served(
    fn: Recorder, tmp_path: Path, password: str | None
) -> None:
    own = build_certificate_self_signed(["localhost"], password)
    certfile, pkeyfile = save(own, tmp_path)
    cafile = tmp_path / "ca.pem"
    cafile.write_bytes(own.cert)
    for options in ({}, {"cafile": cafile}, {"cadata": own.cert}):
        server = webop.WebhookServer(
            port=0, certfile=str(certfile), pkeyfile=pkeyfile, password=password, **options
        )
        async with serve(server, fn) as config:
            assert get_bundle(config).strip() == own.cert.strip()
            response = await post(get_url(config), trust(get_bundle(config)))
            assert response.status_code == 200


@pytest.mark.feature("ADM-75", "ADM-80")
async def test_a_key_in_the_file_of_the_certificate_is_not_published(
    fn: Recorder, tmp_path: Path
) -> None:
    own = build_certificate_self_signed(["localhost"])
    certfile, cadump = tmp_path / "both.pem", tmp_path / "dump.pem"
    certfile.write_bytes(own.key + own.cert)
    async with serve(webop.WebhookServer(port=0, certfile=certfile, cadump=cadump), fn) as config:
        assert b"PRIVATE" not in get_bundle(config)
        assert b"PRIVATE" not in cadump.read_bytes()
        assert (await post(get_url(config), trust(get_bundle(config)))).status_code == 200


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two certificates with their keys; that of the server is encrypted by "secret"."""
    monkeypatch.chdir(tmp_path)
    save(build_certificate_self_signed(["localhost"], "secret"), tmp_path)
    save(build_certificate_self_signed(["localhost"]), tmp_path, "other")


@pytest.mark.feature("ADM-75")
@rows(
    ("changes", "message"),
    [
        ({"certfile": "absent.pem"}, "certfile='absent.pem'.*No such file"),
        ({"cafile": "absent.pem"}, "cafile='absent.pem'.*No such file"),
        ({"cadump": "absent/dump.pem"}, "cadump='absent/dump.pem'.*No such file"),
        ({"certfile": None}, "pkeyfile= needs certfile="),
        ({"password": None}, "encrypted: give its password"),
        ({"password": "wrong"}, "server-key.pem.*password of the key"),
        ({"pkeyfile": "other-key.pem"}, "other-key.pem.*its own private key"),
        ({"certfile": "server-key.pem"}, "certfile='server-key.pem'"),
        ({"verify_cafile": "absent.pem"}, "verify_cafile='absent.pem'.*No such file"),
        ({"verify_cadata": "no PEM"}, "verify_cadata"),
        ({"verify_capath": "absent"}, "verify_capath='absent'.*No such file"),
        ({"verify_mode": ssl.CERT_REQUIRED}, "CERT_REQUIRED needs .*verify_cafile="),
        ({"verify_subjects": ["api"]}, "verify_subjects= needs .*verify_cafile="),
        ({"verify_subjects": [], "verify_cafile": "other-cert.pem"}, "verify_subjects= needs one"),
        ({"verify_subjects": "api"}, "verify_subjects= .* a list, got 'api'"),
        ({"verify_mode": True}, "verify_mode= .* VerifyMode, got True"),
        ({"cafile": "server-key.pem"}, "cafile='server-key.pem' contains no certificate"),
        ({"pkeyfile": None}, "server-cert.pem.*no key; set pkeyfile="),
        ({"port": "9443"}, "port= .* int, got '9443'"),
        ({"extra_sans": "example.com"}, "extra_sans= .* a list, got 'example.com'"),
        ({"host": "https://example.com"}, "host= .* a name or an address, got 'https:"),
    ],
)
async def test_a_wrong_file_is_named_with_the_reason_at_startup(
    fn: Recorder, files: None, changes: dict[str, Any], message: str
) -> None:
    options = {"certfile": "server-cert.pem", "pkeyfile": "server-key.pem", "password": "secret"}
    with pytest.raises(ConfigurationError, match=message):
        async with serve(webop.WebhookServer(**{"port": 0, **options, **changes}), fn):
            pass


# A context of the user.


@pytest.mark.feature("ADM-79", "ADM-80")
async def test_a_ready_context_is_used_as_it_is(fn: Recorder, ca: KeyPair, pair: KeyPair) -> None:
    context = build_context(pair)
    async with serve(webop.WebhookServer(port=0, context=context), fn) as config:
        assert set(config) == {"url"}
        assert (await post(get_url(config), trust(ca.cert))).status_code == 200
    async with serve(webop.WebhookServer(port=0, context=context, cadata=ca.cert), fn) as config:
        assert get_bundle(config) == ca.cert


@pytest.mark.feature("ADM-79")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_context_without_a_certificate_gets_one(
    fn: Recorder, version: ssl.TLSVersion
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = context.maximum_version = version
    async with serve(webop.WebhookServer(port=0, context=context), fn) as config:
        assert (await post(get_url(config), trust(get_bundle(config)))).status_code == 200


@pytest.mark.feature("ADM-79")
async def test_a_context_for_clients_is_an_error_with_advice(fn: Recorder) -> None:
    server = webop.WebhookServer(port=0, context=ssl.create_default_context())
    with pytest.raises(ConfigurationError, match="CLIENT_AUTH"):
        async with serve(server, fn):
            pass


# Certificates of clients.


@pytest.mark.feature("ADM-77", "ADM-78")
@rows(
    "options",
    [
        {"verify_mode": ssl.CERT_REQUIRED},
        {"verify_capath": "folder"},
        {"context": ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)},
    ],
)
async def test_plain_http_does_not_drop_the_options_of_tls_silently(
    fn: Recorder, options: Any
) -> None:
    with pytest.raises(ConfigurationError, match=r"insecure=True .*exclude"):
        async with serve(webop.WebhookServer(port=0, insecure=True, **options), fn):
            pass


@pytest.mark.feature("ADM-26", "ADM-77", "D-14")
@pytest.mark.parametrize("kind", ["verify_cafile", "verify_cadata-str", "verify_cadata-bytes"])
async def test_a_verified_client_is_shown_to_the_function(
    fn: Recorder, tmp_path: Path, ca: KeyPair, client_pair: KeyPair, kind: str
) -> None:
    option, _, form = kind.partition("-")
    cafile = tmp_path / "clients.pem"
    cafile.write_bytes(ca.cert)
    value = {"": cafile, "str": ca.cert.decode(), "bytes": ca.cert}[form]
    server = webop.WebhookServer(port=0, verify_mode=ssl.CERT_OPTIONAL, **{option: value})  # type: ignore[arg-type]
    async with serve(server, fn) as config:
        url, bundle = get_url(config), get_bundle(config)
        assert (await post(url, trust(bundle, client=client_pair))).status_code == 200
        assert (await post(url, trust(bundle))).status_code == 200
    peer = fn.calls[0].sslpeer
    assert peer is not None
    assert peer["subject"] == ((("commonName", "Example Common Name"),),)
    assert peer["issuer"] == ((("commonName", "the-authority"),),)
    assert {"version", "serialNumber", "notBefore", "notAfter"} <= set(peer)
    assert fn.calls[1].sslpeer is None


@pytest.mark.feature("ADM-26", "ADM-73", "ADM-77", "D-14")
async def test_a_client_that_is_not_verified_is_not_shown(
    fn: Recorder, ca: KeyPair, client_pair: KeyPair
) -> None:
    # The authorities for the clients to trust do not verify the clients (D-14).
    async with serve(webop.WebhookServer(port=0, cadata=ca.cert), fn) as config:
        response = await post(get_url(config), trust(get_bundle(config), client=client_pair))
    assert response.status_code == 200
    assert fn.calls[0].sslpeer is None


@pytest.mark.feature("ADM-77")
@pytest.mark.parametrize("options", [{}, {"verify_mode": ssl.CERT_REQUIRED}])
async def test_client_certificates_are_required_if_there_is_a_ca_for_them(
    fn: Recorder, ca: KeyPair, client_pair: KeyPair, options: Any
) -> None:
    server = webop.WebhookServer(port=0, verify_cadata=ca.cert, **options)
    async with serve(server, fn) as config:
        with pytest.raises(httpx.TransportError):
            await post(get_url(config), trust(get_bundle(config)))
        assert fn.calls == []
        response = await post(get_url(config), trust(get_bundle(config), client=client_pair))
        assert response.status_code == 200
    assert fn.calls[0].sslpeer


@pytest.mark.feature("ADM-77")
async def test_only_the_clients_with_accepted_names_can_send_reviews(
    fn: Recorder, ca: KeyPair
) -> None:
    api = build_certificate_signed(ca, common_name="kube-apiserver", client=True)
    named = build_certificate_signed(ca, common_name="x", hostnames=["api.example"], client=True)
    other = build_certificate_signed(ca, common_name="kube-apiserver-2", client=True)
    server = webop.WebhookServer(
        port=0,
        verify_cadata=ca.cert,
        verify_mode=ssl.CERT_OPTIONAL,
        verify_subjects=["kube-apiserver", "api.example"],
    )
    async with serve(server, fn) as config:
        url, bundle = get_url(config), get_bundle(config)
        for client in (other, None):
            response = await post(url, trust(bundle, client=client))
            assert response.status_code == 403
            assert "verify_subjects" in response.json()["message"]
        assert fn.calls == []
        for client in (api, named):
            assert (await post(url, trust(bundle, client=client))).status_code == 200
    assert all(call.sslpeer for call in fn.calls)


@pytest.mark.parametrize("kind", ["verify_cafile", "verify_capath"])
async def test_a_changed_ca_of_clients_counts_and_the_removed_one_is_refused(
    fn: Recorder,
    ca: KeyPair,
    client_pair: KeyPair,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    caplog.set_level(logging.INFO, "webop")
    next_ca = build_ca("the-next-authority")
    next_pair = build_certificate_signed(next_ca, common_name="Next", client=True)
    # OpenSSL finds files in a directory by the hash of the subject.
    file, next_file = [tmp_path / f"{await call_openssl(each.cert)}.0" for each in (ca, next_ca)]
    file.write_bytes(ca.cert)
    options: Any = {kind: file if kind == "verify_cafile" else tmp_path}
    server = webop.WebhookServer(port=0, file_check_interval=0.05, **options)
    async with serve(server, fn) as config:
        url, bundle = get_url(config), get_bundle(config)
        kept = httpx.AsyncClient(verify=trust(bundle, client=client_pair), trust_env=False)
        async with kept:
            assert (await kept.post(url, json=REVIEW)).status_code == 200
            file.write_bytes(next_ca.cert[:100])  # half-written: the old one stays in use
            if kind == "verify_cafile":
                await eventually(lambda: "are not in use" in caplog.text)
                assert (await post(url, trust(bundle, client=client_pair))).status_code == 200
                next_file = file
            else:
                file.unlink()
            next_file.write_bytes(next_ca.cert)
            await eventually(lambda: "CA certificates of clients are in use" in caplog.text)

            async def accepts(client: KeyPair) -> bool:
                with contextlib.suppress(httpx.TransportError):
                    return (await post(url, trust(bundle, client=client))).status_code == 200
                return False

            async def is_changed() -> bool:  # the files may be read between their changes
                return await accepts(next_pair) and not await accepts(client_pair)

            await eventually(is_changed, "the changed CA")
            with pytest.raises(httpx.TransportError):  # its connection was closed, too
                await kept.post(url, json=REVIEW)


async def test_a_ca_of_clients_that_is_removed_with_a_new_certificate_verifies_no_open_connection(
    fn: Recorder, ca: KeyPair, client_pair: KeyPair, tmp_path: Path
) -> None:
    file = tmp_path / "clients.pem"
    file.write_bytes(ca.cert)
    pair, next_pair = (build_certificate_self_signed(["localhost"]) for _ in range(2))
    is_due, is_used = asyncio.Event(), asyncio.Event()

    class Server(webop.WebhookServer):
        async def watch_certificate(self) -> AsyncGenerator[bytes | None, None]:
            await self.use_certificate(pair.cert, pair.key)
            yield pair.cert
            await is_due.wait()
            await self.use_certificate(next_pair.cert, next_pair.key)
            is_used.set()

    # The next check of the CAs is far away.
    server = Server(port=0, verify_cafile=file, file_check_interval=600)
    async with (
        collect(server, fn) as configs,
        httpx.AsyncClient(verify=trust(pair.cert, client=client_pair), trust_env=False) as kept,
    ):
        url = get_url(await configs.get())
        assert (await kept.post(url, json=REVIEW)).status_code == 200
        file.write_bytes(build_ca("the-next-authority").cert)
        is_due.set()
        await is_used.wait()
        with contextlib.suppress(httpx.TransportError):
            assert (await kept.post(url, json=REVIEW)).status_code == 503
    assert len(fn.calls) == 1


async def test_a_handshake_that_began_before_its_ca_was_removed_is_cut(
    fn: Recorder, ca: KeyPair, client_pair: KeyPair, tmp_path: Path, caplog: Any
) -> None:
    caplog.set_level(logging.INFO, "webop")
    file = tmp_path / "clients.pem"
    file.write_bytes(ca.cert)
    server = webop.WebhookServer(port=0, verify_cafile=file, file_check_interval=0.05)
    async with serve(server, fn) as config:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = trust(get_bundle(config), client=client_pair)
        tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        async with connect(get_port(config)) as (reader, writer):
            for _ in range(2):
                with contextlib.suppress(ssl.SSLWantReadError):
                    tls.do_handshake()  # the second time, its certificate is ready to be sent
                    break
                writer.write(outgoing.read())
                incoming.write(await reader.read(65_536))
            file.write_bytes(build_ca("the-next-authority").cert)
            await eventually(lambda: "CA certificates of clients are in use" in caplog.text)
            tls.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            writer.write(outgoing.read())
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
    assert fn.calls == []


async def call_openssl(cert: bytes) -> str:
    process = await asyncio.create_subprocess_exec(
        *("openssl", "x509", "-hash", "-noout"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate(cert)
    return output.decode().strip()


@pytest.mark.feature("ADM-77", "ADM-79")
async def test_verification_is_added_to_a_context_of_the_user(
    fn: Recorder, ca: KeyPair, pair: KeyPair, client_pair: KeyPair
) -> None:
    context = build_context(pair)
    server = webop.WebhookServer(port=0, context=context, verify_cadata=ca.cert)
    async with serve(server, fn) as config:
        await post(get_url(config), trust(ca.cert, client=client_pair))
    assert fn.calls[0].sslpeer


async def test_a_client_whose_ca_was_withdrawn_cannot_resume_its_session(
    fn: Recorder, ca: KeyPair, client_pair: KeyPair, tmp_path: Path, caplog: Any
) -> None:
    caplog.set_level(logging.INFO, "webop")
    cafile = tmp_path / "clients.pem"
    cafile.write_bytes(ca.cert)
    server = webop.WebhookServer(port=0, verify_cafile=cafile, file_check_interval=0.05)
    async with serve(server, fn) as config:
        client, port = trust(get_bundle(config), client=client_pair), get_port(config)

        def call(session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None]:
            with (
                socket.create_connection(("127.0.0.1", port)) as plain,
                client.wrap_socket(plain, server_hostname="localhost", session=session) as sock,
            ):
                sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                with contextlib.suppress(ssl.SSLError, ConnectionError):
                    return sock.recv(4096), sock.session
            return b"", None

        answer, session = await asyncio.to_thread(call, None)
        assert answer.startswith(b"HTTP/1.1 405 ")
        cafile.write_bytes(build_ca("another").cert)
        await eventually(lambda: "CA certificates of clients are in use" in caplog.text)
        assert (await asyncio.to_thread(call, session))[0] == b""
