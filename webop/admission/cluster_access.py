"""The access of webhook servers to the API server (``Hosting.cluster``), through the client.

Webhook servers do not import clients and credentials; the protocol
:class:`webop.servers.limits.ClusterAccess` has what they need.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from webop.aio.dedicated_threads import call_in_dedicated_thread
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
        """Send a request and return the decoded JSON; wait for the login if necessary."""
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
        address = (parts.hostname, parts.port or 443)
        fetch = partial(ssl.get_server_certificate, address, timeout=_CERTIFICATE_TIMEOUT)
        try:
            return (await call_in_dedicated_thread(fetch)).encode("ascii")
        except OSError as exc:  # TLS errors and time-outs are such, too
            logger.warning("Cannot read the certificate of %s: %s", info.server, exc)
            return None
