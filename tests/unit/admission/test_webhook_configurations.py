"""What handlers and their options become in webhook configurations."""

from __future__ import annotations

import re
from typing import Any

import pytest

import webop
from tests.kit.rows import rows
from tests.kit.webhook_configurations import SERVICE, build_configuration, find_path

Json = dict[str, Any]

EXAMPLES = webop.Resource("kopf.dev", "v1", "kopfexamples", kind="KopfExample")
OLDER = webop.Resource("kopf.dev", "v1beta1", "kopfexamples", kind="KopfExample", preferred=False)
FOREIGN = webop.Resource("example.com", "v2", "kopfexamples", kind="KopfExample")
PODS = webop.Resource("", "v1", "pods", kind="Pod")
FOREIGN_PODS = webop.Resource("example.com", "v1", "pods", kind="Pod")
SECRETS = webop.Resource("", "v1", "secrets", kind="Secret")
RESOURCES = [PODS, OLDER, EXAMPLES]
URL: webop.WebhookClientConfig = {"url": "https://hooks.example/p", "caBundle": "Y2E="}

# What the API server accepts (k8s.io/apimachinery, util/validation).
LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = re.compile(rf"{LABEL}(\.{LABEL})*")


def fn(**_: Any) -> None: ...


def declare(*names: Any, **options: Any) -> webop.OperatorRegistry:
    """Return a registry with one handler: it validates, or mutates if ``mutating``."""
    registry = webop.OperatorRegistry()
    decorator = webop.on.mutate if options.pop("mutating", False) else webop.on.validate
    if not names and "category" not in options:
        names = ("kopfexamples",)
    decorator(*names, registry=registry, **options)(fn)
    return registry


def build_all(registry: webop.OperatorRegistry, **how: Any) -> list[Json]:
    """Return the webhooks of all handlers."""
    config, resources = how.pop("config", URL), how.pop("resources", RESOURCES)
    webhooks: list[Json] = build_configuration(registry, resources, config, **how)["webhooks"]
    return webhooks


def build(*names: Any, mutating: bool = False, **options: Any) -> Json:
    """Return the webhook of a handler."""
    (webhook,) = build_all(declare(*names, mutating=mutating, **options), mutating=mutating)
    return webhook


@pytest.mark.feature("ADM-40", "ADM-46")
@rows(
    ("mutating", "kind"),
    [(False, "ValidatingWebhookConfiguration"), (True, "MutatingWebhookConfiguration")],
)
def test_a_configuration_is_a_complete_object(mutating: bool, kind: str) -> None:
    registry = declare(id="check", mutating=mutating)
    rule = {
        "apiGroups": ["kopf.dev"],
        "apiVersions": ["v1"],
        "resources": ["kopfexamples"],
        "operations": ["*"],
        "scope": "*",
    }
    webhook = {
        "name": "check.auto.kopf.dev",
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "rules": [rule],
        "objectSelector": None,
        "clientConfig": {"url": "https://hooks.example/p/check", "caBundle": "Y2E="},
        "timeoutSeconds": 10,
        "admissionReviewVersions": ["v1", "v1beta1"],
    }
    assert build_configuration(registry, RESOURCES, URL, mutating=mutating) == {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "auto.kopf.dev"},
        "webhooks": [webhook],
    }


def express(key: str, operator: str, *values: str) -> Json:
    expression: Json = {"key": key, "operator": operator}
    return {**expression, "values": list(values)} if values else expression


def select(*expressions: Json) -> Json:
    return {"namespaceSelector": {"matchExpressions": [*expressions]}}


TRUE = {"name": "a", "expression": "true"}
LESS = {"name": "example.com/b", "expression": "1 < 2"}
IN_D = {"matchLabels": {"a": "b"}, "matchExpressions": [express("c", "NotIn", "d", "")]}


@pytest.mark.feature("ADM-16", "ADM-17", "ADM-46")
@rows(
    ("options", "expected"),
    [
        ({"side_effects": True}, {"sideEffects": "NoneOnDryRun"}),
        ({"ignore_failures": True}, {"failurePolicy": "Ignore"}),
        ({"timeout_seconds": 1}, {"timeoutSeconds": 1}),
        ({"match_policy": "Exact"}, {"matchPolicy": "Exact"}),
        ({"failure_policy": "Ignore"}, {"failurePolicy": "Ignore"}),
        (
            {"match_conditions": {"a": "true", "example.com/b": "1 < 2"}},
            {"matchConditions": [TRUE, LESS]},
        ),
        ({"match_conditions": [TRUE]}, {"matchConditions": [TRUE]}),
        ({"namespace_selector": {}}, {}),
        ({"namespace_selector": {"a": "b"}}, select(express("a", "In", "b"))),
        ({"namespace_selector": {"c": webop.PRESENT}}, select(express("c", "Exists"))),
        ({"namespace_selector": {"d/e": webop.ABSENT}}, select(express("d/e", "DoesNotExist"))),
        ({"namespace_selector": IN_D}, {"namespaceSelector": IN_D}),
    ],
)
@rows("mutating", [False, True])
def test_options_are_fields_of_the_webhook(mutating: bool, options: Json, expected: Json) -> None:
    plain = build(mutating=mutating)
    assert build(mutating=mutating, **options) == {**plain, **expected}


