"""Clients for commands and scripts, outside of operators.

Commands do not retry failed requests, because their users want to know at once. Scripts retry them.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from webop.aio.concurrency import running
from webop.client.api import Client
from webop.client.auth.logins import call_default_logins
from webop.client.auth.vault import ConnectionInfo, Vault
from webop.client.current_client import current_client
from webop.client.http.sessions import build_transport
from webop.client.objects import AsyncClient
from webop.errors import APINotFoundError, LoginError
from webop.telemetry.tracing import set_up_tracing

logger = logging.getLogger(__name__)

transport_factory = build_transport
"""Makes the connections of these clients; a plan replaces it, so that handlers write nothing."""


@dataclass
class Networking:
    """Timeouts and pauses, in seconds; see :class:`webop.client.http.sessions.NetworkOptions`."""

    error_backoffs: tuple[float, ...] = ()
    connect_timeout: float | None = 5.0
    request_timeout: float | None = 60.0  # of several webhooks, each may take 30
    enforce_retry_after: bool = False
    trust_env: bool = False


@contextlib.asynccontextmanager
async def connect_command(
    pauses: tuple[float, ...] = (), *, info: ConnectionInfo | None = None
) -> AsyncIterator[Client]:
    """Log in with the kubeconfig or the service account, and yield a client for plain requests.

    A request that fails is retried after each of the pauses, in seconds. With given credentials,
    there is no login.

    Raises:
        LoginError: there are no credentials, or they are refused.
    """
    vault = await _log_in() if info is None else Vault({"given": info})
    client = Client(vault, Networking(pauses), transport_factory=transport_factory)
    async with running(_give_up(vault), name="end of the credentials"), client:
        yield client


async def fetch(client: Client, path: str, **params: str) -> dict[str, Any]:
    """Return an object or a list; an empty dict if it does not exist."""
    with contextlib.suppress(APINotFoundError):
        return dict(await client.request("GET", path, params=params))
    return {}


@contextlib.asynccontextmanager
async def connect(*, field_manager: str = "webop") -> AsyncIterator[AsyncClient]:
    """Yield the client that handlers get, for code outside of operators, such as scripts.

    ::

        async with webop.client.connect() as client:
            for pod in await client.list("pods", namespace="default"):
                print(pod["metadata"]["name"])

    It logs in once, with the kubeconfig or the service account. Functions that are called in the
    block get it with :func:`webop.client.current`.

    Args:
        field_manager: the field manager for the fields that it writes.

    Raises:
        LoginError: there are no credentials, or they are refused.
    """
    set_up_tracing()
    async with connect_command((1.0, 2.0, 4.0, 8.0)) as requests:
        before = current_client.get()
        client = AsyncClient(requests, get_manager=lambda: field_manager)
        client.enter()
        try:
            yield client
        finally:
            current_client.set(before)


async def _log_in() -> Vault:
    outcome = await call_default_logins(logger)
    if not outcome.infos:
        why = outcome.explain() or "there are no credentials"
        place = f"KUBECONFIG is {os.environ.get('KUBECONFIG', 'not set')}"
        raise LoginError(f"Cannot log in to the cluster ({place}): {why}")
    return Vault(outcome.infos)


async def _give_up(vault: Vault) -> None:
    """Let requests fail when all credentials are refused: there will be no new ones."""
    while True:
        await vault.wait_for_emptiness()
        await vault.populate({})
