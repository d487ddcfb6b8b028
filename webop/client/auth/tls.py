"""TLS contexts for connections to the API server, from the values of ConnectionInfo.

Key material in memory is never written to a file that stays (see :mod:`webop.keymaterial`).
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from webop.client.auth.vault import quote_path, quote_url
from webop.errors import LoginError
from webop.keymaterial import load_key_material

if TYPE_CHECKING:
    from webop.client.auth.vault import AnyPath, ConnectionInfo

_PEM_MARK = b"-----BEGIN"


def build_ssl_context(info: ConnectionInfo) -> ssl.SSLContext:
    """Build the context for one API server and one set of credentials.

    Without a CA, the system's CAs are trusted. With ``insecure``, nothing is verified.

    Raises:
        LoginError: a file cannot be read, or a certificate or a key is not usable.
    """
    try:
        ca = _read_pem(info.ca_path, info.ca_data, "the CA certificate")
        # Comments in bundles can have any encoding; the certificates are ASCII.
        text = None if ca is None else ca.decode("ascii", "ignore")
        context = ssl.create_default_context(cadata=text)
        # The CAs of many clusters lack extensions that Python >= 3.13 requires by default.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if info.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        _load_client_certificate(context, info)
    except (OSError, ValueError) as exc:  # SSLError is an OSError
        path = getattr(exc, "filename", None)
        why = f"{quote_path(path)}: {exc.strerror}" if isinstance(exc, OSError) and path else exc
        message = f"The TLS credentials for {quote_url(info.server)} cannot be used: {why}"
        raise LoginError(message, kind="The TLS credentials cannot be used.") from None
    return context


def _load_client_certificate(context: ssl.SSLContext, info: ConnectionInfo) -> None:
    cert = _read_pem(info.certificate_path, info.certificate_data, "the client certificate")
    key = _read_pem(info.private_key_path, info.private_key_data, "the client's private key")
    if cert is not None:
        if key is None and b"PRIVATE KEY-----" not in cert:
            raise ValueError("there is a client certificate, but no private key")
        load_key_material(context, cert, key)
    elif key is not None:
        raise ValueError("there is a private key, but no client certificate")


def _read_pem(path: AnyPath | None, data: str | bytes | None, what: str) -> bytes | None:
    """Return PEM from a path, or from data that are PEM or base64 of PEM; None if neither is set.

    Raises:
        ValueError: the content is something else.
        OSError: the file cannot be read.
    """
    if path:
        content = Path(os.fsdecode(path)).expanduser().read_bytes()
    elif data:
        content = data.encode() if isinstance(data, str) else data
    else:
        return None
    if _PEM_MARK not in content:
        try:
            content = base64.b64decode(content, validate=False)
        except binascii.Error as exc:
            message = f"{what} is neither PEM nor base64 of PEM"
            raise ValueError(message) from exc
    if _PEM_MARK not in content:
        message = f"{what} is neither PEM nor base64 of PEM"
        raise ValueError(message)
    return content
