"""What every check needs: the way to the cluster, whom it is for, and what is known so far."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from webop.client.api import Client
from webop.client.calls import JSON
from webop.errors import APINotFoundError
from webop.handling.registry import OperatorRegistry
from webop.objects.resources import Resource
from webop.settings import OperatorSettings

Json = dict[str, Any]

INSIDE = "Run it inside: kubectl exec deploy/NAME -- webop doctor"


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
    """

    managed: str | None = None
    account: str | None = None
    namespaces: tuple[str, ...] = ()
    is_probing: bool = True
    registry: OperatorRegistry | None = None


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
