"""Options of admission handlers that only the API server goes by: mistakes, and what is built."""

from __future__ import annotations

from typing import Any, Unpack

import pytest

import webop
from webop.admission.managed.configurations import Exemptions, build_configuration
from webop.handling.handlers import WebhookHandler, WebhookType
from webop.handling.options import WebhookOptions

Json = dict[str, Any]

VALIDATING, MUTATING = WebhookType.VALIDATING, WebhookType.MUTATING
KEX = webop.Resource("kopf.dev", "v1", "kopfexamples", kind="KopfExample")
METADATA_NAME = "kubernetes.io/metadata.name"


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


def build(handlers: list[WebhookHandler], exemptions: Exemptions | None = None) -> dict[str, Any]:
    """Return the webhook of a handler."""
    (handler,) = handlers
    configuration = build_configuration(
        reason=handler.reason,
        name="auto.kopf.dev",
        handlers=handlers,
        resources=[KEX],
        client_config={"url": "https://host"},
        **({} if exemptions is None else {"exemptions": exemptions}),
    )
    (webhook,) = configuration["webhooks"]
    assert isinstance(webhook, dict)
    return webhook


@pytest.mark.feature("ADM-46")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"timeout_seconds": 1}, {"timeoutSeconds": 1}),
        ({"timeout_seconds": 30}, {"timeoutSeconds": 30}),
        ({"timeout_seconds": None}, {"timeoutSeconds": 30}),
        ({"match_policy": "Exact"}, {"matchPolicy": "Exact"}),
        ({"match_policy": "Equivalent"}, {"matchPolicy": "Equivalent"}),
        ({"failure_policy": "Ignore"}, {"failurePolicy": "Ignore"}),
        ({"failure_policy": "Fail"}, {"failurePolicy": "Fail"}),
        ({"failure_policy": "Ignore", "ignore_failures": True}, {"failurePolicy": "Ignore"}),
        ({"failure_policy": "Ignore", "ignore_failures": False}, {"failurePolicy": "Ignore"}),
        ({"failure_policy": "Fail", "ignore_failures": False}, {"failurePolicy": "Fail"}),
        ({"match_conditions": {}}, {}),
        ({"match_conditions": []}, {}),
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


@pytest.mark.feature("ADM-46")
@pytest.mark.parametrize("scope", ["*", "Namespaced", "Cluster"])
def test_the_scope_is_a_field_of_the_rules(scope: Any) -> None:
    assert build(declare(scope=scope))["rules"][0]["scope"] == scope


@pytest.mark.parametrize("policy", ["Never", "IfNeeded"])
def test_the_reinvocation_policy_is_of_mutating_webhooks_only(policy: Any) -> None:
    assert build(declare(MUTATING, reinvocation_policy=policy))["reinvocationPolicy"] == policy
    with pytest.raises(TypeError, match=r"reinvocation_policy= is for @on\.mutate only"):
        declare(VALIDATING, reinvocation_policy=policy)


LABELS = {"key": "a", "operator": "In", "values": ["b"]}


