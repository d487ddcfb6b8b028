"""``webop handlers``: list the handlers and rules of files and modules, offline."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from webop.cli.options import load_quietly, source_options
from webop.cli.tables import print_table
from webop.handlers.model import Activity, Handler, Rule, list_layers, name_decorator
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
def handlers(paths: tuple[str, ...], modules: tuple[str, ...]) -> None:
    """List the handlers and the rules of the files in PATHS and of the modules.

    The list has their kinds, resources, ids, filters and options. The command imports the files,
    but calls no handlers, and needs no cluster. It cannot list sub-handlers: these are registered
    while their parents run.

    \b
        webop handlers handlers.py
        webop handlers -m package.module
    """  # noqa: D301  \b keeps click from wrapping the lines
    if not paths and not modules:
        raise click.UsageError("Name the files or modules: webop handlers handlers.py")
    registry, warnings = load_quietly(paths, modules)
    for warning in warnings:
        click.echo(f"Warning: {warning}", err=True)
    found = [*list_handlers(registry)]
    if not (found or registry.rules):
        click.echo(f"There are no handlers.{advise_about_kopf()}")
        return
    rows: list[tuple[str, ...]] = [_HEADINGS]
    rows += (_build_row(name_decorator(one), _locate(one), one) for one in found)
    rows += (_build_row("webop.rule", "-", rule) for rule in registry.rules)
    print_table(rows)


def _build_row(name: str, source: str, declared: Handler | Rule) -> tuple[str, ...]:
    """Return the line of a handler or a rule, with those options that differ from the defaults."""
    filters = {name: getattr(declared, name, None) for name in _FILTERS}
    options = {
        field.name: value
        for field in dataclasses.fields(declared)
        if field.name not in _SHOWN_ELSEWHERE
        and (value := getattr(declared, field.name)) != field.default
    }
    given = {key: value for key, value in filters.items() if value not in (None, (), {})} | options
    selector: Selector | None = getattr(declared, "selector", None)
    resource = "-" if selector is None else str(selector)
    details = ", ".join(text for key, value in given.items() for text in _format(key, value))
    return name, resource, declared.id, source, details


def _locate(handler: Handler) -> str:
    """Return the file and the line of a function; of a file elsewhere, also its folder."""
    code = getattr(list_layers(handler.fn)[-1], "__code__", None)
    if code is None:
        return "-"
    path, here = Path(code.co_filename), Path.cwd()
    short = path.relative_to(here) if path.is_relative_to(here) else "/".join(path.parts[-2:])
    return f"{short}:{code.co_firstlineno}"


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
        case str():
            return value if value and not set(value) & set(" ,=|'") else repr(value)
        case enum.Enum():
            return value.name
        case set() | frozenset():
            return "|".join(sorted(map(_format_value, value)))
        case list() | tuple() if not hasattr(value, "_asdict"):
            return "|".join(map(_format_value, value))
        case type():
            return value.__name__
        case Selector() | Mapping():
            return str(value)
        case _ if callable(value):
            plain = list_layers(value)[-1]
            name = getattr(plain, "__qualname__", type(plain).__qualname__)
            return f"{name.rpartition('.')[2]}()"
        case _:
            return str(value)


def list_handlers(registry: OperatorRegistry) -> Iterator[Handler]:
    """Yield the handlers: activities, admission, conversion, objects in order of declaration."""
    for activity in Activity:
        yield from registry.select_activities(activity)
    yield from registry.select_webhooks()
    yield from registry.select_converters()
    yield from registry.select_resource_handlers()
