"""Keeping the webhook configurations in the cluster as the handlers and the server need them.

Chapter "Admission control", "Managed configurations". What goes into them is built in
:mod:`webop.admission.configurations`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from webop.admission.configurations import build_configuration
from webop.client.api import Client
from webop.errors import APIConflictError
from webop.handling.context import OperatorContext
from webop.handling.handlers import WebhookHandler, WebhookType
from webop.objects.resources import Resource
from webop.servers.base import WebhookClientConfig

logger = logging.getLogger(__name__)

_KINDS = {
    WebhookType.VALIDATING: Resource(
        group="admissionregistration.k8s.io",
        version="v1",
        plural="validatingwebhookconfigurations",
        kind="ValidatingWebhookConfiguration",
        namespaced=False,
    ),
    WebhookType.MUTATING: Resource(
        group="admissionregistration.k8s.io",
        version="v1",
        plural="mutatingwebhookconfigurations",
        kind="MutatingWebhookConfiguration",
        namespaced=False,
    ),
}


class ConfigurationManager:
    """The managed webhook configurations of one operator.

    Args:
        operator: the context of the operator; ``settings.admission.managed`` is the name.
        client: the client of the API server.
    """

    def __init__(self, operator: OperatorContext, client: Client) -> None:
        self._operator = operator
        self._client = client
        self._applied: dict[WebhookType, list[dict[str, Any]]] = {}
        self._config: WebhookClientConfig | None = None
        self._changed = asyncio.Event()
        self.is_applied = asyncio.Event()

    def announce(self, config: WebhookClientConfig) -> None:
        """Take over where the server is to be reached from now on."""
        self._config = config
        self._changed.set()

    async def run(self) -> None:
        """Adjust the configurations whenever the server or the resources of the cluster change."""
        self._operator.insights.subscribe(self._changed.set)
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._config is not None and self._operator.insights.is_known:
                handlers = self._operator.registry.select_webhooks()
                await self._adjust(handlers, self._config)
                self.is_applied.set()

    async def withdraw(self) -> None:
        """Remove the records that are not persistent (ADM-47); for a graceful exit."""
        if self._config is not None and self._applied:
            kept = [h for h in self._operator.registry.select_webhooks() if h.persistent]
            await self._adjust(kept, self._config)

    async def _adjust(
        self, handlers: Iterable[WebhookHandler], config: WebhookClientConfig
    ) -> None:
        name = self._operator.settings.admission.managed
        assert name is not None  # noqa: S101  the manager is only made for a name
        chosen = list(handlers)
        for reason, resource in _KINDS.items():
            body = build_configuration(
                reason=reason,
                name=name,
                handlers=[handler for handler in chosen if handler.reason is reason],
                resources=self._operator.insights.resources,
                client_config=config,
            )
            if self._applied.get(reason) != body["webhooks"]:
                await self._apply(resource, name, body)
                self._applied[reason] = body["webhooks"]

    async def _apply(self, resource: Resource, name: str, body: dict[str, Any]) -> None:
        """Patch the configuration, or create it: needs no other permissions than these."""
        logger.info("Webhooks in %s/%s: %d.", resource.plural, name, len(body["webhooks"]))
        patch = {"webhooks": body["webhooks"]}
        if (
            await self._client.patch_merge(resource, None, name, patch) is None
            and patch["webhooks"]
        ):
            try:
                await self._client.create(resource, None, body)
            except APIConflictError:
                await self._client.patch_merge(resource, None, name, patch)