@pytest.mark.parametrize(
    ("option", "value", "error", "message"),
    [
        ("timeout_seconds", 0, ValueError, "from 1 to 30, not 0"),
        ("timeout_seconds", 31, ValueError, "from 1 to 30, not 31"),
        ("timeout_seconds", 2.5, TypeError, "whole number of seconds, not 2.5"),
        ("timeout_seconds", True, TypeError, "not True"),
        ("timeout_seconds", "5", TypeError, "not '5'"),
        ("match_policy", "exact", ValueError, "'Exact' or 'Equivalent', not 'exact'"),
        ("match_policy", 1, TypeError, "'Exact' or 'Equivalent', not 1"),
        ("failure_policy", "ignore", ValueError, "'Fail' or 'Ignore', not 'ignore'"),
        ("failure_policy", True, TypeError, "'Fail' or 'Ignore', not True"),
        ("scope", "Namespace", ValueError, "'Namespaced' or 'Cluster', not 'Namespace'"),
        ("scope", ["*"], TypeError, "'Namespaced' or 'Cluster'"),
        ("match_conditions", "true", TypeError, "mapping of names to CEL expressions"),
        ("match_conditions", 5, TypeError, "mapping of names to CEL expressions"),
        ("match_conditions", ["true"], TypeError, "items of 'name' and 'expression', not 'true'"),
        ("match_conditions", [{"name": "a"}], TypeError, "items of 'name' and 'expression'"),
        ("match_conditions", [{"name": "a", "expression": "b", "c": 1}], TypeError, "items of"),
        ("match_conditions", {"a": None}, TypeError, "a CEL expression for 'a'"),
        ("match_conditions", {"a": lambda **_: True}, TypeError, "a CEL expression for 'a'"),
        ("match_conditions", {"a": " "}, ValueError, "empty expression for 'a'"),
        ("match_conditions", {"a b": "true"}, ValueError, "'a b', which is no name"),
        ("match_conditions", {"": "true"}, ValueError, "'', which is no name"),
        ("match_conditions", {5: "true"}, ValueError, "5, which is no name"),
        ("match_conditions", {"A/b": "true"}, ValueError, "'A/b', which is no name"),
        ("match_conditions", {"/b": "true"}, ValueError, "'/b', which is no name"),
        ("match_conditions", {"x" * 64: "true"}, ValueError, "which is no name"),
        (
            "match_conditions",
            [{"name": "a", "expression": "true"}, {"name": "a", "expression": "false"}],
            ValueError,
            "two of the name 'a'",
        ),
        (
            "match_conditions",
            {f"c{number}": "true" for number in range(65)},
            ValueError,
            "65 of at most 64",
        ),
        ("namespace_selector", "a=b", TypeError, "a mapping of labels"),
        ("namespace_selector", ["a"], TypeError, "a mapping of labels"),
        ("namespace_selector", {"a": None}, TypeError, "PRESENT or ABSENT"),
        ("namespace_selector", {"a": lambda **_: True}, TypeError, "only the API server knows"),
        ("namespace_selector", {"a b": "c"}, ValueError, "'a b', which is no name of a label"),
        ("namespace_selector", {"a": "b c"}, ValueError, "'b c', which no label can be"),
        ("namespace_selector", {"a": "x" * 64}, ValueError, "which no label can be"),
        ("namespace_selector", {5: "b"}, ValueError, "5, which is no name of a label"),
        ("namespace_selector", {"matchLabels": "a"}, TypeError, "matchLabels 'a'"),
        ("namespace_selector", {"matchLabels": {"a": 1}}, TypeError, "'a': 1, no string"),
        ("namespace_selector", {"matchLabels": {"-a": "1"}}, ValueError, "'-a', which is no name"),
        ("namespace_selector", {"matchLabels": {}, "a": "b"}, ValueError, "'a' beside"),
        ("namespace_selector", {"matchExpressions": {}}, TypeError, "no list"),
        ("namespace_selector", {"matchExpressions": ["a"]}, TypeError, "'key', 'operator'"),
        ("namespace_selector", {"matchExpressions": [{"key": "a"}]}, TypeError, "'operator'"),
        (
            "namespace_selector",
            {"matchExpressions": [{**LABELS, "operator": "in"}]},
            ValueError,
            "the operator 'in', not 'In' or 'NotIn' or 'Exists' or 'DoesNotExist'",
        ),
        (
            "namespace_selector",
            {"matchExpressions": [{**LABELS, "operator": "Exists"}]},
            ValueError,
            "values for Exists of 'a': drop them",
        ),
        (
            "namespace_selector",
            {"matchExpressions": [{**LABELS, "values": []}]},
            ValueError,
            "needs a list of values for In of 'a'",
        ),
        (
            "namespace_selector",
            {"matchExpressions": [{**LABELS, "values": "b"}]},
            ValueError,
            "needs a list of values for In of 'a'",
        ),
        (
            "namespace_selector",
            {"matchExpressions": [{**LABELS, "values": [1]}]},
            TypeError,
            "the value 1 for 'a'",
        ),
        (
            "namespace_selector",
            {"matchExpressions": [{**LABELS, "values": ["b c"]}]},
            ValueError,
            "'b c', which no label can be",
        ),
        (
            "namespace_selector",
            {"matchExpressions": [{**LABELS, "key": "a/"}]},
            ValueError,
            "'a/', which is no name",
        ),
        (
            "namespace_selector",
            {"matchExpressions": [{**LABELS, "value": "b"}]},
            ValueError,
            "'value' in the expression of 'a'",
        ),
        # The same for labels, as they go to the API server, too.
        ("labels", {"a b": "c"}, ValueError, "'a b', which is no name of a label"),
        ("labels", {"a": "b c"}, ValueError, "'b c', which no label can be"),
        ("labels", {"": webop.PRESENT}, ValueError, "'', which is no name of a label"),
    ],
)
def test_what_the_api_server_would_not_take_is_told_at_import(
    option: str, value: Any, error: type[Exception], message: str
) -> None:
    options: Any = {option: value}
    with pytest.raises(error, match=message) as caught:
        declare(MUTATING, **options)
    assert option in str(caught.value)


