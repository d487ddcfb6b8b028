"""Collects all messages of webop for a page that exists on the site only (``site_hooks.py``).

The sources are read, not run: log lines, warnings, exceptions, texts of commands and of HTTP
responses. A text in a variable is followed to where the variable is assigned, or, if it is a
parameter, to the callers in the module. A value becomes ``<name>``; ``…`` is one without a name.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.kit.pages import ROOT

_GROUPS = {
    "ERROR": "Log lines that say that somebody must act, also of the level `CRITICAL`. Failures of "
    "handlers are all listed here, although a `TemporaryError` is a `WARNING`.",
    "WARNING": "Log lines and Python warnings that somebody should look at. Many are repeated as "
    "`DEBUG` only.",
    "INFO": "Log lines about changes of state. `--quiet` hides them.",
    "DEBUG": "Log lines for the search for errors. `--verbose` shows them.",
    "Exceptions": "Texts of exceptions that webop raises. Many of them end a command, or are "
    "part of a log line or of an HTTP response.",
    "Command line": "Texts that commands print, and errors in their arguments.",
    "Doctor": "Findings of [`webop doctor`](../help/troubleshooting.md#the-doctor), and remedies.",
    "HTTP responses": "Texts in responses of the webhook server and of the probes.",
}
_INTRODUCTION = """\
---
search:
  boost: 0.5
---
# Messages

This page lists what webop logs, raises and prints. Search it for words of a message that you see,
without names and numbers. For example, this line is below as
`<handler> failed: <reason>. Retry <number> in <delay> s.`:

```text
Handler 'publish' failed: KeyError: 'title'. Retry 1 in 60 s.
```

`<name>` is a value, and `<handler>` reads `Handler 'provision'`, `Timer 'check'` and the like; `…`
is text that differs. Log lines about an object begin with its kind, namespace and name. Those about
a change of an object, of `INFO` and above, are also [Events](../howto/events.md) of the object. The
module says where a message comes from. It is also the [logger](../howto/logging.md#loggers), except
for lines about objects. The texts of your handlers' exceptions are yours.
"""
_LEVELS = {
    "critical": "ERROR",
    "error": "ERROR",
    "exception": "ERROR",
    "warning": "WARNING",
    "info": "INFO",
    "debug": "DEBUG",
}
_FINDINGS = frozenset({"approve", "note", "warn", "fail"})
_PRINTING = frozenset(
    {"echo", "secho", "confirm", "prompt", "ClickException", "UsageError", "BadParameter"}
)
_EXCEPTION = re.compile(r"_*[A-Z]\w*(?:Error|Exit)|PydanticCustomError")
_RESPONSES = frozenset({"build_refusal", "_respond"})
_PLACEHOLDER = re.compile(r"%(?:\.?\d*[a-z]|%)")
_FORMATTING = re.compile(r"_?(?:repr|str|len|sorted|escape|quote|format|describe)")
_DEEP = 4  # variables that are followed, one to the next
_MANY = 6  # alternatives of one text; more are not spelled out
_UNKNOWN = "…"

Function = ast.FunctionDef | ast.AsyncFunctionDef
Around = tuple[Function, ...]


class Entry(NamedTuple):
    group: str
    text: str
    module: str

    @property
    def subject(self) -> str:
        """The package; for single modules, the whole."""
        package = self.module.split(".")[:2]
        return package[-1] if Path(ROOT, *package).is_dir() else "webop"


@dataclass
class Module:
    """A parsed module: its functions by name, and the calls of each name, with where they are."""

    name: str
    tree: ast.Module
    functions: dict[str, list[Function]] = field(default_factory=dict)
    calls: dict[str, list[tuple[ast.Call, Around]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._visit(self.tree, ())

    def _visit(self, node: ast.AST, around: Around) -> None:
        if isinstance(node, Function):
            self.functions.setdefault(node.name, []).append(node)
            around = (*around, node)
        elif isinstance(node, ast.Call):
            self.calls.setdefault(get_name(node.func), []).append((node, around))
        for child in ast.iter_child_nodes(node):
            self._visit(child, around)


@cache
def _read_explaining() -> dict[str, Module]:
    """Return the modules of public methods whose results are messages, by their names."""
    texts = ((path, path.read_text(encoding="utf-8")) for path in (ROOT / "webop").rglob("*.py"))
    modules = [Module(path.stem, ast.parse(text)) for path, text in texts if "def explain_" in text]
    return {
        name: module for module in modules for name in module.functions if name[:8] == "explain_"
    }


def get_name(node: ast.AST) -> str:
    """Return the last part of a dotted name; empty if it has none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.IfExp):  # (fail if is_required else warn)(...)
        return get_name(node.body)
    return node.id if isinstance(node, ast.Name) else ""


