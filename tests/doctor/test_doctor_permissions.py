"""What operators must be permitted to do."""

from __future__ import annotations

from typing import Any

import webop
from webop.doctor.permissions import (
    Need,
    build_review,
    list_configuration_needs,
    list_handler_needs,
)

PODS = webop.Resource("", "v1", "pods", kind="Pod", namespaced=True)
NODES = webop.Resource("", "v1", "nodes", kind="Node", namespaced=False)


def test_a_need_is_asked_about_verb_by_verb_where_it_is() -> None:
    need = Need(
        subject="x", group="g", resources=("a",), verbs=("get", "create"), namespaces=("n", "m"),
        name="one",
    )  # fmt: skip
    common = {"group": "g", "resource": "a"}
    assert need.list_reviews() == [
        {**common, "verb": "get", "namespace": "n", "name": "one"},
        {**common, "verb": "create", "namespace": "n"},
        {**common, "verb": "get", "namespace": "m", "name": "one"},
        {**common, "verb": "create", "namespace": "m"},
    ]


def test_what_is_missing_is_told_with_the_rule() -> None:
    need = list_configuration_needs("auto")
    reviews = need.list_reviews()
    assert need.judge([]).level == "ok"
    finding = need.judge(reviews[1:])
    assert finding.text == (
        "not granted: patch validatingwebhookconfigurations; "
        "create and patch mutatingwebhookconfigurations"
    )
    resources = (
        "apiGroups: [admissionregistration.k8s.io], "
        "resources: [validatingwebhookconfigurations, mutatingwebhookconfigurations], "
    )
    assert finding.remedy == (
        f"Add to the ClusterRole: {{{resources}verbs: [create]}}, "
        f"{{{resources}resourceNames: [auto], verbs: [patch]}}"
    )


def test_handlers_need_the_verbs_of_what_they_do() -> None:
    registry = webop.OperatorRegistry()

    def fn(**_: Any) -> None: ...

    webop.on.event("pods", registry=registry)(fn)
    webop.on.create("pods", registry=registry)(fn)
    webop.on.event("nodes", registry=registry)(fn)
    webop.on.validate("secrets", registry=registry)(fn)
    settings = webop.OperatorSettings()
    handlers = registry.select_resource_handlers()
    everywhere = list_handler_needs(handlers, [PODS, NODES], (), settings)
    assert [(need.subject, need.verbs, need.level) for need in everywhere] == [
        ("nodes", ("watch",), "failure"),
        ("nodes (list)", ("list",), "warning"),
        ("pods", ("watch", "patch"), "failure"),
        ("pods (list)", ("list",), "warning"),
        ("pods (get)", ("get",), "warning"),
        ("customresourcedefinitions", ("list", "watch"), "warning"),
        ("events", ("create", "patch"), "warning"),
    ]
    somewhere = list(list_handler_needs(handlers, [PODS, NODES], ("ns",), settings))
    assert [(need.subject, need.namespaces, need.level) for need in somewhere[-2:]] == [
        ("namespaces", (), "note"),
        ("events", ("ns", "default"), "warning"),  # those about nodes are in "default"
    ]
    settings.scanning.disabled, settings.posting.enabled = True, False
    somewhere = list(list_handler_needs(handlers, [PODS, NODES], ("ns",), settings))
    assert {(*need.resources, need.namespaces) for need in somewhere} == {
        ("nodes", ()),
        ("pods", ("ns",)),
    }


def test_a_role_without_the_status_is_found_as_results_are_written_there() -> None:
    registry = webop.OperatorRegistry()
    group = "example.com"
    databases = webop.Resource(
        group, "v1", "databases", namespaced=True, subresources=frozenset({"status"})
    )
    webop.on.create("databases", registry=registry)(lambda **_: None)
    handlers = registry.select_resource_handlers()
    needs = list_handler_needs(handlers, [databases], ("ns",), webop.OperatorSettings())
    need = next(need for need in needs if need.subject == "databases/status")
    attributes = {"group": group, "resource": "databases", "subresource": "status"}
    assert need.list_reviews() == [{**attributes, "verb": "patch", "namespace": "ns"}]
    finding = need.judge(need.list_reviews())
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
