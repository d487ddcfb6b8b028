"""Plays a page: types its commands at terminals, writes its files, compares what is printed.

A page is read from top to bottom, as a user reads it:

- A block with a title (``title="websites.py"``) is a file. If there is such a file already, the
  functions and classes of the block replace those of the same name, and the others are added.
- A block of the language ``shell`` or ``bash`` is typed, line by line. ``webop run`` occupies its
  terminal; what follows is typed in another one.
- A block of the language ``text`` is what the block before has printed; if it begins with a time,
  it is what an operator has logged. ``…`` stands for any text.
- "Ctrl-C" in the text stops the operator that was started first.

Blocks in admonitions and lists, which are indented, are not played.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.kit.terminals import Terminal

PATIENCE = 30.0  # seconds; for what an operator logs, and for what it changes
_PAUSE = 1.0  # seconds; users need longer
_BLOCK = re.compile(
    r"^```(\w+)(?: title=\"([^\"]+)\")?[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_SHELLS = frozenset({"bash", "shell"})
_READING = "kubectl get"
_TIME = re.compile(r"\d\d:\d\d:\d\d ")
_STARTED = "  Status "  # the last line of the banner
# Commands that must fail say so; all others must succeed.
_FAILURE = re.compile(r"^Error|is invalid:|^\d+ failures?\b", re.MULTILINE)
# What is another one in each run.
_VARIABLE = {
    r"\d\d:\d\d:\d\d": r"\d\d:\d\d:\d\d",
    r"127\.0\.0\.1:\d+": r"127\.0\.0\.1:\d+",
    r"localhost:\d+": r"localhost:\d+",
    r"v?\d+\.\d+\.\d+\b": r"v?\d+\.\d+\.\d+",
    r"\b\d+(?:\.\d+)? ?s\b": r"\d+(?:\.\d+)? ?s",
    r"\[[0-9a-f]{8}\]": r"\[[0-9a-f]{8}\]",
    r"(?<=\" )deleted\b": r"deleted(?: from \S+ namespace)?",  # by newer versions of kubectl
    r"Invalid value: ": 'Invalid value: (?:"object": )?',  # by older API servers, about CEL rules
    r"=+": "=+",
    r"…": ".*",
    r"\s+": r"\s+",
}
_PARTS = re.compile("|".join(f"({pattern})" for pattern in _VARIABLE))


class Step(NamedTuple):
    """A block of a page, or a key to press: the place, what to do, and with what."""

    place: str
    language: str
    title: str
    code: str


@dataclass
class Entry:
    terminal: int
    line: str
    output: str


@dataclass
class Player:
    """A user who follows a page, in one folder."""

    folder: Path
    environment: dict[str, str]
    names: Mapping[str, str] = field(default_factory=dict)
    """What stands for placeholders such as ``PATH/TO/CLONE``."""
    skips: tuple[str, ...] = ()
    """Beginnings of lines that are not typed, such as ``docker``."""
    terminals: list[Terminal] = field(default_factory=list)
    transcript: list[Entry] = field(default_factory=list)
    """All lines, with what they have printed; for operators, until Ctrl-C."""
    _operators: dict[Terminal, Entry] = field(default_factory=dict)
    _exports: list[str] = field(default_factory=list)

    def play(self, page: Path) -> None:
        """Do all that a page says."""
        steps = list(read_steps(page))
        for number, step in enumerate(steps):
            following = steps[number + 1] if number + 1 < len(steps) else None
            is_shown = following and following.language == "text" and not following.title
            shown = following.code if following and is_shown else ""
            if step.language == "key":
                self.stop_operator()
            elif step.title:
                self.write(step)
            elif step.language in _SHELLS:
                self._type_block(step, "" if _TIME.match(shown) else shown)
            elif step.language == "text" and _TIME.match(step.code):
                self._find_log(step)

    def write(self, step: Step) -> None:
        file = self.folder / step.title
        file.parent.mkdir(parents=True, exist_ok=True)
        is_change = file.exists() and file.suffix == ".py"
        file.write_text(merge(file.read_text(), step.code) if is_change else step.code)

    def stop_operator(self) -> None:
        """Press Ctrl-C where the first operator runs; it ends without an error."""
        operator, entry = next(iter(self._operators.items()))
        del self._operators[operator]
        time.sleep(_PAUSE)
        entry.output = operator.text
        assert operator.interrupt() == 0, operator.text
        assert "Traceback" not in operator.text.rpartition("Stopping")[2], operator.text

    def close(self) -> None:
        """End all commands, and the cluster."""
        try:
            while self._operators:
                self.stop_operator()
            if self._exports:
                self._find_terminal(is_operator=False).type("webop cluster stop")
        finally:
            for terminal in self.terminals:
                terminal.close()

    def _type_block(self, step: Step, shown: str) -> None:
        lines = step.code.replace("\\\n", " ").splitlines()
        lines = [line for line in lines if not self._is_skipped(line)]
        if not lines:
            return
        printed = [self._type(line, step, shown) for line in lines]
        reading = next((n for n, line in enumerate(lines) if line.startswith(_READING)), None)
        deadline = time.monotonic() + PATIENCE
        # Operators need a moment; a user who is too fast repeats the command.
        while shown and not is_like("".join(printed), shown):
            text = "".join(printed)
            late = reading is None or time.monotonic() > deadline
            assert not late, f"{step.place}: printed:\n{text}\nexpected:\n{shown}"
            time.sleep(0.2)
            printed[reading:] = [self._type(line, step, shown) for line in lines[reading:]]

    def _is_skipped(self, line: str) -> bool:
        return any(line.startswith(beginning) for beginning in self.skips)

    def _type(self, line: str, step: Step, shown: str) -> str:
        """Type a line in a free terminal; return what it prints."""
        typed = line
        for name, value in self.names.items():
            typed = typed.replace(name, value)
        if line.startswith("webop run"):
            self._start_operator(typed, step)
            return ""
        terminal = self._find_terminal(is_operator=False)
        deadline = time.monotonic() + PATIENCE
        may_fail = bool(_FAILURE.search(shown))
        while code := terminal.type(typed):
            is_early = line.startswith(_READING) and time.monotonic() < deadline
            assert is_early or may_fail, f"{step.place}: {line}\n{terminal.text}"
            if not is_early:
                break
            time.sleep(0.2)
        assert code == 0 or "Traceback" not in terminal.text, f"{step.place}: {terminal.text}"
        if line.startswith(("export", "eval")) and line not in self._exports:
            self._exports.append(line)
        self._note(terminal, line)
        return terminal.text if terminal.text.endswith("\n") else f"{terminal.text}\n"

    def _start_operator(self, line: str, step: Step) -> None:
        terminal = self._find_terminal(is_operator=True)
        code = terminal.type(line, until=_STARTED)
        assert code is None, f"{step.place}: {line}\n{terminal.text}"
        self._operators[terminal] = self._note(terminal, line)
        time.sleep(_PAUSE)  # until API servers know its webhooks

    def _note(self, terminal: Terminal, line: str) -> Entry:
        number = self.terminals.index(terminal)
        # A repeated line counts once.
        if self.transcript and self.transcript[-1].line == line:
            self.transcript.pop()
        self.transcript.append(Entry(number, line, terminal.text))
        return self.transcript[-1]

    def _find_terminal(self, *, is_operator: bool) -> Terminal:
        """Operators take the first free terminal, other commands the last one."""
        free = [terminal for terminal in self.terminals if terminal not in self._operators]
        if not free:
            terminal = Terminal(self.folder, self.environment)
            self.terminals.append(terminal)
            free = [terminal]
            for line in self._exports:
                terminal.type(line)
        return free[0 if is_operator else -1]

    def _find_log(self, step: Step) -> None:
        """Wait until an operator has logged the lines, in this order."""
        pattern = to_pattern(step.code)
        deadline = time.monotonic() + PATIENCE
        while not any(pattern.search(operator.text) for operator in self._operators):
            logs = "\n".join(operator.text for operator in self._operators)
            assert time.monotonic() < deadline, f"{step.place}: logged:\n{logs}\n{step.code}"
            time.sleep(0.1)


def read_steps(page: Path) -> Iterator[Step]:
    text, end = page.read_text(encoding="utf-8"), 0
    for match in [*_BLOCK.finditer(text), None]:
        prose = text[end : match.start() if match else len(text)]
        for _ in re.findall(r"Ctrl-C", prose):
            yield Step(page.name, "key", "", "Ctrl-C")
        if match:
            place = f"{page.name}:{text.count(chr(10), 0, match.start()) + 1}"
            yield Step(place, match[1], match[2] or "", match[3])
            end = match.end()


def to_pattern(shown: str) -> re.Pattern[str]:
    """Return what is like the text of a page, apart from times, ports, and the like."""

    def replace(match: re.Match[str]) -> str:
        return list(_VARIABLE.values())[(match.lastindex or 1) - 1]

    parts, end = [], 0
    text = shown.strip()
    for match in _PARTS.finditer(text):
        parts += [re.escape(text[end : match.start()]), replace(match)]
        end = match.end()
    return re.compile("".join([*parts, re.escape(text[end:])]), re.DOTALL)


def is_like(printed: str, shown: str) -> bool:
    return bool(to_pattern(shown).fullmatch(printed.strip()))


def merge(old: str, new: str) -> str:
    """Change a file as a user does: replace what has the same name, add the rest in this order."""
    places = dict(_list_spans(old))
    lines, source = old.splitlines(), new.splitlines()
    imports, added, replaced = list[str](), list[str](), dict[tuple[int, int], list[str]]()
    for name, (start, end) in _list_spans(new):
        code = source[start:end]
        if name in places:
            replaced[places[name]] = [*added, *code]
            added = []
        elif code[0].startswith(("import ", "from ")):
            imports += code
        else:
            added += [*code, "", ""]
    for (start, end), code in sorted(replaced.items(), reverse=True):
        lines[start:end] = code
    return "\n".join([*imports, *lines, "", "", *added]).rstrip() + "\n"


def _list_spans(source: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the names of what a file defines, or its code, with the lines."""
    for node in ast.parse(source).body:
        start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        assert node.end_lineno is not None
        yield getattr(node, "name", ast.unparse(node)), (start, node.end_lineno)


def build_environment(folder: Path, assets: str) -> dict[str, str]:
    """Return the environment of a user: no settings of webop, and a cache in the folder."""
    tools = folder / "tools"
    tools.mkdir()
    # A virtual environment is made by the Python that runs the tests.
    (tools / "python").symlink_to(getattr(sys, "_base_executable", sys.executable))
    foreign = ("WEBOP_", "PYTEST", "KUBECONFIG", "PYTHON", "VIRTUAL_ENV", "COVERAGE")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    return {
        **kept,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "KUBEBUILDER_ASSETS": assets,
        "WEBOP_CACHE": str(folder / "cache"),
    }
