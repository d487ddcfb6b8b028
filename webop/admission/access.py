"""The access of webhook servers to the API server (``Hosting.cluster``), through the client.

Webhook servers do not import clients and credentials; the protocol
:class:`webop.servers.hosting.ClusterAccess` has what they need.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from webop.client.api import Client

logger = logging.getLogger(__name__)

_CERTIFICATE_TIMEOUT = 5.0  # seconds


class ClientAccess:
    """Access through the client of the operator, with its credentials and retries.

    ``on_use`` is called before each use, so that an operator logs in only if it must.
    """

    def __init__(self, client: Client, *, on_use: Callable[[], None] = lambda: None) -> None:
        self._client = client
        self._on_use = on_use

    @property
    def namespace(self) -> str | None:
        """The namespace of the operator; None before the first login, or if it has none."""
        return self._client.vault.default_namespace

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the decoded JSON; wait for the login if necessary.

        Raises:
            APIError: see the client.
        """
        self._on_use()
        return await self._client.request(method, path, body=body)

    async def fetch_certificate(self) -> bytes | None:
        """Return the certificate of the API server in PEM.

        It is not verified: use it for its names only.

        Returns:
            None for plain HTTP, and, with a warning, if the connection fails.

        Raises:
            LoginError: there are no credentials, so the address is unknown.
        """
        self._on_use()
        info = await self._client.vault.get()
        parts = urlsplit(info.server)
        if parts.scheme != "https" or parts.hostname is None:
            return None
        try:
            async with asyncio.timeout(_CERTIFICATE_TIMEOUT):
                return await _fetch_certificate(parts.hostname, parts.port or 443)
        except OSError as exc:  # TLS errors and time-outs are such, too
            reason = str(exc) or f"no response in {_CERTIFICATE_TIMEOUT:g} s"
            logger.warning("Cannot read the certificate of %s: %s", info.server, reason)
            return None


async def _fetch_certificate(host: str, port: int) -> bytes | None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # The connection is aborted below: closing TLS properly could wait for the server.
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    return None if der is None else ssl.DER_cert_to_PEM_cert(der).encode("ascii")
