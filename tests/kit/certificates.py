"""Certificates as clusters have them, issued by CAs of the tests."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Pair(NamedTuple):
    cert: str
    key: str


def build_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def issue(name: str, issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None = None) -> Pair:
    """Issue a certificate, or a CA's own one. As on many clusters, there are no key identifiers."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer_name, issuer_key = issuer or (build_name(name), key)
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(build_name(name))
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer is not None:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    cert = builder.sign(issuer_key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    key_bytes = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(cert.public_bytes(pem).decode(), key_bytes.decode())


def issue_by(ca: Pair, name: str) -> Pair:
    key = serialization.load_pem_private_key(ca.key.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return issue(name, (build_name("ca"), key))
