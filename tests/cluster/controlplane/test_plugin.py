from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.kit.suites import run_suite

if TYPE_CHECKING:
    from pathlib import Path

_TESTS = """
def test_it(webop_cluster):
    assert webop_cluster.is_ready()
"""
_OPTIONS = ("-o", "asyncio_default_fixture_loop_scope=function")


def test_the_workers_share_a_cluster_and_the_report_names_the_version(
    standin_assets: Path, cache: Path, tmp_path: Path
) -> None:
    output = run_suite(tmp_path, {"test_it.py": _TESTS}, *_OPTIONS, "-n2", "--dist=each")
    assert "2 passed" in output
    summary = r"^webop: ran against Kubernetes v1\.\d+\.\d+ \(.*\)$"
    assert len(re.findall(summary, output, re.MULTILINE)) == 1
    assert not [path for path in (cache / "clusters").iterdir() if path.is_dir()]


_KILLING_TESTS = """
import pytest
from webop.testing import ClusterError

def test_it(webop_cluster, webop_namespace):
    webop_cluster.kill_apiserver()
    for call in (webop_cluster.get, webop_cluster.delete):
        with pytest.raises(ClusterError, match="Cannot (get|delete) ConfigMap one: no connection"):
            call("v1", "ConfigMap", "one")
"""


@pytest.mark.usefixtures("use_real_assets")
def test_a_test_may_leave_the_api_server_killed(tmp_path: Path) -> None:
    output = run_suite(tmp_path, {"test_it.py": _KILLING_TESTS}, *_OPTIONS)
    assert "1 passed" in output
    assert "1 error" not in output


def test_a_run_without_the_fixtures_imports_nothing_builds_nothing_and_says_nothing(
    go: Path, cache: Path, tmp_path: Path
) -> None:
    test = """
        import sys
        def test_it():
            assert not [name for name in sys.modules if name.startswith("webop")]
    """
    output = run_suite(tmp_path, {"test_it.py": test}, *_OPTIONS)
    assert "1 passed" in output
    assert "webop:" not in output
    assert not cache.exists()
    assert not (go / "calls").exists()
