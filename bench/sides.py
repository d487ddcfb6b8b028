"""The sides of the comparison: which interpreter runs what."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import platformdirs

from bench.model import BenchError, Side

PEER = "1.45.2"
OWN_VARIABLE = "WEBOP_BENCH_PYTHON"
PEER_VARIABLE = "WEBOP_BENCH_PEER_PYTHON"
NAMES = ("webop", "kopf")
_LINE = f"{sys.version_info.major}.{sys.version_info.minor}"
_OPTIONS = ("run", "--all-namespaces", "--standalone", "--quiet")
_HANDLERS = str(Path(__file__).with_name("handlers.py"))


def build_side(name: str) -> Side:
    """Make the side of this name ready to run; the peer may have to be installed first."""
    own = os.environ.get(OWN_VARIABLE) or sys.executable
    python = _find_peer() if name == "kopf" else own
    return Side(name, python, f"import {name}", (python, "-m", name, *_OPTIONS, _HANDLERS))


def _find_peer() -> str:
    """Return a Python with the pinned kopf: the user's own, or one made from PyPI once."""
    given = os.environ.get(PEER_VARIABLE)
    cache = Path(os.environ.get("WEBOP_CACHE") or platformdirs.user_cache_dir("webop"))
    folder = cache / "bench" / f"kopf-{PEER}-python-{_LINE}"
    python = given or str(folder / "bin" / "python")
    if not given and not _has_peer(python):
        print(f"bench: installing kopf {PEER} from PyPI into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "install", "--quiet", f"kopf=={PEER}"]
        subprocess.run(pip, check=False, timeout=600)
    if not _has_peer(python):
        raise BenchError(f"{python} is not Python {_LINE} with kopf {PEER}; see {PEER_VARIABLE}.")
    return python


def _has_peer(python: str) -> bool:
    """Tell whether it is the peer of the right version, in the same release line of Python."""
    code = "import sys, importlib.metadata as m; print(*sys.version_info[:2], m.version('kopf'))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.stdout.split() == [*_LINE.split("."), PEER]
