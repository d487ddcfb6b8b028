"""Classes of Kubernetes' own kinds, from another package: selectors, dumps, schemas."""

from __future__ import annotations

import datetime as dt
import json
from typing import Annotated, Any

import pydantic
import pytest
from kubex.k8s.v1_36.batch.v1.job import Job
from kubex.k8s.v1_36.batch.v1.job_template_spec import JobTemplateSpec
from kubex.k8s.v1_36.core.v1.config_map import ConfigMap
from kubex.k8s.v1_36.core.v1.container import Container
from kubex.k8s.v1_36.core.v1.service import Service
from kubex.k8s.v1_36.core.v1.service_port import ServicePort
from kubex.k8s.v1_36.core.v1.service_spec import ServiceSpec
from kubex.k8s.v1_36.networking.v1.ingress import Ingress
from kubex_core.models.metadata import ObjectMetadata

import webop
from tests.kit.rows import rows
from webop.errors import ConfigurationError, MisfitError
from webop.models.definitions import build_selector
from webop.models.fitting import dump, dump_set, fit
from webop.models.schema import build_schema

Json = dict[str, Any]
PRESERVED = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


class PartlySpec(webop.Struct):
    job_template: Annotated[JobTemplateSpec, webop.Schemaless()]
    """What to run."""
    last: Annotated[JobTemplateSpec | None, webop.Schemaless()] = None
    sidecars: list[Annotated[Container, webop.Schemaless()]] = pydantic.Field(default_factory=list)


class WholeSpec(webop.Struct):
    job_template: JobTemplateSpec


def build_template(**more: Any) -> Json:
    container = {"name": "main", "image": "busybox", **more}
    pod = {"restartPolicy": "Never", "containers": [container]}
    return {"spec": {"template": {"spec": pod}}}


@rows(
    ("kind", "name"),
    [(Service, "Service.v1"), (Job, "Job.v1.batch"), (Ingress, "Ingress.v1.networking.k8s.io")],
)
def test_a_class_of_a_built_in_kind_selects_it(kind: type[pydantic.BaseModel], name: str) -> None:
    selector = build_selector(kind)
    assert (str(selector), selector.is_specific) == (name, True)


def test_only_what_was_set_is_applied() -> None:
    ports = [ServicePort(port=80, targetPort="http")]
    metadata = ObjectMetadata(name="a", labels={})
    service = Service(metadata=metadata, spec=ServiceSpec(clusterIP="None", ports=ports))
    assert dump_set(service) == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "a", "labels": {}},
        "spec": {"clusterIP": "None", "ports": [{"port": 80, "targetPort": "http"}]},
    }


def test_dates_are_read_and_written_as_kubernetes_does() -> None:
    metadata = {"name": "a", "creationTimestamp": "2026-01-02T03:04:05Z"}
    found: ConfigMap = fit(ConfigMap, {"metadata": metadata})
    assert found.metadata.creation_timestamp == dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    assert dump(found)["metadata"] == metadata


def test_a_part_without_schema_is_short_and_keeps_its_description() -> None:
    properties = build_schema(PartlySpec)["properties"]
    assert properties["jobTemplate"] == {**PRESERVED, "description": "What to run."}
    assert properties["last"] == PRESERVED
    assert properties["sidecars"]["items"] == {**PRESERVED, "description": Container.__doc__}


def test_the_whole_schema_of_a_pod_template_is_structural_and_not_too_large() -> None:
    schema = build_schema(WholeSpec)
    assert len(json.dumps(schema)) < 400_000  # API servers accept 1.5 MB
    job = schema["properties"]["jobTemplate"]["properties"]["spec"]
    container = job["properties"]["template"]["properties"]["spec"]["properties"]["containers"]
    port = container["items"]["properties"]["livenessProbe"]["properties"]["httpGet"]
    assert port["properties"]["port"]["x-kubernetes-int-or-string"]


def test_fields_that_a_class_does_not_know_reach_the_child() -> None:
    raw = build_template(newField={"a": [1, None]}, resources={"limits": {"cpu": "1"}})
    raw["spec"]["newer"] = 1
    spec: PartlySpec = fit(PartlySpec, {"jobTemplate": raw, "sidecars": [{"name": "x", "new": 1}]})
    assert spec.job_template.spec is not None
    child = Job(metadata=ObjectMetadata(name="a"), spec=spec.job_template.spec)
    assert dump_set(child)["spec"] == raw["spec"]
    assert dump(spec) == {"jobTemplate": raw, "sidecars": [{"name": "x", "new": 1}]}
    again = spec.model_copy(deep=True)
    assert dump_set(again) == {"apiVersion": None, "kind": None, **dump(spec)}


def test_a_class_with_a_schema_drops_what_it_does_not_know() -> None:
    """As the API server does, with the same schema."""
    spec: WholeSpec = fit(WholeSpec, {"jobTemplate": build_template(newField=1)})
    assert dump(spec) == {"jobTemplate": build_template()}


@rows(("given", "stored"), [(2, "2"), (0.5, "0.5"), (10**12, "1000000000000")])
def test_quantities_can_be_numbers(given: float, stored: str) -> None:
    raw = build_template(resources={"limits": {"cpu": given, "memory": "1Gi"}})
    spec: PartlySpec = fit(PartlySpec, {"jobTemplate": raw})
    limits = {"cpu": stored, "memory": "1Gi"}
    assert dump(spec)["jobTemplate"] == build_template(resources={"limits": limits})


@rows(
    ("field", "value", "where"),
    [
        ("ports", [{"containerPort": "80"}], "ports[0].containerPort"),
        ("env", [{}], "env[0].name"),
        ("livenessProbe", {"httpGet": {"port": 0.5}}, "livenessProbe.httpGet.port.int"),
    ],
)
def test_what_the_class_refuses_is_named(field: str, value: Any, where: str) -> None:
    raw = {"jobTemplate": build_template(**{field: value})}
    with pytest.raises(MisfitError) as caught:
        fit(PartlySpec, raw, "spec")
    place = f"spec.jobTemplate.spec.template.spec.containers[0].{where}: "
    assert str(caught.value).startswith(place)


def test_a_list_cannot_be_without_schema() -> None:
    class ListSpec(webop.Struct):
        containers: Annotated[list[Container], webop.Schemaless()]

    listed = pydantic.create_model("Listed", __base__=webop.Model, spec=(ListSpec, ...))
    with pytest.raises(ConfigurationError, match=r"Schemaless\(\) is for a class"):
        webop.resource("builtins.webop.dev", "v1", kind="Listed")(listed)
