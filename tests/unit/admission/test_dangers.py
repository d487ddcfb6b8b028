"""Webhooks that can stop a cluster draw a warning."""

from __future__ import annotations

from typing import Any

import webop
from tests.kit.rows import rows
from tests.kit.webhook_configurations import list_dangers

PODS = webop.Resource("", "v1", "pods", kind="Pod", categories=frozenset({"all"}))
NODES = webop.Resource("", "v1", "nodes", kind="Node")
NAMESPACES = webop.Resource("", "v1", "namespaces", kind="Namespace")
EVENTS = webop.Resource("", "v1", "events", kind="Event")
NEW_EVENTS = webop.Resource("events.k8s.io", "v1", "events", kind="Event")
LEASES = webop.Resource("coordination.k8s.io", "v1", "leases", kind="Lease")
HOOKS = webop.Resource("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations")
OTHER_PODS = webop.Resource("example.com", "v1", "pods", kind="Pod")
KEX = webop.Resource("kopf.dev", "v1", "kopfexamples", kind="KopfExample")
RESOURCES = [PODS, NODES, NAMESPACES, EVENTS, NEW_EVENTS, LEASES, HOOKS, OTHER_PODS, KEX]


def find(*names: Any, decorator: Any = webop.on.validate, **options: Any) -> list[str]:
    """Return the warnings about a handler."""
    registry = webop.OperatorRegistry()
    decorator(*names, id="check", registry=registry, **options)(lambda **_: None)
    return list_dangers(registry, RESOURCES)


@rows(
    ("names", "options", "what"),
    [
        (("pods",), {}, "pods"),
        (("v1", "pods"), {"subresource": "*"}, "pods"),
        (("nodes",), {}, "nodes"),
        (("nodes",), {"scope": "Cluster"}, "nodes"),
        (("namespaces",), {}, "namespaces"),
        (("v1", "events"), {}, "events"),
        (("events.k8s.io", "events"), {}, "events"),
        (("leases",), {"scope": "Namespaced"}, "leases"),
        ((), {"category": "all"}, "pods"),
        (("v1", webop.EVERYTHING), {}, "namespaces and nodes and pods"),
        ((webop.EVERYTHING,), {}, "kinds of objects"),
        ((lambda resource: resource.plural in ("pods", "nodes"),), {}, "nodes and pods"),
        (("pods",), {"labels": {"a": lambda value, **_: True}}, "pods"),
        (("pods",), {"annotations": {"a": "b"}}, "pods"),
        (("pods",), {"failure_policy": "Fail"}, "pods"),
    ],
)
@rows("decorator", [webop.on.validate, webop.on.mutate])
def test_a_webhook_for_all_of_what_a_cluster_needs_draws_a_warning(
    names: Any, options: Any, what: str, decorator: Any
) -> None:
    (line,) = find(*names, decorator=decorator, **options)
    assert line.startswith(f"Webhook 'check' is called for all {what}: ")
    assert "namespace_selector=" in line
    assert "failure_policy='Ignore'" in line
    assert "\n" not in line


def test_the_warning_about_all_pods_names_the_containers_that_it_does_not_see() -> None:
    words = "subresource='ephemeralcontainers'"
    assert words in find("pods")[0]
    assert words in find(webop.EVERYTHING)[0]
    assert words not in find("v1", "pods", subresource="*")[0]
    assert words not in find("nodes")[0]


@rows(
    ("names", "options"),
    [
        (("kopfexamples",), {}),
        (("example.com", "pods"), {}),
        (("kopf.dev", webop.EVERYTHING), {}),
        (("pods",), {"labels": {"a": "b"}}),
        (("pods",), {"labels": {"a": webop.ABSENT}}),
        (("pods",), {"namespace_selector": {"a": "b"}}),
        (("pods",), {"match_conditions": {"a": "true"}}),
        (("pods",), {"failure_policy": "Ignore"}),
        (("pods",), {"ignore_failures": True}),
        (("pods",), {"scope": "Cluster"}),
        (("nodes",), {"scope": "Namespaced"}),
        ((webop.EVERYTHING,), {"labels": {"a": "b"}}),
    ],
)
def test_a_webhook_that_leaves_something_out_draws_none(names: Any, options: Any) -> None:
    assert find(*names, **options) == []


def test_a_webhook_for_webhooks_is_told_to_be_for_nothing() -> None:
    (line,) = find("mutatingwebhookconfigurations", labels={"a": "b"})
    assert line.startswith("Webhook 'check' is for mutatingwebhookconfigurations: ")
    assert line.endswith("API servers never call webhooks for these.")
