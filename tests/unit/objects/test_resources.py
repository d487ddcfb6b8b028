"""Kinds of resources and their selectors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.rows import rows
from webop import EVERYTHING, Resource
from webop.objects.resources import parse_selector

ALL = frozenset({"all"})
PODS = Resource("", "v1", "pods", "Pod", "pod", frozenset({"po"}), ALL, namespaced=True)
NODES = Resource("", "v1", "nodes", "Node", "node", namespaced=False)
METRICS = Resource("metrics.k8s.io", "v1beta1", "pods", "PodMetrics", "", namespaced=True)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", "deployment", categories=ALL)
EVENTS = Resource("", "v1", "events", "Event", "event", frozenset({"ev"}))
NEW_EVENTS = Resource("events.k8s.io", "v1", "events", "Event", "event", frozenset({"ev"}))
KEX = Resource("kopf.dev", "v1", "kopfexamples", "KopfExample", "kopfexample", frozenset({"kex"}))
KEX_OLD = Resource(
    "kopf.dev", "v1beta1", "kopfexamples", "KopfExample", "kopfexample", preferred=False
)
OTHERS = Resource("other.dev", "v1", "samples", "Sample", "sample", frozenset({"s"}), ALL)
TWIN = Resource("twin.dev", "v1", "samples", "Sample", "sample", frozenset({"s"}))
CLUSTER = (PODS, NODES, METRICS, DEPLOYMENTS, EVENTS, NEW_EVENTS, KEX, KEX_OLD, OTHERS, TWIN)


@pytest.mark.feature(*(f"RES-{number:02}" for number in (*range(1, 18), 22, 24)), "REF-72", "D-58")
@rows(
    ("args", "names", "selected"),
    [
        (("kopf.dev", "v1", "kopfexamples"), {}, {KEX}),
        (("", "v1", "pods"), {}, {PODS}),
        (("kopf.dev", "v1beta1", "kex"), {}, set()),
        (("kopf.dev/v1", "kopfexamples"), {}, {KEX}),
        (("kopf.dev/v1beta1", "kopfexamples"), {}, {KEX_OLD}),
        (("v1", "pods"), {}, {PODS}),
        (("kopf.dev", "kopfexamples"), {}, {KEX}),
        (("metrics.k8s.io", "pods"), {}, {METRICS}),
        (("kopfexamples.kopf.dev",), {}, {KEX}),
        (("pods.v1",), {}, {PODS}),
        (("kopfexamples.v1beta1.kopf.dev",), {}, {KEX_OLD}),
        (("kopfexamples",), {}, {KEX}),
        (("kopfexample",), {}, {KEX}),
        (("KopfExample",), {}, {KEX}),
        (("kex",), {}, {KEX}),
        ((), {"kind": "KopfExample"}, {KEX}),
        ((), {"plural": "kopfexamples"}, {KEX}),
        ((), {"singular": "kopfexample"}, {KEX}),
        ((), {"shortcut": "kex"}, {KEX}),
        ((), {"plural": "kex"}, set()),
        ((), {"singular": "pods"}, set()),
        ((), {"group": "kopf.dev", "version": "v1beta1", "plural": "kopfexamples"}, {KEX_OLD}),
        (("samples",), {"group": "twin.dev"}, {TWIN}),
        ((), {"category": "all"}, {PODS, DEPLOYMENTS, OTHERS}),
        (("kopf.dev", "v1beta1", EVERYTHING), {}, {KEX_OLD}),
        (("kopf.dev/v1", EVERYTHING), {}, {KEX}),
        (("kopf.dev", EVERYTHING), {}, {KEX}),
        (("pods", None, None), {"kind": None}, {PODS}),
        ((EVERYTHING,), {}, {PODS, NODES, METRICS, DEPLOYMENTS, KEX, OTHERS, TWIN}),
        (("v1", "events"), {}, {EVENTS}),
        (("ev",), {}, {EVENTS}),
        (("events.events.k8s.io",), {}, {NEW_EVENTS}),
        (("pod*",), {}, set()),
        ((), {"shortcut": "s"}, set()),
        (("absent",), {}, set()),
        ((lambda resource: "s" in resource.shortcuts,), {}, {OTHERS, TWIN}),
        ((lambda resource: resource.plural in ("events", "nodes"),), {}, {NODES}),
    ],
)
def test_selectors_take_the_resources_that_are_meant(args: Any, names: Any, selected: Any) -> None:
    assert set(parse_selector(*args, **names).select(CLUSTER)) == selected


@pytest.mark.feature("RES-23")
@rows(
    ("args", "names", "message"),
    [
        ((), {}, "must name a resource"),
        ((), {"group": "apps"}, "must name a resource"),
        (("a", "b", "c", "d"), {}, "a group, a version and a name"),
        (("pods",), {"kind": "Pod"}, "exactly one name"),
        ((lambda _: True,), {"kind": "Pod"}, "exactly one name"),
        (("",), {}, "empty"),
        ((123,), {}, "a string or EVERYTHING"),
        ((EVERYTHING, "pods"), {}, "must be strings"),
        (("v1", "widgets", "example.com"), {}, "The order is group, version, name"),
        (("example.com", "widgets", "v1"), {}, "The order is group, version, name"),
        (("widgets", "example.com"), {}, "The order is group, version, name"),
        (("pods.v1",), {"version": "v2"}, "Conflicting values"),
        ((), {"name": "pods"}, "cannot be selected by name"),
    ],
)
def test_selectors_that_cannot_be_meant_are_refused(args: Any, names: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        parse_selector(*args, **names)


@pytest.mark.feature("RES-17")
@rows(
    ("args", "names", "suggestion"),
    [
        (("kopf.dev", "v2", "kopfexamples"), {}, " The cluster has kopfexamples.v1beta1.kopf.dev"),
        ((), {"kind": "Pod", "version": "v2"}, " The cluster has pods.v1."),
        (("deploymentss",), {}, " Did you mean deployments.v1.apps?"),
        (("deploymentss.apps",), {}, " Did you mean deployments.v1.apps?"),
        ((), {"kind": "Deploymnt"}, " Did you mean deployments.v1.apps?"),
        (("databases.example.com",), {}, ""),
        (("databases.sampels.dev",), {}, " Did you mean the API group samples.dev?"),
        (("samples.dev",), {}, " samples.dev is an API group: name a kind in it"),
        (("example.com", EVERYTHING), {}, ""),
        ((lambda _: 1 / 0,), {}, ""),
    ],
)
def test_what_is_like_a_missing_kind_is_suggested(args: Any, names: Any, suggestion: str) -> None:
    said = parse_selector(*args, **names).suggest(CLUSTER, {"samples.dev", "", "apps"})
    assert said.startswith(suggestion)
    assert bool(said) is bool(suggestion)
