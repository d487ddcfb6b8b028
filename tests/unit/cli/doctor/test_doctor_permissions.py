"""What operators must be permitted to do."""

from __future__ import annotations

from typing import Any

import webop
from webop.cli.doctor.context import Context
from webop.cli.doctor.permissions import build_review, judge
from webop.cli.inspection import Need, list_object_needs

PODS = webop.Resource("", "v1", "pods", kind="Pod", namespaced=True)
NODES = webop.Resource("", "v1", "nodes", kind="Node", namespaced=False)


def build_context(
    registry: webop.OperatorRegistry, *resources: webop.Resource, namespaces: tuple[str, ...] = ()
) -> Context:
    return Context(
        settings=webop.OperatorSettings(),
        managed=None,
        account=None,
        namespaces=namespaces,
        registry=registry,
        is_probing=False,
        calls_startup=False,
        startup_timeout=1.0,
        resources=resources,
    )


def test_a_need_is_asked_about_verb_by_verb_where_it_is() -> None:
    need = Need("g", "a/b", ("get", "create"), ("n", "m"), "one")
    common = {"group": "g", "resource": "a", "subresource": "b"}
    assert need.list_reviews() == [
        {**common, "verb": "get", "namespace": "n", "name": "one"},
        {**common, "verb": "create", "namespace": "n", "name": ""},
        {**common, "verb": "get", "namespace": "m", "name": "one"},
        {**common, "verb": "create", "namespace": "m", "name": ""},
    ]


def test_what_is_missing_is_told_with_the_rule() -> None:
    need = Need("g", "configs", ("create", "patch", "get"), ("n", "m"), "auto")
    reviews = need.list_reviews()
    assert judge(need, []).level == "ok"
    finding = judge(need, reviews[:2])
    assert finding.text == "not granted: create and patch configs in n"
    assert finding.remedy == (
        "Add to the Role in n and m: {apiGroups: [g], resources: [configs], verbs: [create]}, "
        "{apiGroups: [g], resources: [configs], resourceNames: [auto], verbs: [patch, get]}"
    )


def test_handlers_need_the_verbs_of_what_they_do() -> None:
    registry = webop.OperatorRegistry()

    def fn(**_: Any) -> None: ...

    webop.on.event("pods", registry=registry)(fn)
    webop.on.create("pods", registry=registry)(fn)
    webop.on.event("nodes", registry=registry)(fn)
    webop.on.validate("secrets", registry=registry)(fn)
    everywhere = list_object_needs(build_context(registry, PODS, NODES))
    assert [(need.resource, need.verbs, need.level) for need in everywhere] == [
        ("nodes", ("watch",), "failure"),
        ("nodes", ("list",), "warning"),
        ("pods", ("watch", "patch"), "failure"),
        ("pods", ("list", "get"), "warning"),
        ("customresourcedefinitions", ("list", "watch"), "warning"),
        ("events", ("create", "patch"), "warning"),
    ]
    context = build_context(registry, PODS, NODES, namespaces=("ns",))
    somewhere = list(list_object_needs(context))
    assert [(need.resource, need.namespaces, need.level) for need in somewhere[-2:]] == [
        ("namespaces", (), "note"),
        ("events", ("ns", "default"), "warning"),  # those about nodes are in "default"
    ]
    context.settings.scanning.disabled, context.settings.posting.enabled = True, False
    assert {(need.resource, need.namespaces) for need in list_object_needs(context)} == {
        ("nodes", ()),
        ("pods", ("ns",)),
    }


def test_a_service_that_is_not_named_has_the_name_of_the_account() -> None:
    """So it is in the manifests; without it, the doctor asked about "-webhook-certs"."""
    registry = webop.OperatorRegistry()
    webop.on.validate("pods", registry=registry)(lambda **_: None)
    context = build_context(registry, PODS)
    context.settings.admission.server = webop.WebhookServiceServer()
    context.account = "system:serviceaccount:ns:operator"
    assert context.secret == ("ns", "operator-webhook-certs")


def test_a_role_without_the_status_is_found_as_results_are_written_there() -> None:
    registry = webop.OperatorRegistry()
    group = "example.com"
    databases = webop.Resource(
        group, "v1", "databases", namespaced=True, subresources=frozenset({"status"})
    )
    webop.on.create("databases", registry=registry)(lambda **_: None)
    needs = list_object_needs(build_context(registry, databases, namespaces=("ns",)))
    need = next(need for need in needs if need.resource == "databases/status")
    attributes = {"group": group, "resource": "databases", "subresource": "status", "name": ""}
    assert need.list_reviews() == [{**attributes, "verb": "patch", "namespace": "ns"}]
    finding = judge(need, need.list_reviews())
    assert (finding.level, finding.text) == (
        "warning",
        f"not granted: patch databases/status in ns; {need.use}",
    )
    rule = "{apiGroups: [example.com], resources: [databases/status], verbs: [patch]}"
    assert finding.remedy == f"Add to the Role in ns: {rule}"


def test_a_service_account_is_asked_about_with_its_groups() -> None:
    account = "system:serviceaccount:ns:operator"
    path, body = build_review({"verb": "get"}, account, "ns")
    assert path.endswith("/subjectaccessreviews")
    assert body["spec"] == {
        "resourceAttributes": {"verb": "get"},
        "user": account,
        "groups": [
            "system:authenticated",
            "system:serviceaccounts",
            "system:serviceaccounts:ns",
        ],
    }
    assert build_review({}, "jane", "")[1]["spec"]["groups"] == ["system:authenticated"]
    path, body = build_review({"verb": "get"}, None, "")
    assert path.endswith("/selfsubjectaccessreviews")
    assert body["kind"] == "SelfSubjectAccessReview"
