from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.waiting import wait_until
from webop.controlplane import reaper
from webop.controlplane.state import (
    ClusterState,
    Process,
    end_abandoned_clusters,
    end_process,
    identify,
    is_abandoned,
    is_running,
    load_all_states,
    load_state,
    make_private_folder,
    save_state,
    start_process,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROC = Path("/proc")
_needs_proc = pytest.mark.skipif(not (_PROC / "self").exists(), reason="needs the /proc of Linux")
_SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
_ME = identify(os.getpid())
_LARGE = """
import threading, time
for _ in range(8):
    threading.Thread(target=time.sleep, args=(60,)).start()
memory = bytearray(200_000_000)
for place in range(0, len(memory), 4096):
    memory[place] = 1
print("ready", flush=True)
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    started = start_process(_SLEEP, folder=tmp_path, log=tmp_path / "log")
    yield started
    end_process(started)  # it waits for its own child


def _make_state(cache: Path, *processes: Process, owner: Process | None) -> ClusterState:
    folder = cache / "clusters" / "one"
    make_private_folder(folder)
    state = ClusterState(
        name="one",
        folder=folder,
        logs=cache / "logs" / "one",
        created=time.time(),
        owner=owner,
        processes={str(process.pid): process for process in processes},
    )
    save_state(state)
    return state


def _find_dead_owner() -> Process:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        return identify(child.pid)


def test_a_process_that_has_got_a_recycled_id_is_not_killed(process: Process) -> None:
    reaper.end_process(process.pid, "another time")
    assert is_running(process)
    assert not reaper.is_running(process.pid, "another time")
    reaper.end_process(process.pid, process.started)
    assert not is_running(process)


@_needs_proc
def test_a_killed_process_is_gone_with_its_threads_and_memory(tmp_path: Path) -> None:
    log = tmp_path / "log"
    large = start_process([sys.executable, "-c", _LARGE], folder=tmp_path, log=log)
    wait_until(lambda: "ready" in log.read_text())
    end_process(large)
    assert not (_PROC / str(large.pid)).exists()


@_needs_proc
def test_a_process_that_has_ended_by_itself_leaves_no_zombie(tmp_path: Path) -> None:
    brief = start_process([sys.executable, "-c", ""], folder=tmp_path, log=tmp_path / "log")
    wait_until(lambda: not is_running(brief))
    end_process(brief)
    assert not (_PROC / str(brief.pid)).exists()


def test_a_cluster_is_abandoned_when_its_owner_is_dead(cache: Path, process: Process) -> None:
    state = _make_state(cache, process, owner=_ME)
    end_abandoned_clusters()
    assert load_state("one") == state
    state = _make_state(cache, process, owner=_find_dead_owner())
    assert is_abandoned(state)
    end_abandoned_clusters()
    assert load_all_states() == []
    assert not is_running(process)
    assert not (cache / "clusters" / "one").exists()


def test_a_cluster_without_owner_is_left_alone(cache: Path, process: Process) -> None:
    _make_state(cache, process, owner=None)
    end_abandoned_clusters()
    assert is_running(process)


@_needs_proc
def test_a_process_that_was_started_but_not_recorded_is_found(cache: Path, tmp_path: Path) -> None:
    _make_state(cache, owner=_ME)
    (tmp_path / "link").symlink_to(cache)  # such as a home folder on another disk
    folder = tmp_path / "link" / "clusters" / "one"
    executable = tmp_path / "etcd"
    executable.write_text("#!/bin/sh\nread line\n")
    executable.chmod(0o755)
    with (
        subprocess.Popen([executable], cwd=folder, stdin=subprocess.PIPE) as forgotten,
        subprocess.Popen(_SLEEP, cwd=folder) as innocent,
    ):
        reaper.end_cluster(folder)
        assert forgotten.wait(timeout=30) == 0 or forgotten.returncode == -signal.SIGKILL
        assert innocent.poll() is None
        innocent.kill()
