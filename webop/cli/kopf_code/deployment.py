"""Read files about dependencies and images: the names of Kopf in them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from webop.cli.kopf_code import Finding

_PYTHON = (3, 11)
_LISTS = ("*requirements*.txt", "constraints*.txt", "setup.*", "pyproject.toml", "Pipfile")
_RUNNING = ("*Dockerfile*", "*Containerfile*", "*.sh", "*.yaml", "*.yml", "Makefile", "Procfile")
_KOPF = re.compile(r"(?<![\w.-])kopf(?![\w.-])")
_INSTALLERS = {"conda", "pip", "pip3", "pipenv", "pipx", "poetry", "uv"}
# Between words of a command: in a shell, in a list of JSON, in one of YAML, also on the next line.
_GAP = r"""["']?[\s,\\]++(?:-\s++)?["']?"""
_COMMAND = re.compile(
    rf"""(?<![\w.-])kopf{_GAP}(?:run|freeze|resume)(?![\w.:-])
    | (?:
        (?<!\w)(?:CMD\s|ENTRYPOINT\s|command:|entrypoint:)\s*+\[?\s*+(?:-\s++)?["']?
        | [\s,]["']?-m{_GAP}
    )(?:[\w.-]*+/)*+kopf(?![\w.-])""",
    re.VERBOSE,
)
_IMAGE = re.compile(r"^\s*FROM\s.*\bpython:(\d{1,9})\.(\d{1,9})", re.IGNORECASE)
_VARIABLE = re.compile(r"\bKOPF_(RUN_\w+)")


def read_deployment(path: Path) -> Iterator[Finding]:
    """Yield the findings about a file, if its name is that of such a file."""
    is_list = any(path.match(pattern) for pattern in _LISTS)
    if not is_list and not any(path.match(pattern) for pattern in _RUNNING):
        return
    source = path.read_text(errors="replace")
    lines = [line.partition("#")[0] for line in source.splitlines()]
    commands = set[int]() if is_list else _find_commands(lines)
    for number, text in enumerate(lines, 1):
        if _KOPF.search(text) and (is_list or _is_installing(text)):
            what = "Require webop instead of kopf."
            yield Finding(path, number, what, must_change=False)
        if is_list:
            continue
        if (image := _IMAGE.search(text)) and (int(image[1]), int(image[2])) < _PYTHON:
            yield Finding(path, number, "webop needs Python {}.{} or newer.".format(*_PYTHON))
        if number in commands:
            what = "Replace the command 'kopf' by 'webop'; the options are the same."
            yield Finding(path, number, what)
        if variable := _VARIABLE.search(text):
            ours = re.sub("NAMESPACE$", "NAMESPACES", variable[1])
            yield Finding(path, number, f"Rename {variable[0]} to WEBOP_{ours}.")


def _is_installing(text: str) -> bool:
    words = {*text.split()}
    return bool(words & _INSTALLERS and words & {"add", "install"})


def _find_commands(lines: Sequence[str]) -> set[int]:
    """Return the numbers of the lines in which the command ``kopf`` is run."""
    ends = [*accumulate(len(line) + 1 for line in lines)]
    text = "\n".join(lines)
    found = (text.index("kopf", one.start()) for one in _COMMAND.finditer(text))
    return {1 + bisect_right(ends, position) for position in found}
