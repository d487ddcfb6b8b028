"""The operator of the README and the home page does on a real API server what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.kit.pages import ROOT, find_blocks
from webop.testing import eventually

if TYPE_CHECKING:
    from webop.testing import LocalCluster

pytestmark = pytest.mark.journey

BLOCKS = {block.language: block.code for block in reversed(find_blocks(ROOT / "README.md"))}
WEBOP = [sys.executable, "-m", "webop"]


@contextmanager
def run_operator(folder: Path, namespace: str, kubeconfig: Path) -> Iterator[None]:
    """Run the file of the page in another process, since models are global."""
    (folder / "websites.py").write_text(BLOCKS["python"])
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    subprocess.run([*WEBOP, "crd", "apply", "websites.py"], cwd=folder, env=environment, check=True)
    command = [*WEBOP, "run", "--standalone", "-n", namespace, "websites.py"]
    with subprocess.Popen(command, cwd=folder, env=environment) as process:
        try:
            yield
        finally:
            process.terminate()
    assert process.returncode == 0


def test_the_operator_of_the_home_page_keeps_a_page_for_each_website(
    tmp_path: Path, webop_cluster: LocalCluster, webop_namespace: str
) -> None:
    website = yaml.safe_load(BLOCKS["yaml"])
    name = website["metadata"]["name"]

    def read_page() -> Any:
        page = webop_cluster.get("v1", "ConfigMap", name, webop_namespace)
        return page and page["data"]["index.html"]

    with run_operator(tmp_path, webop_namespace, webop_cluster.kubeconfig):
        webop_cluster.apply(website, namespace=webop_namespace)
        eventually(lambda: read_page() == "<h1>Hello</h1>", "there is a page")
        website["spec"]["title"] = "Changed"
        webop_cluster.apply(website, namespace=webop_namespace)
        eventually(lambda: read_page() == "<h1>Changed</h1>", "the page is changed")
        webop_cluster.delete("v1", "ConfigMap", name, webop_namespace)
        eventually(lambda: read_page() == "<h1>Changed</h1>", "the page is back")
