"""What operators must be permitted to do."""

from __future__ import annotations

from typing import Any

import webop
from webop.cli.doctor.context import Context
from webop.cli.doctor.permissions import build_review, judge
from webop.cli.required_rights import Need, list_object_needs

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
