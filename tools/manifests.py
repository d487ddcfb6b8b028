"""Make what ``webop manifests`` and ``webop image`` have made in this repository, once more.

``python -m tools.manifests`` (``make manifests``) writes the files; ``test_made.py``
compares them. Each file says by which command it was made.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from tests.kit.cli_runner import invoke
from webop.cli.manifests.image import BASE

_ROOT = Path(__file__).parents[1]
_EXAMPLES = _ROOT / "examples"

_SHOWN = (
    *("access_grants", "policy_server", "secret_replicator", "database_per_tenant"),
    *("cronjob", "typed_operator"),
)

#: The folders that commands run in, by the files with their output.
MADE = {
    _ROOT / "Dockerfile": _ROOT,  # only its base image is from webop
    _ROOT / "manifests" / "operator.yaml": _EXAMPLES / "ephemeral_volume_claims",
    _EXAMPLES / "access_grants" / "Dockerfile": _EXAMPLES / "access_grants",
    **{_EXAMPLES / name / "manifests" / "operator.yaml": _EXAMPLES / name for name in _SHOWN},
}


def make(file: Path) -> str:
    """Return what the command that a file names prints now."""
    text = file.read_text()
    if file.parent == _ROOT:
        return re.sub(r"^FROM .* AS base$", f"FROM {BASE} AS base", text, flags=re.MULTILINE)
    command = next(_find_commands(text))
    before = Path.cwd()
    os.chdir(MADE[file])
    path = list(sys.path)
    present = _remove_modules(MADE[file])  # their handlers are in other registries
    try:
        result = invoke(*shlex.split(command))
    finally:
        os.chdir(before)
        sys.path[:] = path
        _remove_modules(MADE[file])
        sys.modules.update(present)
    assert result.exit_code == 0, result.output
    return result.stdout


def _remove_modules(folder: Path) -> dict[str, ModuleType]:
    found = {
        name: module
        for name, module in sys.modules.items()
        if Path(getattr(module, "__file__", None) or "/").parent == folder
    }
    for name in found:
        del sys.modules[name]
    return found


def _find_commands(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith("# Made by: webop "):
            yield line.removeprefix("# Made by: webop ")


if __name__ == "__main__":
    for made in MADE:
        made.write_text(make(made))
