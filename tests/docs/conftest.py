"""A user who types what the pages show."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.playing import Player, build_environment
from tests.kit.pages import ROOT
from webop.controlplane.cache import get_binaries_folder
from webop.testing import LocalCluster

# For machines without kubectl: what the README needs, with a real API server.
_KUBECTL = """\
#!{python}
import sys, yaml
from webop.testing import LocalCluster

command, *words = sys.argv[1:]
cluster = LocalCluster.attach("default")
if command == "apply":
    file = words[words.index("-f") + 1]
    with sys.stdin if file == "-" else open(file) as stream:
        documents = [one for one in yaml.safe_load_all(stream) if one]
    assert documents, "error: no objects passed to apply"
    for one in documents:
        cluster.apply(one)
        group = one["apiVersion"].rpartition("/")[0]
        print(f"{{one['kind'].lower()}}.{{group}}/{{one['metadata']['name']}} created")
else:
    kind, name = words
    assert kind == "configmap", sys.argv
    found = cluster.get("v1", "ConfigMap", name, "default")
    if not found:
        sys.exit("Error from server (NotFound)")
    if command == "delete":
        cluster.delete("v1", "ConfigMap", name, "default")
        print(f'configmap "{{name}}" deleted')
    else:
        print(f"NAME   DATA   AGE\\n{{name}}   {{len(found['data'])}}      0s")
"""


@pytest.fixture
def player(
    tmp_path: Path, webop_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Player]:
    """A user in an empty folder, whose clusters have a cache of their own."""
    try:
        socket.create_connection(("pypi.org", 443), timeout=10).close()
    except OSError:
        pytest.skip("There is no package index.")
    folder = tmp_path / "websites"
    folder.mkdir()
    assets = os.environ.get("KUBEBUILDER_ASSETS") or str(
        get_binaries_folder(webop_cluster.version.removeprefix("v"))
    )
    environment = build_environment(tmp_path, assets)
    if shutil.which("kubectl") is None:
        kubectl = tmp_path / "tools" / "kubectl"
        kubectl.write_text(_KUBECTL.format(python=sys.executable))
        kubectl.chmod(0o755)
    monkeypatch.setenv("WEBOP_CACHE", environment["WEBOP_CACHE"])
    user = Player(folder, environment, {"PATH/TO/CLONE": str(ROOT)}, skips=("docker", "make"))
    try:
        yield user
    finally:
        user.close()


@pytest.fixture
def needs_kubectl() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed.")
