"""Objects put into a local cluster, and looked at, with no kubectl and no client library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.operators import Kind
from tests.kit.rows import rows
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


def test_a_folder_is_applied_with_definitions_first_which_are_served_then(
    webop_cluster: LocalCluster, webop_namespace: str, tmp_path: Path
) -> None:
    write(tmp_path / "a.yaml", build(size=5), None)
    write(tmp_path / "b.yml", KIND.build_crd(), {**CONFIGMAP, "data": {"key": "value"}})
    (tmp_path / "c.json").write_text(json.dumps({**CONFIGMAP, "metadata": {"name": "two"}}))
    (tmp_path / "notes.md").write_text("not an object")
    stored = webop_cluster.apply(tmp_path, namespace=webop_namespace)
    kinds = [item["kind"] for item in stored]
    assert kinds == ["CustomResourceDefinition", "Appliance", "ConfigMap", "ConfigMap"]
    found = webop_cluster.get(KIND.resource.api_version, "Appliance", "x", webop_namespace)
    assert found is not None
    assert found["spec"] == {"size": 5}
    assert (webop_cluster.get("v1", "ConfigMap", "one", webop_namespace) or {})["data"] == {
        "key": "value"
    }


def test_objects_are_changed_by_the_next_application_and_go_by_deletion(
    webop_cluster: LocalCluster, webop_namespace: str
) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [CONFIGMAP, {**CONFIGMAP, "data": {}}]}
    webop_cluster.apply(
        listed, {**CONFIGMAP, "data": {"a": "1", "b": "2"}}, namespace=webop_namespace
    )
    [changed] = webop_cluster.apply({**CONFIGMAP, "data": {"a": "3"}}, namespace=webop_namespace)
    assert changed["data"] == {"a": "3"}
    webop_cluster.delete("v1", "ConfigMap", "one", webop_namespace)
    assert eventually(lambda: webop_cluster.get("v1", "ConfigMap", "one", webop_namespace) is None)
    webop_cluster.delete("v1", "ConfigMap", "one", webop_namespace)  # it is gone already


def test_names_can_be_left_to_the_api_server_and_dry_runs_store_nothing(
    webop_cluster: LocalCluster, webop_namespace: str
) -> None:
    nameless = {**CONFIGMAP, "metadata": {"generateName": "made-up-", "namespace": webop_namespace}}
    [stored] = webop_cluster.apply(nameless)
    name = stored["metadata"]["name"]
    assert name.startswith("made-up-")
    assert webop_cluster.get("v1", "ConfigMap", name, webop_namespace)
    webop_cluster.apply(CONFIGMAP, namespace=webop_namespace, dry_run=True)
    assert webop_cluster.get("v1", "ConfigMap", "one", webop_namespace) is None


@rows(
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
    webop_cluster: LocalCluster, webop_namespace: str, body: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ClusterError, match=reason):
        webop_cluster.apply(body, namespace=webop_namespace)


def test_an_object_of_another_namespace_is_not_applied_by_mistake(
    webop_cluster: LocalCluster, webop_namespace: str
) -> None:
    body = {**CONFIGMAP, "metadata": {"name": "one", "namespace": "default"}}
    with pytest.raises(
        ConfigurationError, match=rf"'default', but namespace= is '{webop_namespace}'"
    ):
        webop_cluster.apply(body, namespace=webop_namespace)


@rows(
    ("text", "reason"),
    [
        (None, "no such file"),
        ("a: [", "is not valid YAML"),
        ("kind: Pod", "must have apiVersion and kind"),
        ("{apiVersion: 1, kind: Pod}", "apiVersion in .* must be a string, got 1"),
        ("{apiVersion: v1, kind: Pod, metadata: x}", "metadata in .* must be a mapping, got 'x'"),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: 5}}",
            "metadata.name in .* must be a string, got 5.*quotes",
        ),
    ],
)
def test_files_that_are_no_manifests_are_named(
    webop_cluster: LocalCluster, tmp_path: Path, text: str | None, reason: str
) -> None:
    file = tmp_path / "wrong.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=reason) as caught:
        webop_cluster.apply(file)
    assert str(file) in str(caught.value)
