"""Long runs: options, an API server of their own, and progress on the standard output."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, TypeVar

from webop.testing import LocalCluster

T = TypeVar("T")
Say = Callable[[str], object]

_ROOT = Path(__file__).parents[1]


def option(default: float, text: str) -> Any:
    """Declare an option of a run in a dataclass: a number above 0."""
    return dataclasses.field(default=default, metadata={"help": text})


def build_parser(name: str, description: str | None, options: type) -> argparse.ArgumentParser:
    """Return a parser of the options that a dataclass declares, and of ``--keep FOLDER``."""
    parser = argparse.ArgumentParser(prog=f"python -m tools.soak.{name}", description=description)
    for field in dataclasses.fields(options):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(field.default),
            default=field.default,
            help=f"{field.metadata['help']} (%(default)g)",
        )
    text = "write logs and evidence to a new folder"
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help=text)
    return parser


def take_options(
    parser: argparse.ArgumentParser, options: type[T]
) -> tuple[T, Path | None, argparse.Namespace]:
    """Read the command line, or end with an error; create the folder of ``--keep``.

    Return the options that the dataclass declares, the folder, and the other options.
    """
    chosen = parser.parse_args()
    fields: Any = options
    values = {field.name: getattr(chosen, field.name) for field in dataclasses.fields(fields)}
    for name, value in values.items():
        if not 0 < value < math.inf:  # nor nan
            parser.error(f"--{name.replace('_', '-')} must be above 0")
    if chosen.keep is not None:
        try:
            chosen.keep.mkdir(parents=True)
        except OSError as exc:
            parser.error(f"--keep must be a new folder, got {chosen.keep}: {exc.strerror}")
    return options(**values), chosen.keep, chosen


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
