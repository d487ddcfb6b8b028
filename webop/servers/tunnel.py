"""Webhook servers that are reached through a tunnel, for remote clusters.

Flow: API server → the public address of a provider → its agent on this host → a plain local server.
A provider is a subclass of :class:`WebhookTunnel` with one method.

:class:`WebhookNgrokTunnel` runs the agent of ngrok, which pyngrok finds or downloads, in a
subprocess for each tunnel; the log of the agent says what happens. Users' handler files import this
module, so pyngrok is imported only when the tunnel is opened.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from webop.aio.backoff import Backoff, format_pause
from webop.aio.dedicated_threads import call_in_dedicated_thread
from webop.errors import ConfigurationError
from webop.logs.sanitizing import hide_secrets
from webop.servers.base import BaseWebhookServer, WebhookClientConfig, WebhookFn, check_generator
from webop.servers.local import WebhookServer

logger = logging.getLogger(__name__)

_GOOD_LIFE = 60.0  # seconds; after that, a tunnel counts as good, and the backoff is reset
_LOGIN_ADVICE = (
    "Give your authtoken by token= or NGROK_AUTHTOKEN; it is at "
    "https://dashboard.ngrok.com/get-started/your-authtoken."
)
_BUSY_ADVICE = "Stop the other agents of this account (they are listed in ngrok's dashboard)."
# By the codes of the agent: https://ngrok.com/docs/errors/
_ADVICES = {
    **dict.fromkeys(("105", "106", "107", "4018"), _LOGIN_ADVICE),
    **dict.fromkeys(("108", "334"), _BUSY_ADVICE),
}


@dataclass(kw_only=True, eq=False, repr=False)
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

    addr: str | None = None
    port: int | None = None
    path: str | None = None

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
            logger.warning(
                "Lost the tunnel: %s Opening another one in %s s.", loss, format_pause(pause)
            )
            await asyncio.sleep(pause)


@dataclass(kw_only=True, eq=False, repr=False)
class WebhookNgrokTunnel(WebhookTunnel):
    """A local server for reviews behind a public address of ngrok, for remote clusters.

    Args:
        addr: the address for the local server to listen on; "localhost" by default.
        port: its port; 9443 by default; 0 for a free one.
        path: the root path of the URLs; none by default.
        token: the authtoken of ngrok; by default, that of ``NGROK_AUTHTOKEN`` or ``ngrok.yml``.
        region: where the tunnel begins; by default, ngrok takes the nearest one.
        binary: the executable of ngrok: a path, or a name on PATH; by default, pyngrok
            downloads it.
    """

    token: str | None = None
    region: str | None = None
    binary: str | os.PathLike[str] | None = None

    async def open(self, upstream: str) -> AsyncGenerator[str, None]:
        """Run an agent; yield the public URL (:meth:`WebhookTunnel.open`)."""
        path = await call_in_dedicated_thread(_find_agent, self.binary)
        command = [path, "http", upstream, "--log", "stdout", "--log-format", "json"]
        command += ["--region", self.region] if self.region else []
        # Not in the command line, which all users of this host can see.
        environment = os.environ | ({"NGROK_AUTHTOKEN": self.token} if self.token else {})
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            # In its own session, so that Ctrl-C reaches the operator only; see ``finally``.
            agent = await asyncio.create_subprocess_exec(
                *command, env=environment, stdin=null, stdout=pipe, start_new_session=True
            )
        except OSError as error:
            text = f"{error}. Check what {path} is, or set another binary=."
            raise ConfigurationError(text) from error
        complaint = ""
        assert agent.stdout is not None  # noqa: S101 - for the type checker
        try:
            while line := await _read_line(agent.stdout):
                text = hide_secrets(line.decode(errors="replace").rstrip(), self.token)
                logger.debug("ngrok: %s", text)
                record = _parse(line)
                if record.get("msg") == "started tunnel" and record.get("url"):
                    yield str(record["url"])
                elif record.get("lvl") in ("eror", "crit") and record.get("err"):
                    # ngrok quotes a wrong authtoken.
                    text = " ".join(hide_secrets(str(record["err"]), self.token).split())
                    complaint = text.rstrip(".") + ". "
            code = await agent.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                agent.kill()
            await agent.wait()
        found = re.search(r"ERR_NGROK_(\d+)", complaint)
        advice = f"Run {path} by hand to see what is wrong, or set another binary=."
        advice = _ADVICES.get(found[1], advice) if found else advice
        raise ConfigurationError(
            f"The ngrok agent has ended (exit code {code}). {complaint}{advice}"
        )


def _find_agent(binary: str | os.PathLike[str] | None) -> str:
    """Return the path of the executable; download it if it is missing."""
    if binary is not None:
        found = shutil.which(Path(binary).expanduser())
        if found is None:
            raise ConfigurationError(
                f"binary={str(binary)!r} is not an executable. Install ngrok "
                "(https://ngrok.com/download), or omit binary= to let pyngrok download it."
            )
        return found
    try:
        from pyngrok import conf, exception, ngrok  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise ConfigurationError(
            f"Cannot download ngrok without pyngrok ({error}). Run `pip install pyngrok`, "
            "or install ngrok (https://ngrok.com/download) and set binary= to its path."
        ) from error
    config = conf.PyngrokConfig()
    if not Path(config.ngrok_path).exists():
        text = "Downloading ngrok to %s; set binary= to use your own."
        logger.info(text, config.ngrok_path)
    try:
        ngrok.install_ngrok(config)
    except (exception.PyngrokError, OSError) as error:
        raise ConfigurationError(f"{error} Install ngrok and set binary= to it.") from error
    return config.ngrok_path


async def _read_line(log: asyncio.StreamReader) -> bytes:
    """Return the next line; of a line above 64 KiB, only its end."""
    try:
        return await log.readline()
    except ValueError:
        return b"\n"


def _parse(line: bytes) -> dict[str, Any]:
    """Parse a line of the log: ``{"lvl": "info", "msg": "started tunnel", "url": "https://…"}``."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
