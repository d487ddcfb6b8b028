"""Long runs: an API server of their own, and progress on the standard output."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from webop.testing import LocalCluster

Say = Callable[[str], object]

_ROOT = Path(__file__).parents[1]


def read_clock() -> float:
    """Return the time by the monotonic clock of the machine, which all processes share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def find_other_copy() -> str:
    """Say which other webop commands would run instead of this clone's, and what to do.

    Returns:
        Nothing if there is no other one, or if it is the same.
    """
    folders = [folder for folder in sys.path if Path(folder or ".").resolve() != _ROOT]
    found = PathFinder.find_spec("webop", folders)
    if found is None or found.origin is None:  # a folder of the same name is none
        return ""
    own, other = _ROOT / "webop", Path(found.origin).parent
    if _read_sources(own) == _read_sources(other):
        return ""
    return (
        f"the webop in {other} differs from this clone, and would be tested instead: "
        f"run {sys.executable} -m pip install -e '{_ROOT}'"
    )


def _read_sources(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.py")}


def prove(
    name: str,
    times: object,
    run: Callable[[LocalCluster, Path, Say], Coroutine[Any, Any, int]],
    keep: Path | None = None,
) -> int:
    """Run a coroutine on a new cluster; return its exit code, or 130 after Ctrl-C.

    Return 2 if the commands that it runs would import another webop.

    Args:
        name: a part of the name of the folder.
        times: the options, printed at the start.
        run: gets the cluster, a folder for files, and a function that prints a line with the
            seconds since the start.
        keep: gets the files of the folder, and the logs of the cluster.
    """
    if problem := find_other_copy():
        sys.stderr.write(f"{name}: {problem}\n")
        return 2
    started = time.monotonic()

    def say(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - started:6.1f} s  {text}\n")
        sys.stdout.flush()

    folder = tempfile.TemporaryDirectory(prefix=f"webop-{name}-")
    try:
        say(f"Starting a local API server. {times}")
        with folder as path, LocalCluster() as cluster:
            try:
                return asyncio.run(run(cluster, Path(path), say))
            finally:
                if keep is not None:
                    shutil.copytree(path, keep, dirs_exist_ok=True)
                    shutil.copytree(cluster.logs, keep / "cluster", dirs_exist_ok=True)
    except KeyboardInterrupt:
        say("Interrupted.")
        return 130
