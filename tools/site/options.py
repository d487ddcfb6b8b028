"""The options of decorators as tables show them: from TypedDicts and the records of handlers."""

from __future__ import annotations

import ast
import collections.abc
import dataclasses
import enum
import functools
import inspect
import itertools
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

import webop
from webop.handlers import options
from webop.handlers.model import (
    ActivityHandler,
    ChangeHandler,
    DaemonHandler,
    EventHandler,
    Handler,
    MetaFilterToken,
    ReconcileHandler,
    Rule,
    TimerHandler,
    WebhookHandler,
)
from webop.objects.resources import SelectorNames

FAMILIES: dict[str, type[Handler | Rule]] = {
    "ActivityOptions": ActivityHandler,
    "ChangeOptions": ChangeHandler,
    "DaemonOptions": DaemonHandler,
    "DeleteOptions": ChangeHandler,
    "EventOptions": EventHandler,
    "ReconcileOptions": ReconcileHandler,
    "RegisterOptions": ChangeHandler,
    "ResumeOptions": ChangeHandler,
    "RuleOptions": Rule,
    "SubhandlerOptions": ChangeHandler,
    "TimerOptions": TimerHandler,
    "UpdateOptions": ChangeHandler,
    "WebhookOptions": WebhookHandler,
}
"""The options of each decorator, and the record whose fields have their defaults."""

_SPECIAL = (options.TransitionOptions,)  # shown as those of the decorator itself
_COMMON = (
    options.RetryOptions,
    options.FieldOptions,
    options.MetaOptions,
    options.KindOptions,
    options.BodyOptions,
    options.CommonOptions,
    SelectorNames,
)


class Option(NamedTuple):
    """An option of a decorator; its texts are in the notation of Markdown."""

    name: str
    kind: str
    default: str
    meaning: str


def list_options(known: type) -> tuple[list[Option], list[Option]]:
    """Return the options of a TypedDict: those of one decorator only, and those of others, too."""
    hints = get_type_hints(known)
    family = FAMILIES.get(known.__name__)
    fields = dataclasses.fields(family) if family is not None else ()
    defaults = {item.name: item.default for item in fields}
    texts: dict[str, str] = {}
    for group in (*_COMMON, *_SPECIAL, *_list_bases(known)):
        texts |= read_texts(group)
    shared = [name for group in _COMMON for name in group.__annotations__ if name in hints]
    rows = {
        name: Option(
            name, format_type(hint), _format_default(defaults.get(name)), format_text(texts[name])
        )
        for name, hint in hints.items()
    }
    own = [row for name, row in rows.items() if name not in shared]
    return own, [rows[name] for name in shared]


def _list_bases(known: Any) -> Iterator[type]:
    """Yield a TypedDict and those that it is made of, the most general first."""
    # Python 3.11 does not keep the bases.
    for base in _parse(known).bases:
        found = vars(sys.modules[known.__module__]).get(ast.unparse(base))
        if hasattr(found, "__total__"):
            yield from _list_bases(found)
    yield known


def _parse(cls: type) -> ast.ClassDef:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    return tree


def _format_default(default: Any) -> str:
    """Write the default of an option as in the signature: empty collections are None there."""
    return (
        repr(default) if isinstance(default, bool | float | int | str) and default != "" else "None"
    )


@functools.cache
def read_texts(section: type) -> dict[str, str]:
    body = _parse(section).body
    texts = {}
    for item, following in itertools.pairwise(body):
        is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and is_text:
            texts[item.target.id] = str(ast.literal_eval(following.value))  # type: ignore[attr-defined]
    return texts


def format_text(text: str) -> str:
    """Write a text as a cell of a table: in one line, in the notation of Markdown."""
    return " ".join(text.split()).replace("``", "`").replace("|", r"\|").removesuffix(".")


def format_type(hint: Any) -> str:
    """Write a type as users do: without constraints, and without None, which means the default.

    >>> format_type(int | float | None)
    'float'
    """
    parts = dict.fromkeys(_list_parts(hint))
    if "float" in parts:
        parts.pop("int", None)  # every int is one
    return " | ".join(parts)


def _list_parts(hint: Any) -> Iterator[str]:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for arg in args:
            if arg is not type(None):
                yield from _list_parts(arg)
    elif origin is Literal:
        yield from map(repr, args)
    elif origin is collections.abc.Callable:
        taken, returned = args
        inner = "..." if taken is ... else f"[{', '.join(map(format_type, taken))}]"
        yield f"Callable[{inner}, {format_type(returned)}]"
    elif origin is not None:
        inner = ", ".join("..." if arg is ... else format_type(arg) for arg in args)
        yield f"{origin.__name__}[{inner}]"
    elif hint is MetaFilterToken:
        yield from ("PRESENT", "ABSENT")
    elif hint is BaseModel or not isinstance(hint, type):
        yield getattr(hint, "__name__", str(hint))
    else:
        public = hint.__name__ in webop.__all__ or issubclass(hint, enum.Enum)
        yield f"webop.{hint.__name__}" if public else hint.__name__
