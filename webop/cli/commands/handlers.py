"""``webop handlers``: list the handlers and rules of files and modules, offline."""

from __future__ import annotations

import dataclasses
import enum
import json
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pydantic

from webop.cli.options import load_quietly, source_options
from webop.cli.tables import build_table
from webop.handlers.model import (
    Activity,
    Handler,
    MetaFilterToken,
    ResourceHandler,
    Rule,
    list_layers,
    name_decorator,
)
from webop.handlers.registry import OperatorRegistry
from webop.kopf_alias import advise_about_kopf
from webop.objects.resources import Selector

_HEADINGS = ("HANDLER", "RESOURCE", "ID", "SOURCE", "FILTERS AND OPTIONS")

_FILTERS = ("labels", "annotations", "field", "value", "old", "new", "when")
_SHOWN_ELSEWHERE = {
    *_FILTERS,
    *("id", "fn", "selector", "activity", "reason", "initial", "needs_change", "is_fallback"),
    *("inherited_field", "model", "arguments", "is_async"),
}


@click.command()
@source_options()
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="The format of the list.",
)
def handlers(paths: tuple[str, ...], modules: tuple[str, ...], form: str) -> None:
    """List the handlers and the rules of the files in PATHS and of the modules.

    The list has their kinds, resources, ids, filters and options. The command imports the files,
    but calls no handlers, and needs no cluster. It cannot list sub-handlers: these are registered
    while their parents run.

    \b
        webop handlers handlers.py
        webop handlers -m package.module --output json
    """  # noqa: D301  \b keeps click from wrapping the lines
    if not paths and not modules:
        raise click.UsageError("Name the files or modules: webop handlers handlers.py")
    registry, warnings = load_quietly(paths, modules)
    for warning in warnings:
        click.echo(f"Warning: {warning}", err=True)
    found = [describe_handler(handler) for handler in list_handlers(registry)]
    found += map(describe_rule, registry.rules)
    if form == "json":
        click.echo(json.dumps(found, indent=2))
    elif found:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        click.echo(build_table([_HEADINGS, *_build_rows(found)], width))
    else:
        click.echo(f"There are no handlers.{advise_about_kopf()}")


