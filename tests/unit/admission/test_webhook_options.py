"""Options of admission handlers that only the API server goes by: mistakes, and what is built."""

from __future__ import annotations

from typing import Any, Unpack

import pytest

import webop
from webop.admission.configurations.building import Exclusions, build_configuration
from webop.handlers.model import WebhookHandler, WebhookType
from webop.handlers.options import WebhookOptions

Json = dict[str, Any]

VALIDATING, MUTATING = WebhookType.VALIDATING, WebhookType.MUTATING
KEX = webop.Resource("kopf.dev", "v1", "kopfexamples", kind="KopfExample")
METADATA_NAME = "kubernetes.io/metadata.name"
NOTHING = Exclusions()


def fn(**_: Any) -> None: ...


def declare(
    reason: WebhookType = VALIDATING, **options: Unpack[WebhookOptions]
) -> list[WebhookHandler]:
    """Return the handler that a decorator makes."""
    registry = webop.OperatorRegistry()
    decorator = webop.on.validate if reason is VALIDATING else webop.on.mutate
    options["registry"] = registry
    decorator("kopfexamples", **options)(fn)
    return registry.select_webhooks()


def build_all(
    handlers: list[WebhookHandler], exclusions: Exclusions, *others: webop.Resource
) -> list[Json]:
    """Return the webhooks of handlers in a cluster that has other kinds, too."""
    webhooks: list[Json] = build_configuration(
        reason=handlers[0].reason,
        name="auto.kopf.dev",
        handlers=handlers,
        resources=[KEX, *others],
        client_config={"service": {"name": "hooks", "namespace": "ops"}},
        exclusions=exclusions,
    )["webhooks"]
    return webhooks


def build(handlers: list[WebhookHandler], exclusions: Exclusions = NOTHING) -> Json:
    """Return the webhook of a handler."""
    (webhook,) = build_all(handlers, exclusions)
    return webhook


@pytest.mark.feature("ADM-16", "ADM-17", "ADM-46")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"side_effects": True}, {"sideEffects": "NoneOnDryRun"}),
        ({"side_effects": None}, {"sideEffects": "None"}),
        ({"ignore_failures": True}, {"failurePolicy": "Ignore"}),
        ({"ignore_failures": None}, {"failurePolicy": "Fail"}),
        ({"timeout_seconds": 1}, {"timeoutSeconds": 1}),
        ({"timeout_seconds": None}, {"timeoutSeconds": 10}),
        ({"match_policy": "Exact"}, {"matchPolicy": "Exact"}),
        ({"failure_policy": "Ignore"}, {"failurePolicy": "Ignore"}),
        ({"failure_policy": "Ignore", "ignore_failures": True}, {"failurePolicy": "Ignore"}),
        ({"failure_policy": "Fail", "ignore_failures": False}, {"failurePolicy": "Fail"}),
        ({"match_conditions": {}}, {}),
        (
            {"match_conditions": {"a": "true", "example.com/b": "1 < 2"}},
            {
                "matchConditions": [
                    {"name": "a", "expression": "true"},
                    {"name": "example.com/b", "expression": "1 < 2"},
                ]
            },
        ),
        (
            {"match_conditions": [{"name": "a", "expression": "true"}]},
            {"matchConditions": [{"name": "a", "expression": "true"}]},
        ),
        ({"namespace_selector": {}}, {}),
        ({"namespace_selector": {"matchLabels": {}, "matchExpressions": []}}, {}),
        (
            {"namespace_selector": {"a": "b", "c": webop.PRESENT, "example.com/d": webop.ABSENT}},
            {
                "namespaceSelector": {
                    "matchExpressions": [
                        {"key": "a", "operator": "In", "values": ["b"]},
                        {"key": "c", "operator": "Exists"},
                        {"key": "example.com/d", "operator": "DoesNotExist"},
                    ]
                }
            },
        ),
        (
            {
                "namespace_selector": {
                    "matchLabels": {"a": "b"},
                    "matchExpressions": [
                        {"key": "c", "operator": "NotIn", "values": ("d", "")},
                        {"key": "e", "operator": "Exists"},
                    ],
                }
            },
            {
                "namespaceSelector": {
                    "matchLabels": {"a": "b"},
                    "matchExpressions": [
                        {"key": "c", "operator": "NotIn", "values": ["d", ""]},
                        {"key": "e", "operator": "Exists"},
                    ],
                }
            },
        ),
    ],
)
@pytest.mark.parametrize("reason", [VALIDATING, MUTATING])
def test_options_are_fields_of_the_webhook(
    reason: WebhookType, options: WebhookOptions, expected: Json
) -> None:
    plain = build(declare(reason))
    assert build(declare(reason, **options)) == {**plain, **expected}


@pytest.mark.feature("ADM-46")
def test_by_default_only_what_is_needed_is_in_a_webhook() -> None:
    optional = {"namespaceSelector", "matchConditions", "reinvocationPolicy"}
    assert not optional & build(declare()).keys()


