"""Objects put into a local cluster, and looked at, with no kubectl and no client library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.operators import Kind
from webop.errors import ClusterError, ConfigurationError
from webop.testing import LocalCluster, eventually

KIND = Kind("applying.webop.dev", "appliances", "Appliance", has_status=True)
CONFIGMAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}


def build(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": KIND.resource.api_version,
        "kind": "Appliance",
        "metadata": {"name": "x"},
        "spec": spec,
    }


def write(path: Path, *documents: Any) -> Path:
    path.write_text(yaml.safe_dump_all(documents))
    return path


@pytest.fixture
def cluster(webop_cluster: LocalCluster) -> LocalCluster:
    return webop_cluster


@pytest.fixture
def namespace(webop_namespace: str) -> str:
    return webop_namespace


def test_a_folder_is_applied_with_definitions_first_which_are_served_then(
    cluster: LocalCluster, namespace: str, tmp_path: Path
) -> None:
    write(tmp_path / "a.yaml", build(size=5), None)
    write(tmp_path / "b.yml", KIND.build_crd(), {**CONFIGMAP, "data": {"key": "value"}})
    (tmp_path / "c.json").write_text(json.dumps({**CONFIGMAP, "metadata": {"name": "two"}}))
    (tmp_path / "notes.md").write_text("not an object")
    stored = cluster.apply(tmp_path, namespace=namespace)
    kinds = [item["kind"] for item in stored]
    assert kinds == ["CustomResourceDefinition", "Appliance", "ConfigMap", "ConfigMap"]
    found = cluster.get(KIND.resource.api_version, "Appliance", "x", namespace)
    assert found is not None
    assert found["spec"] == {"size": 5}
    assert (cluster.get("v1", "ConfigMap", "one", namespace) or {})["data"] == {"key": "value"}


def test_objects_are_changed_by_the_next_application_and_go_by_deletion(
    cluster: LocalCluster, namespace: str
) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [CONFIGMAP, {**CONFIGMAP, "data": {}}]}
    cluster.apply(listed, {**CONFIGMAP, "data": {"a": "1", "b": "2"}}, namespace=namespace)
    [changed] = cluster.apply({**CONFIGMAP, "data": {"a": "3"}}, namespace=namespace)
    assert changed["data"] == {"a": "3"}
    cluster.delete("v1", "ConfigMap", "one", namespace)
    assert eventually(lambda: cluster.get("v1", "ConfigMap", "one", namespace) is None)
    cluster.delete("v1", "ConfigMap", "one", namespace)  # it is gone already


def test_names_can_be_left_to_the_api_server_and_dry_runs_store_nothing(
    cluster: LocalCluster, namespace: str
) -> None:
    nameless = {**CONFIGMAP, "metadata": {"generateName": "made-up-", "namespace": namespace}}
    [stored] = cluster.apply(nameless)
    name = stored["metadata"]["name"]
    assert name.startswith("made-up-")
    assert cluster.get("v1", "ConfigMap", name, namespace)
    cluster.apply(CONFIGMAP, namespace=namespace, dry_run=True)
    assert cluster.get("v1", "ConfigMap", "one", namespace) is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({**CONFIGMAP, "data": {"a": 5}}, "Cannot apply ConfigMap one: .*data"),
        ({**CONFIGMAP, "dota": {}}, "Cannot apply ConfigMap one: .*dota"),
        ({**CONFIGMAP, "kind": "Nothing"}, "no kind 'Nothing' in 'v1'.*CRD first"),
        ({**CONFIGMAP, "kind": "configmaps"}, "no kind 'configmaps' .* Did you mean configmaps"),
        ({**CONFIGMAP, "apiVersion": "no.one/v1"}, "no kind 'ConfigMap' in 'no.one/v1'"),
    ],
)
def test_what_the_api_server_refuses_is_told_in_its_words(
    cluster: LocalCluster, namespace: str, body: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ClusterError, match=reason):
        cluster.apply(body, namespace=namespace)


def test_an_object_of_another_namespace_is_not_applied_by_mistake(
    cluster: LocalCluster, namespace: str
) -> None:
    body = {**CONFIGMAP, "metadata": {"name": "one", "namespace": "default"}}
    with pytest.raises(ConfigurationError, match=rf"'default', but namespace= is '{namespace}'"):
        cluster.apply(body, namespace=namespace)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "no such file"),
        ("a: [", "is not valid YAML"),
        ("just text", "must have apiVersion and kind, got 'just text'"),
        ("kind: Pod", "must have apiVersion and kind"),
        ("{apiVersion: 1, kind: Pod}", "apiVersion in .* must be a string, got 1"),
        ("{apiVersion: v1, kind: [Pod]}", "kind in .* must be a string, got .*Pod"),
        ("{apiVersion: v1, kind: Pod, metadata: x}", "metadata in .* must be a mapping, got 'x'"),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: 5}}",
            "metadata.name in .* must be a string, got 5.*quotes",
        ),
        ("\udcff", "is not valid YAML"),  # a byte that is no text
    ],
)
def test_files_that_are_no_manifests_are_named(
    cluster: LocalCluster, tmp_path: Path, text: str | None, reason: str
) -> None:
    file = tmp_path / "wrong.yaml"
    if text is not None:
        file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigurationError, match=reason) as caught:
        cluster.apply(file)
    assert str(file) in str(caught.value)


def test_a_list_without_items_is_nothing(cluster: LocalCluster) -> None:
    assert cluster.apply({"apiVersion": "v1", "kind": "List", "items": None}) == []