def _build_rows(found: Collection[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    files = shorten_paths(item["source"]["file"] for item in found if item["source"])
    for item in found:
        source, names = item["source"], item["resource"]
        details = item["filters"] | item["options"]
        yield (
            item["handler"],
            "-" if names is None else _format_resource(names),
            item["id"],
            "-" if source is None else f"{files[source['file']]}:{source['line']}",
            ", ".join(text for name, value in details.items() for text in _format(name, value)),
        )


def shorten_paths(files: Iterable[str]) -> dict[str, str]:
    """Return short names of files: relative to the current folder, or the shortest unique end."""
    here = Path.cwd()
    short, unique = {}, set(files)
    for file in unique:
        path = Path(file)
        ends = ("/".join(path.parts[-length:]) for length in range(1, len(path.parts)))
        others = [f"/{other}" for other in unique - {file}]
        end = next((e for e in ends if not any(o.endswith(f"/{e}") for o in others)), file)
        short[file] = str(path.relative_to(here)) if path.is_relative_to(here) else end
    return short


def _format_resource(names: Mapping[str, Any]) -> str:
    """Format a selector as in a decorator: "pods", "crontabs.v1.example.com", "kind=Pod"."""
    if name := names.get("name") or names.get("plural"):
        rest = (names[key] for key in ("version", "group") if names.get(key))
        return ".".join(map(str, (name, *rest)))
    return " ".join(f"{key}={_format_value(value)}" for key, value in names.items())


def _format(name: str, value: Any) -> Iterator[str]:
    """Yield ``name=value`` for an option, or for each item of ``labels`` and ``annotations``."""
    if name == "field":
        yield f"field={'.'.join(value)}"
    elif name in ("labels", "annotations"):
        yield from (f"{name}[{key}]={_format_value(item)}" for key, item in value.items())
    else:
        yield f"{name}={_format_value(value)}"


def _format_value(value: Any) -> str:
    match value:
        case {"marker": name}:
            return str(name)
        case {"function": name}:
            return f"{str(name).rpartition('.')[2]}()"
        case list():
            return "|".join(map(_format_value, value))
        case str():
            return value if value and not set(value) & set(" ,=|'") else repr(value)
        case _:
            return str(value)


def list_handlers(registry: OperatorRegistry) -> Iterator[Handler]:
    """Yield the handlers: activities, admission, conversion, objects in order of declaration."""
    for activity in Activity:
        yield from registry.select_activities(activity)
    yield from registry.select_webhooks()
    yield from registry.select_converters()
    yield from registry.select_resource_handlers()


def describe_handler(handler: Handler) -> dict[str, Any]:
    """Return a handler as JSON.

    Returns:
        ``handler``: the name of its decorator; ``id``; ``function``; ``source``: the file and the
        line, None if unknown; ``resource``: the names in its selector, None for activities;
        ``filters`` and ``options``: those that differ from the defaults. Markers are
        ``{"marker": "PRESENT"}``, functions are ``{"function": "module.name"}``.
    """
    selector: Selector | None = getattr(handler, "selector", None)
    filters = {}
    if isinstance(handler, ResourceHandler):
        given = {name: getattr(handler, name, None) for name in _FILTERS}
        filters = {
            name: describe_value(value)
            for name, value in given.items()
            if value not in (None, (), {})
        }
    plain = list_layers(handler.fn)[-1]
    code = getattr(plain, "__code__", None)
    return {
        "handler": name_decorator(handler),
        "id": handler.id,
        "resource": None if selector is None else _describe_selector(selector),
        "filters": filters,
        "options": _describe_options(handler),
        "function": _detect_full_name(plain),
        "source": code and {"file": code.co_filename, "line": code.co_firstlineno},
    }


def describe_rule(rule: Rule) -> dict[str, Any]:
    """Return a rule for API servers as JSON, like a handler; it has neither function nor source."""
    return {
        "handler": "webop.rule",
        "id": rule.id,
        "resource": _describe_selector(rule.selector),
        "filters": {},
        "options": _describe_options(rule),
        "function": None,
        "source": None,
    }


def _describe_options(declared: Handler | Rule) -> dict[str, Any]:
    return {
        field.name: describe_value(value)
        for field in dataclasses.fields(declared)
        if field.name not in _SHOWN_ELSEWHERE
        and (value := getattr(declared, field.name)) != field.default
    }


def _describe_selector(selector: Selector) -> dict[str, Any]:
    values = {field.name: getattr(selector, field.name) for field in dataclasses.fields(selector)}
    named = {key: describe_value(value) for key, value in values.items() if value is not None}
    return {{"any_name": "name", "fn": "function"}.get(key, key): named[key] for key in named}


def describe_value(value: Any) -> Any:
    """Return the value of an option as JSON."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, type) and issubclass(value, pydantic.BaseModel):
        return value.__name__
    if isinstance(value, MetaFilterToken):
        return {"marker": value.name}
    if isinstance(value, enum.Enum | Selector):
        return value.name if isinstance(value, enum.Enum) else str(value)
    if isinstance(value, Mapping):
        return {str(key): describe_value(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((describe_value(item) for item in value), key=str)
    if isinstance(value, list | tuple):
        named = value._asdict() if hasattr(value, "_asdict") else None
        return [describe_value(item) for item in value] if named is None else describe_value(named)
    return {"function": _detect_full_name(value)} if callable(value) else repr(value)


def _detect_full_name(fn: Callable[..., Any]) -> str:
    plain = list_layers(fn)[-1]
    name = getattr(plain, "__qualname__", type(plain).__qualname__)
    module = getattr(plain, "__module__", None)
    return f"{module}.{name}" if module else str(name)
