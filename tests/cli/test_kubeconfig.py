"""``webop cluster kubeconfig``: for the administrator, and for a service account."""

from __future__ import annotations

import base64
import ssl
from typing import TYPE_CHECKING

import httpx
import yaml

from tests.cli.invoking import invoke

if TYPE_CHECKING:
    from webop.testing import LocalCluster


def review(text: str) -> tuple[str, str]:
    """Return the name of the user of a kubeconfig, by the API server, and its namespace."""
    config = yaml.safe_load(text)
    (cluster,), (user,), (context,) = config["clusters"], config["users"], config["contexts"]
    assert config["current-context"] == context["name"]
    assert context["context"]["user"] == user["name"]
    assert context["context"]["cluster"] == cluster["name"]
    ca = base64.b64decode(cluster["cluster"]["certificate-authority-data"]).decode()
    answer = httpx.post(
        f"{cluster['cluster']['server']}/apis/authentication.k8s.io/v1/selfsubjectreviews",
        json={"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
        headers={"Authorization": f"Bearer {user['user']['token']}"},
        verify=ssl.create_default_context(cadata=ca),
        trust_env=False,
    )
    name = answer.raise_for_status().json()["status"]["userInfo"]["username"]
    return name, context["context"].get("namespace", "")


def test_a_kubeconfig_of_a_service_account_is_printed(
    webop_cluster: LocalCluster, webop_namespace: str
) -> None:
    metadata = {"name": "reader", "namespace": webop_namespace}
    webop_cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    command = ("cluster", "kubeconfig", "--name", webop_cluster.name)
    account = ("--service-account", "reader", "--namespace", webop_namespace)
    result = invoke(*command, *account, env={"KUBECONFIG": None})
    assert result.exit_code == 0, result.output
    assert review(result.stdout) == (
        f"system:serviceaccount:{webop_namespace}:reader",
        webop_namespace,
    )
    assert invoke(*command).stdout == webop_cluster.kubeconfig.read_text()


def test_a_kubeconfig_of_no_service_account_is_a_message(webop_cluster: LocalCluster) -> None:
    command = ("cluster", "kubeconfig", "--name", webop_cluster.name)
    result = invoke(*command, "--service-account", "nobody", env={"KUBECONFIG": None})
    assert result.exit_code == 1
    assert 'serviceaccounts "nobody" not found' in result.stderr
    assert not result.stdout
