"""Keeping the webhook configurations in the cluster as the handlers and the server need them.

Chapter "Admission control", "Managed configurations". What goes into them is built in
:mod:`webop.admission.configurations`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from webop.admission.configurations import build_configuration
from webop.client.api import Client
from webop.errors import (
    APIConflictError,
    APIConnectionError,
    APIServerError,
    APITooManyRequestsError,
)
from webop.handling.context import OperatorContext
from webop.handling.handlers import WebhookHandler, WebhookType
from webop.objects.resources import Resource
from webop.servers.base import WebhookClientConfig

logger = logging.getLogger(__name__)

_TRANSIENT = (APIConnectionError, APIServerError, APITooManyRequestsError)
_RETRY_PAUSE = 1.0  # seconds; the client has retried for a while already

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
        self._handlers = operator.registry.select_webhooks()
        self._applied: dict[WebhookType, list[dict[str, Any]]] = {}
        self._config: WebhookClientConfig | None = None
        self._changed = asyncio.Event()
        self._adjusting = asyncio.Lock()
        self._is_withdrawn = False
        self._reported: set[str] = set()
        self.is_applied = asyncio.Event()
        operator.insights.subscribe(self._changed.set)

    def announce(self, config: WebhookClientConfig) -> None:
        """Take over where the server is to be reached from now on."""
        self._config = config
        self._changed.set()

    async def run(self) -> None:
        """Adjust the configurations whenever the server or the resources of the cluster change.

        Raises:
            APIError: the API server refuses the configurations: by RBAC (ADM-43), or because of
                what is in them. As long as it is only not available, they are tried again.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._config is None or not self._operator.insights.is_known:
                continue
            try:
                await self._adjust(self._config)
            except _TRANSIENT as exc:
                logger.warning("The webhooks are not configured yet, to be retried: %s", exc)
                await asyncio.sleep(_RETRY_PAUSE)
                self._changed.set()
            else:
                self.is_applied.set()

    async def withdraw(self) -> None:
        """Remove the records that are not persistent (ADM-47), for good; for a graceful exit."""
        async with self._adjusting:
            self._is_withdrawn = True
            if self._config is not None and self._applied:
                kept = [handler for handler in self._handlers if handler.persistent]
                await self._apply_all(kept, self._config)

    async def _adjust(self, config: WebhookClientConfig) -> None:
        self._report_absent()
        async with self._adjusting:  # what is on its way must not come after the withdrawal
            if not self._is_withdrawn:
                await self._apply_all(self._handlers, config)

    async def _apply_all(
        self, handlers: Sequence[WebhookHandler], config: WebhookClientConfig
    ) -> None:
        name = self._operator.settings.admission.managed
        assert name is not None  # noqa: S101  the manager is only made for a name
        for reason, resource in _KINDS.items():
            body = build_configuration(
                reason=reason,
                name=name,
                handlers=handlers,
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

    def _report_absent(self) -> None:
        """Say once which handlers have no webhook, as nothing of theirs is checked."""
        resources = self._operator.insights.resources
        for handler in self._handlers:
            selector = handler.selector
            if selector is None or selector.select(resources):
                continue
            text = f"{handler} is not in the configurations: {selector} is not in the cluster yet."
            if selector.is_ambiguous(resources):
                names = ", ".join(sorted(r.name for r in selector.find_candidates(resources)))
                text = f"{handler} is not in the configurations: {selector} is ambiguous: {names}."
            if text not in self._reported:
                self._reported.add(text)
                logger.warning(text)
