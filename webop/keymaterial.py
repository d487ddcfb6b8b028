"""Load certificates and private keys from memory into a TLS context; split PEM bundles.

``ssl.SSLContext.load_cert_chain`` reads files only, but keys come from Kubernetes Secrets and
kubeconfigs, or were just made. Webhook servers and the client use this module, which leaves no
private key on a disk.
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
    """Return the certificates in a PEM text one by one, without repetitions (RFC 7468).

    They are not parsed. Spaces at the ends of lines and text between certificates are dropped.
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
        context: the context to change. It may be in use: new connections use the certificate.
        cert: the certificate chain in PEM.
        key: the private key in PEM; None if it is in the same text as the certificate.
        password: decrypts the key, if it is encrypted.

    Raises:
        ConfigurationError: the key is encrypted, but there is no password.
        ssl.SSLError: not PEM, a wrong password, or the key does not belong to the certificate.
    """
    # Without a callback, OpenSSL would ask for the password on the terminal and block.
    secret = _refuse_to_ask if password is None else password
    with _readable_path(cert if key is None else cert + b"\n" + key) as path:
        context.load_cert_chain(path, password=secret)


def _refuse_to_ask() -> str:
    raise ConfigurationError("The private key is encrypted: give its password as well.")


@contextlib.contextmanager
def _readable_path(data: bytes) -> Iterator[str]:
    """Yield the path of a temporary file with the data."""
    path = None
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("webop-key-material")
        path = f"/proc/self/fd/{fd}"
    if path is None or not Path(path).exists():  # not Linux, or no /proc
        fd, path = tempfile.mkstemp(prefix="webop-")  # its mode is 0600
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            yield path
    finally:
        if not path.startswith("/proc/"):
            Path(path).unlink(missing_ok=True)
