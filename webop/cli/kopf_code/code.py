"""Read Python code that uses Kopf: its imports, names, settings, and handlers."""

from __future__ import annotations

import ast
import difflib
import importlib
from collections.abc import Iterator
from pathlib import Path

import webop
from webop.cli.kopf_code import Finding
from webop.settings.base import list_fields
from webop.settings.groups import OperatorSettings

_MODULES = {"cli", "lifecycles", "on", "testing"}
_NO_EFFECT = {
    *(("batching", "idle_timeout"), ("batching", "batch_window")),
    ("persistence", "consistency_timeout"),
}
_VERSION_CALLS = {"distribution", "get_distribution", "require", "version"}


class CodeReader:
    """Collects the findings about one file after another."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.importing: set[Path] = set()
        self.sets_event_loggers = False
        self._path = Path()
        self._aliases: set[str] = set()

    def read(self, path: Path) -> None:
        """Read a file. A syntax error must be fixed only if the file mentions Kopf.

        Raises:
            OSError: the file cannot be read.
        """
        source = path.read_bytes()
        self._path, self._aliases = path, set()
        try:
            tree = ast.parse(source, str(path))
            for node in ast.walk(tree):  # functions can use names that are imported further down
                if isinstance(node, ast.Import):
                    self._read_import(node)
            self._read_all(tree)
        except (SyntaxError, ValueError, RecursionError) as exc:
            text = f"Cannot parse this file as Python: {exc}"
            line = getattr(exc, "lineno", None) or 1
            self.findings.append(Finding(path, line, text, must_change=b"kopf" in source))

    def _read_all(self, tree: ast.Module) -> None:
        """Check the nodes in the order of the file; without recursion, as trees can be deep."""
        waiting: list[ast.AST] = [tree]
        while waiting:
            node = waiting.pop()
            is_read = False
            match node:
                case ast.ImportFrom():
                    self._read_names(node)
                case ast.Attribute():
                    is_read = self._read_attribute(node)
                case ast.Call():
                    self._read_call(node)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._read_decorators(node)
            if not is_read:
                waiting += reversed([*ast.iter_child_nodes(node)])

    def _read_names(self, node: ast.ImportFrom) -> None:
        """Check the names that are imported from Kopf."""
        module = (node.module or "").split(".")
        if module[0] != "kopf" or node.level:
            return
        self.importing.add(self._path)
        for alias in node.names:
            if alias.name != "*":
                self._check_name(node, [*module[1:], alias.name])

    def _read_attribute(self, node: ast.Attribute) -> bool:
        """Check ``kopf.x.y`` and ``settings.x.y``; return True if it is a chain of names."""
        root, *names = _unroll(node) or [""]
        if root in self._aliases and names:
            self._check_name(node, names)
        elif root == "settings" and len(names) > 1:
            self._check_setting(node, names[0], names[1])
        return bool(root)

    def _read_call(self, node: ast.Call) -> None:
        """Check calls that ask for the version of Kopf, and webhook servers."""
        *_, name = _unroll(node.func) or [""]
        given = [item.value for item in node.args if isinstance(item, ast.Constant)]
        if name in _VERSION_CALLS and "kopf" in given:
            self._add(
                node, f"{name}('kopf') fails if Kopf is not installed. Use webop.__version__."
            )
        keywords = {item.arg for item in node.keywords}
        if name == "WebhookServer" and "port" not in keywords:
            text = "Without port=, WebhookServer uses port 9443; Kopf's, a random port."
            self._add(node, text, must_change=False)

    def _read_decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Check the options in decorators of handlers."""
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call):
                root, *names = _unroll(decorator.func) or [""]
                if root in {*self._aliases, "on"}:
                    for text in _compare(node, names or [root], decorator.keywords):
                        self._add(decorator, text, must_change=False)

    def _read_import(self, node: ast.Import) -> None:
        for alias in node.names:
            name, *rest = alias.name.split(".")
            if name == "kopf":
                self.importing.add(self._path)
                if rest:
                    self._check_name(node, rest)
                if not rest or alias.asname is None:
                    self._aliases.add(alias.asname or name)

    def _check_name(self, node: ast.stmt | ast.expr, names: list[str]) -> None:
        """Check that webop has what these names mean in Kopf, such as ``kopf.on.create``."""
        where = ".".join(["kopf", *names])
        if names[0] in _MODULES:
            module = importlib.import_module(f"webop.{names[0]}")
            if not all(hasattr(module, name) for name in names[1:2]):
                self._add(node, f"webop has no {'.'.join(names[:2])}.")
        elif names[0] in webop.__all__:
            pass
        elif public := [name for name in names[1:] if name in webop.__all__]:
            self._add(node, f"{where} is private to Kopf. Use webop.{public[0]}.")
        elif len(names) > 1 or names[0].startswith("_"):
            self._add(node, f"{where} is private to Kopf, and webop has no equivalent.")
        else:
            nearest = difflib.get_close_matches(names[0], webop.__all__, n=1)
            hint = f" Did you mean webop.{nearest[0]}?" if nearest else ""
            self._add(node, f"webop has no {names[0]}.{hint}")

    def _check_setting(self, node: ast.Attribute, group: str, name: str) -> None:
        self.sets_event_loggers |= (group, name) == ("posting", "loggers")
        section = list_fields(OperatorSettings).get(group)
        if section is None:
            self._add(node, f"webop has no group of settings {group!r}.")
        elif not (hasattr(section, name) or name in list_fields(section)):
            self._add(node, f"webop has no settings.{group}.{name}; setting it raises an error.")
        elif (group, name) in _NO_EFFECT:
            self._add(node, f"settings.{group}.{name} has no effect.", must_change=False)

    def _add(self, node: ast.stmt | ast.expr, text: str, *, must_change: bool = True) -> None:
        self.findings.append(Finding(self._path, node.lineno, text, must_change))


def _compare(
    fn: ast.FunctionDef | ast.AsyncFunctionDef, names: list[str], keywords: list[ast.keyword]
) -> Iterator[str]:
    """Yield how options of a handler behave differently from Kopf."""
    options = {item.arg: item.value for item in keywords}
    if "timeout" in options and isinstance(fn, ast.AsyncFunctionDef):
        yield "timeout= also ends a running async handler; Kopf checks it between attempts only."
    if names[-1] == "timer" and any(
        getattr(inner, "id", getattr(inner, "attr", "")) == "PermanentError"
        for node in ast.walk(fn)
        if isinstance(node, ast.Raise)
        for inner in ast.walk(node)
    ):
        yield "PermanentError ends a timer for its object; in Kopf, the timer continues."
    if names[-1] == "create" and options.keys() & {"field", "value"}:
        yield "field= and value= of creation handlers check the current state; Kopf, also the old."
    subresource = options.get("subresource")
    if isinstance(subresource, ast.Constant) and subresource.value == "*":
        yield 'subresource="*" includes the object itself; in Kopf, only its subresources.'


def _unroll(node: ast.expr) -> list[str]:
    """Return the names in ``a.b.c``; an empty list if it does not start with a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []
