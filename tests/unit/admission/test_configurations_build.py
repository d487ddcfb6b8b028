"""Webhook configurations as documents."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

import webop
from webop.admission.configurations.building import (
    build_configuration,
    build_service_id,
    build_webhook_name,
)
from webop.handlers.model import WebhookHandler, WebhookType
from webop.objects.resources import Resource, Selector, parse_selector
from webop.servers.base import WebhookClientConfig

EXAMPLES = Resource("kopf.dev", "v1", "kopfexamples", kind="KopfExample")
OLDER = Resource("kopf.dev", "v1beta1", "kopfexamples", kind="KopfExample", preferred=False)
PODS = Resource("", "v1", "pods", kind="Pod")
RESOURCES = [PODS, OLDER, EXAMPLES]

URL: WebhookClientConfig = {"url": "https://hooks.example/p", "caBundle": "Y2E="}

# What the API server accepts (k8s.io/apimachinery, util/validation).
LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = re.compile(rf"{LABEL}(\.{LABEL})*")


def build_handler(
    id: str = "validate1",
    selector: Selector | None = None,
    reason: WebhookType = WebhookType.VALIDATING,
    **options: Any,
) -> WebhookHandler:
    return WebhookHandler(
        id=id,
        fn=lambda **_: None,
        selector=selector or parse_selector("kopfexamples"),
        reason=reason,
        **options,
    )


def build(
    *handlers: WebhookHandler,
    config: WebhookClientConfig = URL,
    name: str = "auto.kopf.dev",
    resources: list[Resource] = RESOURCES,
) -> list[dict[str, Any]]:
    """Return the webhooks for the handlers."""
    body = build_configuration(
        reason=WebhookType.VALIDATING,
        name=name,
        handlers=handlers,
        resources=resources,
        client_config=config,
    )
    webhooks: list[dict[str, Any]] = body["webhooks"]
    return webhooks


@pytest.mark.feature("ADM-40", "ADM-46")
@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (WebhookType.VALIDATING, "ValidatingWebhookConfiguration"),
        (WebhookType.MUTATING, "MutatingWebhookConfiguration"),
    ],
)
def test_a_configuration_is_a_complete_object(reason: WebhookType, kind: str) -> None:
    body = build_configuration(
        reason=reason,
        name="auto.kopf.dev",
        handlers=[build_handler(reason=reason)],
        resources=RESOURCES,
        client_config=URL,
    )
    assert body == {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "auto.kopf.dev"},
        "webhooks": [
            {
                "name": "validate1.auto.kopf.dev",
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "matchPolicy": "Equivalent",
                "rules": [
                    {
                        "apiGroups": ["kopf.dev"],
                        "apiVersions": ["v1"],
                        "resources": ["kopfexamples"],
                        "operations": ["*"],
                        "scope": "*",
                    }
                ],
                "objectSelector": None,
                "clientConfig": {"url": "https://hooks.example/p/validate1", "caBundle": "Y2E="},
                "timeoutSeconds": 10,
                "admissionReviewVersions": ["v1", "v1beta1"],
            }
        ],
    }


@pytest.mark.feature("ADM-19", "ADM-21")
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (None, None),
        ({}, None),
        ({"a": lambda value, **_: True}, None),
        ({"a": "b"}, [{"key": "a", "operator": "In", "values": ["b"]}]),
        ({"a": webop.PRESENT}, [{"key": "a", "operator": "Exists"}]),
        ({"a": webop.ABSENT}, [{"key": "a", "operator": "DoesNotExist"}]),
        (
            {"a": "", "b": webop.PRESENT, "c": lambda value, **_: False},
            [{"key": "a", "operator": "In", "values": [""]}, {"key": "b", "operator": "Exists"}],
        ),
    ],
)
def test_labels_restrict_the_objects_that_are_sent(
    labels: dict[str, Any] | None, expected: list[dict[str, Any]] | None
) -> None:
    (webhook,) = build(build_handler(labels=labels))
    selector = webhook["objectSelector"]
    assert selector == (None if expected is None else {"matchExpressions": expected})


@pytest.mark.feature("ADM-42")
def test_rules_are_for_the_resources_that_are_served() -> None:
    handler = build_handler(selector=parse_selector("kopf.dev", webop.EVERYTHING))
    more = Resource("kopf.dev", "v1", "another", kind="Another")
    (webhook,) = build(handler, resources=[EXAMPLES, PODS, more])
    assert [rule["resources"] for rule in webhook["rules"]] == [["*"]]
    (again,) = build(handler, resources=[more, PODS, EXAMPLES])
    assert again == webhook  # the order of discovery does not matter
    assert build(handler, resources=[PODS]) == []


@pytest.mark.feature("ADM-42")
def test_handlers_of_ambiguous_resources_are_left_out() -> None:
    both = [EXAMPLES, Resource("example.com", "v2", "kopfexamples", kind="KopfExample")]
    assert build(build_handler(), resources=both) == []
    clear = build_handler(selector=parse_selector("kopf.dev", "kopfexamples"))
    assert len(build(clear, resources=both)) == 1


def test_a_category_makes_several_rules_of_one_webhook() -> None:
    selected = [dataclasses.replace(one, categories=frozenset({"all"})) for one in (EXAMPLES, PODS)]
    (webhook,) = build(build_handler(selector=parse_selector(category="all")), resources=selected)
    assert [rule["resources"] for rule in webhook["rules"]] == [["kopfexamples"], ["pods"]]


@pytest.mark.parametrize(
    ("subresource", "widgets", "core"),
    [
        (None, ["*"], ["pods"]),
        ("*", ["*/*"], ["pods", "pods/*"]),
        ("status", ["*/status"], ["pods/status"]),
    ],
)
def test_everything_has_short_rules_in_a_cluster_with_many_kinds(
    subresource: str | None, widgets: list[str], core: list[str]
) -> None:
    selector = parse_selector(webop.EVERYTHING)
    handler = build_handler(selector=selector, subresource=subresource)
    many = [Resource("example.com", "v1", f"widgets{n}", kind=f"W{n}") for n in range(200)]
    events = Resource("", "v1", "events", kind="Event")  # EVERYTHING does not mean them
    (webhook,) = build(handler, resources=[*many, PODS, events])
    assert [rule["resources"] for rule in webhook["rules"]] == [core, widgets]


@pytest.mark.feature("ADM-45")
@pytest.mark.parametrize(
    ("url", "handler_id", "expected"),
    [
        ("https://h", "validate1", "https://h/validate1"),
        ("https://h/", "validate1", "https://h/validate1"),
        ("https://h:9443/p/q", "fn/spec.field", "https://h:9443/p/q/fn/spec.field"),
        ("https://h", "check_numbers", "https://h/check_numbers"),
        ("https://h", "outer.<locals>.fn", "https://h/outer.%3Clocals%3E.fn"),
        ("https://h", "a?b#c%d", "https://h/a%3Fb%23c%25d"),
        ("https://h", "naïve", "https://h/na%C3%AFve"),
    ],
)
def test_the_id_is_appended_to_the_url(url: str, handler_id: str, expected: str) -> None:
    (webhook,) = build(build_handler(handler_id), config={"url": url})
    assert webhook["clientConfig"] == {"url": expected}


@pytest.mark.feature("ADM-45")
@pytest.mark.parametrize(
    ("path", "handler_id", "expected"),
    [
        (None, "validate1", "/validate1"),
        ("", "validate1", "/validate1"),
        ("/", "validate1", "/validate1"),
        ("/p/q", "fn/spec.field", "/p/q/fn/spec.field"),
        ("p/", "validate1", "/p/validate1"),
    ],
)
def test_the_id_is_appended_to_the_path_of_a_service(
    path: str | None, handler_id: str, expected: str
) -> None:
    config: WebhookClientConfig = {
        "service": {"namespace": "ns", "name": "svc", "path": path, "port": None},
        "url": None,
    }
    (webhook,) = build(build_handler(handler_id), config=config)
    assert webhook["clientConfig"] == {
        "service": {"namespace": "ns", "name": "svc", "path": expected}
    }
    assert config["service"] is not None
    assert config["service"]["path"] == path  # left as it was


ODD_IDS = [
    "check_numbers",
    "checkNumbers",
    "CheckNumbers.run",
    "outer.<locals>.fn/spec.field",
    "lambda:/app/handlers.py:12",
    "_private",
    "__init__",
    "__",
    "a..b",
    "a//b",
    "fn/_x_/y",
    "naïve",
    "x" * 300,
    "x" * 127 + "_" + "y" * 300,
    "-",
    "",
]


@pytest.mark.feature("ADM-44")
@pytest.mark.parametrize(
    ("handler_id", "suffix", "name"),
    [
        ("validate1", "auto.kopf.dev", "validate1.auto.kopf.dev"),
        ("fn/spec.field", "auto.kopf.dev", "fn.spec.field.auto.kopf.dev"),
        ("check_numbers", "auto.kopf.dev", "check-numbers.auto.kopf.dev"),
        ("a:b", "auto.kopf.dev", "a3ab.auto.kopf.dev"),
        ("naïve", "auto.kopf.dev", "nac3afve.auto.kopf.dev"),
        ("checkNumbers", "auto.kopf.dev", "checknumbers.auto.kopf.dev"),
        ("_private", "auto.kopf.dev", "private.auto.kopf.dev"),
        ("fn", "my.operator", "fn.my.operator"),
        ("fn", "operator", "fn.operator.local"),
        ("fn/field", "operator", "fn.field.operator"),
    ],
)
def test_webhooks_are_named_after_the_handlers(handler_id: str, suffix: str, name: str) -> None:
    assert build_webhook_name(handler_id, suffix) == name


@pytest.mark.feature("ADM-44")
@pytest.mark.parametrize("handler_id", ODD_IDS)
@pytest.mark.parametrize("suffix", ["auto.kopf.dev", "operator"])
def test_names_of_any_handlers_are_accepted_by_the_api_server(handler_id: str, suffix: str) -> None:
    name = build_webhook_name(handler_id, suffix)
    assert SUBDOMAIN.fullmatch(name)
    assert len(name) <= 253
    assert name.count(".") >= 2


@pytest.mark.feature("ADM-44")
def test_names_are_unique_in_a_configuration() -> None:
    handlers = [
        build_handler("fn", operations=frozenset({"CREATE"})),
        build_handler("fn", operations=frozenset({"UPDATE"})),
        build_handler("a_b"),
        build_handler("a-b"),
        build_handler("fn-2"),
    ]
    webhooks = build(*handlers)
    assert [webhook["name"].removesuffix(".auto.kopf.dev") for webhook in webhooks] == [
        "fn",
        "fn-2",
        "a-b",
        "a-b-2",
        "fn-2-2",
    ]
    assert [webhook["clientConfig"]["url"].rpartition("/")[2] for webhook in webhooks] == [
        "fn",
        "fn",
        "a_b",
        "a-b",
        "fn-2",
    ]


@pytest.mark.feature("ADM-45")
@pytest.mark.parametrize("handler_id", ["validate1", "fn/spec.field", "a-b.c/d"])
def test_an_id_of_dns_names_stands_for_itself_in_services(handler_id: str) -> None:
    assert build_service_id(handler_id) == handler_id


@pytest.mark.feature("ADM-45")
@pytest.mark.parametrize("handler_id", ODD_IDS)
def test_any_other_id_has_a_substitute_that_the_api_server_accepts(handler_id: str) -> None:
    substitute = build_service_id(handler_id)
    assert substitute != handler_id
    assert all(SUBDOMAIN.fullmatch(text) for text in substitute.split("/"))
    assert all(len(text) <= 253 for text in substitute.split("/"))


def test_substitutes_of_different_ids_differ() -> None:
    ids = ["check_numbers", "check__numbers", "Check_Numbers", "check-numbers", *ODD_IDS]
    assert len({build_service_id(handler_id) for handler_id in ids}) == len(set(ids))


@pytest.mark.feature("ADM-10", "ADM-45")
def test_a_function_that_validates_and_mutates_has_an_endpoint_for_each() -> None:
    registry = webop.OperatorRegistry()
    for decorator in (webop.on.validate, webop.on.mutate):
        decorator("kopfexamples", id="fn", registry=registry)(lambda **_: None)
    urls = {
        reason: build_configuration(
            reason=reason,
            name="auto.example.com",
            handlers=registry.select_webhooks(),
            resources=RESOURCES,
            client_config={"url": "https://host"},
        )["webhooks"][0]["clientConfig"]["url"]
        for reason in WebhookType
    }
    assert urls == {
        WebhookType.VALIDATING: "https://host/validate/fn",
        WebhookType.MUTATING: "https://host/mutate/fn",
    }
