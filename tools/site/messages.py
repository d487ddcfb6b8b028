"""Collects the messages of webop for a page that exists on the site only (``site_hooks.py``).

The sources are read, not run: each text of several words is listed by the call that it stands in. A
value becomes ``<name>``; ``…`` is one without a name. Texts that become parts of others are listed
as they are.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.kit.pages import ROOT

_PARTS = "Parts of messages"
_GROUPS = {
    "ERROR": "Log lines that say that somebody must act, also of the level `CRITICAL`.",
    "WARNING": "Log lines and Python warnings that somebody should look at. Many are repeated as "
    "`DEBUG` only.",
    "INFO": "Log lines about changes of state. `--quiet` hides them.",
    "DEBUG": "Log lines for the search for errors. `--verbose` shows them.",
    "Exceptions": "Texts of exceptions that webop raises. Many of them end a command, or are "
    "part of a log line or of an HTTP response.",
    "Command line": "Texts that commands print, and errors in their arguments.",
    "Doctor": "Findings of [`webop doctor`](../help/troubleshooting.md#the-doctor), and remedies.",
    _PARTS: "Texts that are parts of log lines, exceptions or responses.",
}
_INTRODUCTION = """\
---
search:
  boost: 0.5
---
# Messages

This page lists what webop logs, raises and prints. Search it for words of a message that you see,
without names and numbers. Messages that consist of several texts are below in parts. For example,
search for `Retry in s` if you see this line:

```text
Handler 'publish' failed: KeyError: 'title'. Retry 1 in 60 s.
```

