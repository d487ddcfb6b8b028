"""Compare what snippets register under webop and under its peer.

For the snippets of the documentation in ``test_snippets.py``, and for any folder of Python files:
``python -m tools.site.comparing FOLDER [--prelude FILE]``. ``WEBOP_PEER_PYTHON`` names the
interpreter that has kopf, if it is not this one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Report = dict[str, dict[str, Any]]

# The names that fragments take for granted.
PRELUDE = """
import asyncio, datetime, functools, logging, os, random, threading, time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, TypedDict
import kubernetes, yaml
import kopf
from kopf import Memo
"""


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same under both."""

    snippet: str
    path: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return f"{self.snippet}: {self.path}: webop {self.ours!r}, kopf {self.theirs!r}"


def register(snippets: Mapping[str, str], framework: str, prelude: str = "") -> Report:
    """Run the snippets under "webop" or "kopf" in one process, and return what they registered."""
    python = sys.executable
    if framework == "kopf":
        python = os.environ.get("WEBOP_PEER_PYTHON") or sys.executable
    script = Path(__file__).with_name("registering.py")
    done = subprocess.run(
        [python, str(script), framework],
        input=json.dumps({"snippets": dict(snippets), "prelude": prelude}),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode:
        raise RuntimeError(f"The snippets cannot be run under {framework}:\n{done.stderr[-3000:]}")
    report: Report = json.loads(done.stdout)
    return report


def compare(ours: Report, theirs: Report) -> list[Difference]:
    """Return where the reports differ; snippets that neither can import are no difference."""
    return [
        Difference(name, path, mine, other)
        for name in ours
        if not (ours[name]["error"] and theirs[name]["error"])
        for path, mine, other in _walk(ours[name], theirs[name], "")
    ]


def _walk(ours: Any, theirs: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in {**ours, **theirs}:
            yield from _walk(ours.get(key), theirs.get(key), f"{path}/{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from _walk(mine, other, f"{path}/{number}")
    elif ours != theirs:
        yield path.lstrip("/"), ours, theirs


def main() -> int:
    """Compare the files of a folder, and print the differences and what could not be imported."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prelude", type=Path, help="code to run before each snippet")
    arguments = parser.parse_args()
    prelude = arguments.prelude.read_text(encoding="utf-8") if arguments.prelude else PRELUDE
    snippets = {
        path.stem: path.read_text(encoding="utf-8")
        for path in sorted(arguments.folder.glob("*.py"))
    }
    ours, theirs = (register(snippets, name, prelude) for name in ("webop", "kopf"))
    for name, entry in ours.items():
        if entry["error"] and theirs[name]["error"]:
            sys.stdout.write(f"neither: {name}: {entry['error']} | {theirs[name]['error']}\n")
    differences = compare(ours, theirs)
    for difference in differences:
        sys.stdout.write(f"{difference}\n")
    handlers = sum(len(items) for entry in ours.values() for items in entry["handlers"].values())
    imported = sum(not entry["error"] for entry in ours.values())
    sys.stdout.write(
        f"{imported} of {len(ours)} imported, {handlers} handlers, {len(differences)} differences\n"
    )
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