class Renderer:
    """Turns the expressions of one module into texts."""

    def __init__(self, module: Module) -> None:
        self._module = module

    def render(self, node: ast.expr, around: Around, depth: int = _DEEP) -> list[str]:
        """Return the texts that an expression can have; a value becomes its name."""
        texts: Iterable[str] = ()
        match node:
            case ast.Constant(value=str(text)):
                texts = [text]
            case ast.JoinedStr(values=values):
                parts = [self._render_part(part, around, depth) for part in values]
                texts = combine(parts, values)
            case ast.BinOp(left=left, op=ast.Add(), right=right) if not is_number(right):
                parts = [self.render(side, around, depth) for side in (left, right)]
                texts = combine(parts, [left, right])
            case ast.BinOp(left=left, op=ast.Mod(), right=right):
                values = right.elts if isinstance(right, ast.Tuple) else [right]
                texts = (fill(text, values) for text in self.render(left, around, depth))
            case ast.IfExp(body=first, orelse=second) | ast.BoolOp(values=[first, second]):
                sides = [side for side in (first, second) if not is_none(side)]
                texts = (text for side in sides for text in self.render(side, around, depth))
            case ast.NamedExpr(value=value):
                texts = self.render(value, around, depth)
            case ast.Name() if depth:
                texts = self._follow(node, around, depth - 1)
            case ast.Call():
                texts = self._render_call(node, around, depth)
        return unique(texts) or [name_value(node)]

    def _render_call(self, node: ast.Call, around: Around, depth: int) -> list[str]:
        match node:
            case ast.Call(
                func=ast.Attribute(attr="join", value=ast.Constant(value=str(glue))),
                args=[ast.List(elts=items) | ast.Tuple(elts=items)],
            ):
                parts = [self.render(item, around, depth) for item in items]
                parts[1:] = [[f"{glue}{text}" for text in texts] for texts in parts[1:]]
                return combine(parts, items)
            case ast.Call(func=ast.Attribute(attr="format" | "strip" | "rstrip", value=value)):
                return self.render(value, around, depth)
            case ast.Call(func=ast.Name(id="str"), args=[ast.Name() as value]) if around:
                made = find_reaching(around[-1].body, value)[0]
                errors = [e for e in made if isinstance(e, ast.Call) and e.args and is_error(e)]
                return [text for e in errors for text in self.render(e.args[0], around, depth)]
            case ast.Call(func=ast.Name(id=name)) if depth and name in self._module.functions:
                return self._render_results(name, depth - 1)
            case ast.Call(func=ast.Attribute(attr=name)) if depth and name in _read_explaining():
                return Renderer(_read_explaining()[name])._render_results(name, depth - 1)
        return []

    def _render_part(self, part: ast.expr, around: Around, depth: int) -> list[str]:
        if not isinstance(part, ast.FormattedValue):
            return self.render(part, around, depth)
        if isinstance(part.value, ast.Call) or part.conversion != -1:
            return [name_value(part.value)]
        shown = name_value(part.value)
        return [t if is_shown(t) else shown for t in self.render(part.value, around, depth)]

    def _follow(self, use: ast.Name, around: Around, depth: int) -> list[str]:
        """Return the texts of a variable: of its assignments, or of what callers pass."""
        for number in reversed(range(len(around))):
            function, outer = around[number], around[: number + 1]
            values, is_certain = find_reaching(function.body, use)
            is_passed = use.id in list_parameters(function) and not is_certain
            if not values and not is_passed:
                values = list(find_values(function, use.id))  # of a loop's former turn
            texts = [
                t if is_shown(t) else name_value(use)
                for v in values
                if not is_none(v)
                for t in self.render(v, outer, 0 if is_in(use.id, v) else depth)
            ]
            if is_passed:
                passed = self._find_passed(function, use.id)
                texts += [t for value, where in passed for t in self.render(value, where, depth)]
                return [text for text in texts if has_words(text)]
            if values:
                return texts
        values = list(find_values(self._module.tree, use.id))
        return [text for value in values for text in self.render(value, (), depth)]

    def _find_passed(self, function: Function, name: str) -> Iterator[tuple[ast.expr, Around]]:
        if len(self._module.functions[function.name]) > 1:
            return  # it is not known which of them is called
        names = list_parameters(function)
        is_bound = names[0] in ("self", "cls")
        position = names.index(name) - is_bound
        is_positional = name not in [argument.arg for argument in function.args.kwonlyargs]
        for call, where in self._module.calls.get(function.name, ()):
            if is_positional and 0 <= position < len(call.args):
                yield call.args[position], where
            yield from ((keyword.value, where) for keyword in call.keywords if keyword.arg == name)

    def _render_results(self, name: str, depth: int) -> list[str]:
        texts: list[str] = []
        for function in self._module.functions[name]:
            for node in ast.walk(function):
                if isinstance(node, ast.Return) and node.value is not None:
                    texts += self.render(node.value, (function,), depth)
        return [text for text in unique(texts) if has_words(text)][: 2 * _MANY]


