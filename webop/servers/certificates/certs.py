"""Make and read certificates; the only module that imports the ``cryptography`` library.

For the certificates of webhook servers, and for those of the local control plane. All keys are
EC P-256, which is fast. All texts are PEM.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from webop.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# A new certificate must be valid on nodes whose clocks are behind, such as by a wrong time zone.
CLOCK_SKEW = dt.timedelta(hours=2)
#: The common name of the CA of a certificate that webop shares in a Secret.
OWN_CA = re.compile(r"webop-[0-9a-f]{16} ")
_TEN_YEARS = 3650
_MAX_COMMON_NAME = 64  # RFC 5280, ub-common-name


@dataclass(frozen=True)
class KeyPair:
    """A certificate with its private key, both in PEM."""

    cert: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True)
class Certificate:
    """The content of a certificate: its validity (in UTC), and names, which are empty if absent."""

    start: dt.datetime
    end: dt.datetime
    #: The serial number as openssl prints it.
    serial: str
    common_name: str = ""
    organizations: tuple[str, ...] = ()
    #: The common name of the CA.
    issuer: str = ""
    #: The DNS names and IP addresses of the server.
    hostnames: frozenset[str] = frozenset()


def build_ca(common_name: str, *, days: float = _TEN_YEARS) -> KeyPair:
    """Make a CA that signs certificates of servers and clients."""
    return _encode(*_issue(_build_name(common_name), days=days, is_ca=True))


def build_certificate_signed(
    ca: KeyPair,
    *,
    common_name: str,
    organizations: Iterable[str] = (),
    hostnames: Iterable[str] = (),
    client: bool = False,
    days: float = 365,
) -> KeyPair:
    """Make a certificate of a server, of a client, or of both, signed by a CA.

    Args:
        ca: the CA, from :func:`build_ca`.
        common_name: the subject; for Kubernetes, the user name of a client.
        organizations: for Kubernetes, the groups of a client, e.g. "system:masters".
        hostnames: DNS names and IP addresses of a server; empty for a client only.
        client: whether it is a client certificate.
        days: how long it is valid; at most as long as its CA.

    Raises:
        ValueError: it is neither for a server (no hostnames) nor for a client.
    """
    issuer = x509.load_pem_x509_certificate(ca.cert)
    issuer_key = serialization.load_pem_private_key(ca.key, password=None)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise TypeError("The CA's key must be an EC key, as build_ca() makes it.")
    names = list(hostnames)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH] if names else []
    usages += [ExtendedKeyUsageOID.CLIENT_AUTH] if client else []
    if not usages:
        raise ValueError("A certificate needs hostnames (of a server), or client=True, or both.")
    subject, signer = _build_name(common_name, organizations), (issuer, issuer_key)
    return _encode(*_issue(subject, days=days, signer=signer, usages=usages, hostnames=names))


def build_certificate_self_signed(
    hostnames: Iterable[str], password: str | None = None, *, days: int = _TEN_YEARS
) -> KeyPair:
    """Make a certificate of a server that is its own CA.

    The common name is the first name that is not an IP address; without one, the first address
    (manual, "WebhookServer.build_certificate"). Addresses are normalized for strict clients;
    catch-all addresses (0.0.0.0, ::) are skipped.

    Args:
        hostnames: DNS names and IP addresses of the server; repetitions are allowed.
        password: encrypts the private key, unless it is None or empty.
        days: how long it is valid; longer than the process lives.

    Raises:
        ValueError: there is no usable name.
    """
    names = normalize_hostnames(hostnames)
    if not names:
        raise ValueError("A self-signed certificate needs a host name or a specific IP address.")
    common_name = next((name for name in names if isinstance(name, str)), str(names[0]))
    subject, usages = _build_name(common_name), [ExtendedKeyUsageOID.SERVER_AUTH]
    made = _issue(subject, days=days, is_ca=True, usages=usages, hostnames=names)
    return _encode(*made, password)


def build_certificate_of_own_ca(
    hostnames: Iterable[str], lifetime: dt.timedelta
) -> tuple[KeyPair, bytes]:
    """Make a certificate of a server, and a CA for this certificate only.

    The private key of the CA is not kept: nobody can steal it, and trusting the CA means trusting
    this one certificate. CAs have unique names, so several can be in one bundle.

    Args:
        hostnames: DNS names and IP addresses of the server; the first is the common name.
        lifetime: how long both are valid.

    Returns:
        The certificate with its key, and the certificate of the CA.
    """
    names = list(hostnames)
    days = lifetime / dt.timedelta(days=1)
    ca = build_ca(f"webop-{secrets.token_hex(8)} {names[0]}", days=days)
    pair = build_certificate_signed(ca, common_name=names[0], hostnames=names, days=days)
    return pair, ca.cert


def split_certificates(pem: bytes) -> tuple[bytes, ...]:
    """Return the certificates of a bundle one by one, normalized, without repetitions.

    Raises:
        ValueError: there are none, or one cannot be read.
    """
    try:
        return tuple(dict.fromkeys(map(_to_pem, x509.load_pem_x509_certificates(pem))))
    except x509.InvalidVersion as error:
        raise ValueError(str(error)) from error


def read_certificate(pem: bytes) -> Certificate:
    """Read a certificate (of a chain: the first one).

    Raises:
        ValueError: this is not a certificate in PEM.
    """
    cert = x509.load_pem_x509_certificate(pem)
    hostnames: Iterable[str] = ()
    with contextlib.suppress(x509.ExtensionNotFound, ValueError):
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        addresses = map(str, names.get_values_for_type(x509.IPAddress))
        hostnames = (*names.get_values_for_type(x509.DNSName), *addresses)
    return Certificate(
        start=cert.not_valid_before_utc,
        end=cert.not_valid_after_utc,
        serial=f"{cert.serial_number:X}",
        common_name=next(_read_attributes(cert.subject, NameOID.COMMON_NAME), ""),
        organizations=tuple(_read_attributes(cert.subject, NameOID.ORGANIZATION_NAME)),
        issuer=next(_read_attributes(cert.issuer, NameOID.COMMON_NAME), ""),
        hostnames=frozenset(hostnames),
    )


def _read_attributes(name: x509.Name, oid: x509.ObjectIdentifier) -> Iterator[str]:
    return (str(attribute.value) for attribute in name.get_attributes_for_oid(oid))


def is_signed_by(pem: bytes, ca: bytes) -> bool:
    """Return whether a CA has signed a certificate directly (of a chain: the first one)."""
    cert = x509.load_pem_x509_certificate(pem)
    try:
        cert.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _issue(
    subject: x509.Name,
    *,
    days: float,
    signer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None,
    is_ca: bool = False,
    usages: Sequence[x509.ObjectIdentifier] = (),
    hostnames: Iterable[str | _Address] = (),
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Issue a certificate for a new key, which also signs it if there is no other signer.

    The key is for data if it has usages, and for certificates if it is a CA, or for both.
    """
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    own, end = key.public_key(), now + dt.timedelta(days=days)
    signing, issuer = key, subject
    if signer is not None:
        ca, signing = signer
        issuer, end = ca.subject, min(end, ca.not_valid_after_utc)
    usage = x509.KeyUsage(
        digital_signature=bool(usages),
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    builder = (
        x509.CertificateBuilder(issuer, subject, own, x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(is_ca, 0 if is_ca else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own), critical=False)
        .add_extension(identifier, critical=False)
    )
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if names := normalize_hostnames(hostnames):
        several = (x509.DNSName(n) if isinstance(n, str) else x509.IPAddress(n) for n in names)
        builder = builder.add_extension(x509.SubjectAlternativeName(several), critical=False)
    return builder.sign(signing, hashes.SHA256()), key


def _build_name(common_name: str, organizations: Iterable[str] = ()) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
    attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name[:_MAX_COMMON_NAME]))
    return x509.Name(attributes)


def normalize_hostnames(hostnames: Iterable[str | _Address]) -> Sequence[str | _Address]:
    """Normalize names for a certificate; drop repetitions and catch-all addresses."""
    names = dict.fromkeys(_normalize_hostname(name) for name in hostnames if name)
    return [name for name in names if isinstance(name, str) or not name.is_unspecified]


def _normalize_hostname(name: str | _Address) -> str | _Address:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        text = str(name)
    try:
        return text if text.isascii() else text.encode("idna").decode("ascii")
    except UnicodeError:
        raise ConfigurationError(f"{text!r} is not a valid host name.") from None


def _to_pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)


def _encode(
    cert: x509.Certificate, key: ec.EllipticCurvePrivateKey, password: str | None = None
) -> KeyPair:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password:
        encryption = serialization.BestAvailableEncryption(password.encode())
    pkcs8 = serialization.PrivateFormat.PKCS8
    return KeyPair(_to_pem(cert), key.private_bytes(serialization.Encoding.PEM, pkcs8, encryption))
