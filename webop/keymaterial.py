"""Certificates and private keys from memory into a TLS context.

``ssl.SSLContext.load_cert_chain`` reads files only, while keys come from Kubernetes Secrets,
kubeconfigs, or were made a moment ago. This module bridges the gap for the webhook servers
and for the client of the API server alike, and leaves no private key behind on a disk. And it
takes bundles of certificates apart, for those who do not need to read them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from webop.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


def find_certificates(pem: bytes) -> tuple[bytes, ...]:
    """Return the certificates in a text of PEM one by one, without repetitions (RFC 7468).

    They are not read. Spaces at the ends of their lines are left out; so is all that is between.
    """
    blocks = (block.partition(_END) for block in pem.split(_BEGIN)[1:])
    found = ((_BEGIN + body + _END).split(b"\n") for body, end, _ in blocks if end)
    return tuple(dict.fromkeys(b"\n".join(line.strip() for line in lines) for lines in found))


def load_key_material(
    context: ssl.SSLContext,
    cert: bytes,
    key: bytes | None = None,
    password: str | bytes | None = None,
) -> None:
    """Load a certificate and its private key into a TLS context.

    Args:
        context: the context to change; it may be in use by a listener or by a connection pool:
            new connections take the new certificate.
        cert: the certificate in PEM, with the intermediate ones after it, if any.
        key: the private key in PEM; None when it is in the same text as the certificate.
        password: what decrypts the key, if it is encrypted.

    Raises:
        ConfigurationError: the key is encrypted, and there is no password.
        ssl.SSLError: not PEM, a wrong password, or the key is not the certificate's one.
    """
    # OpenSSL would ask for an absent password on the terminal, and wait there.
    secret = _refuse_to_ask if password is None else password
    with _readable_path(cert if key is None else cert + b"\n" + key) as path:
        context.load_cert_chain(path, password=secret)


def _refuse_to_ask() -> str:
    raise ConfigurationError("The private key is encrypted: give its password as well.")


@contextlib.contextmanager
def _readable_path(data: bytes) -> Iterator[str]:
    """Give a path to read the data from, which is gone (with the data) afterwards."""
    path = None
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("webop-key-material")
        path = f"/proc/self/fd/{fd}"
    if path is None or not Path(path).exists():  # not Linux, or there is no /proc
        fd, path = tempfile.mkstemp(prefix="webop-")  # its mode is 0600
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            yield path
    finally:
        if not path.startswith("/proc/"):
            Path(path).unlink(missing_ok=True)
