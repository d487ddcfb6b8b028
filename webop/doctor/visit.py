"""What every check needs: credentials and a client, whom it is for, and what is known so far."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import os
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from webop.client.api import Client
from webop.client.calls import JSON
from webop.client.credentials import Vault
from webop.client.logins import describe_failure, get_default_logins
from webop.errors import APINotFoundError, LoginError
from webop.handling.registry import OperatorRegistry
from webop.objects.resources import Resource
from webop.settings import NetworkingSettings, OperatorSettings

Json = dict[str, Any]

INSIDE = "Run it inside: kubectl exec deploy/NAME -- webop doctor"

logger = logging.getLogger(__name__)
_CONNECT_TIMEOUT = 5.0  # seconds
_REQUEST_TIMEOUT = 60.0  # seconds; of several webhooks, each may take 30


@dataclass(frozen=True, kw_only=True)
class Options:
    """What users ask for.

    Attributes:
        managed: the name of the configurations; None for what the environment says, or else all
            that carry marks of webop.
        account: whose permissions are checked; None for those of the one who asks.
        namespaces: where to look for objects, and where the operator works; empty for everywhere.
        is_probing: whether requests (dry run) are sent that the webhooks are asked about.
        registry: the handlers of the operator; None if they are not given.
        calls_startup: whether the startup handlers are called, for what they set.
    """

    managed: str | None = None
    account: str | None = None
    namespaces: tuple[str, ...] = ()
    is_probing: bool = True
    registry: OperatorRegistry | None = None
    calls_startup: bool = True


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One examination."""

    client: Client
    options: Options
    settings: OperatorSettings
    now: dt.datetime
    username: str | None = None
    namespace: str = "default"
    resources: Collection[Resource] = field(default_factory=frozenset)

    async def read(self, path: str, params: Mapping[str, str] | None = None) -> Json | None:
        """Read an object or a list; None if there is none."""
        try:
            answer: Json = await self.client.request("GET", path, params=params)
        except APINotFoundError:
            return None
        return answer

    async def ask(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        content_type: str = JSON,
        is_dry: bool = False,
    ) -> Json:
        """Send a request with a body, return the answer."""
        params = {"dryRun": "All"} if is_dry else None
        answer: Json = await self.client.request(
            method, path, params=params, body=body, content_type=content_type
        )
        return answer


async def log_in() -> Vault:
    """Return the credentials that there are.

    Raises:
        LoginError: there are none.
    """
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


async def _give_up(vault: Vault) -> None:
    """Bring no new credentials when all are refused, so that nobody waits for them."""
    nothing: dict[str, Any] = {}
    while True:
        await vault.wait_for_emptiness()
        await vault.populate(nothing)
