"""Building the binaries from Go modules: the published sources of etcd and Kubernetes.

Flow: the ``go.mod`` of Kubernetes tells which release of etcd it uses and which of its modules
live in its own repository; a module of our own requires both, and takes those modules from
their published versions. Then one ``go build`` makes all binaries at once.

Guarantees: every module is verified, against the checksums that come with this package for the
pinned version, and against Go's checksum database for others. The build of the pinned version
is reproducible with the same toolchain, to the byte.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from webop.errors import ClusterError, SourceError

from .cache import get_logs_folder
from .processes import describe_log
from .toolchain import Toolchain, find_toolchains
from .versions import detect_platform

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from .progress import Progress

_PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
}
# Go names a binary after its folder.
_OUTPUTS = {name: name for name in _PACKAGES} | {"etcd": "server"}

_MODULE = "webop.local/controlplane"
_STAGED = re.compile(r"^\s*(k8s\.io/\S+) => \./staging/", re.MULTILINE)
_ETCD = re.compile(r"^\s*go\.etcd\.io/etcd/api/v3 (v\S+)", re.MULTILINE)
_TICK = 0.5
_REMEDY = (
    "The build needs Go's module proxy (see GOPROXY, HTTPS_PROXY), about 5 GB of disk for Go's "
    "caches, and some minutes."
)


@dataclass(frozen=True)
class Source:
    """What is built: the version of Kubernetes and the module that requires it."""

    version: str
    go_version: str
    go_mod: str


def build_binaries(
    names: Collection[str], version: str, *, target: Path, progress: Progress
) -> str:
    """Build binaries into an existing folder, and return the complete version of Kubernetes.

    Args:
        names: which ones, of etcd, kube-apiserver and kube-controller-manager.
        version: a complete version ("1.36.3"), or a release line ("1.35") for its newest one.
        target: where they go.
        progress: gets the number of packages done.

    Raises:
        SourceError: there is no toolchain, or no network.
        ClusterError: the build has failed; the message names its log.
    """
    toolchain, source = _prepare(version, target, progress)
    (target / "go.mod").write_text(source.go_mod, encoding="utf-8")
    mode = _put_checksums(target, source.version)
    log = get_logs_folder() / f"build-{source.version}-{'-'.join(detect_platform())}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    packages = [_PACKAGES[name] for name in names]
    flags = [f"-mod={mode}", "-trimpath", "-ldflags", _build_linker_flags(source.version)]
    with log.open("w", encoding="utf-8") as stream:
        run = _LoggedRun(toolchain, target, log, stream)
        total = _count_packages(run, flags, packages, progress)
        what = f"Building {', '.join(names)} {source.version}"
        _compile(run, [*flags, "-o", "./", *packages], progress, what=what, total=total)
    for name in names:
        (target / _OUTPUTS[name]).replace(target / name)
    return source.version


def _prepare(version: str, folder: Path, progress: Progress) -> tuple[Toolchain, Source]:
    """Choose a toolchain that is new enough for the version; resolve the version with it."""
    for toolchain in find_toolchains(progress):
        source = _resolve_source(toolchain, version, folder)
        if toolchain.can_build(source.go_version):
            return toolchain, source
        progress.note(f"{toolchain.go} is too old: Go {source.go_version} is needed.")
    raise SourceError("there is no toolchain that is new enough; install the newest Go")


def _resolve_source(toolchain: Toolchain, version: str, folder: Path) -> Source:
    # A module of its own, lest one in a folder above is taken for the main module.
    (folder / "go.mod").write_text(f"module {_MODULE}\n", encoding="utf-8")
    answer = toolchain.run("list", "-m", "-json", f"k8s.io/kubernetes@v{version}", folder=folder)
    module = json.loads(answer)
    complete = module["Version"].removeprefix("v")
    text = Path(module["GoMod"]).read_text(encoding="utf-8")
    return Source(complete, module["GoVersion"], build_go_mod(text, complete))


def build_go_mod(kubernetes: str, version: str) -> str:
    """Write the module to build, from the ``go.mod`` of Kubernetes (pure).

    Kubernetes 1.36.3 takes its own libraries from folders of its repository; they are published
    as 0.36.3. Its binaries are built with the release of etcd that its client is from.

    Args:
        kubernetes: the text of its go.mod.
        version: the complete version.

    Raises:
        ClusterError: this go.mod is not of the kind known.
    """
    etcd = _ETCD.search(kubernetes)
    staged = sorted(set(_STAGED.findall(kubernetes)))
    go = re.search(r"^go (\S+)", kubernetes, re.MULTILINE)
    if not etcd or not staged or not go:
        raise ClusterError(
            f"Kubernetes {version} is laid out in a way that cannot be built here. "
            "Choose another version, or set KUBEBUILDER_ASSETS to a folder with its binaries."
        )
    library = "0" + version[version.index(".") :]
    lines = [f"module {_MODULE}", "", f"go {go[1]}", "", "require ("]
    lines += [f"\tgo.etcd.io/etcd/server/v3 {etcd[1]}", f"\tk8s.io/kubernetes v{version}"]
    lines += [")", "", "replace ("]
    lines += [f"\t{module} => {module} v{library}" for module in staged]
    return "\n".join([*lines, ")", ""])


def _put_checksums(folder: Path, version: str) -> str:
    """Put the checksums of all modules beside go.mod, if known; return the mode of the build."""
    known = resources.files(__package__) / "checksums" / f"kubernetes-v{version}.sum"
    if not known.is_file():
        return "mod"
    (folder / "go.sum").write_bytes(known.read_bytes())
    return "readonly"


def _build_linker_flags(version: str) -> str:
    """Strip symbols, and tell Kubernetes its version, which its own build scripts do else."""
    major, minor, _ = version.split(".")
    package = "k8s.io/component-base/version"
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s -w", *(f"-X {package}.{key}={value}" for key, value in values.items())])


def _count_packages(
    run: _LoggedRun, flags: list[str], packages: list[str], progress: Progress
) -> int:
    """Count what is to be compiled, that is not in Go's cache yet; modules are fetched by this."""
    downloaded = stale = 0

    def count(line: str) -> None:
        nonlocal downloaded, stale
        downloaded += line.startswith("go: downloading ")
        stale += line.startswith("stale ")

    def tick() -> None:
        progress.step("Getting the sources", downloaded, 0, "modules")

    template = "{{if .Stale}}stale {{.ImportPath}}{{end}}"
    run.follow(["list", "-deps", *flags, "-f", template, *packages], count, tick)
    progress.finish()
    return stale


