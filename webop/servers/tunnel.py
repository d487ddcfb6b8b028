"""Webhook servers that are reached through a tunnel, for remote clusters.

Flow: API server → the public address of a provider → its agent on this host → a plain local server.
A provider is a subclass of :class:`WebhookTunnel` with one method.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from typing import ClassVar
from urllib.parse import urlsplit

from webop.aio.backoff import Backoff
from webop.errors import ConfigurationError
from webop.servers.base import BaseWebhookServer, WebhookClientConfig, WebhookFn, check_generator
from webop.servers.local import WebhookServer

logger = logging.getLogger(__name__)

_GOOD_LIFE = 60.0  # seconds; after that, a tunnel counts as good, and the backoff is reset


class WebhookTunnel(BaseWebhookServer):
    """A plain local server and a public address for it; subclasses implement :meth:`open`.

    The public address must be HTTPS with a certificate that is trusted by default. Anybody who
    guesses it can send reviews. When the tunnel is lost, another one is opened, and its address
    is yielded.

    Args:
        addr: the address for the local server to listen on; "localhost" by default.
        port: its port; 9443 by default; 0 takes a free one.
        path: the root path of the URLs; none by default.
    """

    #: Seconds until a tunnel must have its first public address; includes downloading the agent.
    START_LIMIT: ClassVar[float] = 60.0

    def __init__(
        self, *, addr: str | None = None, port: int | None = None, path: str | None = None
    ) -> None:
        super().__init__()
        self.addr = addr
        self.port = port
        self.path = path

    @abc.abstractmethod
    def open(self, upstream: str) -> AsyncGenerator[str, None]:
        """Open a tunnel to a local URL, such as "http://localhost:9443"; close it when cancelled.

        Yields:
            The public URL, and again if it changes. The generator returns when the tunnel is lost.

        Raises:
            ConfigurationError: why the tunnel cannot be opened, or was lost.
        """

    async def serve(self, fn: WebhookFn) -> AsyncGenerator[WebhookClientConfig, None]:
        """Serve until cancelled (:meth:`BaseWebhookServer.serve`)."""
        addr = WebhookServer.DEFAULT_ADDR if self.addr is None else self.addr  # also in a pod
        server = WebhookServer(addr=addr, port=self.port, path=self.path, insecure=True)
        async with contextlib.aclosing(server.serve(fn)) as configs:
            local = urlsplit((await anext(configs))["url"] or "")
            async with contextlib.aclosing(self._keep_open(f"http://{local.netloc}")) as urls:
                async for public in urls:
                    url = public + local.path
                    logger.debug("Serving webhooks at %s", url)
                    yield WebhookClientConfig(url=url)

    async def _keep_open(self, upstream: str) -> AsyncGenerator[str, None]:
        """Yield the public URL; when a tunnel is lost, open another and yield its URL."""
        backoff = Backoff((1, 2, 4, 8, 16, 32, 60))
        has_served = False
        while True:
            since = time.monotonic()
            loss = "The tunnel has ended."
            try:
                generator = self.open(upstream)
                check_generator(generator, f"open() of {type(self).__name__}")
                async with contextlib.aclosing(generator) as urls:
                    async with asyncio.timeout(self.START_LIMIT):
                        url = await anext(urls, None)
                    while isinstance(url, str) and url.startswith("https://"):
                        has_served = True
                        yield url
                        url = await anext(urls, None)
                    if url is not None:
                        loss = f"It opened {url}, but API servers need https."
            except TimeoutError:
                loss = f"It was not ready after {self.START_LIMIT:g} s."
            except ConfigurationError as error:
                loss = str(error)
            if not has_served:
                raise ConfigurationError(f"Cannot open the tunnel: {loss}")
            if time.monotonic() - since > _GOOD_LIFE:
                backoff.reset()
            pause = backoff.next() or 0
            logger.warning("Lost the tunnel: %s Opening another one in %g s.", loss, pause)
            await asyncio.sleep(pause)
