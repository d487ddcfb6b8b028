"""Certificates: what is in them, and that TLS peers accept them."""

from __future__ import annotations

import datetime as dt
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from tests.kit.rows import rows
from tests.kit.webhook_servers import build_context, trust
from webop.servers.certificates.certs import (
    build_ca,
    build_certificate_of_own_ca,
    build_certificate_self_signed,
    build_certificate_signed,
    read_certificate,
)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, hostname: str) -> ssl.SSLObject:
    """Make a handshake in memory; return the server's side of it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname=hostname)
    pending = [theirs, ours, theirs, ours]
    for side in pending:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    ours.write(b"x")
    assert theirs.read(1) == b"x"
    return ours


def read_names(pem: bytes) -> tuple[str, list[str], list[str]]:
    """Return the common name, the DNS names, the addresses."""
    cert = x509.load_pem_x509_certificate(pem)
    sans = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    common_name = cert.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value
    return (
        str(common_name),
        sans.get_values_for_type(x509.DNSName),
        [str(ip) for ip in sans.get_values_for_type(x509.IPAddress)],
    )


def test_a_server_certificate_does_not_prove_a_client() -> None:
    ca = build_ca("the-authority")
    pair = build_certificate_signed(ca, common_name="s", hostnames=["localhost"])
    server = build_context(pair)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(cadata=ca.cert.decode())
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        shake_hands(server, trust(ca.cert, client=pair), "localhost")


@pytest.mark.feature("ADM-81")
@rows(
    ("hostnames", "common_name", "dns", "ips"),
    [
        (["a.example"], "a.example", ["a.example"], []),
        (["10.0.0.1", "b", "a"], "b", ["b", "a"], ["10.0.0.1"]),
        (["0.0.0.0", "::", "10.0.0.1"], "10.0.0.1", [], ["10.0.0.1"]),
        (["a", "a", "::1", "0::1", ""], "a", ["a"], ["::1"]),
        (["bücher.example"], "xn--bcher-kva.example", ["xn--bcher-kva.example"], []),
        (["x" * 63 + ".y"], "x" * 63 + ".", ["x" * 63 + ".y"], []),
    ],
)
def test_names_of_a_self_signed_certificate_are_normalised(
    hostnames: list[str], common_name: str, dns: list[str], ips: list[str]
) -> None:
    assert read_names(build_certificate_self_signed(hostnames).cert) == (common_name, dns, ips)


@pytest.mark.feature("ADM-81")
@rows("hostnames", [[], ["0.0.0.0"], [""]])
def test_a_self_signed_certificate_needs_a_name(hostnames: list[str]) -> None:
    with pytest.raises(ValueError, match="needs a host name"):
        build_certificate_self_signed(hostnames)


@pytest.mark.feature("ADM-75")
def test_a_generated_key_is_encrypted_by_the_password() -> None:
    pair = build_certificate_self_signed(["localhost"], "secret")
    assert b"ENCRYPTED" in pair.key
    serialization.load_pem_private_key(pair.key, b"secret")
    with pytest.raises(ValueError):  # noqa: PT011  one wrong password in 256 yields other garbage
        serialization.load_pem_private_key(pair.key, b"wrong")


def test_a_certificate_never_outlives_its_authority() -> None:
    ca = build_ca("ca", days=10)
    pair = build_certificate_signed(ca, common_name="s", hostnames=["s"], days=100)
    assert read_certificate(pair.cert).end == read_certificate(ca.cert).end


def test_a_certificate_is_valid_for_api_servers_whose_clocks_are_an_hour_behind() -> None:
    pair, ca = build_certificate_of_own_ca(["svc.ns.svc"], dt.timedelta(days=90))
    for pem in (pair.cert, ca):
        assert read_certificate(pem).start < dt.datetime.now(dt.UTC) - dt.timedelta(
            hours=1, minutes=5
        )
