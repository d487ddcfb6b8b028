"""Compare what the snippets of the documentation register under webop and under its peer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Report = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same under both."""

    snippet: str
    path: str
    ours: Any
    theirs: Any

    def __str__(self) -> str:
        return f"{self.snippet}: {self.path}: webop {self.ours!r}, kopf {self.theirs!r}"


def register(snippets: Mapping[str, str], framework: str) -> Report:
    """Run the snippets under "webop" or "kopf" in one process, and return what they registered."""
    script = Path(__file__).with_name("registering.py")
    done = subprocess.run(
        [sys.executable, str(script), framework],
        input=json.dumps(dict(snippets)),
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
