"""The context of all checks: the operator as it is inspected, the client, what is known so far."""

from __future__ import annotations

import contextlib
import datetime as dt
from dataclasses import dataclass, field
from typing import Any

from webop.cli.required_rights import Inspection
from webop.client.api import Client
from webop.client.standalone import fetch
from webop.errors import APIForbiddenError

Json = dict[str, Any]


@dataclass(kw_only=True)
class Context(Inspection):
    """The state of one diagnosis: the options of the user, and what is known of the cluster.

    The steps of :mod:`webop.cli.doctor.diagnosis` fill it. The options and the client are there
    from the start, `settings` are complete after the startup handlers.

    Attributes:
        managed: the name of the webhook configurations: the option, or else the setting, once the
            settings are complete; None for all in the cluster.
        now: the time of the API server; after the login, as is `username`.
        username: the name of the user's account; None if the API server does not return it.
        replicas: those with a live record; after the webhook configurations. `resources` are there
            before these, and `names` are found with them.
    """

    managed: str | None = None
    is_probing: bool = True
    calls_startup: bool = True
    client: Client = field(init=False)
    now: dt.datetime = field(init=False)
    username: str | None = None
    replicas: set[str] = field(default_factory=set)

    @property
    def is_known(self) -> bool:
        """Whether the handlers and rules are known; else, all operators are checked."""
        return bool(self.registry or self.registry.rules)

    @property
    def namespace(self) -> str:
        """The namespace of the operator itself, as far as it is known."""
        return self.home or self.client.vault.default_namespace or "default"

    async def read(self, path: str, **params: str) -> Json:
        """Return an object or a list; {} if it does not exist."""
        return await fetch(self.client, path, **params)

    async def read_secret(self, namespace: str, name: str) -> Json:
        """Return a Secret; {} if it does not exist or must not be read."""
        with contextlib.suppress(APIForbiddenError):
            return await self.read(f"/api/v1/namespaces/{namespace}/secrets/{name}")
        return {}
