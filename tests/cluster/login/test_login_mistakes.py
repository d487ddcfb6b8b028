"""``webop run`` with credentials that are of no use: one line that says why, and an exit code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.kit.exec_plugins import PluginFolder, build_kubeconfig
from tests.kit.processes import HANDLERS, Workshop

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster


async def fail(workshop: Workshop, config: object) -> str:
    """Run with a kubeconfig, and return the line that says what is wrong."""
    path = workshop.folder / "config"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    output = await workshop.fail("-A", workshop.write(HANDLERS), KUBECONFIG=str(path))
    lines = [line for line in output.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, output
    assert output.rstrip().endswith(lines[0])
    return lines[0]


@pytest.mark.feature("AUT-18", "CLI-18")
async def test_a_kubeconfig_that_is_of_no_use_is_told(workshop: Workshop) -> None:
    line = await fail(workshop, {**build_kubeconfig(), "current-context": "prod"})
    assert "no context 'prod'" in line
    assert "Known: ctx" in line


@pytest.mark.feature("AUT-18", "CLI-18")
async def test_an_exec_plugin_that_fails_is_told_with_its_reason(workshop: Workshop) -> None:
    plugin = PluginFolder(workshop.folder)
    plugin.write_script("echo 'session expired' >&2", "exit 3")
    line = await fail(workshop, plugin.write_kubeconfig().read_text())
    assert "plugin.sh" in line
    assert "exit code 3: session expired" in line


@pytest.mark.feature("AUT-18", "CLI-18")
async def test_a_token_that_the_api_server_refuses_is_told(
    workshop: Workshop, webop_cluster: LocalCluster
) -> None:
    cluster = {
        "server": webop_cluster.server,
        "certificate-authority-data": webop_cluster.ca_data,
    }
    line = await fail(workshop, build_kubeconfig({"token": "wrong"}, **cluster))
    assert "HTTP 401" in line
    assert "only credentials that were refused before" in line
