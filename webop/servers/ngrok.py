"""A webhook server that is reached through a tunnel of ngrok: for clusters that are far away.

Flow: API server → ngrok's public endpoint → the agent on this host → a plain local server.
It is named in users' handler files, so pyngrok is imported when the tunnel is opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from webop.errors import ConfigurationError
from webop.servers.base import WebhookClientConfig, WebhookFn
from webop.servers.lifetime import ClosableServer
from webop.servers.local import WebhookServer

if TYPE_CHECKING:
    import os

    from webop.servers.agent import NgrokAgent

logger = logging.getLogger(__name__)

# All in seconds.
_CHECK_PERIOD = 0.5
_FIRST_BACKOFF = 1.0
_LONGEST_BACKOFF = 60.0
# A tunnel that has lasted for so long was a good one: the pauses begin anew after it.
_SOUND_LIFE = 60.0


class WebhookNgrokTunnel(ClosableServer):
    """A local server for reviews behind a public address of ngrok (manual, "Servers and tunnels").

    The local server speaks plain HTTP, the public one HTTPS with a certificate that is trusted
    by default: no authorities are reported. Anybody who guesses the address can send reviews.

    When the agent dies or loses the tunnel, a new one is opened, and its address is yielded.

    Args:
        addr: the address for the local server to listen on; "localhost" by default.
        port: its port; 9443 by default; 0 takes a free one.
        path: the root path of the URLs; none by default.
        token: the authtoken of ngrok; by default, that of ``NGROK_AUTHTOKEN`` or ``ngrok.yml``.
        region: where the tunnel begins; by default, ngrok takes the nearest one.
        binary: the executable of ngrok: a path, or a name on PATH; by default, pyngrok
            downloads it.
    """

    def __init__(
        self,
        *,
        addr: str | None = None,
        port: int | None = None,
        path: str | None = None,
        token: str | None = None,
        region: str | None = None,
        binary: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        self.addr = addr
        self.port = port
        self.path = path
        self.token = token
        self.region = region
        self.binary = binary

    async def _serve(self, fn: WebhookFn) -> AsyncGenerator[WebhookClientConfig, None]:
        agent = self._build_agent()
        addr = WebhookServer.DEFAULT_ADDR if self.addr is None else self.addr  # also in a pod
        server = WebhookServer(addr=addr, port=self.port, path=self.path, insecure=True)
        async with server:
            configs = server(fn)
            local = urlsplit((await anext(configs))["url"] or "")
            urls = self._keep_open(agent, f"{local.scheme}://{local.netloc}")
            async with contextlib.aclosing(urls):
                async for public in urls:
                    url = public + local.path
                    logger.debug("Serving webhooks at %s", url)
                    yield WebhookClientConfig(url=url)

    def _build_agent(self) -> NgrokAgent:
        try:
            from webop.servers.agent import NgrokAgent  # noqa: PLC0415 - an optional dependency
        except ImportError as error:
            raise ConfigurationError(
                f"There is no tunnel without pyngrok ({error}): `pip install 'webop[ngrok]'`."
            ) from error
        return NgrokAgent(binary=self.binary, token=self.token, region=self.region)

    async def _keep_open(self, agent: NgrokAgent, upstream: str) -> AsyncGenerator[str, None]:
        """Yield the public URL of a local one, and the next one whenever the tunnel is lost.

        Raises:
            ConfigurationError: the first tunnel cannot be opened.
        """
        backoff = _FIRST_BACKOFF
        try:
            url = await agent.open(upstream)
            while not self._closing.is_set():
                since = time.monotonic()
                yield url
                loss = await self._wait_for_loss(agent)
                if loss is None:
                    break
                backoff = _FIRST_BACKOFF if time.monotonic() - since > _SOUND_LIFE else backoff
                url, backoff = await self._reopen(agent, upstream, loss, backoff)
        finally:
            await agent.close()

    async def _wait_for_loss(self, agent: NgrokAgent) -> str | None:
        """Wait until the tunnel is lost, and return why; None if all of it is to be closed."""
        while not self._closing.is_set():
            loss = await agent.find_loss()
            if loss is not None:
                return loss
            await self._pause(_CHECK_PERIOD)
        return None

    async def _reopen(
        self, agent: NgrokAgent, upstream: str, loss: str, backoff: float
    ) -> tuple[str, float]:
        """Open a tunnel anew, however long it takes; return its URL and the next backoff.

        An operator that ends would be of no use: its other work goes on without the tunnel.
        """
        while not self._closing.is_set():
            logger.warning("The tunnel is lost: %s The next one is in %g s.", loss, backoff)
            await self._pause(backoff)
            backoff = min(backoff * 2, _LONGEST_BACKOFF)
            try:
                await agent.close()
                return await agent.open(upstream), backoff
            except ConfigurationError as error:
                loss = str(error)
        return "", backoff

    async def _pause(self, seconds: float) -> None:
        """Wait, but not when it is time to close."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()
