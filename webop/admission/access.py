"""The API server as webhook servers see it (``Hosting.cluster``), by way of the client.

Webhook servers are below the operator and know nothing of clients and credentials; what they
need of the cluster is in the protocol :class:`webop.servers.hosting.ClusterAccess`.
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

_LOOK_LIMIT = 5.0  # seconds


class ClientAccess:
    """The API server by the client of the operator, with its credentials and retries.

    ``on_use`` is called before each use, so that an operator logs in only if there is need.
    """

    def __init__(self, client: Client, *, on_use: Callable[[], None] = lambda: None) -> None:
        self._client = client
        self._on_use = on_use

    @property
    def namespace(self) -> str | None:
        """The namespace of the operator; None before the first login, or if it has none."""
        return self._client.vault.default_namespace

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request, return the decoded JSON of the answer; wait for the login if need be.

        Raises:
            APIError: as the client raises them.
            LoginError: no credentials.
        """
        self._on_use()
        return await self._client.request(method, path, body=body)

    async def fetch_certificate(self) -> bytes | None:
        """Return the certificate that the API server shows, in PEM.

        Nothing is proven by it: whoever is asked shows what it has. It is for a look at the names.

        Returns:
            None if the server speaks plain HTTP, or cannot be connected to: then with a warning.

        Raises:
            LoginError: no credentials, so that it is not known where the server is.
        """
        self._on_use()
        info = await self._client.vault.get()
        parts = urlsplit(info.server)
        if parts.scheme != "https" or parts.hostname is None:
            return None
        try:
            async with asyncio.timeout(_LOOK_LIMIT):
                return await _look_at_certificate(parts.hostname, parts.port or 443)
        except OSError as exc:  # TLS errors and time-outs are such, too
            reason = str(exc) or f"no answer in {_LOOK_LIMIT:g} s"
            logger.warning("The certificate of %s cannot be seen: %s", info.server, reason)
            return None


async def _look_at_certificate(host: str, port: int) -> bytes | None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # Once it is seen, the connection is dropped: a farewell of TLS could wait for the server.
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    return None if der is None else ssl.DER_cert_to_PEM_cert(der).encode("ascii")
