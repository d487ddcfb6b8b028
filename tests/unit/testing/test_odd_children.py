"""Odd arguments of the methods of children, on the client with an API server in memory."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from webop.testing import FakeClient

Json = dict[str, Any]
PARENT: Json = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "site", "namespace": "team"},
}
PLACE: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "place"}}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
async def test_a_value_that_json_does_not_have_is_refused_and_not_written_as_null(
    value: float,
) -> None:
    registry, client = webop.OperatorRegistry(), FakeClient(PARENT)

    @webop.reconcile("v1", "configmaps", owns=["deployments.apps"], registry=registry)
    async def build(children: webop.Children, **_: Any) -> None:
        template: Json = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}
        spec = {"replicas": value, "selector": {"matchLabels": {"a": "b"}}, "template": template}
        metadata = {"name": "a"}
        await children.apply(
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
        )

    with pytest.raises(ValueError, match=r"JSON"):
        await client.reconcile(build, PARENT, registry=registry)


async def test_a_child_of_an_object_without_a_namespace_is_not_said_to_be_absent() -> None:
    registry, client = webop.OperatorRegistry(), FakeClient(PLACE)
    results: list[Any] = []

    @webop.reconcile("v1", "namespaces", owns=["secrets"], registry=registry)
    async def build(children: webop.Children, **_: Any) -> None:
        child = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}
        await children.apply(child, namespace="place")
        names = [one["metadata"]["name"] for one in await children.list("secrets")]
        results.extend([await children.delete("secrets", name) for name in names])

    try:
        await client.reconcile(build, PLACE, registry=registry)
    except webop.ConfigurationError:
        return
    assert results == [True]


def build_version(name: str, *, is_stored: bool) -> Json:
    loose = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": loose}}}
    return {"name": name, "served": True, "storage": is_stored, "schema": schema}


BOXES: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "boxes.webop.dev"},
    "spec": {
        "group": "webop.dev",
        "scope": "Namespaced",
        "names": {"plural": "boxes", "kind": "Box"},
        "versions": [
            build_version("v1", is_stored=True),
            build_version("v1beta1", is_stored=False),
        ],
    },
}


async def test_children_of_an_owned_version_are_listed_by_the_name_of_their_kind() -> None:
    registry, client = webop.OperatorRegistry(), FakeClient(BOXES, PARENT)
    seen: list[Any] = []

    @webop.reconcile("v1", "configmaps", owns=["boxes.v1beta1.webop.dev"], registry=registry)
    async def build(children: webop.Children, **_: Any) -> None:
        child = {"apiVersion": "webop.dev/v1beta1", "kind": "Box", "metadata": {"name": "a"}}
        await children.apply(child)
        seen.extend(await children.list("boxes.webop.dev"))

    await client.reconcile(build, PARENT, registry=registry)
    assert [one["metadata"]["name"] for one in seen] == ["a"]


class Colours(webop.Struct):
    first: str = "red"
    second: str = "blue"


@webop.resource("webop.dev", "v1")
class Box(webop.Model):
    spec: Colours = Colours()


@pytest.mark.parametrize("is_mapping", [False, True])
async def test_a_model_in_a_mapping_takes_no_more_fields_than_alone(*, is_mapping: bool) -> None:
    """A user has set a field that the model does not say: it has the default."""
    registry, client = webop.OperatorRegistry(), FakeClient(Box, PARENT)
    colours = iter(["green", "black"])

    @webop.reconcile("v1", "configmaps", owns=[Box], registry=registry)
    async def build(children: webop.Children, **_: Any) -> None:
        spec = Colours(second=next(colours))
        body = {"apiVersion": "webop.dev/v1", "kind": "Box", "metadata": {"name": "a"}}
        box = Box(metadata=webop.Metadata(name="a"), spec=spec)
        await children.apply({**body, "spec": spec} if is_mapping else box)

    await client.reconcile(build, PARENT, registry=registry)
    await client.patch(Box, "a", {"spec": {"first": "pink"}}, namespace="team")
    await client.reconcile(build, PARENT, registry=registry)
    found = await client.get(Box, "a", namespace="team")
    assert (found.spec.first, found.spec.second) == ("pink", "black")


async def test_a_mapping_with_a_model_can_have_keys_that_are_numbers() -> None:
    registry, client = webop.OperatorRegistry(), FakeClient(PARENT)

    @webop.reconcile("v1", "configmaps", owns=["secrets"], registry=registry)
    async def build(children: webop.Children, **_: Any) -> None:
        child = {"apiVersion": "v1", "kind": "Secret", "metadata": webop.Metadata(name="a")}
        await children.apply({**child, "stringData": {8080: "web"}})

    await client.reconcile(build, PARENT, registry=registry)
    assert await client.get("secrets", "a", namespace="team")