def combine(parts: list[list[str]], nodes: Sequence[ast.expr]) -> list[str]:
    """Return all combinations of texts; if they are many, with the names of some values.

    An expression that occurs twice has the same text in both places.
    """
    keys = [ast.dump(node) for node in nodes]
    known = dict(zip(keys, zip(nodes, parts, strict=True), strict=True))
    choices = {key: texts for key, (_, texts) in known.items()}
    while math.prod(map(len, choices.values())) > _MANY:
        longest = max(choices, key=lambda key: len(choices[key]))
        node = known[longest][0]
        shown = name_value(node.value if isinstance(node, ast.FormattedValue) else node)
        choices[longest] = [shown]
    chosen = (
        dict(zip(choices, texts, strict=True)) for texts in itertools.product(*choices.values())
    )
    return ["".join(texts[key] for key in keys) for texts in chosen]


def list_parameters(function: Function) -> list[str]:
    """Return the names of the parameters, those by keyword at the end."""
    arguments = function.args
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def is_none(node: ast.expr) -> bool:
    """Check whether an expression is None, True or False."""
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))


def is_error(call: ast.Call) -> bool:
    return bool(_EXCEPTION.fullmatch(get_name(call.func)))


def is_shown(text: str) -> bool:
    """Check whether a text tells more than the name of its variable."""
    return not text or text[0].isdigit() or has_words(text)


def is_in(name: str, value: ast.expr) -> bool:
    """Check whether an expression uses a variable."""
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value))


def find_values(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    nodes = tree.body if isinstance(tree, ast.Module) else ast.walk(tree)
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                yield value
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pairs = zip(targets, values, strict=False)
                yield from (v for t, v in pairs if isinstance(t, ast.Name) and t.id == name)
            case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value):
                if target == name:
                    yield value
            case ast.NamedExpr(target=ast.Name(id=target), value=value) if target == name:
                yield value
            case ast.For(target=ast.Name(id=target), iter=ast.Tuple(elts=values)):
                yield from values if target == name else ()


def find_reaching(block: Sequence[ast.stmt], use: ast.Name) -> tuple[list[ast.expr], bool]:
    """Return what a variable can have where it is used, and whether it is assigned in any case.

    Assignments that a later one replaces in any case do not count.
    """
    values: list[ast.expr] = []
    where = next((n for n, each in enumerate(block) if use in ast.walk(each)), len(block))
    if where < len(block):
        for inner in list_blocks(block[where]):
            if any(use in ast.walk(each) for each in inner):
                values, is_certain = find_reaching(inner, use)
                if is_certain:
                    return values, True
        outer = block[where]
        header = [node for node in ast.iter_child_nodes(outer) if not isinstance(node, ast.stmt)]
        if isinstance(outer, ast.For):
            header.append(ast.For(outer.target, outer.iter, [], []))
        for node in header:
            values += find_values(node, use.id)
    for statement in reversed(block[:where]):
        found = list(find_values(statement, use.id))
        values += found
        branches = list(list_blocks(statement)) if isinstance(statement, ast.If) else []
        is_everywhere = len(branches) == 2 and all(find_reaching(b, use)[1] for b in branches)
        if found and (is_everywhere or isinstance(statement, ast.Assign | ast.AnnAssign)):
            return values, True
    return values, False


def list_blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    parts = (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ()))
    for part in parts:
        names = ("body", "orelse", "finalbody")
        yield from (block for name in names if (block := getattr(part, name, None)))