@pytest.mark.feature("ADM-13", "ADM-14", "ADM-15", "ADM-46", "D-17", "D-18")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"scope": "Namespaced"}, {"scope": "Namespaced"}),
        ({"scope": "Cluster"}, {"scope": "Cluster"}),
        ({"operation": "CREATE"}, {"operations": ["CREATE"]}),
        ({"operations": ["UPDATE", "CREATE"]}, {"operations": ["CREATE", "UPDATE"]}),
        ({"operation": None, "operations": None}, {"operations": ["*"], "scope": "*"}),
        ({"subresource": "status"}, {"resources": ["kopfexamples/status"]}),
        ({"subresource": "*"}, {"resources": ["kopfexamples", "kopfexamples/*"]}),
    ],
)
def test_options_are_fields_of_the_rules(options: WebhookOptions, expected: Json) -> None:
    (plain,), (rule,) = build(declare())["rules"], build(declare(**options))["rules"]
    assert rule == {**plain, **expected}


@pytest.mark.parametrize("policy", ["Never", "IfNeeded"])
def test_the_reinvocation_policy_is_of_mutating_webhooks_only(policy: Any) -> None:
    assert build(declare(MUTATING, reinvocation_policy=policy))["reinvocationPolicy"] == policy
    with pytest.raises(TypeError, match=r"reinvocation_policy= is for @webop\.on\.mutate only"):
        declare(VALIDATING, reinvocation_policy=policy)


BAD_VALUE = "up to 63 letters and digits.*, got 'b c'"


def express(**changes: Any) -> Json:
    """Return a selector with an expression that is changed; ... removes a key of it."""
    expression = {"key": "a", "operator": "In", "values": ["b"], **changes}
    kept = {key: value for key, value in expression.items() if value is not ...}
    return {"matchExpressions": [kept]}


@pytest.mark.parametrize(
    ("option", "value", "error", "message"),
    [
        ("timeout_seconds", 0, ValueError, "greater than or equal to 1, got 0"),
        ("timeout_seconds", 31, ValueError, "less than or equal to 30, got 31"),
        ("timeout_seconds", 2.5, TypeError, "a whole number, got 2.5"),
        ("match_policy", "exact", ValueError, "must be 'Exact' or 'Equivalent', got 'exact'"),
        ("failure_policy", "ignore", ValueError, "'Fail' or 'Ignore', got 'ignore'"),
        ("scope", "Namespace", ValueError, "'Namespaced' or 'Cluster', got 'Namespace'"),
        ("match_conditions", "true", TypeError, "mapping of names to CEL expressions"),
        ("match_conditions", [{"name": "a"}], TypeError, r"\[0\]\['expression'\] is missing"),
        ("match_conditions", [{"name": "a", "expression": "b", "c": 1}], TypeError, "unknown"),
        (
            "match_conditions",
            {"a": " "},
            ValueError,
            "must be a CEL expression, such as .*, got ' '",
        ),
        ("match_conditions", {"a b": "true"}, ValueError, "a name like 'app' .*, got 'a b'"),
        ("match_conditions", {"x" * 64: "true"}, ValueError, "up to 63 characters"),
        (
            "match_conditions",
            [{"name": "a", "expression": "true"}, {"name": "a", "expression": "false"}],
            ValueError,
            "a different name for each condition",
        ),
        (
            "match_conditions",
            {f"c{number}": "true" for number in range(65)},
            ValueError,
            "at most 64 conditions",
        ),
        ("namespace_selector", "a=b", TypeError, "a mapping of labels"),
        ("namespace_selector", {"a": None}, TypeError, "PRESENT or ABSENT"),
        ("namespace_selector", {"a b": "c"}, ValueError, "a name like 'app' .*, got 'a b'"),
        ("namespace_selector", {"matchLabels": {}, "a": "b"}, TypeError, r"\['a'\] is unknown"),
        ("namespace_selector", express(operator=...), TypeError, "operator.* missing"),
        (
            "namespace_selector",
            express(operator="in"),
            ValueError,
            "'In', 'NotIn', 'Exists' or 'DoesNotExist', got 'in'",
        ),
        ("namespace_selector", express(operator="Exists"), ValueError, "no values for Exists"),
        ("namespace_selector", express(values=[]), ValueError, "a list of values for In"),
        ("namespace_selector", express(values=["b c"]), ValueError, BAD_VALUE),
        ("namespace_selector", express(value="b"), TypeError, r"\['value'\] is unknown"),
        # The same for labels, as they go to the API server, too.
        ("labels", {"a b": "c"}, ValueError, "a name like .*, got 'a b'"),
        ("labels", {"a": "b c"}, ValueError, BAD_VALUE),
    ],
)
def test_what_the_api_server_would_not_take_is_told_at_import(
    option: str, value: Any, error: type[Exception], message: str
) -> None:
    options: Any = {option: value}
    with pytest.raises(error, match=message) as caught:
        declare(MUTATING, **options)
    assert option in str(caught.value)


