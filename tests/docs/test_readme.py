"""Types the README's commands in an empty folder, line by line, as a first user does."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.pages import ROOT, Block, find_blocks
from webop.controlplane.cache import get_binaries_folder
from webop.errors import ClusterError
from webop.testing import LocalCluster, eventually

# Packages are downloaded, and an environment is made.
pytestmark = pytest.mark.timeout(1200)

_END = "the line has ended with "
_PATIENCE = 600.0  # seconds; for one line
# For machines without kubectl: "apply -f" and "get -f", with a real API server.
_KUBECTL = """\
#!{python}
import sys, yaml
from webop.testing import LocalCluster

command, option, file = sys.argv[1:4]
assert command in ("apply", "get") and option == "-f", sys.argv
with sys.stdin if file == "-" else open(file) as stream:
    documents = [one for one in yaml.safe_load_all(stream) if one]
assert documents, "error: no objects passed to apply"
cluster = LocalCluster.attach("default")
for one in documents:
    kind, metadata = one["kind"], one["metadata"]
    if command == "get":
        namespace = metadata.get("namespace")
        print(yaml.dump(cluster.get(one["apiVersion"], kind, metadata["name"], namespace)))
        continue
    cluster.apply(one)
    print(kind.lower() + "/" + metadata["name"], "created")
"""


class Shell:
    """A shell in which a user types lines."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.type("set -o pipefail")

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(_END)

    def type(self, line: str, *, until: str = _END) -> str:
        """Type a line; return what it prints, until a text appears or the line ends."""
        assert self._process.stdin is not None
        # Only the shell reads what is typed; braces keep variables in this shell.
        self._process.stdin.write(f'{{ {line}\n}} < /dev/null\necho "{_END}$?"\n')
        self._process.stdin.flush()
        return self.wait(until)

    def wait(self, until: str = _END) -> str:
        """Return what is printed until a text appears, or the line ends."""
        printed, deadline = "", time.monotonic() + _PATIENCE
        while until not in printed and _END not in printed:
            printed += self._lines.get(timeout=max(0.1, deadline - time.monotonic()))
        return printed

    def interrupt(self) -> None:
        """Press Ctrl-C: signal the command that runs."""
        found = subprocess.run(
            ["pgrep", "-P", str(self._process.pid)], capture_output=True, text=True, check=True
        )
        os.kill(int(found.stdout), signal.SIGINT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        self._process.stdin.close()


def write_kubectl(folder: Path) -> None:
    """Write a stand-in for kubectl."""
    folder.mkdir()
    (folder / "kubectl").write_text(_KUBECTL.format(python=sys.executable))
    (folder / "kubectl").chmod(0o755)


@pytest.fixture
def open_shell(
    tmp_path: Path, webop_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Shell]]:
    """Opens shells in an empty folder beside the clone; "webop cluster" has a cache of its own."""
    try:
        socket.create_connection(("pypi.org", 443), timeout=10).close()
    except OSError:
        pytest.skip("There is no package index.")
    folder = tmp_path / "my-operator"
    folder.mkdir()
    (tmp_path / "webop").symlink_to(ROOT)
    assets = os.environ.get("KUBEBUILDER_ASSETS") or str(
        get_binaries_folder(webop_cluster.version.removeprefix("v"))
    )
    monkeypatch.setenv("KUBEBUILDER_ASSETS", assets)
    monkeypatch.setenv("WEBOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    path = os.environ["PATH"]
    if shutil.which("kubectl") is None:
        write_kubectl(tmp_path / "bin")
        path = f"{tmp_path / 'bin'}:{path}"
    opened = list[Shell]()

    def open_one() -> Shell:
        opened.append(Shell(folder, {**os.environ, "PATH": path, "NO_COLOR": "1"}))
        return opened[-1]

    try:
        yield open_one
    finally:
        opened[0].type("webop cluster stop")
        for shell in opened:
            shell.close()


def find_blocks_to_type() -> list[list[str]]:
    """Return the lines of the shell blocks after the first one, which runs the demo."""
    shells = [block for block in find_blocks(ROOT / "README.md") if block.language == "bash"]
    return [block.code.replace("\\\n", " ").splitlines() for block in shells[1:]]


def type_block(shell: Shell, lines: list[str]) -> str:
    """Type lines, the last of which may run the operator; return what the last one prints."""
    printed = ""
    for line in lines:
        if line.startswith("webop run"):
            printed = shell.type(line, until="The operator is running")
            assert "The operator is running" in printed
            continue
        printed = shell.type(line)
        # The doctor finds what is wrong: there are no nodes for the pods.
        code = 1 if line.startswith("webop doctor") else 0
        assert printed.rstrip().endswith(f"{_END}{code}"), f"{line}\n{printed}"
        assert "Traceback" not in printed
    return printed


def get_handlers() -> Block:
    return next(block for block in find_blocks(ROOT / "README.md") if block.language == "python")


def use(cluster: LocalCluster) -> None:
    """Use the operator: it sets a default, denies a bad size, handles a creation."""
    kind = {"apiVersion": "kopf.dev/v1", "kind": "KopfExample"}

    def is_denied() -> bool:
        bad = {**kind, "metadata": {"name": "bad"}, "spec": {"size": "-1"}}
        try:
            cluster.apply(bad, namespace="default", dry_run=True)
        except ClusterError as exc:
            return "The size cannot be negative." in str(exc)
        return False

    eventually(is_denied, timeout=60)
    cluster.apply({**kind, "metadata": {"name": "good"}, "spec": {}}, namespace="default")

    def is_handled() -> bool:
        found = cluster.get("kopf.dev/v1", "KopfExample", "good", "default") or {}
        return found["spec"]["size"] == "1Gi" and "create_fn" in found.get("status", {})

    eventually(is_handled, timeout=60)


def test_the_readme_can_be_typed_in_an_empty_folder(
    open_shell: Callable[[], Shell], tmp_path: Path
) -> None:
    folder = tmp_path / "my-operator"
    (folder / "handlers.py").write_text(get_handlers().code)
    run, apply, deploy = find_blocks_to_type()
    shell = open_shell()
    type_block(shell, run)
    use(LocalCluster.attach("default"))
    printed = type_block(open_shell(), apply)
    assert "size: 1Gi" in printed
    shell.interrupt()
    printed = shell.wait()
    assert printed.rstrip().endswith(f"{_END}0")
    assert "Traceback" not in printed
    type_block(shell, deploy)
    dockerfile = (folder / "Dockerfile").read_text()
    assert "--prefix=/operator wheels/*.whl\n" in dockerfile
    assert 'COPY ["handlers.py", "./"]' in dockerfile
    cluster = LocalCluster.attach("default")
    for kind in ("Deployment", "NetworkPolicy", "Service"):
        version = {"Deployment": "apps/v1", "NetworkPolicy": "networking.k8s.io/v1"}.get(kind, "v1")
        assert cluster.get(version, kind, "my-operator", "default"), kind
