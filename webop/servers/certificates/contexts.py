"""TLS contexts of webhook servers, the verification of clients, and the files of either.

Everything is read and checked before a server begins to listen, so that a wrong file is an error
at the startup which names the file, not a handshake that fails later.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from pathlib import Path

from webop.dedicated_threads import call_in_dedicated_thread
from webop.errors import ConfigurationError
from webop.keymaterial import find_certificates, load_key_material

StrPath = str | os.PathLike[str]


class LiveContext:
    """The TLS context of a server as it is now: another one for each certificate.

    OpenSSL keeps one certificate for each type of key in a context, and prefers ECDSA. So a
    certificate is never loaded into a context that has one already. Whoever accepts connections
    calls this object for each of them (or in ``sni_callback``), and gets the current context.

    Args:
        given: a context of the user's. It cannot be copied, so all is loaded into it.
        mode: whether client certificates are asked for and required. With CA certificates but no
            mode, they are verified if clients have them. Sessions are not resumed then, and
            clients must know TLS 1.3; a given context decides for itself.
        cafile: the CA certificates to verify those of clients; read again for each new context.
        capath: the same in a directory, as OpenSSL wants it.
        cadata: the same as data.

    Raises:
        ConfigurationError: the CA certificates cannot be loaded, or ``given`` is for clients.
    """

    def __init__(
        self,
        given: ssl.SSLContext | None = None,
        *,
        mode: ssl.VerifyMode | None = None,
        cafile: StrPath | None = None,
        capath: StrPath | None = None,
        cadata: str | bytes | None = None,
    ) -> None:
        self._given = given
        self._mode = mode
        if isinstance(cadata, bytes) and b"-----BEGIN" in cadata:
            cadata = cadata.decode("ascii", "replace")  # bytes would be taken for DER
        self._locations = (cafile, capath, cadata)
        self._current = self._build()
        #: Whether the given context has a certificate of its own.
        self.has_certificate = given is not None and find_shown(given) is not None

    def __call__(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        return self._current

    async def use(self, cert: bytes, key: bytes | None, password: str | None) -> None:
        """Show a certificate to new connections from now on; nothing changes if that fails.

        Raises:
            ConfigurationError: a handshake with the new context shows another certificate.
            ssl.SSLError: this is not PEM, or the certificate and the key do not fit.
        """
        if self._given is not None:
            # In the event loop: no handshake may see the certificate without its key.
            self._current = self._load(cert, key, password)
        else:
            self._current = await call_in_dedicated_thread(self._load, cert, key, password)

    def _load(self, cert: bytes, key: bytes | None, password: str | None) -> ssl.SSLContext:
        context = self._build()
        load_key_material(context, cert, key, password)
        shown, found = find_shown(context), find_certificates(cert)
        if shown and found and shown != ssl.PEM_cert_to_DER_cert(found[0].decode("ascii")):
            raise ConfigurationError(
                "The context= of the webhook server still shows another certificate, of another "
                "type of key. Leave context= out, or restart the operator."
            )
        return context

    def _build(self) -> ssl.SSLContext:
        context = self._given
        if context is None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            if self._mode or self._locations != (None, None, None):
                # A resumed session is not verified again, but its client's CA can be withdrawn.
                context.num_tickets = 0
                # TLS 1.2 resumes sessions from a cache, too, which Python cannot switch off.
                context.minimum_version = ssl.TLSVersion.TLSv1_3
        if self._mode is not None:
            context.verify_mode = self._mode
        if self._locations == (None, None, None):
            return context
        try:
            if self._locations[1] is not None:
                os.scandir(self._locations[1]).close()  # OpenSSL ignores an absent one
            context.load_verify_locations(*self._locations)
        except (ssl.SSLError, OSError, ValueError) as error:
            cafile, capath, _ = self._locations
            raise ConfigurationError(
                "The CA certificates for verifying client certificates cannot be loaded from "
                f"verify_cafile={cafile!r}, verify_capath={capath!r}, or verify_cadata: {error}."
            ) from error
        if context.verify_mode == ssl.CERT_NONE:
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


def find_shown(context: ssl.SSLContext) -> bytes | None:
    """Find out by a handshake in memory which certificate a context shows to clients.

    Returns:
        The certificate in DER; None if there is none; empty if there is one that cannot be seen
        by clients without a certificate of their own (TLS 1.2).

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
    # It agrees to whatever a server prefers; not for real use.
    tolerant = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tolerant.check_hostname = False
    tolerant.verify_mode = ssl.CERT_NONE
    tolerant.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    tolerant.set_ciphers("ALL:@SECLEVEL=0")
    client = tolerant.wrap_bio(to_client, to_server, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()  # the greeting is on its way
    try:
        server.do_handshake()
    except ssl.SSLWantReadError:
        pass  # the certificate is on its way
    except ssl.SSLError:
        return None
    try:
        client.do_handshake()
    except ssl.SSLError:  # TLS 1.2: not done yet
        with contextlib.suppress(ssl.SSLError):
            server.do_handshake()
            client.do_handshake()
    try:
        return client.getpeercert(binary_form=True)
    except ValueError:
        return b""


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