@pytest.mark.feature("ADM-17")
def test_failures_cannot_be_ignored_and_not_ignored() -> None:
    with pytest.raises(TypeError, match=r"ignore_failures=True and failure_policy='Fail' exclude"):
        declare(ignore_failures=True, failure_policy="Fail")


def test_the_namespace_of_the_operator_can_be_exempted() -> None:
    exemption = {"key": METADATA_NAME, "operator": "NotIn", "values": ["ns"]}
    plain = build(declare(), Exclusions(namespace="ns"))
    assert plain["namespaceSelector"] == {"matchExpressions": [exemption]}
    assert "matchConditions" not in plain

    handlers = declare(namespace_selector={"a": webop.PRESENT})
    expressions = [{"key": "a", "operator": "Exists"}, exemption]
    for _ in range(2):  # nothing piles up in the handler
        webhook = build(handlers, Exclusions(namespace="ns"))
        assert webhook["namespaceSelector"] == {"matchExpressions": expressions}

    labels = declare(namespace_selector={"matchLabels": {"a": "b"}})
    assert build(labels, Exclusions(namespace="ns"))["namespaceSelector"] == {
        "matchLabels": {"a": "b"},
        "matchExpressions": [exemption],
    }


POD = webop.Resource("", "v1", "pods", kind="Pod")
OTHER = webop.Resource("example.com", "v1", "pods", kind="Pod")


@pytest.mark.parametrize(
    ("names", "options", "values"),
    [
        (("pods",), {}, ["kube-system", "ops"]),
        (("v1", "pods"), {"subresource": "ephemeralcontainers"}, ["kube-system", "ops"]),
        ((webop.EVERYTHING,), {}, ["kube-system", "ops"]),
        (("pods",), {"namespace_selector": {}}, []),
        (("pods",), {"namespace_selector": {"a": "b"}}, []),
        (("kopfexamples",), {}, []),
        (("example.com", "pods"), {}, []),
        (("kopf.dev", webop.EVERYTHING), {}, []),
    ],
)
def test_webhooks_for_pods_do_not_keep_the_cluster_and_their_own_pods_from_starting(
    registry: webop.OperatorRegistry, names: Any, options: Any, values: list[str]
) -> None:
    webop.on.validate(*names, **options)(fn)
    exclusions = Exclusions(secret=("ops", "cert"))
    (webhook,) = build_all(registry.select_webhooks(), exclusions, POD, OTHER)
    expressions = webhook.get("namespaceSelector", {}).get("matchExpressions", ())
    found = [one["values"] for one in expressions if one["operator"] == "NotIn"]
    assert found == ([values] if values else [])


@pytest.mark.parametrize(
    ("username", "literal"),
    [
        ("system:serviceaccount:ns:name", '"system:serviceaccount:ns:name"'),
        ('a"b\\c', r'"a\"b\\c"'),
        ("a\nb", r'"a\nb"'),
        ("é😀", '"é😀"'),
    ],
)
def test_the_account_of_the_operator_can_be_exempted(username: str, literal: str) -> None:
    webhook = build(declare(), Exclusions(username=username))
    assert webhook["matchConditions"] == [
        {"name": "not-by-the-operator", "expression": f"request.userInfo.username != {literal}"}
    ]
    assert "namespaceSelector" not in webhook


def test_the_condition_of_the_exemption_has_a_name_of_its_own() -> None:
    conditions = {"not-by-the-operator": "true", "not-by-the-operator-2": "true"}
    webhook = build(declare(match_conditions=conditions), Exclusions(username="u"))
    names = [condition["name"] for condition in webhook["matchConditions"]]
    assert names == [*conditions, "not-by-the-operator-3"]


def test_the_exemption_does_not_exceed_the_number_of_conditions() -> None:
    conditions = {f"c{number}": "true" for number in range(64)}
    webhook = build(declare(match_conditions=conditions), Exclusions(username="u"))
    assert len(webhook["matchConditions"]) == 64
    assert webhook["matchConditions"][-1] == {
        "name": "c63",
        "expression": '(true\n) && (request.userInfo.username != "u")',
    }


def test_webhooks_of_secrets_leave_out_the_one_that_the_operator_needs_to_start(
    registry: webop.OperatorRegistry,
) -> None:
    secrets = webop.Resource("", "v1", "secrets", kind="Secret")
    webop.on.validate("secrets", id="guard")(fn)
    webop.on.validate("kopfexamples", id="check")(fn)
    exclusions = Exclusions(secret=("ns", "certs"))
    guard, check = build_all(registry.select_webhooks(), exclusions, secrets)
    (condition,) = guard["matchConditions"]
    assert condition["name"] == "not-the-certificate"
    assert 'request.namespace != "ns"' in condition["expression"]
    assert 'request.name != "certs"' in condition["expression"]
    assert "matchConditions" not in check
