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
OF_KEX = [
    *(("kopf.dev", "v1", "kopfexamples"), ("kopf.dev/v1", "kopfexamples"), ("kopf.dev", "kex")),
    *(("kopfexamples.kopf.dev",), ("kopf.dev/v1", EVERYTHING), ("kopf.dev", EVERYTHING)),
]
NAMES_OF_KEX = {"kind": "KopfExample", "plural": "kopfexamples", "shortcut": "kex"}
NAMES_OF_KEX["singular"] = "kopfexample"
CLUSTER = (PODS, NODES, METRICS, DEPLOYMENTS, EVENTS, NEW_EVENTS, KEX, KEX_OLD, OTHERS, TWIN)


@pytest.mark.feature(*(f"RES-{number:02}" for number in (*range(1, 18), 22, 24)), "REF-72", "D-58")
@rows(
    ("args", "names", "selected"),
    [
        *(((name,), {}, {KEX}) for name in ("kopfexamples", "kopfexample", "KopfExample", "kex")),
        *((args, {}, {KEX}) for args in OF_KEX),
        *(((), {key: name}, {KEX}) for key, name in NAMES_OF_KEX.items()),
        (("", "v1", "pods"), {}, {PODS}),
        (("kopf.dev", "v1beta1", "kex"), {}, set()),
        (("kopf.dev/v1beta1", "kopfexamples"), {}, {KEX_OLD}),
        (("v1", "pods"), {}, {PODS}),
        (("metrics.k8s.io", "pods"), {}, {METRICS}),
        (("pods.v1",), {}, {PODS}),
        (("kopfexamples.v1beta1.kopf.dev",), {}, {KEX_OLD}),
        ((), {"plural": "kex"}, set()),
        ((), {"group": "kopf.dev", "version": "v1beta1", "plural": "kopfexamples"}, {KEX_OLD}),
        (("samples",), {"group": "twin.dev"}, {TWIN}),
        ((), {"category": "all"}, {PODS, DEPLOYMENTS, OTHERS}),
        (("kopf.dev", "v1beta1", EVERYTHING), {}, {KEX_OLD}),
        (("pods", None, None), {"kind": None}, {PODS}),
        ((EVERYTHING,), {}, {PODS, NODES, METRICS, DEPLOYMENTS, KEX, OTHERS, TWIN}),
        (("v1", "events"), {}, {EVENTS}),
        (("ev",), {}, {EVENTS}),
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
        (("pods",), {"kind": "Pod"}, "exactly one name"),
        (("",), {}, "empty"),
        ((123,), {}, "a string or EVERYTHING"),
        ((EVERYTHING, "pods"), {}, "must be strings"),
        (("v1", "widgets", "example.com"), {}, "The order is group, version, name"),
        (("example.com", "widgets", "v1"), {}, "The order is group, version, name"),
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
        ((), {"kind": "Deploymnt"}, " Did you mean deployments.v1.apps?"),
        (("databases.example.com",), {}, ""),
        (("databases.sampels.dev",), {}, " Did you mean the API group samples.dev?"),
        (("samples.dev",), {}, " samples.dev is an API group: name a kind in it"),
        (("example.com", EVERYTHING), {}, ""),
    ],
)
def test_what_is_like_a_missing_kind_is_suggested(args: Any, names: Any, suggestion: str) -> None:
    said = parse_selector(*args, **names).suggest(CLUSTER, {"samples.dev", "", "apps"})
    assert said.startswith(suggestion)
    assert bool(said) is bool(suggestion)
