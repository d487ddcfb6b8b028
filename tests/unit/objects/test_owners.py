"""Labels, names, namespaces and owners of what handlers create."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import kubernetes
import pykube
import pytest

from webop.objects.body import Body
from webop.objects.owners import (
    adjust_namespace,
    adopt,
    append_owner_reference,
    harmonize_naming,
    label,
    owner_of_the_moment,
    remove_owner_reference,
)

OWNER: dict[str, Any] = {
    "apiVersion": "kopf.dev/v1",
    "kind": "KopfExample",
    "metadata": {
        "name": "kopf-example-1",
        "namespace": "default",
        "uid": "uid1",
        "labels": {"somelabel": "somevalue"},
    },
}
REFERENCE = {
    "controller": True,
    "blockOwnerDeletion": True,
    "apiVersion": "kopf.dev/v1",
    "kind": "KopfExample",
    "name": "kopf-example-1",
    "uid": "uid1",
}
ALL = (
    label,
    append_owner_reference,
    remove_owner_reference,
    harmonize_naming,
    adjust_namespace,
    adopt,
)


@pytest.fixture
def handled() -> Iterator[Body]:
    body = Body(OWNER)
    token = owner_of_the_moment.set(body)
    yield body
    owner_of_the_moment.reset(token)


def build_children() -> list[dict[str, Any]]:
    return [{"kind": "Job"}, {"kind": "Deployment", "spec": {"template": {}}}]


@pytest.fixture(params=["installed", "older"])
def models(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The models of the official client library: as it is installed, and as it was before."""
    if request.param == "installed":
        return kubernetes.client
    return build_older_models(monkeypatch)


