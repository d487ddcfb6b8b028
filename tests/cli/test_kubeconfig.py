"""``webop cluster kubeconfig``: for the administrator, and for a service account."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import yaml

from tests.kit.cli_runner import invoke

if TYPE_CHECKING:
    from webop.testing import LocalCluster


def review(text: str, folder: Path) -> tuple[str, list[str], str]:
    """Return the user of a kubeconfig and its groups, by the API server, and its namespace."""
    config = yaml.safe_load(text)
    (cluster,), (user,), (context,) = config["clusters"], config["users"], config["contexts"]
    assert config["current-context"] == context["name"]
    assert context["context"]["user"] == user["name"]
    assert context["context"]["cluster"] == cluster["name"]
    ca = base64.b64decode(cluster["cluster"]["certificate-authority-data"]).decode()
    trust = ssl.create_default_context(cadata=ca)
    for name in ("client-certificate-data", "client-key-data"):
        (folder / name).write_bytes(base64.b64decode(user["user"][name]))
    trust.load_cert_chain(folder / "client-certificate-data", folder / "client-key-data")
    answer = httpx.post(
        f"{cluster['cluster']['server']}/apis/authentication.k8s.io/v1/selfsubjectreviews",
        json={"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
        verify=trust,
        trust_env=False,
    )
    found = answer.raise_for_status().json()["status"]["userInfo"]
    return found["username"], found["groups"], context["context"].get("namespace", "")


def test_a_kubeconfig_of_a_service_account_is_printed(
    webop_cluster: LocalCluster, webop_namespace: str, tmp_path: Path
) -> None:
    metadata = {"name": "reader", "namespace": webop_namespace}
    webop_cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    command = ("cluster", "kubeconfig", "--name", webop_cluster.name)
    account = ("--service-account", "reader", "--namespace", webop_namespace)
    result = invoke(*command, *account, env={"KUBECONFIG": None})
    assert result.exit_code == 0, result.output
    groups = ("serviceaccounts", f"serviceaccounts:{webop_namespace}", "authenticated")
    assert review(result.stdout, tmp_path) == (
        f"system:serviceaccount:{webop_namespace}:reader",
        [f"system:{group}" for group in groups],
        webop_namespace,
    )
    assert invoke(*command).stdout == webop_cluster.kubeconfig.read_text()


def test_a_kubeconfig_of_no_service_account_is_a_message(webop_cluster: LocalCluster) -> None:
    command = ("cluster", "kubeconfig", "--name", webop_cluster.name)
    result = invoke(*command, "--service-account", "nobody", env={"KUBECONFIG": None})
    assert result.exit_code == 1
    assert "There is no service account 'nobody' in the namespace 'default'." in result.stderr
    assert not result.stdout
