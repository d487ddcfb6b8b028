"""Read files about dependencies and images: pins that are too low for webop, and Kopf's names."""

from __future__ import annotations

import importlib.metadata
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from webop.cli.migration.findings import Finding

_PYTHON = (3, 11)
_LISTS = ("*requirements*.txt", "constraints*.txt", "setup.*", "pyproject.toml", "Pipfile")
_RUNNING = ("*Dockerfile*", "*Containerfile*", "*.sh", "*.yaml", "*.yml", "Makefile", "Procfile")
_PIN = re.compile(
    r"""(?<![\w.-])(?P<name>[A-Za-z][\w.-]*+)(?:\[[^][]*+])?["']?\s*+
    (?P<toml>=\s*+["'])?(?P<sign>===?|~=|<=?|\^|~)?\s*+
    (?P<version>\d{1,9}(?:\.\d{1,9})*)(?P<any>\.\*)?""",
    re.VERBOSE,
)
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


def read_pins(path: Path) -> Iterator[Finding]:
    """Yield the findings about a file, if its name is that of such a file."""
    is_list = any(path.match(pattern) for pattern in _LISTS)
    if not is_list and not any(path.match(pattern) for pattern in _RUNNING):
        return
    minimums = _find_minimums()
    source = path.read_text(errors="replace")
    lines = [line.partition("#")[0] for line in source.splitlines()]
    commands = set[int]() if is_list else _find_commands(lines)
    for number, text in enumerate(lines, 1):
        if is_list:
            for pin in _PIN.finditer(text):
                needed = minimums.get(pin["name"].lower(), "0")
                if _parse(_find_end(pin)) < _parse(needed):
                    what = f"webop needs {pin['name']}>={needed}, not {pin[0].strip()}."
                    yield Finding(path, number, what)
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


def _find_minimums() -> dict[str, str]:
    """Return the lowest versions that webop requires, by package."""
    own = [text for text in importlib.metadata.requires("webop") or () if "extra ==" not in text]
    found = (re.match(r"([\w.-]+).*>=\s*([\d.]+)", text) for text in own)
    return {item[1].lower(): item[2] for item in found if item}


def _find_end(pin: re.Match[str]) -> str:
    """Return the highest version that a pin allows, with 9999 for parts that it leaves open."""
    sign, version = pin["sign"] or "", pin["version"]
    if not (sign or pin["toml"]):  # the text is not a pin
        return "9999"
    if sign == "<":
        *first, last = version.split(".")
        return ".".join([*first, str(int(last) - 1), "9999"])
    parts = version.split(".")
    kept = {"^": 1, "~": 2, "~=": len(parts) - 1}.get(sign, len(parts))
    is_open = pin["any"] or sign in {"^", "~", "~="}
    return ".".join([*parts[:kept], "9999"]) if is_open else version


def _parse(version: str) -> tuple[int, ...]:
    return (*map(int, version.split(".")), 0, 0, 0, 0)[:4]
