"""TLS contexts of webhook servers, with the verification of clients, and access to their files.

Everything is checked before a server begins to listen, so that a wrong file is an error at the
start that names the file, not a handshake that fails later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from pathlib import Path

from webop.aio.dedicated_threads import call_in_dedicated_thread
from webop.errors import ConfigurationError
from webop.keymaterial import find_certificates, load_key_material

StrPath = str | os.PathLike[str]


class LiveContext:
    """The current TLS context of a server: a new one for each certificate, and for changed CAs.

    OpenSSL keeps one certificate per type of key in a context, and prefers ECDSA; and it does not
    forget CAs. So nothing is loaded into a context that is in use. The listener calls this object
    for each connection to get the current context.

    Args:
        given: the user's context, if any. It cannot be copied, so everything is loaded into it.
        mode: whether client certificates are requested and required. With CA certificates but no
            mode, client certificates are required. With either, sessions are not resumed and
            clients must use TLS 1.3, unless a context is given.
        cafile: the CA certificates that verify clients; read again for each new context.
        capath: the same in a directory, as OpenSSL expects it.
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
            cadata = cadata.decode("ascii", "replace")  # bytes would count as DER
        self._locations = (cafile, capath, cadata)
        self._pair: tuple[bytes, bytes | None, str | None] | None = None
        self._current, self._clients = self._load(None)
        self._lock = asyncio.Lock()
        #: Whether the given context already has a certificate.
        self.has_certificate = given is not None and find_presented(given) is not None

    def __call__(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        return self._current

    async def use(self, cert: bytes, key: bytes | None, password: str | None) -> bool:
        """Use a certificate for new connections; after an error, the previous one stays in use.

        Returns:
            Whether other CAs verify new connections from now on.

        Raises:
            ConfigurationError: a test handshake presents another certificate.
            ssl.SSLError: this is not PEM, or the key does not belong to the certificate.
        """
        async with self._lock:
            return await self._replace((cert, key, password))

    async def reload_clients(self) -> bool:
        """Verify new connections by what the files contain now; return as :meth:`use` does.

        Raises:
            ConfigurationError: they cannot be loaded; the previous CAs stay in use.
        """
        async with self._lock:
            if await call_in_dedicated_thread(self._read_clients) == self._clients:
                return False
            return await self._replace(self._pair)

    async def _replace(self, pair: tuple[bytes, bytes | None, str | None] | None) -> bool:
        before = self._clients
        if self._given is not None:
            # Not in a thread: no handshake may see the certificate without its key.
            self._current, self._clients = self._load(pair)
        else:
            self._current, self._clients = await call_in_dedicated_thread(self._load, pair)
        self._pair = pair
        return self._clients != before

    def _read_clients(self) -> list[bytes]:
        cafile, capath, _ = self._locations
        contents = [] if cafile is None else [read_file(cafile, "verify_cafile")]
        try:
            found = Path(capath).iterdir() if capath is not None else ()
            files = sorted(file for file in found if file.is_file())
        except OSError as error:
            raise _build_error("read", "verify_capath", capath, error) from error
        return contents + [read_file(file, "verify_capath") for file in files]

    def _load(
        self, pair: tuple[bytes, bytes | None, str | None] | None
    ) -> tuple[ssl.SSLContext, list[bytes]]:
        context, clients = self._build()
        if pair is not None:
            self._load_pair(context, *pair)
        return context, clients

    def _load_pair(
        self, context: ssl.SSLContext, cert: bytes, key: bytes | None, password: str | None
    ) -> None:
        load_key_material(context, cert, key, password)
        if self._given is None:
            return
        shown, found = find_presented(context), find_certificates(cert)
        if shown and found and shown != ssl.PEM_cert_to_DER_cert(found[0].decode("ascii")):
            raise ConfigurationError(
                "The context= of the webhook server still presents another certificate, which has "
                "another type of key. Remove context=, or restart the operator."
            )

    def _build(self) -> tuple[ssl.SSLContext, list[bytes]]:
        context = self._given
        if context is None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            if self._mode or self._locations != (None, None, None):
                # A resumed session is not verified again, even if its client's CA was removed.
                context.num_tickets = 0
                # TLS 1.2 also resumes sessions from a cache, which Python cannot disable.
                context.minimum_version = ssl.TLSVersion.TLSv1_3
        if self._mode is not None:
            context.verify_mode = self._mode
        if self._locations == (None, None, None):
            return context, []
        try:
            if self._locations[1] is not None:
                os.scandir(self._locations[1]).close()  # OpenSSL ignores an absent one
            clients = self._read_clients()  # before: a change in between is noticed later
            context.load_verify_locations(*self._locations)
        except (ssl.SSLError, OSError, ValueError) as error:
            cafile, capath, _ = self._locations
            raise ConfigurationError(
                "Cannot load the CA certificates that verify clients from "
                f"verify_cafile={cafile!r}, verify_capath={capath!r}, or verify_cadata: {error}."
            ) from error
        if self._mode is None and context.verify_mode == ssl.CERT_NONE:
            context.verify_mode = ssl.CERT_REQUIRED
        return context, clients


def find_presented(context: ssl.SSLContext) -> bytes | None:
    """Return the certificate that a context presents to clients, by a handshake in memory.

    Returns:
        The certificate in DER; None if the context has none; empty if only clients with a
        certificate can see it (TLS 1.2).

    Raises:
        ConfigurationError: this is not a context for servers.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        server = context.wrap_bio(to_server, to_client, server_side=True)
    except ssl.SSLError as error:
        raise ConfigurationError(
            "The context= of the webhook server is not for servers. "
            "Create it by ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)."
        ) from error
    # This client accepts everything; it is for this test only.
    tolerant = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tolerant.check_hostname = False
    tolerant.verify_mode = ssl.CERT_NONE
    tolerant.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    tolerant.set_ciphers("ALL:@SECLEVEL=0")
    client = tolerant.wrap_bio(to_client, to_server, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    try:
        server.do_handshake()
    except ssl.SSLWantReadError:
        pass  # the certificate was sent
    except ssl.SSLError:
        return None
    for side in (client, server, client):  # TLS 1.3 needs the first step only
        with contextlib.suppress(ssl.SSLError):
            side.do_handshake()
    try:
        return client.getpeercert(binary_form=True)
    except ValueError:
        return b""


def read_file(path: StrPath, option: str) -> bytes:
    """Read a file named by an option of the server."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _build_error("read", option, path, error) from error


def write_file(path: StrPath, data: bytes, option: str) -> None:
    """Write a file named by an option of the server."""
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise _build_error("write", option, path, error) from error


def _build_error(
    verb: str, option: str, path: StrPath | None, error: OSError
) -> ConfigurationError:
    text = f"Cannot {verb} {option}={str(path)!r} of the webhook server: {error.strerror}."
    return ConfigurationError(text)
