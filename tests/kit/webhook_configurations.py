"""Webhook configurations as documents, made of the handlers in a registry."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import webop
from webop.admission.configurations import building
from webop.handlers.model import WebhookType
from webop.servers.base import WebhookClientConfig

Json = dict[str, Any]
NAME = "auto.kopf.dev"
SERVICE: WebhookClientConfig = {"service": {"name": "hooks", "namespace": "ops"}}


def build_configuration(
    registry: webop.OperatorRegistry,
    resources: Collection[webop.Resource],
    config: WebhookClientConfig,
    *,
    mutating: bool = False,
    name: str = NAME,
    **exclusions: Any,
) -> Json:
    """Return the configuration of one kind of webhooks in a cluster with these resources."""
    return building.build_configuration(
        reason=WebhookType.MUTATING if mutating else WebhookType.VALIDATING,
        name=name,
        handlers=registry.select_webhooks(),
        resources=resources,
        client_config=config,
        exclusions=building.Exclusions(**exclusions),
    )


def find_path(handler_id: str) -> str:
    """Return the path at which API servers call a handler behind a service."""
    registry, kinds = webop.OperatorRegistry(), [webop.Resource("kopf.dev", "v1", "kopfexamples")]
    webop.on.validate("kopfexamples", id=handler_id, registry=registry)(lambda **_: None)
    (webhook,) = build_configuration(registry, kinds, SERVICE)["webhooks"]
    path: str = webhook["clientConfig"]["service"]["path"]
    return path


def list_dangers(
    registry: webop.OperatorRegistry, resources: Collection[webop.Resource]
) -> list[str]:
    """Return the warnings about webhooks that can stop a cluster."""
    return building.list_dangers(registry.select_webhooks(), resources)