@pytest.mark.feature("ADM-13", "ADM-14", "ADM-15", "ADM-46", "D-17", "D-18")
@rows(
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
def test_options_are_fields_of_the_rules(options: Json, expected: Json) -> None:
    (plain,), (rule,) = build()["rules"], build(**options)["rules"]
    assert rule == {**plain, **expected}


@rows("policy", ["Never", "IfNeeded"])
def test_the_reinvocation_policy_is_of_mutating_webhooks_only(policy: str) -> None:
    assert build(mutating=True, reinvocation_policy=policy)["reinvocationPolicy"] == policy
    with pytest.raises(TypeError, match=r"reinvocation_policy= is for @webop\.on\.mutate only"):
        declare(reinvocation_policy=policy)


BAD_VALUE = "up to 63 letters and digits.*, got 'b c'"
BAD_NAME = "a name like 'app' .*, got 'a b'"
MANY = {f"c{number}": "true" for number in range(65)}


def change(**changes: Any) -> Json:
    """Return a selector with an expression that is changed; ... removes a key of it."""
    expression = {**express("a", "In", "b"), **changes}
    kept = {key: value for key, value in expression.items() if value is not ...}
    return {"matchExpressions": [kept]}


@pytest.mark.feature("ADM-17")
@rows(
    ("option", "value", "error", "message"),
    [
        ("timeout_seconds", 0, ValueError, "greater than or equal to 1, got 0"),
        ("timeout_seconds", 31, ValueError, "less than or equal to 30, got 31"),
        ("timeout_seconds", 2.5, TypeError, "a whole number, got 2.5"),
        ("failure_policy", "ignore", ValueError, "'Fail' or 'Ignore', got 'ignore'"),
        ("match_conditions", "true", TypeError, "mapping of names to CEL expressions"),
        ("match_conditions", [{"name": "a"}], TypeError, r"\[0\] must have 'expression'"),
        ("match_conditions", {"a b": "true"}, ValueError, BAD_NAME),
        ("match_conditions", [TRUE, TRUE], ValueError, "a different name for each condition"),
        ("match_conditions", MANY, ValueError, "at most 64 conditions"),
        ("namespace_selector", "a=b", TypeError, "a mapping of labels"),
        ("namespace_selector", {"a b": "c"}, ValueError, BAD_NAME),
        ("namespace_selector", {"matchLabels": {}, "a": "b"}, TypeError, "must not have 'a'"),
        ("namespace_selector", change(operator=...), TypeError, "must have 'operator'"),
        ("namespace_selector", change(operator="in"), ValueError, "'In' or 'NotIn', got 'in'"),
        ("namespace_selector", change(operator="Exists"), ValueError, "no values for Exists"),
        ("namespace_selector", change(values=["b c"]), ValueError, BAD_VALUE),
        # The same for labels, as they go to the API server, too.
        ("labels", {"a b": "c"}, ValueError, "a name like .*, got 'a b'"),
        ("labels", {"a": "b c"}, ValueError, BAD_VALUE),
        ("failure_policy", "Fail", TypeError, "ignore_failures=True and .*='Fail' exclude"),
    ],
)
def test_what_the_api_server_would_not_take_is_told_at_import(
    option: str, value: Any, error: type[Exception], message: str
) -> None:
    more = {"ignore_failures": True} if value == "Fail" else {}
    with pytest.raises(error, match=message) as caught:
        declare(mutating=True, **{option: value}, **more)
    assert option in str(caught.value)


@pytest.mark.feature("ADM-19", "ADM-21")
@rows(
    ("labels", "expected"),
    [
        (None, None),
        ({"a": lambda value, **_: True}, None),
        ({"a": "b"}, [express("a", "In", "b")]),
        ({"a": webop.PRESENT}, [express("a", "Exists")]),
        ({"a": webop.ABSENT}, [express("a", "DoesNotExist")]),
        ({"a": "", "c": lambda value, **_: False}, [express("a", "In", "")]),
    ],
)
def test_labels_restrict_the_objects_that_are_sent(labels: Any, expected: Any) -> None:
    selector = None if expected is None else {"matchExpressions": expected}
    assert build(labels=labels)["objectSelector"] == selector


# ---- rules


@pytest.mark.feature("ADM-42")
def test_rules_are_for_the_resources_that_are_served() -> None:
    registry = declare("kopf.dev", webop.EVERYTHING)
    more = webop.Resource("kopf.dev", "v1", "another", kind="Another")
    (webhook,) = build_all(registry, resources=[EXAMPLES, PODS, more])
    assert [rule["resources"] for rule in webhook["rules"]] == [["*"]]
    (again,) = build_all(registry, resources=[more, PODS, EXAMPLES])
    assert again == webhook  # the order of discovery does not matter
    assert build_all(registry, resources=[PODS]) == []


@pytest.mark.feature("ADM-42")
def test_handlers_of_ambiguous_resources_are_left_out() -> None:
    both = [EXAMPLES, FOREIGN]
    assert build_all(declare(), resources=both) == []
    assert len(build_all(declare("kopf.dev", "kopfexamples"), resources=both)) == 1


@rows(
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
    many = [webop.Resource("example.com", "v1", f"widgets{n}", kind=f"W{n}") for n in range(200)]
    events = webop.Resource("", "v1", "events", kind="Event")  # EVERYTHING does not mean them
    registry = declare(webop.EVERYTHING, subresource=subresource)
    (webhook,) = build_all(registry, resources=[*many, PODS, events])
    assert [rule["resources"] for rule in webhook["rules"]] == [core, widgets]


# ---- names and addresses


@pytest.mark.feature("ADM-45")
@rows(
    ("url", "handler_id", "expected"),
    [
        ("https://h", "validate1", "https://h/validate1"),
        ("https://h:9443/p/q", "fn/spec.field", "https://h:9443/p/q/fn/spec.field"),
        ("https://h", "check_numbers", "https://h/check_numbers"),
        ("https://h", "outer.<locals>.fn", "https://h/outer.%3Clocals%3E.fn"),
        ("https://h", "a?b#c%d", "https://h/a%3Fb%23c%25d"),
    ],
)
def test_the_id_is_appended_to_the_url(url: str, handler_id: str, expected: str) -> None:
    (webhook,) = build_all(declare(id=handler_id), config={"url": url})
    assert webhook["clientConfig"] == {"url": expected}


@pytest.mark.feature("ADM-45")
@rows(
    ("path", "handler_id", "expected"),
    [
        (None, "validate1", "/validate1"),
        ("/", "validate1", "/validate1"),
        ("/p/q", "fn/spec.field", "/p/q/fn/spec.field"),
    ],
)
def test_the_id_is_appended_to_the_path_of_a_service(
    path: str | None, handler_id: str, expected: str
) -> None:
    service = {"namespace": "ns", "name": "svc", "path": path, "port": None}
    (webhook,) = build_all(declare(id=handler_id), config={"service": service, "url": None})
    assert webhook["clientConfig"] == {
        "service": {"namespace": "ns", "name": "svc", "path": expected}
    }
    assert service["path"] == path  # left as it was


ODD_IDS = [
    *("check_numbers", "check__numbers", "checkNumbers", "CheckNumbers.run", "_private", "__"),
    *("outer.<locals>.fn/spec.field", "lambda:/app/handlers.py:12", "__init__", "fn/_x_/y", "-"),
    *("a..b", "a//b", "naïve", "x" * 300, "x" * 127 + "_" + "y" * 300),
]


@pytest.mark.feature("ADM-44")
@rows(
    ("handler_id", "name", "expected"),
    [
        ("validate1", "auto.kopf.dev", "validate1.auto.kopf.dev"),
        ("fn/spec.field", "auto.kopf.dev", "fn.spec.field.auto.kopf.dev"),
        ("check_numbers", "auto.kopf.dev", "check-numbers.auto.kopf.dev"),
        ("naïve", "auto.kopf.dev", "nac3afve.auto.kopf.dev"),
        ("_private", "auto.kopf.dev", "private.auto.kopf.dev"),
        ("fn", "my.operator", "fn.my.operator"),
        ("fn", "operator", "fn.operator.local"),
    ],
)
def test_webhooks_are_named_after_the_handlers(handler_id: str, name: str, expected: str) -> None:
    (webhook,) = build_all(declare(id=handler_id), name=name)
    assert webhook["name"] == expected


@pytest.mark.feature("ADM-44")
@rows("handler_id", ODD_IDS)
@rows("name", ["auto.kopf.dev", "operator"])
def test_names_of_any_handlers_are_accepted_by_the_api_server(name: str, handler_id: str) -> None:
    (webhook,) = build_all(declare(id=handler_id), name=name)
    assert SUBDOMAIN.fullmatch(webhook["name"])
    assert len(webhook["name"]) <= 253
    assert webhook["name"].count(".") >= 2


@pytest.mark.feature("ADM-45")
def test_paths_of_any_handlers_are_accepted_by_the_api_server_and_differ() -> None:
    paths = {handler_id: find_path(handler_id) for handler_id in [*ODD_IDS, "check-numbers"]}
    assert len({*paths.values()}) == len(paths)
    for path in paths.values():
        assert all(SUBDOMAIN.fullmatch(part) and len(part) <= 253 for part in path[1:].split("/"))


@pytest.mark.feature("ADM-44")
def test_names_are_unique_in_a_configuration(registry: webop.OperatorRegistry) -> None:
    webop.on.validate("kopfexamples", id="fn", operation="CREATE", registry=registry)(fn)
    for handler_id in ("fn", "a_b", "a-b", "fn-2"):
        webop.on.validate("kopfexamples", id=handler_id, registry=registry)(lambda **_: None)
    webhooks = build_all(registry)
    names = [webhook["name"].removesuffix(".auto.kopf.dev") for webhook in webhooks]
    assert names == ["fn", "fn-2", "a-b", "a-b-2", "fn-2-2"]
    paths = [webhook["clientConfig"]["url"].rpartition("/")[2] for webhook in webhooks]
    assert paths == ["fn", "fn", "a_b", "a-b", "fn-2"]


@pytest.mark.feature("ADM-10", "ADM-45")
def test_a_function_that_validates_and_mutates_has_an_endpoint_for_each(
    registry: webop.OperatorRegistry,
) -> None:
    for decorator in (webop.on.validate, webop.on.mutate):
        decorator("kopfexamples", id="fn", registry=registry)(fn)
    for mutating, path in ((False, "/validate/fn"), (True, "/mutate/fn")):
        (webhook,) = build_all(registry, mutating=mutating)
        assert webhook["clientConfig"]["url"] == f"{URL['url']}{path}"


# ---- what is left out


NOT_IN_NS = express("kubernetes.io/metadata.name", "NotIn", "ns")


def test_the_namespace_of_the_operator_can_be_exempted() -> None:
    (plain,) = build_all(declare(), namespace="ns")
    assert plain["namespaceSelector"] == {"matchExpressions": [NOT_IN_NS]}
    assert "matchConditions" not in plain

    registry = declare(namespace_selector={"a": webop.PRESENT})
    for _ in range(2):  # nothing piles up in the handler
        (webhook,) = build_all(registry, namespace="ns")
        expressions = [express("a", "Exists"), NOT_IN_NS]
        assert webhook["namespaceSelector"] == {"matchExpressions": expressions}

    labels = {"matchLabels": {"a": "b"}}
    (labelled,) = build_all(declare(namespace_selector=labels), namespace="ns")
    assert labelled["namespaceSelector"] == {**labels, "matchExpressions": [NOT_IN_NS]}


@rows(
    ("names", "options", "values"),
    [
        (("pods",), {}, ["kube-system", "ops"]),
        ((webop.EVERYTHING,), {}, ["kube-system", "ops"]),
        (("pods",), {"namespace_selector": {}}, []),
        (("kopfexamples",), {}, []),
        (("example.com", "pods"), {}, []),
    ],
)
def test_webhooks_for_pods_do_not_keep_the_cluster_and_their_own_pods_from_starting(
    names: Any, options: Any, values: list[str]
) -> None:
    how: Any = {"config": SERVICE, "secret": ("ops", "cert")}
    registry, resources = declare(*names, **options), [EXAMPLES, PODS, FOREIGN_PODS]
    (webhook,) = build_all(registry, resources=resources, **how)
    expressions = webhook.get("namespaceSelector", {}).get("matchExpressions", ())
    found = [one["values"] for one in expressions if one["operator"] == "NotIn"]
    assert found == ([values] if values else [])


OWN_REQUESTS = "not-by-the-operator"


@rows(("username", "literal"), [("system:a:b", '"system:a:b"'), ('a"b\\c', r'"a\"b\\c"')])
def test_the_account_of_the_operator_can_be_exempted(username: str, literal: str) -> None:
    (webhook,) = build_all(declare(), username=username)
    assert webhook["matchConditions"] == [
        {"name": OWN_REQUESTS, "expression": f"request.userInfo.username != {literal}"}
    ]
    assert "namespaceSelector" not in webhook


def test_webhooks_of_secrets_leave_out_the_one_that_the_operator_needs_to_start(
    registry: webop.OperatorRegistry,
) -> None:
    webop.on.validate("secrets", id="guard", registry=registry)(fn)
    webop.on.validate("kopfexamples", id="check", registry=registry)(fn)
    how: Any = {"resources": [EXAMPLES, SECRETS], "secret": ("ns", "certs")}
    guard, check = build_all(registry, **how)
    (condition,) = guard["matchConditions"]
    assert condition["name"] == "not-the-certificate"
    assert 'request.namespace != "ns"' in condition["expression"]
    assert 'request.name != "certs"' in condition["expression"]
    assert "matchConditions" not in check
