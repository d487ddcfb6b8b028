"""Selectors of watches: keys mean the same kinds as in Kopf."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

import kopf
import pydantic
import pytest
from kopf._cogs.configs.arrays import SelectorMapping as KopfMapping
from kopf._cogs.structs.references import Resource as KopfResource

import webop
from tests.kit.rows import rows
from webop.errors import ConfigurationError
from webop.settings.base import SettingError
from webop.settings.watch_selectors import SelectorMapping

RESOURCES = [
    webop.Resource(
        *("", "v1", "pods"),
        kind="Pod",
        singular="pod",
        shortcuts=frozenset({"po"}),
        categories=frozenset({"all"}),
        namespaced=True,
    ),
    webop.Resource("", "v1", "events", kind="Event", singular="event", namespaced=True),
    webop.Resource("", "v1", "namespaces", kind="Namespace", shortcuts=frozenset({"ns"})),
    webop.Resource("apps", "v1", "deployments", kind="Deployment", categories=frozenset({"all"})),
    webop.Resource("apps", "v1beta1", "deployments", kind="Deployment", preferred=False),
    webop.Resource("metrics.k8s.io", "v1", "pods", kind="PodMetrics"),
    webop.Resource("selected.dev", "v1", "examples", kind="Example"),
]

KEYS: list[Any] = [
    *("pods", "po", "Pod", "pod", "pods.v1", "deployments.apps", "deployments.v1beta1.apps"),
    *("events", "namespaces", "ns", "nothing", "examples.selected.dev"),
    *(("v1", "pods"), ("apps", "deployments"), ("apps/v1beta1", "deployments")),
    *(("apps", "v1", "deployments"), ("selected.dev", "examples")),
    *("EVERYTHING", ("apps", "EVERYTHING"), ("apps", "v1beta1", "EVERYTHING")),
    lambda resource: resource.group == "apps",
    lambda resource: resource.plural == "events",
]


def choose_marker(key: Any, marker: Any) -> Any:
    """Return the key with the marker of Kopf, or of webop, instead of its name."""
    if isinstance(key, tuple):
        return tuple(choose_marker(part, marker) for part in key)
    return marker if key == "EVERYTHING" else key


@pytest.mark.feature("REF-50")
@rows("key", KEYS)
def test_a_key_means_the_kinds_that_it_means_in_kopf(key: Any) -> None:
    ours, theirs = SelectorMapping(), KopfMapping[str]()
    ours[choose_marker(key, webop.EVERYTHING)] = "app=x"
    theirs[choose_marker(key, kopf.EVERYTHING)] = "app=x"
    for resource in RESOURCES:
        known = KopfResource(**asdict(resource))
        assert ours.collect(resource) == theirs.collect(known), resource


class Deployment(pydantic.BaseModel):
    """As packages of generated classes have it."""

    apiVersion: Literal["apps/v1"] = "apps/v1"  # noqa: N815
    kind: Literal["Deployment"] = "Deployment"


@pytest.mark.feature("REF-50")
def test_a_class_as_a_key_means_its_kind_in_its_version() -> None:
    @webop.resource("selected.dev", "v1")
    class Example(webop.Model):
        spec: dict[str, Any]

    watching = webop.OperatorSettings().watching
    watching.label_selectors[Example] = "a=1"
    watching.label_selectors[Deployment] = "b=2"
    found = {str(each): watching.build_selectors(each) for each in RESOURCES}
    assert {name: each for name, each in found.items() if each} == {
        "examples.v1.selected.dev": {"labelSelector": "a=1"},
        "deployments.v1.apps": {"labelSelector": "b=2"},
    }
    assert watching.label_selectors[Example] == "a=1"
    assert Deployment in watching.label_selectors
    with pytest.raises(ConfigurationError, match="Struct does not say of which kind it is"):
        watching.label_selectors[webop.Struct] = "a=1"


@pytest.mark.feature("REF-50")
def test_several_selectors_of_a_kind_are_joined_and_shards_are_not() -> None:
    watching = webop.OperatorSettings().watching
    watching.label_selectors["pods"] = "b=2,c"
    watching.label_selectors["v1", webop.EVERYTHING] = "a=1"
    watching.label_selectors[lambda resource: resource.kind == "Pod"] = "a=1"
    fields: Any = {"po": "spec.nodeName=n", "deployments": "metadata.name=x"}
    watching.field_selectors = fields
    watching.shard_selectors["pods"] = "one"
    watching.shard_selectors[webop.EVERYTHING] = "two"
    pods, _, namespaces, deployments = RESOURCES[:4]
    assert watching.build_selectors(pods) == {
        "labelSelector": "a=1,b=2,c",
        "fieldSelector": "spec.nodeName=n",
        "shardSelector": "one",
    }
    assert watching.build_selectors(deployments) == {
        "fieldSelector": "metadata.name=x",
        "shardSelector": "two",
    }
    assert watching.build_selectors(namespaces, is_named=True) == {}
    watching.label_selectors["namespaces"] = "team=a"
    assert watching.build_selectors(namespaces, is_named=True) == {"labelSelector": "team=a"}


@pytest.mark.feature("REF-50")
def test_what_is_no_selector_is_refused() -> None:
    watching = webop.OperatorSettings().watching
    with pytest.raises(TypeError, match="must be a string, got 5"):
        watching.label_selectors["pods"] = 5  # type: ignore[assignment]
    with pytest.raises(TypeError, match="must not have a slash"):
        watching.label_selectors["apps/deployments"] = "a"
    with pytest.raises(SettingError, match="must be a mapping of kinds"):
        watching.label_selectors = "app=x"  # type: ignore[assignment]
    with pytest.raises(SettingError, match="must be a string, got None"):
        watching.shard_selectors = {"pods": None}  # type: ignore[assignment]
    with pytest.raises(ConfigurationError, match="can only be set in code"):
        webop.OperatorSettings.from_environment({"WEBOP_WATCHING__LABEL_SELECTORS": "x"})
