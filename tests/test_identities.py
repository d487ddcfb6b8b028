"""Who a process is, and whether another one has ended in its place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from webop.identities import (
    Process,
    detect_process,
    detect_process_identity,
    find_container,
    is_former_self,
)

HERE = detect_process()
ROOT = Path(__file__).parents[1]

_TALK = """
import sys
from webop.identities import detect_process_identity, is_former_self
print(detect_process_identity(), flush=True)
for line in sys.stdin:
    print(is_former_self(line.strip()), flush=True)
"""


class Speaker:
    """A process that says who it is, and what it holds others for."""

    def __init__(self, *prefix: str) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", _TALK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.identity = self._read()

    def holds_for_former_self(self, identity: str) -> bool:
        assert self.process.stdin
        self.process.stdin.write(f"{identity}\n")
        self.process.stdin.flush()
        return self._read() == "True"

    def kill(self) -> None:
        self.process.kill()

    def _read(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()


@contextmanager
def speak(*prefix: str) -> Iterator[Speaker]:
    speaker = Speaker(*prefix)
    try:
        yield speaker
    finally:
        speaker.process.kill()
        speaker.process.communicate()


@pytest.fixture(autouse=True)
def _no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POD_ID", raising=False)


def test_two_live_processes_on_one_host_are_never_taken_for_one_another() -> None:
    with speak() as one, speak() as two:
        assert one.identity != two.identity
        assert not one.holds_for_former_self(two.identity)
        assert not two.holds_for_former_self(one.identity)
        assert not is_former_self(one.identity)
        assert not one.holds_for_former_self(one.identity)


@pytest.mark.parametrize("is_reaped", [True, False])
def test_a_killed_process_is_recognised_at_once_also_before_its_parent_has_noticed(
    is_reaped: bool,
) -> None:
    with speak() as one, speak() as two:
        one.kill()
        os.waitid(os.P_PID, one.process.pid, os.WEXITED | (0 if is_reaped else os.WNOWAIT))
        assert two.holds_for_former_self(one.identity)


def test_a_stopped_process_is_alive() -> None:
    with speak() as one:
        one.process.send_signal(19)
        assert not is_former_self(one.identity)


def test_a_process_whose_id_is_used_again_has_ended() -> None:
    with speak() as one:
        pid, started_at, rest = one.identity.rpartition("@")[2].split("/")[1].split("-", 2)
        earlier = f"a@b/{pid}-{int(started_at) - 1}-{rest}/abc"
        assert is_former_self(earlier)
        assert not is_former_self(one.identity)


def test_ids_of_other_hosts_say_nothing_here() -> None:
    gone = replace(HERE, pid=2**22 + 1)  # beyond all possible ids
    assert is_former_self(f"a@b/{gone}/abc")
    assert not is_former_self(f"a@b/{replace(gone, pid_namespace='0' * 12)}/abc")


@pytest.mark.parametrize(
    "identity",
    [
        "",
        "alice@laptop",
        "alice@laptop/20261122054253/xyz",
        "alice@laptop/1795296827/3dc354",
        "lease/default/operator",
        "operator-7f9c-2",
        "1-2-3",
        f"9999999999-1-{HERE.pid_namespace}",
        f"1-{'9' * 5000}-{HERE.pid_namespace}",
    ],
)
def test_identities_without_a_process_are_of_others(identity: str) -> None:
    assert not is_former_self(identity)


def test_operators_in_one_process_are_not_one() -> None:
    one, two = detect_process_identity(), detect_process_identity()
    assert one != two
    assert not is_former_self(one)


_POD = "/var/lib/kubelet/pods/0b1f0c1e-6a5f-4b7e-9a53-d0e5a4a6c001/containers"
_MOUNTS = """\
712 643 0:178 / / rw,relatime master:240 - overlay overlay rw,lowerdir=/var/lib/containerd/x
713 712 0:181 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
723 712 8:1 /var/lib/kubelet/pods/0b1f0c1e/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw
724 712 8:1 {root} /dev/termination-log rw,relatime - ext4 /dev/sda1 rw
725 712 8:1 /var/lib/kubelet/pods/other/containers-of-others/x /data rw - ext4 /dev/sda1 rw
"""


def test_a_container_of_a_pod_is_the_same_after_each_restart_and_no_other_one() -> None:
    def find(root: str) -> str:
        return find_container(_MOUNTS.format(root=root))

    first, again, other = f"{_POD}/operator/1a2b", f"{_POD}/operator/99ff", f"{_POD}/sidecar/1a2b"
    assert find(first) == find(again) != find(other) != ""
    assert find(first.replace("d0e5", "d0e6")) not in {find(first), ""}
    assert find(first.removeprefix("/var/lib/kubelet")) == find(first)  # a disk of its own
    assert find_container(f"{_MOUNTS.format(root=first)}{_MOUNTS.format(root=other)}") == ""
    assert find("/") == find_container("") == find_container("garbage\n\n") == ""


def test_a_restarted_container_has_replaced_the_former_one_but_no_other_container() -> None:
    former = Process(1, 100, "a" * 12, "c" * 12)
    restarted = replace(HERE, pid=1, container="c" * 12)
    assert restarted.has_replaced(former)
    assert not restarted.has_replaced(replace(former, container="d" * 12))
    assert not restarted.has_replaced(replace(former, container=""))
    assert not replace(restarted, container="").has_replaced(replace(former, container=""))


def test_containers_on_one_host_are_told_apart(tmp_path: Path) -> None:
    def build_prefix(container: str) -> tuple[str, ...]:
        log = tmp_path / "pods" / "uid" / "containers" / container / "log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        target = tmp_path / "termination-log"
        target.touch()
        script = f'mount --bind "{log}" "{target}" && exec "$@"'
        return ("unshare", "-Urmpf", "--mount-proc", "--kill-child", "sh", "-c", script, "-")

    if subprocess.run([*build_prefix("any"), "true"], check=False, capture_output=True).returncode:
        pytest.skip("namespaces cannot be made here")
    operator, sidecar = build_prefix("operator"), build_prefix("sidecar")
    with speak(*operator) as first, speak(*sidecar) as beside:
        assert not beside.holds_for_former_self(first.identity)
        assert not first.holds_for_former_self(beside.identity)
        assert not is_former_self(first.identity)
        first.kill()
        first.process.wait()
        assert not beside.holds_for_former_self(first.identity)
        with speak(*operator) as again:
            assert again.holds_for_former_self(first.identity)
            assert not again.holds_for_former_self(beside.identity)
