from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

import pytest

from tests.cluster.controlplane.fake_executables import Recorder
from webop.controlplane.build import build_binaries, build_go_mod
from webop.controlplane.versions import PINNED_VERSION, PINNED_VERSIONS
from webop.errors import ClusterError

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = ("etcd", "kube-apiserver")


def test_a_module_of_another_layout_is_refused_with_a_way_out() -> None:
    with pytest.raises(ClusterError, match="KUBEBUILDER_ASSETS"):
        build_go_mod("module k8s.io/kubernetes\n\ngo 1.40.0\n", "1.60.0")


@pytest.mark.parametrize("version", PINNED_VERSIONS)
def test_the_checksums_of_the_pinned_versions_are_part_of_the_package(version: str) -> None:
    name = f"kubernetes-v{version}.sum"
    text = (resources.files("webop.controlplane") / "checksums" / name).read_text()
    assert f"k8s.io/kubernetes v{version} h1:" in text
    assert f"k8s.io/apiserver v0{version[1:]} h1:" in text


def test_the_pinned_version_is_built_with_its_checksums_only(
    go: Path, tmp_path: Path, recorder: Recorder
) -> None:
    build_binaries(_NAMES, PINNED_VERSION, target=tmp_path, progress=recorder)
    assert all((tmp_path / name).is_file() for name in (*_NAMES, "go.sum"))
    builds = [line for line in (go / "calls").read_text().splitlines() if line[:5] == "build"]
    assert len(builds) == 1
    assert "-mod=readonly" in builds[0]
    assert f"-X k8s.io/component-base/version.gitVersion=v{PINNED_VERSION}" in builds[0]
    assert recorder.steps[0][0] == "Downloading the sources"
    title = f"Building etcd, kube-apiserver {PINNED_VERSION}"
    assert recorder.steps[-1] == (title, 3, 3, "packages")


def test_a_release_line_is_built_in_its_newest_version(
    go: Path, tmp_path: Path, recorder: Recorder
) -> None:
    assert build_binaries(_NAMES, "1.35", target=tmp_path, progress=recorder) == "1.35.9"
    assert "-mod=mod" in (go / "calls").read_text()
    assert recorder.notes == []


def test_a_build_that_nothing_verifies_says_so(
    go: Path, tmp_path: Path, recorder: Recorder
) -> None:
    (go / "sumdb").write_text("off")
    build_binaries(_NAMES, "1.35", target=tmp_path, progress=recorder)
    assert recorder.notes == ["GOSUMDB=off: nothing verifies the modules of Kubernetes 1.35.9."]
    recorder.notes.clear()
    build_binaries(_NAMES, PINNED_VERSION, target=tmp_path, progress=recorder)
    assert recorder.notes == []


def test_a_failed_build_names_its_log_and_shows_the_end_of_it(
    go: Path, cache: Path, tmp_path: Path, recorder: Recorder
) -> None:
    (go / "fail").touch()
    with pytest.raises(ClusterError, match="undefined: gravity") as failure:
        build_binaries(_NAMES, "1.36.3", target=tmp_path, progress=recorder)
    (log,) = (cache / "logs").glob("build-1.36.3-*.log")
    assert str(log) in str(failure.value)
    assert "undefined: gravity" in log.read_text()