def test_labels_of_callbacks_can_have_any_name() -> None:
    (handler,) = declare(labels={"a b": lambda value, **_: True})
    assert build([handler])["objectSelector"] is None


@pytest.mark.feature("ADM-17")
def test_failures_cannot_be_ignored_and_not_ignored() -> None:
    with pytest.raises(TypeError, match=r"ignore_failures=True and failure_policy='Fail' exclude"):
        declare(ignore_failures=True, failure_policy="Fail")


@pytest.mark.feature("ADM-18")
def test_the_option_of_timeouts_is_suggested() -> None:
    options: Any = {"timeout": 5}
    with pytest.raises(TypeError, match=r"option 'timeout' .* did you mean 'timeout_seconds'"):
        declare(**options)


def test_the_namespace_of_the_operator_can_be_exempted() -> None:
    exemption = {"key": METADATA_NAME, "operator": "NotIn", "values": ["ns"]}
    plain = build(declare(), Exemptions(namespace="ns"))
    assert plain["namespaceSelector"] == {"matchExpressions": [exemption]}
    assert "matchConditions" not in plain

    handlers = declare(namespace_selector={"a": webop.PRESENT})
    expressions = [{"key": "a", "operator": "Exists"}, exemption]
    for _ in range(2):  # nothing piles up in the handler
        webhook = build(handlers, Exemptions(namespace="ns"))
        assert webhook["namespaceSelector"] == {"matchExpressions": expressions}

    labels = declare(namespace_selector={"matchLabels": {"a": "b"}})
    assert build(labels, Exemptions(namespace="ns"))["namespaceSelector"] == {
        "matchLabels": {"a": "b"},
        "matchExpressions": [exemption],
    }


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
    webhook = build(declare(), Exemptions(username=username))
    assert webhook["matchConditions"] == [
        {"name": "not-by-the-operator", "expression": f"request.userInfo.username != {literal}"}
    ]
    assert "namespaceSelector" not in webhook


def test_the_condition_of_the_exemption_has_a_name_of_its_own() -> None:
    conditions = {"not-by-the-operator": "true", "not-by-the-operator-2": "true"}
    webhook = build(declare(match_conditions=conditions), Exemptions(username="u"))
    names = [condition["name"] for condition in webhook["matchConditions"]]
    assert names == [*conditions, "not-by-the-operator-3"]


def test_the_exemption_does_not_exceed_the_number_of_conditions() -> None:
    conditions = {f"c{number}": "true" for number in range(64)}
    webhook = build(declare(match_conditions=conditions), Exemptions(username="u"))
    assert len(webhook["matchConditions"]) == 64
    assert webhook["matchConditions"][-1] == {
        "name": "c63",
        "expression": '(true\n) && request.userInfo.username != "u"',
    }
