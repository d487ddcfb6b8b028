"""A client for commands that look at a cluster, maybe change something, and end.

It does not try again what has failed: whoever asks wants to know now.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator

from webop.client.api import Client
from webop.client.credentials import Vault
from webop.client.logins import describe_failure, get_default_logins
from webop.errors import LoginError
from webop.settings import NetworkingSettings

logger = logging.getLogger(__name__)
_CONNECT_TIMEOUT = 5.0  # seconds
_REQUEST_TIMEOUT = 60.0  # seconds; of several webhooks, each may take 30


@contextlib.asynccontextmanager
async def connect() -> AsyncIterator[Client]:
    """Log in by the kubeconfig or the service account, and give a client.

    Raises:
        LoginError: there are no credentials, or they are refused.
    """
    vault = await _log_in()
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


async def _log_in() -> Vault:
    infos, problems = {}, []
    for login in get_default_logins():
        try:
            info = await asyncio.to_thread(login, logger=logger)
        except LoginError as exc:
            problems.append(str(exc))
        except Exception as exc:  # noqa: BLE001 - of the client libraries, whatever it is
            problems.append(f"{describe_failure(login, exc)}.")
        else:
            if info is not None:
                infos[login.__name__] = info
    if not infos:
        why = " ".join(dict.fromkeys(problems)) or "there are no credentials"
        place = f"KUBECONFIG is {os.environ.get('KUBECONFIG', 'not set')}"
        raise LoginError(f"Cannot log in to the cluster ({place}): {why}")
    return Vault(infos)


async def _give_up(vault: Vault) -> None:
    """Bring no new credentials when all are refused, so that nobody waits for them."""
    while True:
        await vault.wait_for_emptiness()
        await vault.populate({})
