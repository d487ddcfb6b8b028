from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cluster.controlplane.fake_executables import Recorder
from tests.kit.waiting import wait_until
from webop.controlplane import reaper
from webop.controlplane.binaries import find_binaries, provide_binaries
from webop.controlplane.versions import detect_platform
from webop.errors import ClusterError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_PROVIDE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in background jobs
from webop.controlplane.binaries import provide_binaries
from webop.controlplane.progress_bar import Progress
print(provide_binaries(Progress(sys.stderr)).folder)
"""


class Provider:
    """A process that provides the binaries, with its output in files."""

    def __init__(self, folder: Path) -> None:
        self._output = folder / "stdout"
        self._errors = folder / "stderr"
        folder.mkdir()
        with self._output.open("wb") as stdout, self._errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-c", _PROVIDE], stdout=stdout, stderr=stderr
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def errors(self) -> str:
        return self._errors.read_text()


@pytest.fixture
def start_provider(go: Path, tmp_path: Path) -> Iterator[Callable[[], Provider]]:
    providers: list[Provider] = []

    def start() -> Provider:
        providers.append(Provider(tmp_path / f"provider-{len(providers)}"))
        return providers[-1]

    yield start
    (go / "wait").unlink(missing_ok=True)
    for provider in providers:
        provider.process.kill()
        provider.process.wait()


def _is_gone(pid: int) -> bool:
    return reaper.get_start_time(pid) is None


def _write_executable(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\necho Kubernetes v1.36.7\n")
    path.chmod(0o755)


def test_the_folder_of_kubebuilder_comes_first_unless_everybody_can_write_to_it(
    go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    assets = tmp_path / "assets"
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    with pytest.raises(ConfigurationError, match="unset it"):  # it is not passed over
        provide_binaries(recorder)
    for name in ("etcd", "kube-apiserver"):
        _write_executable(assets / name)
    assert provide_binaries(recorder).folder == assets
    assert provide_binaries(recorder, "1.36").version == "1.36.7"
    assert not (go / "calls").exists()
    with pytest.raises(ConfigurationError, match=r"contains 1\.36\.7"):
        provide_binaries(recorder, "1.35")
    for path in (assets, assets / "etcd"):
        path.chmod(0o757)
        with pytest.raises(ConfigurationError, match=f"every user can write to {path}"):
            find_binaries()
        path.chmod(0o755)
    assert find_binaries()


@pytest.mark.parametrize(("place", "how"), [("../..", "group"), ("etcd", "others"), (".", "owner")])
def test_binaries_that_another_user_could_have_replaced_are_not_executed(
    cache: Path, tmp_path: Path, place: str, how: str
) -> None:
    folder = cache.joinpath("bin", "-".join(("1.36.7", *detect_platform())))
    for name in ("etcd", "kube-apiserver"):
        _write_executable(folder / name)
        (folder / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\n")
    path = (folder / place).resolve()
    if how == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root can make a file of another user")
        os.chown(path, 4242, -1)
    else:
        path.chmod(0o775 if how == "group" else 0o757)
    command = [sys.executable, "-m", "webop", "cluster", "start"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{path} is not safe to use" in done.stderr
    assert f"chmod -R go-w {cache}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "executed").exists()


def test_a_cache_that_webop_made_is_safe_whatever_the_umask(go: Path, recorder: Recorder) -> None:
    before = os.umask(0)
    try:
        assert provide_binaries(recorder) == find_binaries()
    finally:
        os.umask(before)


def test_the_environment_can_choose_the_version(
    go: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    monkeypatch.setenv("WEBOP_KUBERNETES", "1.33")
    assert provide_binaries(recorder).version == "1.33.13"
    assert provide_binaries(recorder, "1.36").version == "1.36.3"
    monkeypatch.setenv("WEBOP_KUBERNETES", "newest")
    with pytest.raises(ConfigurationError, match="is not a version of Kubernetes"):
        find_binaries()


def test_what_has_been_built_once_is_taken_from_the_cache(
    go: Path, cache: Path, recorder: Recorder
) -> None:
    assert find_binaries() is None
    built = provide_binaries(recorder)
    assert built.folder.parent == cache / "bin"
    names = {path.name for path in built.folder.iterdir()}
    assert names == {"etcd", "kube-apiserver", "kube-controller-manager"}
    (go / "go").unlink()
    assert provide_binaries(recorder) == built == find_binaries()
    assert not (cache / "scratch").exists()


def test_a_failed_build_leaves_nothing_behind(go: Path, cache: Path, recorder: Recorder) -> None:
    (go / "fail").touch()
    with pytest.raises(ClusterError):
        provide_binaries(recorder)
    assert [path.name for path in (cache / "bin").iterdir()] == ["lock"]
    (go / "fail").unlink()
    assert provide_binaries(recorder).version == "1.36.3"


def test_where_no_source_works_all_reasons_and_the_remedy_are_told(
    go: Path, recorder: Recorder
) -> None:
    (go / "no-network").touch()
    with pytest.raises(ClusterError) as failure:
        provide_binaries(recorder)
    message = str(failure.value)
    assert "download: disabled by WEBOP_ENVTEST_INDEX" in message
    assert "build: Cannot reach Go's module proxy" in message
    assert "or install Go, or set KUBEBUILDER_ASSETS" in message


def test_an_interrupted_build_leaves_no_half_binary_and_no_compiler(
    go: Path, cache: Path, start_provider: Callable[[], Provider]
) -> None:
    (go / "wait").touch()
    provider = start_provider()
    wait_until((go / "building").exists)
    provider.process.send_signal(signal.SIGINT)
    assert provider.process.wait(timeout=30) != 0
    assert [path.name for path in (cache / "bin").iterdir()] == ["lock"]
    assert _is_gone(int((go / "pid").read_text()))


def test_two_processes_that_need_the_binaries_at_once_build_them_once(
    go: Path, start_provider: Callable[[], Provider]
) -> None:
    (go / "wait").touch()
    providers = [start_provider(), start_provider()]
    wait_until((go / "building").exists)
    wait_until(lambda: any("Waiting for another process" in one.errors for one in providers))
    (go / "wait").unlink()
    assert [one.process.wait(timeout=30) for one in providers] == [0, 0]
    assert providers[0].output == providers[1].output != ""
    builds = [line for line in (go / "calls").read_text().splitlines() if line[:5] == "build"]
    assert len(builds) == 1