def name_value(node: ast.expr) -> str:
    """Return ``<name>`` for a value, by the last name in it; else an ellipsis."""
    match node:
        case ast.Constant(value=value):
            return str(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return f"<{name.strip('_').replace('_', ' ')}>"
        case ast.Call(func=ast.Name(id=called), args=[inner]) if _FORMATTING.match(called):
            return name_value(inner)
        case ast.Call(func=ast.Attribute(attr="rstrip", value=inner)):
            return name_value(inner)
        case ast.Call(func=ast.Attribute(value=ast.Name() | ast.Attribute() as inner), args=[]):
            return name_value(inner)
        case ast.Subscript(value=inner, slice=ast.Slice()):
            return name_value(inner)
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return f"<{key}>"
    return _UNKNOWN


def fill(text: str, values: Iterable[ast.expr]) -> str:
    """Replace the placeholders of logging by the names of their values."""
    names = iter([name_value(value) for value in values])
    return _PLACEHOLDER.sub(lambda match: "%" if match[0] == "%%" else next(names, _UNKNOWN), text)


def has_words(text: str) -> bool:
    """Check that there is something to search for: a word beside the values."""
    return bool(re.search(r"[A-Za-z]{2}", re.sub(r"<[\w ]+>", "", text)))


def unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def collect(name: str, source: str) -> Iterator[Entry]:
    module = Module(name, ast.parse(source))
    renderer = Renderer(module)
    for called, calls in module.calls.items():
        for call, around in calls:
            for group, node, values in find_texts(name, called, call, around):
                for text in renderer.render(node, around):
                    shown = " ".join((text if values is None else fill(text, values)).split())
                    if called == "PydanticCustomError":
                        shown = re.sub(r"\{(\w+)\}", r"<\1>", shown)
                    if has_words(shown) and (" " in shown or group != "Exceptions"):
                        yield Entry(group, shown, name)


def find_texts(
    module: str, called: str, call: ast.Call, around: Around
) -> Iterator[tuple[str, ast.expr, list[ast.expr] | None]]:
    """Yield the group and the expression of each text in a call; with values, if it takes them."""
    args = [arg for arg in call.args if not isinstance(arg, ast.Starred)]
    receiver = get_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if "log" in receiver and called in _LEVELS and args:
        yield _LEVELS[called], *skip_empty(args)
    elif "log" in receiver and called == "log" and len(args) > 1:
        yield find_level(args[0], around), *skip_empty(args[1:])
    elif called == "makeRecord":
        values = args[1].elts if isinstance(args[1], ast.Tuple) else []
        yield "WARNING", args[0], values
    elif called == "log" and not receiver and args:  # a method of a logger
        yield "INFO", args[0], args[1:]
    elif called == "Outcome":
        yield from (("ERROR", k.value, None) for k in call.keywords if k.arg == "message")
    else:
        group, start, end = find_group(module, called, receiver, around)
        for arg in args[start:end] if group else ():
            values = arg.values if isinstance(arg, ast.Dict) else [arg]
            yield from ((group, value, None) for value in values)


def skip_empty(args: list[ast.expr]) -> tuple[ast.expr, list[ast.expr] | None]:
    """Return the text of a log line and its values; the value alone, if there is no more text."""
    match args:
        case [ast.Constant(value="%s"), value]:
            return value, None
    return args[0], args[1:]


def find_group(
    module: str, called: str, receiver: str, around: Around
) -> tuple[str, int, int | None]:
    """Return the group of the texts in the arguments of a call, and which arguments they are."""
    if receiver == "warnings" and called == "warn":
        return "WARNING", 0, 1
    if called in _FINDINGS and module.startswith("webop.cli.doctor"):
        return "Doctor", 1, None
    if called in _PRINTING:
        return "Command line", 0, 1
    if _EXCEPTION.fullmatch(called):
        return "Exceptions", int(called == "PydanticCustomError"), 2
    if called in _RESPONSES or (called == "_refuse" and module == "webop.app"):
        return "HTTP responses", 0, None
    if called == "append" and around and re.search("obstacle|trouble", around[-1].name):
        return "HTTP responses", 0, 1  # of /readyz
    return "", 0, 0


def find_level(node: ast.expr, around: Around) -> str:
    """Return the highest level of an expression; lines that are repeated begin at WARNING."""
    values = [node]
    if isinstance(node, ast.Name) and around:
        values += find_values(around[-1], node.id)
    names = {get_name(inner) for value in values for inner in ast.walk(value)}
    if "success_level" in names:
        return "INFO"
    return next((level for name, level in _LEVELS.items() if name.upper() in names), "WARNING")


@cache
def collect_all() -> set[Entry]:
    entries = set[Entry]()
    for path in (ROOT / "webop").rglob("*.py"):
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
    """Return the texts on the page that a message can come from."""
    said = " ".join(message.split())
    forms = (said, f"{said} ")  # the last value can be empty
    texts = {entry.text for entry in collect_all()}
    return [text for text in texts if any(map(_compile(text).fullmatch, forms))]


def _compile(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, re.split(r"<[^<>]+>|…", text))))
