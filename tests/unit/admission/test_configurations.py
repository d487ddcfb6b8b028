"""Webhook configurations of handlers as they are declared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

import webop
from webop.admission.configurations.building import build_configuration
from webop.handlers.model import WebhookType
from webop.handlers.options import WebhookOptions

Json = dict[str, Any]

KEX = webop.Resource(
    "kopf.dev",
    "v1",
    "kopfexamples",
    kind="KopfExample",
    shortcuts=frozenset({"kex"}),
    categories=frozenset({"all"}),
    subresources=frozenset({"status"}),
)
PODS = webop.Resource("", "v1", "pods", kind="Pod", categories=frozenset({"all"}))
OTHERS = webop.Resource("example.com", "v2", "kopfexamples", kind="KopfExample")


def build(
    registry: webop.OperatorRegistry, resources: Iterable[webop.Resource] = (KEX, PODS)
) -> list[Json]:
    """Return the webhooks of a registry with validating handlers."""
    built = build_configuration(
        reason=WebhookType.VALIDATING,
        name="auto.kopf.dev",
        handlers=registry.select_webhooks(),
        resources=frozenset(resources),
        client_config={"url": "https://host:9443"},
    )
    webhooks: list[Json] = built["webhooks"]
    return webhooks


def fn(**_: Any) -> None: ...


@pytest.mark.feature("ADM-13", "ADM-14", "ADM-15", "ADM-16", "ADM-17", "D-17", "D-18")
@pytest.mark.parametrize(
    ("options", "where", "expected"),
    [
        ({"side_effects": True}, "sideEffects", "NoneOnDryRun"),
        ({"side_effects": None}, "sideEffects", "None"),
        ({"ignore_failures": True}, "failurePolicy", "Ignore"),
        ({"ignore_failures": None}, "failurePolicy", "Fail"),
        ({"operation": "CREATE"}, "operations", ["CREATE"]),
        ({"operations": ["UPDATE", "CREATE"]}, "operations", ["CREATE", "UPDATE"]),
        ({"operation": None, "operations": None}, "operations", ["*"]),
        ({"subresource": "status"}, "resources", ["kopfexamples/status"]),
        ({"subresource": "*"}, "resources", ["kopfexamples", "kopfexamples/*"]),
    ],
)
def test_options_of_the_decorators_are_passed_on(
    registry: webop.OperatorRegistry, options: WebhookOptions, where: str, expected: Any
) -> None:
    options["registry"] = registry
    webop.on.validate("kopfexamples", **options)(fn)
    (webhook,) = build(registry)
    found = webhook if where in webhook else webhook["rules"][0]
    assert found[where] == expected


@pytest.mark.feature("ADM-19", "ADM-21")
def test_what_only_the_operator_can_tell_is_not_filtered_by_the_api_server(
    registry: webop.OperatorRegistry,
) -> None:
    @webop.on.validate(
        "kopfexamples",
        labels={"a": "x", "b": lambda value, **_: True},
        annotations={"x": "y"},
        field="spec.x",
        value="y",
        when=lambda **_: True,
        registry=registry,
    )
    def check(**_: Any) -> None: ...

    (webhook,) = build(registry)
    assert webhook["objectSelector"] == {
        "matchExpressions": [{"key": "a", "operator": "In", "values": ["x"]}]
    }


def test_a_category_makes_several_rules_of_one_webhook(registry: webop.OperatorRegistry) -> None:
    webop.on.validate(category="all", registry=registry)(fn)
    (webhook,) = build(registry)
    assert [(rule["apiGroups"], rule["resources"]) for rule in webhook["rules"]] == [
        (["kopf.dev"], ["kopfexamples"]),
        ([""], ["pods"]),
    ]


@pytest.mark.feature("ADM-42")
@pytest.mark.parametrize(
    ("names", "resources", "count"),
    [
        (("nothings",), (KEX, PODS), 0),
        (("kopfexamples",), (), 0),
        (("kopfexamples",), (KEX, OTHERS), 0),
        (("kopf.dev", "kopfexamples"), (KEX, OTHERS), 1),
    ],
)
def test_handlers_of_absent_and_ambiguous_resources_are_left_out(
    registry: webop.OperatorRegistry,
    names: tuple[str, ...],
    resources: tuple[webop.Resource, ...],
    count: int,
) -> None:
    webop.on.validate(*names, registry=registry)(fn)
    assert len(build(registry, resources)) == count


@pytest.mark.feature("ADM-13", "HND-07")
def test_several_decorators_on_one_function_are_several_webhooks_with_names_of_their_own(
    registry: webop.OperatorRegistry,
) -> None:
    @webop.on.validate("kopfexamples", operation="CREATE", registry=registry)
    @webop.on.validate("pods", operation="UPDATE", labels={"a": "b"}, registry=registry)
    def check(**_: Any) -> None: ...

    webhooks = build(registry)
    assert {(w["rules"][0]["resources"][0], *w["rules"][0]["operations"]) for w in webhooks} == {
        ("kopfexamples", "CREATE"),
        ("pods", "UPDATE"),
    }
    assert len({webhook["name"] for webhook in webhooks}) == 2
    assert len({webhook["clientConfig"]["url"] for webhook in webhooks}) == 1