def build_older_models(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a package of models as older clients have it, generated in the same manner."""
    package: Any = ModuleType("kubernetes.client.models")
    attributes = {
        "V1Pod": {"metadata": "metadata", "spec": "spec"},
        "V1Job": {"metadata": "metadata", "spec": "spec"},
        "V1JobSpec": {"template": "template", "pod_failure_policy": "podFailurePolicy"},
        "V1PodTemplateSpec": {"metadata": "metadata"},
        "V1ObjectMeta": {
            "name": "name",
            "generate_name": "generateName",
            "namespace": "namespace",
            "labels": "labels",
            "owner_references": "ownerReferences",
        },
        "V1OwnerReference": {
            "api_version": "apiVersion",
            "block_owner_deletion": "blockOwnerDeletion",
            "controller": "controller",
            "kind": "kind",
            "name": "name",
            "uid": "uid",
        },
    }

    def init(self: Any, **values: Any) -> None:
        for attribute in self.attribute_map:
            setattr(self, attribute, values.pop(attribute, None))
        assert not values

    for name, attribute_map in attributes.items():
        namespace = {
            "attribute_map": attribute_map,
            "__init__": init,
            "__module__": f"kubernetes.client.models.{name.lower()}",
        }
        setattr(package, name, type(name, (), namespace))
    monkeypatch.setitem(sys.modules, "kubernetes.client.models", package)
    return package


@pytest.mark.feature("HIE-01", "HIE-02", "REF-26")
def test_labels_are_put_on_objects() -> None:
    objs = build_children()

    label(objs, {"label1": "value1", "label2": "value2"})

    for obj in objs:
        assert obj["metadata"] == {"labels": {"label1": "value1", "label2": "value2"}}


@pytest.mark.feature("HIE-03", "D-12")
@pytest.mark.parametrize("labels", [[], [None]])
def test_labels_are_those_of_the_handled_object_by_default(handled: Body, labels: Any) -> None:
    obj: dict[str, Any] = {}

    label(obj, *labels)

    assert obj == {"metadata": {"labels": {"somelabel": "somevalue"}}}


@pytest.mark.feature("HIE-03")
def test_no_labels_change_nothing(handled: Body) -> None:
    obj: dict[str, Any] = {"kind": "Job"}

    label(obj, {})

    assert obj == {"kind": "Job"}


@pytest.mark.feature("HIE-04")
@pytest.mark.parametrize(("forced", "kept"), [(False, "old"), (True, "new")])
def test_labels_that_are_there_are_kept_unless_forced(forced: bool, kept: str) -> None:
    obj = {"metadata": {"labels": {"x": "old", "y": "other"}}}

    label(obj, {"x": "new", "z": "added"}, forced=forced)

    assert obj == {"metadata": {"labels": {"x": kept, "y": "other", "z": "added"}}}


@pytest.mark.feature("HIE-05")
@pytest.mark.parametrize("nested", ["spec.template", ["spec.template"], [("spec", "template")]])
def test_nested_structures_are_labelled_if_they_exist(nested: Any) -> None:
    objs = build_children()

    label(objs, {"x": "y"}, nested=nested)

    labelled = {"metadata": {"labels": {"x": "y"}}}
    assert objs == [
        {"kind": "Job", **labelled},
        {"kind": "Deployment", **labelled, "spec": {"template": labelled}},
    ]


@pytest.mark.feature("HIE-05")
@pytest.mark.parametrize("labels", [{}, {"app": "x"}])
def test_a_selector_that_is_the_dict_of_the_labels_gets_them_as_well(
    labels: dict[str, str],
) -> None:
    obj: dict[str, Any] = {"metadata": {"labels": labels}}
    obj["spec"] = {"selector": {"matchLabels": labels}}
    label(obj, {"team": "y"})
    assert obj["spec"]["selector"]["matchLabels"]["team"] == "y"


def test_nested_lists_are_labelled_item_by_item() -> None:
    obj: dict[str, Any] = {"spec": {"volumeClaimTemplates": [{}, {}], "other": "text"}}

    label(obj, {"x": "y"}, nested=["spec.volumeClaimTemplates", "spec.other.field"])

    labelled = {"metadata": {"labels": {"x": "y"}}}
    assert obj == {"spec": {"volumeClaimTemplates": [labelled] * 2, "other": "text"}, **labelled}


@pytest.mark.feature("HIE-06")
def test_the_former_name_of_forced_works_with_a_warning() -> None:
    obj = {"metadata": {"labels": {"x": "old"}}}

    with pytest.warns(DeprecationWarning, match="forced"):
        label(obj, {"x": "new"}, force=True)

    assert obj == {"metadata": {"labels": {"x": "new"}}}


@pytest.mark.feature("HIE-07", "HIE-09", "REF-33")
def test_owner_references_are_appended_once() -> None:
    other = {"uid": "other"}
    objs: list[dict[str, Any]] = [{}, {"metadata": {"ownerReferences": [other]}}]

    append_owner_reference(objs, OWNER)
    append_owner_reference(objs, Body(OWNER), controller=False)

    assert objs[0] == {"metadata": {"ownerReferences": [REFERENCE]}}
    assert objs[1] == {"metadata": {"ownerReferences": [other, REFERENCE]}}


@pytest.mark.feature("HIE-07")
def test_owner_references_can_be_weaker() -> None:
    obj: dict[str, Any] = {}

    append_owner_reference(obj, OWNER, controller=False, block_owner_deletion=False)

    assert obj["metadata"]["ownerReferences"] == [
        {**REFERENCE, "controller": False, "blockOwnerDeletion": False}
    ]


@pytest.mark.feature("HIE-08", "HIE-09", "REF-34")
def test_owner_references_are_removed_by_uid(handled: Body) -> None:
    other = {"uid": "other"}
    objs: list[dict[str, Any]] = [
        {},
        {"metadata": {"ownerReferences": [other]}},
        {"metadata": {"ownerReferences": [REFERENCE, other]}},
    ]

    remove_owner_reference(objs)

    assert objs == [
        {},
        {"metadata": {"ownerReferences": [other]}},
        {"metadata": {"ownerReferences": [other]}},
    ]


@pytest.mark.feature("HIE-10", "HIE-11", "HIE-12", "REF-27")
@pytest.mark.parametrize(
    ("before", "options", "after"),
    [
        ({}, {}, {"generateName": "new-"}),
        ({}, {"strict": True}, {"name": "new"}),
        ({"name": "old"}, {}, {"name": "old"}),
        ({"name": "old"}, {"strict": True}, {"name": "old"}),
        ({"generateName": "old-"}, {"strict": True}, {"generateName": "old-"}),
        ({"name": "old"}, {"forced": True}, {"generateName": "new-"}),
        ({"generateName": "old-"}, {"forced": True, "strict": True}, {"name": "new"}),
        ({"name": "old"}, {"forced": True, "strict": True}, {"name": "new"}),
    ],
)
def test_names_are_prefixes_unless_strict_and_kept_unless_forced(
    before: dict[str, str], options: Any, after: dict[str, str]
) -> None:
    obj = {"metadata": dict(before)}

    harmonize_naming(obj, "new", **options)

    assert obj == {"metadata": after}


@pytest.mark.feature("HIE-10", "D-12")
@pytest.mark.parametrize("name", [[], [None]])
def test_names_are_those_of_the_handled_object_by_default(handled: Body, name: Any) -> None:
    obj: dict[str, Any] = {}

    harmonize_naming(obj, *name)

    assert obj == {"metadata": {"generateName": "kopf-example-1-"}}


@pytest.mark.feature("HIE-13", "REF-28")
@pytest.mark.parametrize(
    ("before", "forced", "after"),
    [({}, False, "new"), ({"namespace": "old"}, False, "old"), ({"namespace": "old"}, True, "new")],
)
def test_namespaces_are_kept_unless_forced(
    before: dict[str, str], forced: bool, after: str
) -> None:
    obj = {"metadata": dict(before)}

    adjust_namespace(obj, "new", forced=forced)

    assert obj == {"metadata": {"namespace": after}}


@pytest.mark.feature("HIE-13", "D-12")
@pytest.mark.parametrize("namespace", [[], [None]])
def test_the_namespace_is_that_of_the_handled_object_by_default(
    handled: Body, namespace: Any
) -> None:
    obj: dict[str, Any] = {}

    adjust_namespace(obj, *namespace)

    assert obj == {"metadata": {"namespace": "default"}}


@pytest.mark.feature("HIE-13")
def test_an_owner_of_the_whole_cluster_leaves_namespaces_as_they_are() -> None:
    owner = {"kind": "Node", "metadata": {"name": "n", "uid": "u"}}
    objs: list[dict[str, Any]] = [{}, {"metadata": {"namespace": "mine"}}]

    adopt(objs, owner, forced=True)

    assert "namespace" not in objs[0]["metadata"]
    assert objs[1]["metadata"]["namespace"] == "mine"


@pytest.mark.feature("HIE-14", "REF-25")
def test_adopting_does_all_of_it_as_in_the_manual(handled: Body) -> None:
    objs = build_children()

    adopt(objs, strict=True, forced=True, nested="spec.template")

    metadata = {
        "ownerReferences": [REFERENCE],
        "name": "kopf-example-1",
        "namespace": "default",
        "labels": {"somelabel": "somevalue"},
    }
    assert objs[0] == {"kind": "Job", "metadata": metadata}
    assert objs[1] == {
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {"template": {"metadata": {"labels": {"somelabel": "somevalue"}}}},
    }


@pytest.mark.feature("HIE-09", "HIE-14")
def test_an_explicit_owner_is_the_source_of_everything(handled: Body) -> None:
    owner = {"metadata": {"name": "boss", "uid": "uid2", "labels": {"b": "c"}}}
    obj: dict[str, Any] = {}

    adopt(obj, owner)

    assert obj["metadata"]["generateName"] == "boss-"
    assert obj["metadata"]["labels"] == {"b": "c"}
    assert [ref["uid"] for ref in obj["metadata"]["ownerReferences"]] == ["uid2"]
    assert owner_of_the_moment.get() is handled


@pytest.mark.feature("HIE-01", "HIE-14")
def test_objects_come_in_any_iterable_even_in_one_that_can_be_iterated_only_once() -> None:
    objs = build_children()

    adopt((obj for obj in [objs[0], [None, (objs[1],)]]), OWNER)

    for obj in objs:
        assert set(obj["metadata"]) == {"ownerReferences", "generateName", "namespace", "labels"}


@pytest.mark.feature("HIE-02")
def test_the_owner_is_not_changed_by_an_adoption() -> None:
    owner = copy.deepcopy(OWNER)
    obj = {"metadata": {"labels": owner["metadata"]["labels"]}}

    adopt(obj, owner)

    assert owner == OWNER


@pytest.mark.feature("HIE-01")
def test_objects_of_pykube_are_changed_inside() -> None:
    pod = pykube.Pod(None, {"kind": "Pod"})

    adopt(pod, pykube.objects.NamespacedAPIObject(None, OWNER))

    assert pod.obj["metadata"]["ownerReferences"] == [REFERENCE]
    assert pod.obj["metadata"]["namespace"] == "default"


@pytest.mark.feature("HIE-16")
def test_models_of_the_kubernetes_client_get_their_metadata(models: Any) -> None:
    pod = models.V1Pod()

    adopt(pod, OWNER)

    assert pod.metadata.generate_name == "kopf-example-1-"
    assert pod.metadata.name is None
    assert pod.metadata.namespace == "default"
    assert pod.metadata.labels == {"somelabel": "somevalue"}
    (reference,) = pod.metadata.owner_references
    assert isinstance(reference, models.V1OwnerReference)
    values = reference.to_dict() if hasattr(reference, "to_dict") else vars(reference)
    assert values == {
        "controller": True,
        "block_owner_deletion": True,
        "api_version": "kopf.dev/v1",
        "kind": "KopfExample",
        "name": "kopf-example-1",
        "uid": "uid1",
    }


@pytest.mark.feature("HIE-05", "HIE-08", "HIE-12", "HIE-16")
def test_models_are_treated_as_dicts_are(models: Any) -> None:
    class OwnJob(models.V1Job):  # type: ignore[misc]
        """Classes of one's own are found by where their parents come from."""

    template = models.V1PodTemplateSpec()
    job = OwnJob(spec=models.V1JobSpec(template=template))
    other = models.V1OwnerReference(api_version="v1", kind="Node", name="n", uid="other")
    job.metadata = models.V1ObjectMeta(
        name="old", labels={"somelabel": "old"}, owner_references=[other]
    )

    adopt(job, OWNER, nested=["spec.template", "spec.podFailurePolicy.metadata", "spec.absent"])
    append_owner_reference(job, OWNER)

    assert job.metadata.name == "old"
    assert job.metadata.labels == {"somelabel": "old"}
    assert [ref.uid for ref in job.metadata.owner_references] == ["other", "uid1"]
    assert template.metadata.labels == {"somelabel": "somevalue"}

    harmonize_naming(job, "new", forced=True)
    remove_owner_reference(job, OWNER)

    assert (job.metadata.name, job.metadata.generate_name) == (None, "new-")
    assert job.metadata.owner_references == [other]


@pytest.mark.feature("HIE-15")
@pytest.mark.parametrize("function", ALL)
def test_outside_of_handlers_the_owner_must_be_given(function: Any) -> None:
    with pytest.raises(LookupError, match="Pass owner="):
        function({})


@pytest.mark.feature("HIE-15")
def test_an_owner_that_does_not_exist_yet_cannot_be_referred_to() -> None:
    with pytest.raises(LookupError, match="uid"):
        append_owner_reference({}, {"metadata": {"name": "n"}})
    with pytest.raises(LookupError, match="name"):
        adopt({}, {"metadata": {"uid": "u"}})


@pytest.mark.feature("HIE-19")
@pytest.mark.parametrize("function", ALL)
@pytest.mark.parametrize("obj", [123, "text", object(), Body({}), [{}, object()]])
def test_other_classes_are_refused(handled: Body, function: Any, obj: Any) -> None:
    with pytest.raises(TypeError, match="must be a dict"):
        function(obj)


@pytest.mark.feature("HIE-19")
def test_an_owner_of_another_class_is_refused() -> None:
    with pytest.raises(TypeError, match="a body or a dict, got int"):
        adopt({}, 123)  # type: ignore[arg-type]
