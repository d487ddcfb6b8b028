"""Webhook configurations as documents: from handlers and resources to what the API server needs.

Pure. The format is that of the Kubernetes API, admissionregistration.k8s.io/v1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from webop.handling.filters import ABSENT, PRESENT
from webop.handling.handlers import WebhookHandler, WebhookType
from webop.objects.resources import Resource
from webop.servers.base import WebhookClientConfig

_KINDS = {
    WebhookType.VALIDATING: "ValidatingWebhookConfiguration",
    WebhookType.MUTATING: "MutatingWebhookConfiguration",
}
_TIMEOUT = 30  # seconds; the longest that Kubernetes allows


def build_configuration(
    *,
    reason: WebhookType,
    name: str,
    handlers: Iterable[WebhookHandler],
    resources: Collection[Resource],
    client_config: WebhookClientConfig,
) -> dict[str, Any]:
    """Return a Validating- or MutatingWebhookConfiguration object (ADM-40 to 46).

    Args:
        reason: which of the two.
        name: its name, which is also the suffix of the names of the webhooks.
        handlers: the handlers of this type.
        resources: those of the cluster; webhooks of handlers that match none are left out.
        client_config: where the server is.
    """
    webhooks = []
    for handler in handlers:
        rules = _build_rules(handler, resources)
        if rules:
            webhooks.append(_build_webhook(handler, name, rules, client_config))
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": _KINDS[reason],
        "metadata": {"name": name},
        "webhooks": webhooks,
    }


def build_webhook_name(handler_id: str, suffix: str) -> str:
    """Return a DNS name for a webhook: slashes become dots, other characters dashes or hex."""
    parts = []
    for char in handler_id.lower():
        if char.isascii() and (char.isalnum() or char in "-."):
            parts.append(char)
        else:
            parts.append({"/": ".", "_": "-"}.get(char) or f"{ord(char):02x}")
    return f"{''.join(parts).strip('-.')}.{suffix}"


def _build_webhook(
    handler: WebhookHandler,
    suffix: str,
    rules: list[dict[str, Any]],
    client_config: WebhookClientConfig,
) -> dict[str, Any]:
    return {
        "name": build_webhook_name(handler.id, suffix),
        "sideEffects": "NoneOnDryRun" if handler.side_effects else "None",
        "failurePolicy": "Ignore" if handler.ignore_failures else "Fail",
        "matchPolicy": "Equivalent",
        "rules": rules,
        "objectSelector": _build_selector(handler.labels),
        "clientConfig": _build_client_config(client_config, handler.id),
        "timeoutSeconds": _TIMEOUT,
        "admissionReviewVersions": ["v1", "v1beta1"],
    }


def _build_rules(handler: WebhookHandler, resources: Iterable[Resource]) -> list[dict[str, Any]]:
    if handler.selector is None:
        return []
    found = sorted(handler.selector.select(resources), key=lambda resource: resource.name)
    return [
        {
            "apiGroups": [resource.group],
            "apiVersions": [resource.version],
            "resources": _build_names(resource, handler.subresource),
            "operations": sorted(handler.operations) or ["*"],
            "scope": "*",
        }
        for resource in found
    ]


def _build_names(resource: Resource, subresource: str | None) -> list[str]:
    """Return what the handler is for; "*" is the main body, too, unlike in Kubernetes (D-18)."""
    if subresource is None:
        return [resource.plural]
    if subresource == "*":
        return [resource.plural, f"{resource.plural}/*"]
    return [f"{resource.plural}/{subresource}"]


def _build_selector(labels: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what the API server can filter by itself: all but callbacks (ADM-19, ADM-21)."""
    expressions: list[dict[str, Any]] = []
    for key, criterion in (labels or {}).items():
        if criterion is PRESENT:
            expressions.append({"key": key, "operator": "Exists"})
        elif criterion is ABSENT:
            expressions.append({"key": key, "operator": "DoesNotExist"})
        elif isinstance(criterion, str):
            expressions.append({"key": key, "operator": "In", "values": [criterion]})
    return {"matchExpressions": expressions} if expressions else None


def _build_client_config(config: WebhookClientConfig, handler_id: str) -> dict[str, Any]:
    """Return the config with the id appended to the path (ADM-45)."""
    result: dict[str, Any] = {key: value for key, value in config.items() if value is not None}
    path = quote(handler_id)
    if result.get("url"):
        result["url"] = f"{str(result['url']).rstrip('/')}/{path}"
    if result.get("service"):
        service = dict(result["service"])
        service["path"] = f"{(service.get('path') or '').rstrip('/')}/{path}"
        result["service"] = service
    return result