def _compile(
    run: _LoggedRun, arguments: list[str], progress: Progress, *, what: str, total: int
) -> None:
    """Compile and link; Go names each package when its turn comes, and links without a word."""
    done = 0

    def count(line: str) -> None:
        nonlocal done
        done += not line.startswith("go: ")

    def tick() -> None:
        progress.step(what, min(done, total), total, "packages")

    run.follow(["build", "-v", "-buildvcs=false", *arguments], count, tick)
    progress.step(what, total, total, "packages")
    progress.finish()


@dataclass(frozen=True)
class _LoggedRun:
    """Runs long commands of the toolchain, with their output in a log."""

    toolchain: Toolchain
    folder: Path
    log: Path
    stream: TextIO

    def follow(
        self, arguments: list[str], on_line: Callable[[str], None], on_tick: Callable[[], None]
    ) -> None:
        """Run a command to its end; nothing of it stays behind, whatever interrupts this."""
        self.stream.write(f"$ {self.toolchain.go} {' '.join(arguments)}\n")
        child = subprocess.Popen(  # noqa: S603 - the toolchain, with our own arguments
            [self.toolchain.go, *arguments],
            cwd=self.folder,
            env=self.toolchain.env | {"GOTMPDIR": str(self.folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self._read(child, on_line, on_tick)
        finally:
            if child.poll() is None:
                # Compilers run as children of go; killed alone, it would leave them behind.
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
        if child.returncode:
            self._fail(arguments)

    def _read(
        self,
        child: subprocess.Popen[bytes],
        on_line: Callable[[str], None],
        on_tick: Callable[[], None],
    ) -> None:
        assert child.stdout is not None  # noqa: S101 - it is a pipe
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            rest = b""
            ticked = float("-inf")
            while True:
                if selector.select(_TICK):
                    chunk = os.read(child.stdout.fileno(), 64 * 1024)
                    if not chunk:
                        break
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        text = line.decode(errors="replace")
                        self.stream.write(f"{text}\n")
                        on_line(text)
                if time.monotonic() - ticked >= _TICK:
                    ticked = time.monotonic()
                    on_tick()
        child.wait()
        on_tick()

    def _fail(self, arguments: list[str]) -> None:
        self.stream.flush()
        text = self.log.read_text(encoding="utf-8", errors="replace")
        message = f"go {arguments[0]} has failed. {_REMEDY}\n  {describe_log(self.log)}"
        if "dial tcp" in text or "no such host" in text:
            raise SourceError(f"Go's module proxy cannot be reached. {message}")
        raise ClusterError(message)
