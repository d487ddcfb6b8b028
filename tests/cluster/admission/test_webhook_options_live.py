"""Options of webhooks on a real API server: it takes them all, and goes by them."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from tests.kit.managed_webhooks import KINDS, Site
from webop.admission.configurations.building import Exclusions, build_configuration
from webop.handlers.model import WebhookType
from webop.handlers.options import WebhookOptions

Json = dict[str, Any]


@pytest.mark.feature("ADM-46")
@pytest.mark.parametrize("reason", KINDS)
async def test_the_api_server_takes_all_options_at_once(
    site: Site, registry: webop.OperatorRegistry, reason: WebhookType
) -> None:
    options: WebhookOptions = {
        "id": "check",
        "registry": registry,
        "operations": ["CREATE", "UPDATE"],
        "subresource": "*",
        "side_effects": True,
        "labels": {"a": "b", "example.com/c": webop.PRESENT, "d": webop.ABSENT},
        "failure_policy": "Ignore",
        "timeout_seconds": 7,
        "namespace_selector": {
            "matchLabels": {"a": "", "example.com/b": "c"},
            "matchExpressions": [
                {"key": "d", "operator": "In", "values": ["e", ""]},
                {"key": "f", "operator": "NotIn", "values": ["g"]},
                {"key": "h", "operator": "Exists"},
                {"key": "i", "operator": "DoesNotExist"},
            ],
        },
        "match_conditions": {
            f"example.com/c{number}": "object.spec.x > 1 // as it is" for number in range(64)
        },
        "match_policy": "Exact",
        "scope": "Namespaced",
    }
    if reason is WebhookType.MUTATING:
        options["reinvocation_policy"] = "IfNeeded"
    decorator = webop.on.validate if reason is WebhookType.VALIDATING else webop.on.mutate
    decorator(*site.names, **options)(lambda **_: None)
    built = build_configuration(
        reason=reason,
        name=site.name,
        handlers=registry.select_webhooks(),
        resources=[site.objects.kind.resource],
        client_config={"url": "https://localhost:1/hooks"},
        exclusions=Exclusions(namespace="some-namespace", username='a "user" \\ 😀\n'),
    )
    await site.client.create(KINDS[reason], None, built)
    (sent,) = built["webhooks"]
    (taken,) = await site.get_webhooks(reason) or []
    assert len(taken["matchConditions"]) == 64
    assert taken == {**sent, "name": "check"}
