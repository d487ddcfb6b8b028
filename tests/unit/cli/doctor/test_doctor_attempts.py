"""What a webhook is tried with; label selectors as queries, and as labels."""

from __future__ import annotations

import json
from typing import Any

import pytest

import webop
from webop.cli.doctor.reachability import (
    Target,
    build_creation,
    build_update,
    list_targets,
    parse_selector,
)

Json = dict[str, Any]

VERBS = frozenset({"list", "patch", "create"})
PODS = webop.Resource(
    "",
    "v1",
    "pods",
    kind="Pod",
    namespaced=True,
    subresources=frozenset({"status", "exec"}),
    verbs=VERBS,
)
NODES = webop.Resource("", "v1", "nodes", kind="Node", namespaced=False, verbs=VERBS)
DEPLOYMENTS = webop.Resource(
    "apps", "v1", "deployments", kind="Deployment", namespaced=True, verbs=VERBS
)
BINDINGS = webop.Resource("", "v1", "bindings", namespaced=True, verbs=frozenset({"create"}))
EVERYTHING = [BINDINGS, PODS, NODES, DEPLOYMENTS]

SELECTORS: list[tuple[Json | None, str, Json]] = [
    (None, "", {}),
    ({}, "", {}),
    ({"matchLabels": {"a": "1"}}, "a in (1)", {"a": "1"}),
    (
        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]},
        "a in (1,2)",
        {"a": "1"},
    ),
    ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, "a notin (1)", {}),
    ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, "a", {"a": ""}),
    ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, "!a", {}),
    (
        {"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]},
        "a in (1),b",
        {"a": "1", "b": ""},
    ),
]


def build_webhook(**rule: Any) -> Json:
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], **rule}]
    return {"name": "x", "rules": rules}


@pytest.mark.parametrize(
    ("rule", "targets"),
    [
        ({"resources": ["pods"]}, [(PODS, None, True, True)]),
        ({"resources": ["pods/status"]}, [(PODS, "status", True, False)]),
        ({"resources": ["pods/exec"]}, []),
        (
            {"resources": ["*/*"]},
            [(NODES, None, True, True), (PODS, None, True, True), (PODS, "status", True, False)],
        ),
        ({"resources": ["pods/*"]}, [(PODS, "status", True, False)]),
        ({"resources": ["pods", "pods/*"], "operations": ["CREATE"]}, [(PODS, None, False, True)]),
        ({"resources": ["nodes/status"]}, []),
        ({"resources": ["pods"], "operations": ["DELETE"]}, []),
        ({"resources": ["pods"], "operations": ["UPDATE", "DELETE"]}, [(PODS, None, True, False)]),
        ({"resources": ["*"]}, [(NODES, None, True, True), (PODS, None, True, True)]),
        ({"resources": ["*"], "scope": "Cluster"}, [(NODES, None, True, True)]),
        ({"resources": ["*"], "scope": "Namespaced"}, [(PODS, None, True, True)]),
        ({"resources": ["*"], "apiGroups": ["apps"]}, [(DEPLOYMENTS, None, True, True)]),
        ({"resources": ["pods"], "apiVersions": ["v2"]}, []),
    ],
)
def test_rules_are_brought_to_what_is_in_the_cluster(rule: Json, targets: list[Target]) -> None:
    assert list(list_targets(build_webhook(**rule), EVERYTHING)) == targets


def test_an_update_changes_an_annotation_only() -> None:
    body = {"metadata": {"name": "one", "namespace": "ns"}, "spec": {"x": 1}}
    assert build_update(PODS, None, body) == (
        "PATCH",
        "/api/v1/namespaces/ns/pods/one",
        b'{"metadata":{"annotations":{"webop.dev/doctor":"probe"}}}',
        "an UPDATE of pods ns/one",
    )
    _, path, _, description = build_update(PODS, "status", body)
    assert path.endswith("/pods/one/status")
    assert description == "an UPDATE of pods/status ns/one"


def test_a_new_object_is_made_like_one_that_is_there() -> None:
    own = {"uid": "u", "resourceVersion": "1", "finalizers": ["x"]}
    metadata = {"name": "one", "labels": {"a": "1"}, **own}
    model = {"kind": "Pod", "metadata": metadata, "spec": {"x": 1}, "status": {"y": 2}}
    method, path, made, _ = build_creation(PODS, "ns", {}, model)
    assert (method, path) == ("POST", "/api/v1/namespaces/ns/pods")
    assert json.loads(made) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "webop-doctor-", "labels": {"a": "1"}, "annotations": {}},
        "spec": {"x": 1},
    }


def test_a_new_object_has_the_labels_that_are_asked_for() -> None:
    model = {"metadata": {"labels": {"b": "2"}}}
    _, path, made, _ = build_creation(NODES, None, {"a": "1"}, model)
    assert path == "/api/v1/nodes"
    assert json.loads(made)["metadata"]["labels"] == {"a": "1", "b": "2"}


@pytest.mark.parametrize(("selector", "query", "labels"), SELECTORS)
def test_a_selector_gives_a_query_and_labels_that_it_selects(
    selector: Json | None, query: str, labels: Json
) -> None:
    assert parse_selector(selector) == (query, labels)
