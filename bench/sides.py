"""The sides of the comparison, with the interpreter or the binary of each."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from bench.model import BenchError, Side
from webop.controlplane.cache import get_root

PEER = "1.45.2"
OWN_VARIABLE = "WEBOP_BENCH_PYTHON"
PEER_VARIABLE = "WEBOP_BENCH_PEER_PYTHON"
NAMES = ("webop", "kopf", "go")
_LINE = f"{sys.version_info.major}.{sys.version_info.minor}"
_OPTIONS = ("run", "--all-namespaces", "--standalone", "--quiet")
_HANDLERS = str(Path(__file__).with_name("handlers.py"))
_GO_SOURCES = Path(__file__).with_name("go")
CACHE = get_root() / "bench"


def build_sides(names: list[str]) -> tuple[Side, ...]:
    """Return the sides, installed or built; skip Go with a message if it cannot be built."""
    chosen = tuple(side for name in names if (side := _build_side(name)))
    if not chosen:
        raise BenchError("No side is available to measure.")
    return chosen


def _build_side(name: str) -> Side | None:
    if name == "go":
        binary = _build_go_peer()
        return Side(name, (binary,)) if binary else None
    own = os.environ.get(OWN_VARIABLE) or sys.executable
    python = _find_peer() if name == "kopf" else own
    return Side(name, (python, "-m", name, *_OPTIONS, _HANDLERS), python)


def get_go_peer() -> str:
    """Return the version of controller-runtime of the Go side."""
    found = re.search(r"/(controller-runtime \S+)", (_GO_SOURCES / "go.mod").read_text())
    return found[1] if found else "unknown"


def _build_go_peer() -> str | None:
    """Return the binary, built once from these sources; None if it cannot be built."""
    sources = [(path.name, path.read_bytes()) for path in sorted(_GO_SOURCES.iterdir())]
    digest = hashlib.sha256(repr(sources).encode()).hexdigest()[:12]
    binary = CACHE / f"go-{digest}" / "peer"
    if binary.exists():
        return str(binary)
    if not (go := shutil.which("go")):
        print("bench: Go is not on PATH. Skipping the side go.", file=sys.stderr)
        return None
    print(
        f"bench: Building {get_go_peer()} into {binary.parent}. This takes some minutes.",
        file=sys.stderr,
    )
    binary.parent.mkdir(parents=True, exist_ok=True)
    command = [go, "build", "-trimpath", "-buildvcs=false", "-o", f"{binary}.part", "."]
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    if subprocess.run(command, cwd=_GO_SOURCES, env=env, check=False, timeout=1200).returncode:
        print("bench: The build failed. Skipping the side go.", file=sys.stderr)
        return None
    Path(f"{binary}.part").replace(binary)
    return str(binary)


def _find_peer() -> str:
    """Return a Python with the pinned kopf: the user's own, or one installed once from PyPI."""
    given = os.environ.get(PEER_VARIABLE)
    folder = CACHE / f"kopf-{PEER}-python-{_LINE}"
    python = given or str(folder / "bin" / "python")
    if not given and not _has_peer(python):
        print(f"bench: Installing kopf {PEER} from PyPI into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "install", "--quiet", f"kopf=={PEER}"]
        subprocess.run(pip, check=False, timeout=600)
    if not _has_peer(python):
        raise BenchError(f"{python} must be Python {_LINE} with kopf {PEER}. Set {PEER_VARIABLE}.")
    return python


def _has_peer(python: str) -> bool:
    """Return whether this Python has the pinned kopf and the same minor version."""
    code = "import sys, importlib.metadata as m; print(*sys.version_info[:2], m.version('kopf'))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.stdout.split() == [*_LINE.split("."), PEER]
