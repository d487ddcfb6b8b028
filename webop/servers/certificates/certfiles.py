"""The certificate of a webhook server in files, which others renew while it serves.

Flow: :func:`read_material` reads and checks the files, at the start and at intervals. Changes go
into a new TLS context and into the ``caBundle`` of the clients. Half-written files are not used:
the certificate and its key are first loaded into a separate context.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from webop.aio.backoff import Once
from webop.errors import ConfigurationError
from webop.keymaterial import find_certificates, load_key_material
from webop.servers.certificates.contexts import StrPath, read_file

if TYPE_CHECKING:
    from webop.servers.hosting import Hosting

logger = logging.getLogger(__name__)

_NEARLY_EXPIRED = 0.1  # of the lifetime


@dataclass(frozen=True, slots=True)
class Material:
    """The content of the files at one moment, in PEM.

    Attributes:
        cert: the certificate chain; None without a file.
        key: its private key; None if it is in ``cert``.
        bundle: the CA certificates for the clients to trust; None for the default ones.
    """

    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    bundle: bytes | None = None


def read_material(
    *,
    certfile: StrPath | None = None,
    pkeyfile: StrPath | None = None,
    password: str | None = None,
    cafile: StrPath | None = None,
    cadata: bytes | str | None = None,
) -> Material:
    """Read the files of a webhook server, and check that they fit together.

    Without CA certificates, the certificate is its own CA. ``cadata`` wins over ``cafile``.

    Raises:
        ConfigurationError: a file cannot be read, or the certificate and the key are unusable.
    """
    bundle = cadata.encode() if isinstance(cadata, str) else cadata
    if bundle is None and cafile is not None:
        bundle = read_file(cafile, "cafile")
    if bundle is not None and not find_certificates(bundle):
        where = "cadata=" if cadata is not None else f"cafile={str(cafile)!r}"
        raise ConfigurationError(f"{where} contains no certificate in PEM.")
    if certfile is None:
        if pkeyfile is not None:
            raise ConfigurationError("pkeyfile= needs certfile=, the certificate of that key.")
        return Material(bundle=bundle)
    cert = read_file(certfile, "certfile")
    key = None if pkeyfile is None else read_file(pkeyfile, "pkeyfile")
    try:
        load_key_material(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert, key, password)
    except ssl.SSLError as error:
        where = f"certfile={str(certfile)!r}, pkeyfile={str(pkeyfile or certfile)!r}"
        has_key = pkeyfile is not None or b"PRIVATE KEY-----" in cert
        unknown = "not PEM, or a wrong password" if has_key else "it has no key; set pkeyfile="
        reason = error.reason or unknown
        raise ConfigurationError(
            f"The certificate of the webhook server cannot be used ({where}): {reason}. "
            "Give a certificate and its own private key in PEM, and the password of the key."
        ) from error
    return Material(cert, key, extract_certificates(cert) if bundle is None else bundle)


def extract_certificates(pem: bytes) -> bytes:
    """Keep only the certificates of a PEM text: bundles are public, private keys are not."""
    return b"\n".join(find_certificates(pem)) + b"\n"


def join_bundles(*bundles: bytes | None) -> bytes:
    """Join several bundles into one, without repetitions."""
    return extract_certificates(b"\n".join(filter(None, bundles)))


def add_bundle(bundle: bytes | None, own: bytes | None) -> bytes | None:
    """Add the server's own certificate, if any, to the CA bundle for the clients."""
    if bundle is None or own is None:
        return own if bundle is None else bundle
    return bundle.rstrip() + b"\n" + own


class ExpiryWatch:
    """Reports to the operator when the certificate expires, and warns before that."""

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting
        self._start: dt.datetime | None = None
        self._once = Once()
        #: Of the certificate in use, for the log.
        self.description = ""

    def note(self, cert: bytes) -> None:
        """Record a certificate (in PEM) that is in use from now on."""
        self._start, self._hosting.expiry = None, None
        self._once.forget("state")
        self.description = "its serial number is not known"
        # Unknown without the library, or if only OpenSSL can read the certificate.
        with contextlib.suppress(ImportError, ValueError):
            from webop.servers.certificates import certs  # noqa: PLC0415 - slow

            pem = extract_certificates(cert)
            self._start, self._hosting.expiry = certs.read_validity(pem)
            serial, end = certs.read_serial(pem), self._hosting.expiry
            self.description = f"serial number {serial}, valid until {end}"
        self.check()

    def check(self) -> None:
        """Warn if the certificate expires soon or has expired, once for each of the two."""
        end = self._hosting.expiry
        if end is None or self._start is None:
            return
        left = (end - dt.datetime.now(dt.UTC)) / (end - self._start)
        if left >= _NEARLY_EXPIRED:
            return
        state = "has expired" if left <= 0 else "expires soon"
        if self._once.is_new("state", state):
            logger.warning("The certificate of the webhook server %s: at %s.", state, end)
