"""TLS contexts of webhook servers, the verification of clients, and the files of either.

Everything is read and checked before a server begins to listen, so that a wrong file is an error
at the startup which names the file, not a handshake that fails later.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from pathlib import Path

from webop.errors import ConfigurationError

StrPath = str | os.PathLike[str]


def build_server_context() -> ssl.SSLContext:
    """Return a context with Python's current defaults for servers, and no certificate yet."""
    return ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)


def load_verification(
    context: ssl.SSLContext,
    *,
    mode: ssl.VerifyMode | None,
    cafile: StrPath | None,
    capath: StrPath | None,
    cadata: str | bytes | None,
) -> None:
    """Make a context verify the certificates of clients.

    With authorities but no mode, certificates are verified if clients have them.

    Raises:
        ConfigurationError: the authorities cannot be loaded.
    """
    if mode is not None:
        context.verify_mode = mode
    if cafile is None and capath is None and cadata is None:
        return
    if isinstance(cadata, bytes) and b"-----BEGIN" in cadata:
        cadata = cadata.decode("ascii", "replace")  # bytes would be taken for DER
    try:
        context.load_verify_locations(cafile, capath, cadata)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigurationError(
            "The authorities for verifying client certificates cannot be loaded from "
            f"verify_cafile={cafile!r}, verify_capath={capath!r}, or verify_cadata: {error}."
        ) from error
    if context.verify_mode == ssl.CERT_NONE:
        context.verify_mode = ssl.CERT_OPTIONAL


def has_certificate(context: ssl.SSLContext) -> bool:
    """Tell whether a context has a certificate to show to clients.

    Contexts do not tell; a handshake in memory does.

    Raises:
        ConfigurationError: this is not a context for servers.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        server = context.wrap_bio(to_server, to_client, server_side=True)
    except ssl.SSLError as error:
        raise ConfigurationError(
            "The context= of the webhook server is not for servers; "
            "make it by ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)."
        ) from error
    client = _build_tolerant_context().wrap_bio(to_client, to_server, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()  # the greeting is on its way
    try:
        server.do_handshake()
    except ssl.SSLWantReadError:
        return True  # the certificate is on its way
    except ssl.SSLError:
        return False
    return True


def read_file(path: StrPath, option: str) -> bytes:
    """Read a file that is named by an option of the server.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"Cannot read {option}={os.fspath(path)!r} of the webhook server: {error.strerror}."
        ) from error


def write_file(path: StrPath, data: bytes, option: str) -> None:
    """Write a file that is named by an option of the server.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot write {option}={os.fspath(path)!r} of the webhook server: {error.strerror}."
        ) from error


def _build_tolerant_context() -> ssl.SSLContext:
    """Return a client's context that agrees to whatever a server prefers; not for real use."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context
