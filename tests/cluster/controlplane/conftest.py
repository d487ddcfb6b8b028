"""A cache of its own for each test, no downloads, and real binaries where they are asked for."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cluster.controlplane.fake_executables import Recorder, write_assets, write_go
from webop.controlplane.binaries import provide_binaries, provide_controller_manager
from webop.controlplane.cluster import LocalCluster
from webop.controlplane.progress_bar import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def pytest_collection_finish(session: pytest.Session) -> None:
    """Get the real binaries before the first test, whose time-out is too short for a build."""
    if any("real_assets" in getattr(item, "fixturenames", ()) for item in session.items):
        progress = Progress(sys.stderr)
        provide_controller_manager(provide_binaries(progress), progress)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="session")
def real_assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the real etcd, kube-apiserver and kube-controller-manager."""
    progress = Progress(sys.stderr)
    binaries = provide_binaries(progress)
    folder = tmp_path_factory.mktemp("assets")
    for name in ("etcd", "kube-apiserver"):
        (folder / name).symlink_to(binaries.folder / name)
    manager = provide_controller_manager(binaries, progress)
    (folder / manager.name).symlink_to(manager)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, which the processes started by the test use, too; nothing is downloaded."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("WEBOP_CACHE", str(folder))
    monkeypatch.setenv("WEBOP_ENVTEST_INDEX", "off")
    monkeypatch.setenv("WEBOP_KUBERNETES_RELEASES", "off")
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.delenv("WEBOP_KUBERNETES", raising=False)
    return folder


@pytest.fixture
def go(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a stand-in for ``go`` that is first on PATH."""
    folder = tmp_path / "toolchain"
    folder.mkdir()
    write_go(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


@pytest.fixture
def standin_assets(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of stand-ins for etcd and the API server, set as KUBEBUILDER_ASSETS."""
    folder = tmp_path / "assets"
    folder.mkdir()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(write_assets(folder)))
    return folder


@pytest.fixture
def use_real_assets(cache: Path, real_assets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test, and the processes that it starts, use the real binaries."""
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(real_assets))


@pytest.fixture(scope="module")
def cluster(real_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A real cluster in a cache of its own, shared by the tests of a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEBOP_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("KUBEBUILDER_ASSETS", str(real_assets))
        running = LocalCluster().start()
    yield running
    running.stop()
