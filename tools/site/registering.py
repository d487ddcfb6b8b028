"""Run snippets under a framework and tell, as JSON, which handlers they register.

A script of its own, ``python registering.py webop|kopf < job.json > report.json``, so that it can
run under an interpreter that has only the one framework. All snippets are run in one process,
each as a module of its own with a fresh registry. The job is ``{name: code}``. The report is
``{name: {"error": …, "handlers": …}}``. It names handlers as both frameworks do.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import json
import os
import re
import sys
import tempfile
import types
import warnings
from typing import Any

_RETRYING = ("errors", "timeout", "retries", "backoff")
_FILTERS = ("labels", "annotations", "when", "field", "value", "old", "new")
_BACKGROUND = ("initial_delay", "interval", "sharp", "idle")
_CANCELLING = ("cancellation_backoff", "cancellation_timeout", "cancellation_polling")
_WEBHOOK = ("operations", "subresource", "persistent", "side_effects", "ignore_failures")
_OPTIONS = ("id", "param", *_RETRYING, *_FILTERS, "deleted", *_BACKGROUND, *_CANCELLING, *_WEBHOOK)
_SELECTOR = ("group", "version", "kind", "plural", "singular", "shortcut", "category")


def adapt(code: str, framework: str) -> str:
    """Return the code with the one line changed that names the framework."""
    other = "kopf" if framework == "webop" else "webop"
    plain = re.compile(rf"^(\s*)import {other}$", re.MULTILINE)
    code = plain.sub(rf"\1import {framework} as {other}", code)
    return re.sub(rf"(?m)^(\s*)from {other}\b", rf"\1from {framework}", code)


def run(snippets: dict[str, str], framework: str) -> dict[str, Any]:
    module = importlib.import_module(framework)
    report = {}
    for name, code in snippets.items():
        registry = module.OperatorRegistry()
        module.set_default_registry(registry)
        if framework == "webop":  # pages may define the same kind in different ways
            importlib.import_module("webop.models.definitions")._defined.clear()
        space = types.ModuleType("snippet_" + re.sub(r"\W", "_", name))
        space.__file__ = f"{name}.py"
        error = _execute(space, adapt(code, framework))
        own = [item for item in vars(space).values() if isinstance(item, module.OperatorRegistry)]
        report[name] = {"error": error, "handlers": _describe([registry, *own])}
    return report


def _execute(module: types.ModuleType, code: str) -> str | None:
    sys.modules[module.__name__] = module
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            exec(compile(code, str(module.__file__), "exec"), vars(module))
    except BaseException as exc:  # noqa: BLE001 - whatever user code may raise is the answer
        return f"{type(exc).__name__}: {exc}"
    return None


def _describe(registries: list[Any]) -> list[dict[str, Any]]:
    handlers = itertools.chain.from_iterable(map(_get_handlers, registries))
    described = [
        _describe_handler(handler)
        for handler in handlers
        if not (getattr(handler, "is_fallback", False) or getattr(handler, "_fallback", False))
    ]
    return sorted(described, key=lambda each: (each["kind"], each["id"]))  # else in their order


def _get_handlers(registry: Any) -> list[Any]:
    if hasattr(registry, "_handlers"):  # of webop: all in one
        return list(registry._handlers)
    names = ("activities", "indexing", "watching", "spawning", "changing", "webhooks")
    return [h for name in names for h in getattr(registry, f"_{name}").get_all_handlers()]


def _describe_handler(handler: Any) -> dict[str, Any]:
    described: dict[str, Any] = {
        "kind": _tell_kind(handler),
        "function": _tell(handler.fn),
        "finalizer": _needs_finalizer(handler),
    }
    selector = getattr(handler, "selector", None)
    if selector is not None:
        described["resource"] = {
            name: _tell(getattr(selector, name)) for name in (*_SELECTOR, "any_name", "fn")
        }
    for name in _OPTIONS:
        value = _tell(getattr(handler, name, None))
        if value not in (None, False, [], {}):  # what is not given is told by one or the other
            described[name] = value
    return described


def _tell_kind(handler: Any) -> str:
    for name in ("activity", "reason"):
        if getattr(handler, name, None) is not None:
            kind = str(getattr(handler, name).value)
            return {"validating": "validate", "mutating": "mutate"}.get(kind, kind)
    if getattr(handler, "initial", None):
        return "resume"
    names = {"Change": "field", "Changing": "field", "Indexing": "Index", "Watching": "Event"}
    family = type(handler).__name__.removesuffix("Handler")
    return names.get(family, family)


def _needs_finalizer(handler: Any) -> bool:
    for name in ("requires_finalizer", "needs_finalizer"):
        if hasattr(handler, name):
            return bool(getattr(handler, name))
    return False


def _tell(value: Any) -> Any:
    """Return a value as JSON; functions and markers by name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "name") and hasattr(value, "value"):  # a member of an enumeration
        return f"<{value.name}>"
    if isinstance(value, dict):
        return {str(key): _tell(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(_tell(item) for item in value)
    if isinstance(value, list | tuple):
        return [_tell(item) for item in value]
    if re.match(r"(webop|kopf)\b", getattr(value, "__module__", None) or ""):
        return "<made by the framework>"
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return f"<{name.rpartition('.')[2]}>"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        task = json.load(sys.stdin)
        out = os.dup(1)
        os.dup2(2, 1)  # what the snippets print is not part of the report
        os.chdir(folder)
        text = json.dumps(run(task, sys.argv[1]))
    with os.fdopen(out, "w") as file:
        file.write(text)
