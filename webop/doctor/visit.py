"""What every check needs: the client, whom it is for, and what is known so far."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from webop.client.api import Client
from webop.errors import APINotFoundError
from webop.handling.handlers import ResourceHandler, WebhookHandler
from webop.handling.registry import OperatorRegistry
from webop.objects.resources import Resource
from webop.settings import OperatorSettings

Json = dict[str, Any]

ACCOUNT_PREFIX = "system:serviceaccount:"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What users ask for.

    Attributes:
        managed: the name of the webhook configurations; None for what the settings say, or else
            for all that carry marks of webop.
        account: whose permissions are checked; None for those of the one who asks.
        namespaces: where to look for objects, and where the operator works; empty for everywhere.
        is_probing: whether requests (dry run) are sent that the webhooks are asked about.
        registry: the handlers of the operator; None if they are not given.
        calls_startup: whether the startup handlers are called, for what they set.
        startup_timeout: how long they may take, in seconds.
    """

    managed: str | None = None
    account: str | None = None
    namespaces: tuple[str, ...] = ()
    is_probing: bool = True
    registry: OperatorRegistry | None = None
    calls_startup: bool = True
    startup_timeout: float = 10.0

    @property
    def handlers(self) -> list[ResourceHandler]:
        """The handlers of objects, as far as they are known."""
        return [] if self.registry is None else self.registry.select_resource_handlers()

    @property
    def webhooks(self) -> list[WebhookHandler]:
        """The handlers of admission, as far as they are known."""
        return [] if self.registry is None else self.registry.select_webhooks()

    @property
    def home(self) -> str:
        """The namespace of the service account; empty for other accounts."""
        account = self.account or ""
        is_pod = account.startswith(ACCOUNT_PREFIX)
        return account.removeprefix(ACCOUNT_PREFIX).partition(":")[0] if is_pod else ""


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One examination."""

    client: Client
    options: Options
    settings: OperatorSettings
    now: dt.datetime
    username: str | None = None
    resources: Collection[Resource] = field(default_factory=frozenset)

    @property
    def namespace(self) -> str:
        """Where the operator is, as far as it is known."""
        return self.options.home or self.client.vault.default_namespace or "default"

    async def read(self, path: str, **params: str) -> Json | None:
        """Read an object or a list; None if there is none."""
        try:
            answer: Json = await self.client.request("GET", path, params=params)
        except APINotFoundError:
            return None
        return answer
