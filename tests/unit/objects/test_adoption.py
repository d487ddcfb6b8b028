"""Labels, names, namespaces and owners of what handlers create."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kubernetes
import kubernetes_asyncio
import pydantic
import pykube
import pytest

import webop
from tests.kit.rows import rows
from webop import (
    Body,
    adjust_namespace,
    adopt,
    append_owner_reference,
    harmonize_naming,
    label,
    remove_owner_reference,
)
from webop.objects.adoption import owner_of_the_moment

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
MODELS: Any = kubernetes.client
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


@pytest.mark.feature("HIE-03", "D-12")
@pytest.mark.parametrize("labels", [[], [None]])
def test_labels_are_those_of_the_handled_object_by_default(handled: Body, labels: Any) -> None:
    obj: dict[str, Any] = {}

    label(obj, *labels)

    assert obj == {"metadata": {"labels": {"somelabel": "somevalue"}}}


@pytest.mark.feature("HIE-05")
@rows("labels", [{}, {"app": "x"}])
def test_a_selector_that_is_the_dict_of_the_labels_gets_them_as_well(
    labels: dict[str, str],
) -> None:
    obj: dict[str, Any] = {"metadata": {"labels": labels}}
    obj["spec"] = {"selector": {"matchLabels": labels}}
    label(obj, {"team": "y"})
    assert obj["spec"]["selector"]["matchLabels"]["team"] == "y"


@pytest.mark.feature("HIE-06")
def test_the_former_name_of_forced_works_with_a_warning() -> None:
    obj = {"metadata": {"labels": {"x": "old"}}}

    with pytest.warns(DeprecationWarning, match="forced"):
        label(obj, {"x": "new"}, force=True)

    assert obj == {"metadata": {"labels": {"x": "new"}}}


@pytest.mark.feature("HIE-08", "HIE-09", "REF-34")
def test_owner_references_are_removed_by_uid(handled: Body) -> None:
    other = {"uid": "other"}
    kept = {"metadata": {"ownerReferences": [other]}}
    objs: list[Any] = [{}, {"metadata": {"ownerReferences": [REFERENCE, other]}}]

    remove_owner_reference(objs)

    assert objs == [{}, kept]
    remove_owner_reference(objs)
    assert objs == [{}, kept]


@pytest.mark.feature("HIE-13")
def test_an_owner_of_the_whole_cluster_leaves_namespaces_as_they_are() -> None:
    owner = {"kind": "Node", "metadata": {"name": "n", "uid": "u"}}
    objs: list[dict[str, Any]] = [{}, {"metadata": {"namespace": "mine"}}]

    adopt(objs, owner, forced=True)

    assert "namespace" not in objs[0]["metadata"]
    assert objs[1]["metadata"]["namespace"] == "mine"


@pytest.mark.feature("HIE-01")
def test_objects_of_pykube_are_changed_inside() -> None:
    pod = pykube.Pod(None, {"kind": "Pod"})

    adopt(pod, pykube.objects.NamespacedAPIObject(None, OWNER))

    assert pod.obj["metadata"]["ownerReferences"] == [REFERENCE]
    assert pod.obj["metadata"]["namespace"] == "default"


@pytest.mark.feature("HIE-05", "HIE-08", "HIE-12", "HIE-16")
def test_models_are_treated_as_dicts_are() -> None:
    class OwnJob(MODELS.V1Job):  # type: ignore[misc]
        """Classes of one's own are found by where their parents come from."""

    template = MODELS.V1PodTemplateSpec()
    job = OwnJob(spec=MODELS.V1JobSpec(template=template))
    other = MODELS.V1OwnerReference(api_version="v1", kind="Node", name="n", uid="other")
    job.metadata = MODELS.V1ObjectMeta(
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


@pytest.mark.parametrize("function", ALL)
@pytest.mark.parametrize("models", [kubernetes.client, kubernetes_asyncio.client])
def test_a_list_has_no_labels_or_owners_and_is_refused(
    handled: Body, function: Any, models: Any
) -> None:
    with pytest.raises(TypeError, match=r"must be a dict.*, got V1PodList"):
        function(models.V1PodList(items=[], metadata=models.V1ListMeta()))


def test_a_model_whose_metadata_is_a_dict_is_adopted() -> None:
    pod = kubernetes_asyncio.client.V1Pod(metadata={"name": "old"})
    adopt(pod, OWNER)
    labels = {"somelabel": "somevalue"}
    common = {"name": "old", "namespace": "default", "labels": labels}
    assert pod.metadata == {**common, "ownerReferences": [REFERENCE]}


class Job(webop.Model):
    spec: dict[str, Any] = pydantic.Field(default_factory=dict)


class Reference(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    uid: str


class GeneratedMeta(pydantic.BaseModel):
    """As packages of generated classes have it."""

    name: str | None = None
    generateName: str | None = None  # noqa: N815
    namespace: str | None = None
    labels: dict[str, str] | None = None
    ownerReferences: list[Reference] | None = None  # noqa: N815


class GeneratedJob(pydantic.BaseModel):
    metadata: GeneratedMeta | None = pydantic.Field(default_factory=GeneratedMeta)


class DictJob(pydantic.BaseModel):
    metadata: dict[str, Any] = pydantic.Field(default_factory=dict)


@pytest.mark.feature("HIE-01")
@pytest.mark.parametrize("model", [Job, GeneratedJob, DictJob])
def test_models_are_adopted_as_dicts_are(model: type[pydantic.BaseModel], handled: Body) -> None:
    jobs = [model(), model()]
    adopt(jobs)
    adopt(jobs[1], Job.model_validate(OWNER))
    for job in jobs:
        found = job.model_dump(mode="json", by_alias=True, exclude_defaults=True)["metadata"]
        assert found == {
            "generateName": "kopf-example-1-",
            "namespace": "default",
            "labels": {"somelabel": "somevalue"},
            "ownerReferences": [REFERENCE],
        }
    harmonize_naming(jobs, "exact", forced=True, strict=True)
    remove_owner_reference(jobs)
    for job in jobs:
        found = job.model_dump(mode="json", by_alias=True, exclude_none=True)["metadata"]
        assert found["name"] == "exact"
        assert "generateName" not in found
        assert found["ownerReferences"] == []


def test_nested_parts_of_a_model_get_the_labels() -> None:
    job = Job(spec={"template": {}})
    adopt(job, OWNER, nested=["spec.template", "spec.absent"])
    assert job.spec["template"]["metadata"]["labels"] == {"somelabel": "somevalue"}
