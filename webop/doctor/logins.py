"""Credentials for the API server, as operators get them that have no login handlers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

from webop.client.api import Client
from webop.client.credentials import ConnectionInfo, Vault
from webop.client.logins import get_default_logins
from webop.errors import LoginError
from webop.settings import NetworkingSettings

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT = 5.0  # seconds
_REQUEST_TIMEOUT = 60.0  # seconds; of several webhooks, each may take 30


async def log_in() -> Vault:
    """Return the credentials that there are.

    Raises:
        LoginError: there are none.
    """
    infos, problems = {}, []
    for login in get_default_logins():
        info, problem = await asyncio.to_thread(_try, login)
        if info is not None:
            infos[login.__name__] = info
        elif problem:
            problems.append(problem)
    if not infos:
        raise LoginError(" ".join(dict.fromkeys(problems)) or "there are no credentials")
    return Vault(infos)


@contextlib.asynccontextmanager
async def open_client(vault: Vault) -> AsyncIterator[Client]:
    """Give a client that does not try again: whoever looks wants to know now."""
    options = NetworkingSettings(
        error_backoffs=(), connect_timeout=_CONNECT_TIMEOUT, request_timeout=_REQUEST_TIMEOUT
    )
    giving_up = asyncio.create_task(_give_up(vault))
    try:
        async with Client(vault, options) as client:
            yield client
    finally:
        giving_up.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await giving_up


def describe_place() -> str:
    """Say where credentials are looked for."""
    return f"KUBECONFIG is {os.environ.get('KUBECONFIG', 'not set')}"


def _try(login: Callable[..., ConnectionInfo | None]) -> tuple[ConnectionInfo | None, str]:
    try:
        return login(logger=logger), ""
    except LoginError as exc:
        return None, str(exc)
    except Exception as exc:  # noqa: BLE001 - of the client libraries, whatever it is
        return None, f"{type(exc).__name__}: {exc}"


async def _give_up(vault: Vault) -> None:
    """Bring no new credentials when all are refused, so that nobody waits for them."""
    nothing: dict[str, Any] = {}
    while True:
        await vault.wait_for_emptiness()
        await vault.populate(nothing)
