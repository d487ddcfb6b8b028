"""The fixtures for operators on a real API server, in the test suites of users.

The inner suites find the cluster of this run by a plugin of the test's own, so that no second one
has to be started; apart from that, they are run as by a user.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.suites import run_suite

if TYPE_CHECKING:
    from tests.kit.operators import Kind
    from webop.testing import LocalCluster

MAIN = """
import webop
import wiring  # which imports hooks

@webop.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
"""
HOOKS = """
import webop

@webop.on.create("widgets")
def greet(name, namespace, patch, **_):
    patch.status["greeted"] = True
    print(f"greeted {name} in {namespace}")
"""
TESTS = """
import os
import pytest
from webop.testing import OperatorRunner, eventually

WIDGET = {"apiVersion": "tests.webop.dev/v1", "kind": "Widget", "metadata": {"name": "one"}}

@pytest.mark.parametrize("number", [1, 2])
def test_it(webop_cluster, webop_namespace, webop_operator, number):
    with webop_operator("main.py", "--verbose") as runner:
        webop_cluster.apply({**WIDGET, "spec": {}}, namespace=webop_namespace)
        eventually(lambda: webop_cluster.get(
            "tests.webop.dev/v1", "Widget", "one", webop_namespace)["status"]["greeted"])
    assert runner.exit_code == 0
    assert runner.stdout == f"greeted one in {webop_namespace}\\n"

def test_arguments_of_the_test_count(webop_operator, webop_namespace):
    assert webop_operator("-A", "main.py").args[0][:2] == ["run", "-A"]
    assert webop_operator("-nx").args == (["run", "-nx"],)
    assert webop_operator("--namespace=x").args == (["run", "--namespace=x"],)
    runner = webop_operator("no_such_file.py", timeout=5, env={"A": "B"})
    assert runner.args == (["run", f"--namespace={webop_namespace}", "no_such_file.py"],)
    assert (runner.timeout, runner.kwargs["env"]["A"]) == (5, "B")

def test_the_login_is_for_those_who_ask_for_it(webop_cluster):
    assert "KUBECONFIG" not in os.environ

def test_without_a_namespace(webop_kubeconfig, webop_cluster):
    assert os.environ["KUBECONFIG"] == str(webop_kubeconfig) == str(webop_cluster.kubeconfig)
"""
PLUGIN = """
import os, pytest
from webop.testing import LocalCluster

@pytest.fixture(scope="session")
def webop_cluster():
    return LocalCluster.attach(os.environ["CLUSTER_OF_THE_RUN"])
"""


@pytest.mark.feature("TST-01", "TST-08")
def test_operators_run_in_the_background_of_a_test_and_their_modules_are_imported_anew(
    webop_cluster: LocalCluster, widgets: Kind, tmp_path: Path
) -> None:
    files = {
        "main.py": MAIN,
        "wiring.py": "import hooks\n",
        "hooks.py": HOOKS,
        "conftest.py": PLUGIN,
        "tests/test_it.py": TESTS,
    }
    variables = {"CLUSTER_OF_THE_RUN": webop_cluster.name}
    output = run_suite(tmp_path, files, "-p", "no:asyncio", **variables)
    assert "5 passed" in output, output
