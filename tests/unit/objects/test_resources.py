"""Kinds of resources and their selectors."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from webop.objects.resources import EVERYTHING, Resource, Selector, parse_selector

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


@pytest.mark.feature("RES-20", "REF-71")
def test_a_resource_is_a_hashable_reference_by_group_version_and_plural() -> None:
    bare = Resource("kopf.dev", "v1", "kopfexamples")

    assert bare == KEX
    assert hash(bare) == hash(KEX)
    assert {bare, KEX} == {KEX}
    assert bare != Resource("kopf.dev", "v1beta1", "kopfexamples")
    assert bare != object()
    assert bare.preferred
    assert bare.namespaced is None
    assert bare.verbs == bare.shortcuts == bare.categories == bare.subresources == frozenset()
    with pytest.raises(FrozenInstanceError):
        bare.group = "x"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(bare)) == bare


@pytest.mark.feature("RES-21")
@pytest.mark.parametrize(
    ("resource", "options", "url"),
    [
        (PODS, {}, "/api/v1/pods"),
        (PODS, {"namespace": "ns"}, "/api/v1/namespaces/ns/pods"),
        (PODS, {"namespace": "ns", "name": "n"}, "/api/v1/namespaces/ns/pods/n"),
        (KEX, {}, "/apis/kopf.dev/v1/kopfexamples"),
        (
            KEX,
            {"namespace": "ns", "name": "n", "subresource": "status"},
            "/apis/kopf.dev/v1/namespaces/ns/kopfexamples/n/status",
        ),
        (NODES, {"namespace": "ns", "name": "n"}, "/api/v1/nodes/n"),
        (NODES, {"params": {"watch": "true", "x": "a b"}}, "/api/v1/nodes?watch=true&x=a+b"),
        (PODS, {"server": "https://localhost:6443"}, "https://localhost:6443/api/v1/pods"),
        (PODS, {"server": "https://localhost/sub/"}, "https://localhost/sub/api/v1/pods"),
        (
            Resource("rbac.authorization.k8s.io", "v1", "clusterroles", namespaced=False),
            {"name": "system:node who?"},
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode%20who%3F",
        ),
    ],
)
def test_urls_are_those_of_the_api(resource: Resource, options: Any, url: str) -> None:
    assert resource.get_url(**options) == url


@pytest.mark.feature("RES-21")
def test_urls_that_cannot_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="needs an object's name"):
        PODS.get_url(namespace="ns", subresource="status")
    with pytest.raises(ValueError, match="needs a namespace"):
        PODS.get_url(name="n")


@pytest.mark.parametrize(
    ("args", "names", "selected"),
    [
        pytest.param(
            ("kopf.dev", "v1", "kopfexamples"), {}, {KEX}, marks=pytest.mark.feature("RES-01")
        ),
        pytest.param(("", "v1", "pods"), {}, {PODS}, marks=pytest.mark.feature("RES-01")),
        pytest.param(
            ("kopf.dev", "v1beta1", "kex"), {}, set(), marks=pytest.mark.feature("RES-01")
        ),
        pytest.param(
            ("kopf.dev/v1", "kopfexamples"), {}, {KEX}, marks=pytest.mark.feature("RES-02")
        ),
        pytest.param(
            ("kopf.dev/v1beta1", "kopfexamples"), {}, {KEX_OLD}, marks=pytest.mark.feature("RES-02")
        ),
        pytest.param(("apps/v1", "deployments"), {}, {DEPLOYMENTS}),
        pytest.param(("v1", "pods"), {}, {PODS}, marks=pytest.mark.feature("RES-03")),
        pytest.param(
            ("kopf.dev", "kopfexamples"), {}, {KEX}, marks=pytest.mark.feature("RES-04", "RES-22")
        ),
        pytest.param(("metrics.k8s.io", "pods"), {}, {METRICS}),
        pytest.param(("kopfexamples.kopf.dev",), {}, {KEX}, marks=pytest.mark.feature("RES-05")),
        pytest.param(("deployments.apps",), {}, {DEPLOYMENTS}),
        pytest.param(("pods.v1",), {}, {PODS}, marks=pytest.mark.feature("RES-06")),
        pytest.param(
            ("kopfexamples.v1beta1.kopf.dev",), {}, {KEX_OLD}, marks=pytest.mark.feature("RES-06")
        ),
        pytest.param(
            ("kopfexamples",), {}, {KEX}, marks=pytest.mark.feature("RES-07", "RES-08", "RES-22")
        ),
        pytest.param(("kopfexample",), {}, {KEX}, marks=pytest.mark.feature("RES-08")),
        pytest.param(("KopfExample",), {}, {KEX}, marks=pytest.mark.feature("RES-08")),
        pytest.param(("kex",), {}, {KEX}, marks=pytest.mark.feature("RES-08")),
        pytest.param((), {"kind": "KopfExample"}, {KEX}, marks=pytest.mark.feature("RES-09")),
        pytest.param((), {"plural": "kopfexamples"}, {KEX}, marks=pytest.mark.feature("RES-09")),
        pytest.param((), {"singular": "kopfexample"}, {KEX}, marks=pytest.mark.feature("RES-09")),
        pytest.param((), {"shortcut": "kex"}, {KEX}, marks=pytest.mark.feature("RES-09")),
        pytest.param((), {"plural": "kex"}, set(), marks=pytest.mark.feature("RES-09")),
        pytest.param((), {"kind": "pods"}, set(), marks=pytest.mark.feature("RES-09")),
        pytest.param((), {"singular": "pods"}, set(), marks=pytest.mark.feature("RES-09")),
        pytest.param(
            (),
            {"group": "kopf.dev", "version": "v1beta1", "plural": "kopfexamples"},
            {KEX_OLD},
            marks=pytest.mark.feature("RES-09"),
        ),
        pytest.param(("samples",), {"group": "twin.dev"}, {TWIN}),
        pytest.param(("twin.dev", "samples"), {"group": "twin.dev"}, {TWIN}),
        pytest.param(
            (),
            {"category": "all"},
            {PODS, DEPLOYMENTS, OTHERS},
            marks=pytest.mark.feature("RES-10", "RES-15"),
        ),
        pytest.param(
            ("kopf.dev", "v1beta1", EVERYTHING), {}, {KEX_OLD}, marks=pytest.mark.feature("RES-11")
        ),
        pytest.param(
            ("kopf.dev/v1", EVERYTHING), {}, {KEX}, marks=pytest.mark.feature("RES-11", "REF-72")
        ),
        pytest.param(("kopf.dev", EVERYTHING), {}, {KEX}, marks=pytest.mark.feature("RES-11")),
        pytest.param(
            (EVERYTHING,),
            {},
            {PODS, NODES, METRICS, DEPLOYMENTS, KEX, OTHERS, TWIN},
            marks=pytest.mark.feature("RES-11", "RES-12", "RES-15", "RES-22"),
        ),
        pytest.param(("v1", "events"), {}, {EVENTS}, marks=pytest.mark.feature("RES-12")),
        pytest.param(("ev",), {}, {EVENTS}, marks=pytest.mark.feature("RES-12", "RES-16")),
        pytest.param(("events.events.k8s.io",), {}, {NEW_EVENTS}),
        pytest.param(("pod*",), {}, set(), marks=pytest.mark.feature("RES-13")),
        pytest.param(("samples",), {}, set(), marks=pytest.mark.feature("RES-14", "D-58")),
        pytest.param((), {"shortcut": "s"}, set(), marks=pytest.mark.feature("RES-14")),
        pytest.param(("pods",), {}, {PODS}, marks=pytest.mark.feature("RES-16")),
        pytest.param(("absent",), {}, set(), marks=pytest.mark.feature("RES-17")),
        pytest.param(
            (lambda resource: "s" in resource.shortcuts,),
            {},
            {OTHERS, TWIN},
            marks=pytest.mark.feature("RES-24"),
        ),
        pytest.param(
            (lambda resource: resource.plural in ("events", "nodes"),),
            {},
            {NODES},
            marks=pytest.mark.feature("RES-12", "RES-24"),
        ),
    ],
)
def test_selectors_take_the_resources_that_are_meant(args: Any, names: Any, selected: Any) -> None:
    assert set(parse_selector(*args, **names).select(CLUSTER)) == selected


@pytest.mark.parametrize(
    ("args", "names", "message"),
    [
        pytest.param((), {}, "must name a resource", marks=pytest.mark.feature("RES-23")),
        pytest.param(
            (), {"group": "apps"}, "must name a resource", marks=pytest.mark.feature("RES-23")
        ),
        pytest.param(
            ("a", "b", "c", "d"),
            {},
            "a group, a version and a name",
            marks=pytest.mark.feature("RES-23"),
        ),
        pytest.param(
            ("pods",), {"kind": "Pod"}, "exactly one name", marks=pytest.mark.feature("RES-23")
        ),
        pytest.param(
            (),
            {"kind": "Pod", "plural": "pods"},
            "exactly one name",
            marks=pytest.mark.feature("RES-23"),
        ),
        pytest.param((lambda _: True,), {"kind": "Pod"}, "exactly one name"),
        pytest.param(("",), {}, "empty", marks=pytest.mark.feature("RES-23")),
        pytest.param((), {"singular": ""}, "empty", marks=pytest.mark.feature("RES-23")),
        pytest.param((123,), {}, "a string or EVERYTHING"),
        pytest.param(("apps", lambda _: True), {}, "a string or EVERYTHING"),
        pytest.param((EVERYTHING, "pods"), {}, "must be strings"),
        pytest.param(("v1", "widgets", "example.com"), {}, "The order is group, version, name"),
        pytest.param(("v1", "example.com", "widgets"), {}, "The order is group, version, name"),
        pytest.param(("example.com", "widgets", "v1"), {}, "The order is group, version, name"),
        pytest.param(("widgets", "example.com"), {}, "The order is group, version, name"),
        pytest.param(("widgets", "v1beta1"), {}, "The order is group, version, name"),
        pytest.param(("pods.v1",), {"version": "v2"}, "Conflicting values"),
        pytest.param((), {"name": "pods"}, "cannot be selected by name"),
    ],
)
def test_selectors_that_cannot_be_meant_are_refused(args: Any, names: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        parse_selector(*args, **names)


@pytest.mark.feature("RES-14", "RES-15", "RES-16", "RES-17", "D-58")
@pytest.mark.parametrize(
    ("args", "names", "is_ambiguous", "candidates"),
    [
        (("samples",), {}, True, {OTHERS, TWIN}),
        (("pods",), {}, False, {PODS}),
        (("absent",), {}, False, set()),
        (("twin.dev", "samples"), {}, False, {TWIN}),
        ((), {"category": "all"}, False, {PODS, DEPLOYMENTS, OTHERS}),
    ],
)
def test_an_ambiguous_selector_can_be_told_from_one_that_matches_nothing(
    args: Any, names: Any, is_ambiguous: bool, candidates: Any
) -> None:
    selector = parse_selector(*args, **names)

    assert selector.is_ambiguous(CLUSTER) is is_ambiguous
    assert set(selector.find_candidates(CLUSTER)) == candidates


@pytest.mark.feature("RES-17")
@pytest.mark.parametrize(
    ("args", "names", "suggestion"),
    [
        (
            ("kopf.dev", "v2", "kopfexamples"),
            {},
            " The cluster has kopfexamples.v1beta1.kopf.dev",
        ),
        (("kopfexamples.example.com",), {}, " The cluster has kopfexamples.v1beta1.kopf.dev"),
        ((), {"kind": "Pod", "version": "v2"}, " The cluster has pods.v1."),
        (("deploymentss",), {}, " Did you mean deployments.v1.apps?"),
        (("deploymentss.apps",), {}, " Did you mean deployments.v1.apps?"),
        (("deploymentss.example.com",), {}, ""),
        ((), {"kind": "Deploymnt"}, " Did you mean deployments.v1.apps?"),
        (("databases.example.com",), {}, ""),
        (("databases",), {}, ""),
        (("databases.sampels.dev",), {}, " Did you mean the API group samples.dev?"),
        (("databases.samples.dev",), {}, ""),
        (("samples.dev",), {}, " samples.dev is an API group: name a kind in it"),
        (("example.com", EVERYTHING), {}, ""),
        ((lambda _: 1 / 0,), {}, ""),
    ],
)
def test_what_is_like_a_missing_kind_is_suggested(args: Any, names: Any, suggestion: str) -> None:
    said = parse_selector(*args, **names).suggest(CLUSTER, {"samples.dev", "", "apps"})
    assert said.startswith(suggestion)
    assert bool(said) is bool(suggestion)


@pytest.mark.feature("RES-15")
@pytest.mark.parametrize(
    ("selector", "is_specific"),
    [
        (parse_selector("pods"), True),
        (parse_selector(kind="Pod"), True),
        (parse_selector(shortcut="po"), True),
        (parse_selector(category="all"), False),
        (parse_selector(EVERYTHING), False),
        (parse_selector("apps", EVERYTHING), False),
        (parse_selector(lambda _: True), False),
    ],
)
def test_only_names_of_one_kind_are_specific(selector: Selector, is_specific: bool) -> None:
    assert selector.is_specific is is_specific
