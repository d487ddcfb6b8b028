"""Where the certificate of a webhook server comes from: files, memory, or a Secret.

A source is asked at intervals, and a certificate that differs from the one in use is a new one.
:mod:`webop.servers.local` then does the same for all sources. The Secret is in
:mod:`webop.servers.certificates.secret`.
"""

from __future__ import annotations

import abc
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from webop.aio.dedicated_threads import call_in_dedicated_thread
from webop.errors import ConfigurationError
from webop.keymaterial import find_certificates, load_key_material
from webop.servers.certificates.contexts import StrPath, read_file


@dataclass(frozen=True, slots=True)
class Material:
    """The content of a source at one moment, in PEM.

    Attributes:
        cert: the certificate chain; None if the server needs none.
        key: its private key; None if it is in ``cert``.
        bundle: the CA certificates for the clients to trust; None for the default ones.
        is_recent: whether other replicas may not know the certificate yet.
    """

    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    bundle: bytes | None = None
    is_recent: bool = field(default=False, compare=False)


@dataclass(kw_only=True, eq=False)
class CertificateSource(abc.ABC):
    """Where the certificate comes from.

    Attributes:
        interval: seconds between two loads; None if nothing can change.
        settle: seconds that API servers may take to follow a changed configuration.
        overlap: seconds for which old CAs stay trusted.
    """

    interval: float | None
    settle: float = 0.0
    overlap: float = 0.0

    @abc.abstractmethod
    async def load(self) -> Material:
        """Return what is there now.

        Raises:
            ConfigurationError: it is not usable.
            WebopError: it is not available yet; the next attempt may succeed.
        """


@dataclass(kw_only=True, eq=False)
class LocalSource(CertificateSource):
    """Files; a certificate that is not in a file is made, once, if the server needs one."""

    read: Callable[[], Material]
    make: Callable[[], tuple[bytes, bytes]] | None
    _made: tuple[bytes, bytes] | None = None

    async def load(self) -> Material:
        """Read the files, in a thread: a networked disk can be slow."""
        return await call_in_dedicated_thread(self._load)

    def _load(self) -> Material:
        found = self.read()
        if found.cert is not None or self.make is None:
            return found
        self._made = cert, key = self._made or self.make()
        return Material(cert, key, join_bundles(found.bundle, cert))


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
    return Material(cert, key, join_bundles(cert if bundle is None else bundle))


def join_bundles(*bundles: bytes | None) -> bytes | None:
    """Join the certificates of several texts, without repetitions; None if all are None.

    Bundles are public, so private keys in the same texts are dropped.
    """
    given = [bundle for bundle in bundles if bundle is not None]
    return b"\n".join(find_certificates(b"\n".join(given))) + b"\n" if given else None
