"""Fixtures for all tests that need a cluster; ``webop_cluster`` comes from webop's own plugin."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import webop
from tests.kit.collected import COLLECTED
from tests.kit.operators import (
    Calls,
    Kind,
    Objects,
    RunOperator,
    connect,
    define_kinds,
    get_connection,
    operate,
)
from tests.kit.processes import Workshop
from tools.long_runs import find_other_copy
from webop.client.api import Client
from webop.client.auth.vault import ConnectionInfo

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

# Hundreds of commands are run: they are to compile their modules once, not each anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# It is ignored in background jobs of shells, and commands that are run would ignore it, too.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test this clone together with the commands of another one."""
    if problem := find_other_copy():
        raise pytest.UsageError(problem)
    config.pluginmanager.import_plugin("tests.kit.shared_cluster")  # for the examples' tests, too


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from thousands of tests, none of which is garbage."""
    gc.disable()
    result = yield
    gc.enable()
    gc.freeze()
    return result


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take long: at the end, workers wait for them.

    These are files of which a test has more time than usual; then those with an API server.
    """
    config.stash[COLLECTED] = [*items]
    timeouts: dict[Path, float] = {}
    for item in items:
        mark = item.get_closest_marker("timeout")
        timeout = float(mark.args[0]) if mark else 0.0
        timeouts[item.path] = max(timeout, timeouts.get(item.path, 0.0))
    items.sort(key=lambda item: (-timeouts[item.path], "unit" in item.path.parts))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what the usual run leaves out."""
    if config.option.markexpr == "not journey":
        terminalreporter.write_line(
            "Not run: the journeys (tutorial, README, a new operator, charts, browser, long runs). "
            "To run them: make journeys"
        )


@pytest.fixture(autouse=True)
def default_registry() -> Iterator[webop.OperatorRegistry]:
    """Where the handlers of a test go by default: no other test has put any there."""
    before, fresh = webop.get_default_registry(), webop.OperatorRegistry()
    webop.set_default_registry(fresh)
    yield fresh
    webop.set_default_registry(before)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There are no credentials on this machine."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def default_hangup() -> Iterator[None]:
    """Let the processes that a test starts heed SIGHUP, also if the tests run under nohup."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)


@pytest.fixture(scope="session")
def widgets(webop_cluster: LocalCluster) -> Kind:
    """A kind without subresources that keeps whatever it is given; shared by the tests."""
    return next(define_kinds(webop_cluster, [Kind("tests.webop.dev")]))


@pytest.fixture(scope="session")
def gadgets(webop_cluster: LocalCluster) -> Kind:
    """The same with its status behind an endpoint of its own; shared by the tests."""
    kind = Kind("tests.webop.dev", "gadgets", "Gadget", has_status=True)
    return next(define_kinds(webop_cluster, [kind]))


@pytest.fixture(scope="session")
def gizmos(webop_cluster: LocalCluster) -> Kind:
    """A kind whose schema knows no status, so that the API server drops it; shared."""
    kind = Kind("tests.webop.dev", "gizmos", "Gizmo", keeps_status=False)
    return next(define_kinds(webop_cluster, [kind]))


@pytest.fixture
def info(webop_cluster: LocalCluster) -> ConnectionInfo:
    """The administrator's credentials."""
    return get_connection(webop_cluster)


@pytest.fixture
async def client(webop_cluster: LocalCluster) -> AsyncIterator[Client]:
    """A client of the administrator."""
    async with connect(webop_cluster) as connected:
        yield connected


@pytest.fixture
def objects(client: Client, widgets: Kind, webop_namespace: str) -> Objects:
    """The widgets in the namespace of the test."""
    return Objects(client, widgets, webop_namespace)


@pytest.fixture
def run_operator(
    info: ConnectionInfo, registry: webop.OperatorRegistry, objects: Objects
) -> RunOperator:
    """Runs an operator with the handlers of the test in the namespace of the test."""
    return partial(operate, info, registry, namespaces=[objects.namespace])


@pytest.fixture
def registry(default_registry: webop.OperatorRegistry) -> webop.OperatorRegistry:
    """Where the handlers of a test go, also if it does not say so."""
    return default_registry


@pytest.fixture
def calls() -> Calls:
    """What the handlers have been called with."""
    return Calls()


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    """Where ``webop run`` is run as a command."""
    return Workshop(tmp_path)


@pytest.fixture
def connected(tmp_path: Path, webop_cluster: LocalCluster) -> Workshop:
    """The same, with the credentials of the administrator."""
    return Workshop(tmp_path, KUBECONFIG=str(webop_cluster.kubeconfig))
