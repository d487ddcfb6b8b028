"""The pytest plugin: operators and a real Kubernetes API server for them, as fixtures.

::

    def test_handlers(webop_cluster, webop_namespace, webop_operator):
        with webop_operator("handlers.py"):
            webop_cluster.apply("example.yaml", namespace=webop_namespace)
            ...

    async def test_admission(webop_admission):  # with no cluster
        async with webop_admission(modules=["handlers.py"]) as client:
            assert (await client.create({...})).allowed

pytest finds it by the entry point ``webop`` of the group ``pytest11`` and loads it in every
run of every project, also in those that do not use it. So this module imports webop only in
fixtures, and is not in its package: that would import the package.

If a collected test needs the binaries, they are provided after the collection: the first time
can take minutes, and tests can have timeouts. With pytest-xdist, the worker that needs the cluster
first starts it for all of them, and the process that writes the summary stops it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from webop.controlplane.cluster import LocalCluster
    from webop.testing.admission_client import AdmissionClient
    from webop.testing.runner import OperatorRunner

_WORKER_KEY = "webop_clusters"
_STOP_TIMEOUT = 30.0  # seconds
# A local API server notices within this time that webhooks were removed.
_ENVIRONMENT = {"WEBOP_ADMISSION__SHUTDOWN_DELAY": "0.2"}
_clusters_key = pytest.StashKey[set[str]]()
_shared_key = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def webop_cluster_options() -> dict[str, Any]:
    """The arguments of ``LocalCluster``: a project returns its own from a fixture of this name."""
    return {}


@pytest.fixture(scope="session")
def webop_cluster(
    pytestconfig: pytest.Config, webop_cluster_options: dict[str, Any]
) -> Iterator[LocalCluster]:
    """A real Kubernetes API server, started at first use; the workers of pytest-xdist share it."""
    from webop.controlplane.cluster import LocalCluster  # noqa: PLC0415 - only if it is used

    worker = getattr(pytestconfig, "workerinput", None)
    cluster = LocalCluster(worker and _name_cluster(worker), **webop_cluster_options)
    cluster = cluster.start() if worker is None else _share(cluster)
    pytestconfig.stash[_clusters_key].add(f"Kubernetes {cluster.version} ({cluster.source})")
    yield cluster
    if worker is None:
        cluster.stop()


@pytest.fixture
def webop_kubeconfig(webop_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a kubeconfig of the cluster; KUBECONFIG is set to it during the test.

    So operators, kubectl and client libraries of the test use this cluster only.
    """
    monkeypatch.setenv("KUBECONFIG", str(webop_cluster.kubeconfig))
    return webop_cluster.kubeconfig


@pytest.fixture
def webop_namespace(webop_cluster: LocalCluster, webop_kubeconfig: Path) -> Iterator[str]:  # noqa: ARG001
    """The name of a new namespace, deleted after the test; includes webop_kubeconfig.

    The deletion completes only with kube-controller-manager. Until then, the namespace accepts no
    new objects.
    """
    from webop.errors import WebopError  # noqa: PLC0415 - only if it is used

    name = webop_cluster.create_namespace()
    yield name
    with contextlib.suppress(WebopError):  # the test may have killed the API server
        webop_cluster.delete_namespace(name)


@pytest.fixture
def webop_operator(
    request: pytest.FixtureRequest, webop_namespace: str
) -> Callable[..., OperatorRunner]:
    """Makes operators in the background, as context managers: ``webop_operator("handlers.py")``.

    It takes the arguments of ``webop run``, and as keywords those of
    ``webop.testing.OperatorRunner``. Without ``-n`` and ``-A``, the operator serves the namespace
    of the test. It looks for files in the folder of the test and in the folders above, up to the
    root folder of pytest.
    """
    from webop.testing.runner import OperatorRunner  # noqa: PLC0415 - only if it is used

    def build(*arguments: str | Path, **options: Any) -> OperatorRunner:
        words = [_find_source(str(argument), request) for argument in arguments]
        scope = () if any(map(_is_scope, words)) else (f"--namespace={webop_namespace}",)
        environment = {**_ENVIRONMENT, **(options.pop("env", None) or {})}
        chosen: Any = {"timeout": _STOP_TIMEOUT, **options}
        return OperatorRunner(["run", *scope, *words], env=environment, **chosen)

    return build


