"""Classes of Kubernetes' own kinds on the real API server: children, clients, handlers, fields."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import yaml
from kubex.k8s.v1_36.apps.v1.deployment import Deployment
from kubex.k8s.v1_36.apps.v1.deployment_spec import DeploymentSpec
from kubex.k8s.v1_36.batch.v1.cron_job import CronJob
from kubex.k8s.v1_36.batch.v1.cron_job_spec import CronJobSpec
from kubex.k8s.v1_36.batch.v1.job import Job
from kubex.k8s.v1_36.batch.v1.job_template_spec import JobTemplateSpec
from kubex.k8s.v1_36.core.v1.config_map import ConfigMap
from kubex.k8s.v1_36.core.v1.container import Container
from kubex.k8s.v1_36.core.v1.pod_spec import PodSpec
from kubex.k8s.v1_36.core.v1.pod_template_spec import PodTemplateSpec
from kubex.k8s.v1_36.core.v1.service import Service
from kubex.k8s.v1_36.core.v1.service_port import ServicePort
from kubex.k8s.v1_36.core.v1.service_spec import ServiceSpec
from kubex.k8s.v1_36.meta.v1.label_selector import LabelSelector
from kubex_core.models.metadata import ObjectMetadata

import webop
from tests.kit.cli_runner import invoke
from tests.kit.operators import Json, Kind, Objects, RunOperator
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.objects import AsyncClient
from webop.testing import LocalCluster


class ScheduleSpec(webop.Struct):
    count: int = 1
    job_template: Annotated[JobTemplateSpec, webop.Schemaless()]
    checked: JobTemplateSpec | None = None


@webop.resource("builtins.webop.dev", "v1")
class Schedule(webop.Model):
    spec: ScheduleSpec


@pytest.fixture(scope="module")
def schedules(webop_cluster: LocalCluster) -> Kind:
    """The kind, by the command that users run."""
    (crd,) = yaml.safe_load_all(invoke("crd", "print", __file__).stdout)
    webop_cluster.apply(crd)
    return Kind("builtins.webop.dev", "schedules", "Schedule")


@pytest.fixture
def objects(client: Client, schedules: Kind, webop_namespace: str) -> Objects:
    return Objects(client, schedules, webop_namespace)


@pytest.fixture
def typed(client: Client) -> AsyncClient:
    """The client of handlers."""
    return AsyncClient(client)


def build_template(**more: Any) -> Json:
    container = {"name": "main", "image": "busybox", **more}
    pod = {"restartPolicy": "Never", "containers": [container]}
    return {"spec": {"template": {"spec": pod}}}


def build_deployment(name: str, replicas: int | None = None) -> Deployment:
    pod = PodTemplateSpec(
        metadata=ObjectMetadata(labels={"app": name}),
        spec=PodSpec(containers=[Container(name="web", image="nginx")]),
    )
    selector = LabelSelector(matchLabels={"app": name})
    spec = DeploymentSpec(replicas=replicas, selector=selector, template=pod)
    return Deployment(metadata=ObjectMetadata(name=name), spec=spec)


def list_applied(body: Json) -> Json:
    """Return the fields that were applied, as the API server noted them."""
    (entry,) = [one for one in body["metadata"]["managedFields"] if one["operation"] == "Apply"]
    fields: Json = entry["fieldsV1"]["f:spec"]
    return fields


async def test_reconcilers_take_built_in_kinds_as_children_and_as_others(
    run_operator: RunOperator, objects: Objects, typed: AsyncClient
) -> None:
    seen: list[str] = []
    created: list[tuple[str | None, str | None]] = []

    def find(name: str, **_: Any) -> list[str]:
        return [name.removeprefix("input-")]

    @webop.reconcile(Schedule, owns=[Deployment, Job], reads=[Job], watches={ConfigMap: find})
    async def build(
        name: str, spec: ScheduleSpec, children: webop.Children, because: Any, **_: Any
    ) -> None:
        seen.extend(because)
        template = spec.job_template
        assert template.spec is not None
        await children.apply(build_deployment(name))
        await children.apply(Job(metadata=ObjectMetadata(name=name), spec=template.spec))
        job = await children.get(Job, name)
        assert job is not None
        assert job.metadata.uid
        assert not await children.ready(Deployment)
        assert [one.metadata.name for one in await children.list(Deployment)] == [name]

    @webop.on.create(Deployment)
    def create(spec: DeploymentSpec, body: Deployment, **_: Any) -> None:
        assert spec.template.spec is not None
        created.append((body.metadata.name, spec.template.spec.containers[0].image))

    template = build_template(resources={"limits": {"cpu": 2}})
    place = objects.namespace
    async with run_operator():
        await objects.create("one", {"jobTemplate": template})
        job = await typed.wait_for(Job, "one", lambda _: True, namespace=place)
        limits = job.spec and job.spec.template.spec and job.spec.template.spec.containers[0]
        assert limits
        assert limits.resources
        assert limits.resources.limits == {"cpu": "2"}
        found = await eventually(
            lambda: typed.get("deployments.apps", "one", managed_fields=True, namespace=place),
            ignoring=(webop.APINotFoundError,),
        )
        assert list_applied(found).keys() == {"f:selector", "f:template"}
        assert (found["spec"]["replicas"], found["metadata"]["ownerReferences"][0]["name"]) == (
            1,
            "one",
        )
        await typed.patch(Deployment, "one", {"spec": {"replicas": 3}}, namespace=place)
        before = len(seen)
        data = ConfigMap(metadata=ObjectMetadata(name="input-one"), data={"a": "b"})
        await typed.create(data, namespace=place)
        await eventually(lambda: len(seen) > before)
        await eventually(lambda: created == [("one", "nginx")])
    scaled = await typed.get(Deployment, "one", namespace=place)
    assert scaled.spec
    assert scaled.spec.replicas == 3


async def test_the_client_returns_the_objects_of_the_api_server_as_classes(
    typed: AsyncClient, webop_namespace: str
) -> None:
    port = ServicePort(port=80, targetPort="http")
    service = Service(metadata=ObjectMetadata(name="web"), spec=ServiceSpec(ports=[port]))
    template = JobTemplateSpec.model_validate(build_template())
    cron = CronJob(
        metadata=ObjectMetadata(name="nightly"),
        spec=CronJobSpec(schedule="0 3 * * *", jobTemplate=template),
    )
    place = webop_namespace
    created = await typed.create(service, namespace=place)
    assert created.spec
    assert created.spec.cluster_ip
    assert (await typed.create(cron, namespace=place)).spec is not None
    applied = await typed.apply(build_deployment("web", replicas=2), namespace=place)
    assert applied.metadata.creation_timestamp
    (listed,) = await typed.list(Deployment, namespace=place)
    assert listed.spec
    assert listed.spec.replicas == 2
    await typed.patch(CronJob, "nightly", {"spec": {"suspend": True}}, namespace=place)
    found = await typed.wait_for(
        CronJob, "nightly", lambda obj: obj["spec"]["suspend"], namespace=place
    )
    assert found.spec is not None
    assert found.spec.job_template.spec is not None
    await typed.delete(Deployment, "web", namespace=place)
    await typed.wait_gone(Deployment, "web", namespace=place)


async def test_a_part_without_schema_is_stored_as_it_is_and_another_is_checked(
    objects: Objects,
) -> None:
    template = build_template(newField={"a": 1}, resources={"limits": {"cpu": 2}})
    template["spec"]["newer"] = True
    checked = build_template(newField=1, livenessProbe={"httpGet": {"port": "http"}})
    made = await objects.create("one", {"jobTemplate": template, "checked": checked})
    assert made["spec"]["jobTemplate"] == template
    assert made["spec"]["checked"] == build_template(livenessProbe={"httpGet": {"port": "http"}})
    wrong = build_template(resources={"limits": {"cpu": 2}})
    with pytest.raises(webop.APIError, match=r"limits\.cpu in body must be of type string"):
        await objects.create("two", {"jobTemplate": template, "checked": wrong})
