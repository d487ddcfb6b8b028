from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from tests.kit.rows import rows
from webop.cli import main
from webop.controlplane import reaper
from webop.controlplane.cluster import LocalCluster
from webop.controlplane.state import load_all_states

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _stop_all(cache: Path) -> Iterator[None]:
    yield
    for state in load_all_states():
        reaper.end_cluster(state.folder)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["cluster", *arguments])


def test_a_cluster_is_started_used_by_a_shell_and_stopped(use_real_assets: None) -> None:
    started = _run("start")
    assert started.exit_code == 0, started.output
    assert "Cluster default is ready after" in started.stdout
    assert 'eval "$(webop cluster env)"' in started.stderr
    environment = _run("env").stdout
    assert environment.startswith("export KUBECONFIG=")
    script = f"{environment}\nkubectl get namespace default -o name"
    answer = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout == "namespace/default\n"
    pids = LocalCluster.attach("default").pids
    assert "Cluster default is stopped" in _run("stop").stdout
    assert all(reaper.get_start_time(pid) is None for pid in pids.values())


def test_a_second_start_with_options_that_the_running_cluster_does_not_have_is_refused(
    standin_assets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _run("start", "--name", "one", "--apiserver-flag=--v=4")
    assert "is ready after" in first.stdout
    version = LocalCluster.attach("one").version
    again = _run("start", "--name", "one", "--apiserver-flag=--v=4", "--version", version)
    assert "is already running" in again.stdout
    assert first.stdout.split()[-1] == again.stdout.split()[-1]
    refused = _run("start", "--name", "one", "--version", "1.33", "--apiserver-flag=--v=5")
    assert refused.exit_code == 1
    assert refused.stderr == (
        f"Error: Cluster one is already running, but has Kubernetes {version}, not 1.33 and runs "
        "without --v=5. Stop it first: webop cluster stop --name one\n"
    )
    monkeypatch.setenv("WEBOP_KUBERNETES", "1.33")
    assert f"has Kubernetes {version}, not 1.33." in _run("start", "--name", "one").stderr


def test_several_clusters_are_listed_and_stopped_together(standin_assets: Path) -> None:
    _run("start", "--name", "one")
    _run("start", "--name", "two")
    with LocalCluster("three") as owned:
        rows = [line.split() for line in _run("list").stdout.splitlines()[1:]]
        assert [row[:2] for row in rows] == [["one", "ready"], ["three", "ready"], ["two", "ready"]]
        assert rows[1][-2:] == ["process", str(os.getpid())]
        stopped = _run("stop", "--all")
        assert "Cluster one is stopped" in stopped.stdout
        assert "Cluster two is stopped" in stopped.stdout
        assert owned.is_ready()
    assert _run("stop", "--all").stdout == "No clusters are running.\n"


def test_the_status_is_told_by_the_exit_code_too(standin_assets: Path) -> None:
    assert _run("status").exit_code == 1
    _run("start")
    ready = _run("status")
    assert ready.exit_code == 0
    assert "State:                   ready" in ready.stdout
    LocalCluster.attach("default").kill_apiserver()
    dead = _run("status")
    assert dead.exit_code == 1
    assert "State:                   dead" in dead.stdout


@rows(
    ("arguments", "message"),
    [
        (["env"], "There is no cluster 'default'. Start it: webop cluster start"),
        (["start", "--name", "A B"], "Invalid name of a cluster: 'A B'"),
        (["start", "--version", "new"], "'new' is not a version of Kubernetes"),
    ],
)
def test_mistakes_are_told_without_a_traceback(
    cache: Path, arguments: list[str], message: str
) -> None:
    result = _run(*arguments)
    assert result.exit_code == 1
    assert message in result.stderr
