"""A user who types what the pages show."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.pages import ROOT
from tools.site.playing import Player, build_environment
from webop.controlplane.cache import get_binaries_folder
from webop.testing import LocalCluster

# For machines without Docker: an image is built of files that exist, and only that one is loaded.
_DOCKER = """\
#!{python}
import json, pathlib, re, sys

words = sys.argv[1:]
built = pathlib.Path(__file__).with_name("built_images")
if words[0] == "build":
    folder = pathlib.Path(words[-1])
    copies = re.findall(r'^COPY (\\[.*\\])$', (folder / "Dockerfile").read_text(), re.MULTILINE)
    files = [file for copy in copies for file in json.loads(copy)[:-1]]
    missing = [file for file in files if not (folder / file).exists()]
    assert files and not missing, missing
    built.write_text(words[words.index("-t") + 1])
else:
    assert words[-1] == built.read_text(), f"{{words[-1]}} was not built"
    built.with_name("loaded_images").write_text(words[-1])
"""


def read_loaded_image(player: Player) -> str:
    """Return the image that ``kind load`` or ``docker push`` has brought into the cluster."""
    return (player.folder.parent / "tools" / "loaded_images").read_text()


def read_image(cluster: LocalCluster, name: str) -> str:
    """Return the image of a Deployment, whose nodes must find it."""
    deployment = cluster.get("apps/v1", "Deployment", name, "default")
    assert deployment is not None
    image: str = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    return image


@pytest.fixture
def player(
    tmp_path: Path, webop_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Player]:
    """A user in an empty folder, whose clusters have a cache of their own."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed.")
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
    for name in ("docker", "kind"):
        tool = tmp_path / "tools" / name
        tool.write_text(_DOCKER.format(python=sys.executable))
        tool.chmod(0o755)
    monkeypatch.setenv("WEBOP_CACHE", environment["WEBOP_CACHE"])
    user = Player(folder, environment, {"PATH/TO/CLONE": str(ROOT)}, skips=("git", "make"))
    try:
        yield user
    finally:
        user.close()