`<name>` is a value, `…` is text that differs. Log lines about an object begin with its kind,
namespace and name. Those about a change of an object, of `INFO` and above, are also
[Events](../howto/events.md) of the object. The module says where a message comes from. It is also
the [logger](../howto/logging.md#loggers), except for lines about objects. The texts of your
handlers' exceptions are yours.
"""
_LEVELS = {
    "critical": "ERROR",
    "error": "ERROR",
    "exception": "ERROR",
    "warning": "WARNING",
    "warn": "WARNING",
    "info": "INFO",
    "debug": "DEBUG",
}
_PRINTING = frozenset(
    {"echo", "secho", "confirm", "prompt", "ClickException", "UsageError", "BadParameter"}
)
_FINDINGS = frozenset({"approve", "note", "warn", "fail"})
_EXCEPTION = re.compile(r"_*[A-Z]\w*(?:Error|Exit)")
_PLACEHOLDER = re.compile(r"%(?:\.?\d*[a-z]|%)")
_VALUE = re.compile(r"<[\w ]+>|…")
_WORD = re.compile(r"(?<![\w/.=-])[A-Za-z][a-z']+(?![\w/=])")
_BEGINNING = re.compile(r"[A-Z][a-z]+\b.*<")
_FEWEST = 2  # words of a text where there are names and keys, too
_OFTEN_NAMES = frozenset({_PARTS, "Exceptions"})
_OTHER_TEXTS = frozenset({"help", "epilog", "metavar", "short_help", "description"})


class Entry(NamedTuple):
    group: str
    text: str
    module: str

    @property
    def subject(self) -> str:
        """The package; for single modules, the whole."""
        package = self.module.split(".")[:2]
        return package[-1] if Path(ROOT, *package).is_dir() else "webop"


def collect(name: str, source: str) -> Iterator[Entry]:
    """Yield the texts of a module."""
    return _visit(ast.parse(source), name, _PARTS)


def _visit(node: ast.AST, module: str, group: str) -> Iterator[Entry]:
    match node:
        case ast.Expr(value=ast.Constant()):  # a docstring
            return
        case ast.keyword(arg=name) if name in _OTHER_TEXTS:
            return
        case ast.Constant(value=str()) | ast.JoinedStr():
            text = _PLACEHOLDER.sub("…", render(node)).strip(" ")
            words = len(_WORD.findall(_VALUE.sub("", text)))
            is_sentence = words >= _FEWEST or _BEGINNING.match(text)
            is_code = "\n" in text or "(?" in text or "<!" in text  # or a regular expression
            if not is_code and (is_sentence or (words and group not in _OFTEN_NAMES)):
                yield Entry(group, text, module)
            return
        case ast.Call():
            group = find_group(node, module) or group
            for number, argument in enumerate(node.args):
                if isinstance(argument, ast.Constant) and "%" in str(argument.value):
                    filled = fill(str(argument.value), node.args[number + 1 :])
                    node.args[number] = ast.Constant(filled)
    for child in ast.iter_child_nodes(node):
        yield from _visit(child, module, group)


def find_group(call: ast.Call, module: str) -> str:
    """Return the group of the texts in a call; nothing if it says nothing of them."""
    name = get_name(call.func)
    receiver = get_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if name in _LEVELS and ("log" in receiver or receiver == "warnings"):
        return _LEVELS[name]
    if name == "log":
        names = {get_name(node).lower() for arg in call.args[:1] for node in ast.walk(arg)}
        return next((level for key, level in _LEVELS.items() if key in names), "WARNING")
    if name in _FINDINGS and module.startswith("webop.cli.doctor"):
        return "Doctor"
    if name in _PRINTING:
        return "Command line"
    return "Exceptions" if _EXCEPTION.fullmatch(name) else ""


def render(node: ast.AST) -> str:
    """Return a text, with the names of its values."""
    match node:
        case ast.JoinedStr(values=values):
            return "".join(map(render, values))
        case ast.FormattedValue(value=value):
            return name_value(value)
        case ast.Constant(value=str(text)):
            return text
    return ""


def fill(text: str, values: list[ast.expr]) -> str:
    """Replace the placeholders of logging by the names of their values."""
    names = iter([name_value(value) for value in values])
    return _PLACEHOLDER.sub(lambda match: "%" if match[0] == "%%" else next(names, "…"), text)


def name_value(node: ast.AST) -> str:
    """Return ``<name>`` for a value, by a name in it; else an ellipsis."""
    match node:
        case ast.Call(func=ast.Attribute(value=inner), args=[]) | ast.Call(args=[inner]):
            return name_value(inner)
        case ast.Subscript(value=inner, slice=ast.Slice()):
            return name_value(inner)
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return f"<{key}>"
    name = get_name(node).strip("_").replace("_", " ")
    return f"<{name}>" if name else "…"


def get_name(node: ast.AST) -> str:
    """Return the last part of a dotted name; empty if it has none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@cache
def collect_all() -> set[Entry]:
    entries = set[Entry]()
    for path in (ROOT / "webop").rglob("*.py"):
        if "apiserver" in path.parts:  # says what the real one says
            continue
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        entries.update(collect(name, path.read_text(encoding="utf-8")))
    return entries


def build_page() -> str:
    lines = [_INTRODUCTION]
    for group, about in _GROUPS.items():
        lines += [f"## {group}", "", about, ""]
        found = (entry for entry in collect_all() if entry.group == group)
        rows = sorted(found, key=lambda entry: (entry.subject, entry.text.lower(), entry))
        for subject, entries in itertools.groupby(rows, key=lambda entry: entry.subject):
            lines += [f"### {group}: {subject}", "", "| message | module |", "|---|---|"]
            for text, same in itertools.groupby(entries, key=lambda entry: entry.text):
                where = ", ".join(dict.fromkeys(f"`{entry.module}`" for entry in same))
                lines.append(f"| {_format_code(text)} | {where} |")
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _format_code(text: str) -> str:
    mark = "``" if "`" in text else "`"
    space = " " if "`" in text else ""
    return f"{mark}{space}{text}{space}{mark}".replace("|", r"\|")


def find_entries(message: str) -> list[str]:
    """Return the texts on the page that are in a message."""
    said = f"{' '.join(message.split())} "  # the last value can be empty
    texts = {entry.text for entry in collect_all()}
    return [text for text in texts if _compile(text).search(said)]


@cache
def _compile(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, re.split(r"<[^<>]+>|…", text))))