@pytest.fixture
def webop_admission(request: pytest.FixtureRequest) -> Callable[..., AdmissionClient]:
    """Makes clients of admission handlers; takes the arguments of ``AdmissionClient``.

    It looks for files in the folder of the test and in the folders above, up to the root folder
    of pytest. It is for async tests, of any plugin.
    """
    from webop.testing.admission_client import AdmissionClient  # noqa: PLC0415 - only if it is used

    def build(
        registry: Any = None, settings: Any = None, modules: Iterable[str] = (), **options: Any
    ) -> AdmissionClient:
        sources = [modules] if isinstance(modules, str) else modules
        found = [_find_source(source, request) for source in sources]
        return AdmissionClient(registry, settings, found, **options)

    return build


def _name_cluster(workerinput: dict[str, Any]) -> str:
    """Return the name of the cluster that all workers of the run of this worker share."""
    return f"run-{workerinput['testrunuid'][:8]}"


def _share(cluster: LocalCluster) -> LocalCluster:
    """Return the cluster of this name; the first worker starts it."""
    from webop.errors import ClusterError, ConfigurationError  # noqa: PLC0415

    try:
        return cluster.start(owner=os.getppid())
    except ConfigurationError as refusal:
        try:
            return cluster.attach(cluster.name)
        except ClusterError:
            raise refusal from None


def _is_scope(word: str) -> bool:
    """Return whether an argument of ``webop run`` selects namespaces."""
    name = word.partition("=")[0] if word.startswith("--") else word[:2]
    return name in ("-A", "-n", "--all-namespaces", "--namespace")


def _find_source(source: str, request: pytest.FixtureRequest) -> str:
    """Return the path of a file with handlers; names of modules stay unchanged."""
    if Path(source).suffix != ".py":
        return source
    root = request.config.rootpath
    paths = (folder / source for folder in request.path.parents if folder.is_relative_to(root))
    return next((str(path) for path in paths if path.is_file()), source)


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the set of the versions that the tests use."""
    config.stash[_clusters_key] = set()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Provide the binaries before the first test, and show the progress."""
    needed = ("webop_cluster" in getattr(item, "fixturenames", ()) for item in session.items)
    if session.config.option.collectonly or not any(needed):
        return
    from webop.controlplane.binaries import find_binaries, provide_binaries  # noqa: PLC0415
    from webop.controlplane.progress_bar import Progress  # noqa: PLC0415
    from webop.errors import WebopError  # noqa: PLC0415

    # The fixture repeats the error, and fails the tests that use it.
    with contextlib.suppress(WebopError):
        if find_binaries() is None:
            # Show the progress at once: pytest would capture it.
            capture: Any = session.config.pluginmanager.getplugin("capturemanager")
            with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
                provide_binaries(Progress(sys.stderr))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the cluster of the workers; a worker sends the version to the process that does so."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        versions: set[str] = session.config.stash[_clusters_key]
        output[_WORKER_KEY] = list(versions)
    elif session.config.stash[_clusters_key] and _shared_key in session.config.stash:
        from webop.controlplane.cluster import LocalCluster  # noqa: PLC0415 - only if it is used
        from webop.errors import ClusterError  # noqa: PLC0415

        with contextlib.suppress(ClusterError):
            LocalCluster.attach(session.config.stash[_shared_key]).stop()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Learn the name of the cluster that the workers share."""
    node.config.stash[_shared_key] = _name_cluster(node.workerinput)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:  # noqa: ARG001 - xdist's
    """Collect the versions that an xdist worker has used."""
    output = getattr(node, "workeroutput", None) or {}
    node.config.stash[_clusters_key].update(output.get(_WORKER_KEY, ()))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Write the versions of Kubernetes that the tests have used."""
    versions: set[str] = config.stash[_clusters_key]
    for text in sorted(versions):
        terminalreporter.write_line(f"webop: ran against {text}")
