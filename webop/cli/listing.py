"""``webop handlers``: what files and modules register, as a table or as JSON. Needs no cluster."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click

from webop.cli.descriptions import describe_handler, list_handlers
from webop.cli.sources import module_option
from webop.errors import WebopError
from webop.loading import load_handlers

_HEADINGS = ("HANDLER", "RESOURCE", "ID", "SOURCE", "FILTERS AND OPTIONS")
_GAP = 2
_NARROWEST = 10


class _Wrapper(textwrap.TextWrapper):
    """Wraps at spaces, and within names after what separates their parts."""

    wordsep_re = re.compile(r"(\s+|(?<=[./|=-])(?=[^\s./|=-]))")


@click.command(short_help="List the handlers of files and modules.")
@module_option()
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "json"]),
    envvar="WEBOP_HANDLERS_OUTPUT",
    default="table",
    show_default=True,
    help="For people, or for programs.",
)
@click.argument("paths", nargs=-1, type=click.Path())
def handlers(paths: tuple[str, ...], modules: tuple[str, ...], form: str) -> None:
    """List the handlers of the files in PATHS and of the modules.

    Their kinds, resources, ids, filters, and all options that were given. The files are imported,
    nothing in them is called; there is no need of a cluster. Sub-handlers are not known before
    their parents run.

    \b
        webop handlers handlers.py
        webop handlers -m package.module --output json
    """  # noqa: D301  \b is for click: what follows is not to be wrapped
    if not paths and not modules:
        raise click.UsageError("Name files or modules with handlers: webop handlers handlers.py")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the list is to be all of the output
            registry = load_handlers(paths, modules)
    except WebopError as exc:
        raise click.ClickException(str(exc)) from exc
    found = [describe_handler(handler) for handler in list_handlers(registry)]
    if form == "json":
        click.echo(json.dumps(found, indent=2))
    elif found:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        click.echo(build_table([_HEADINGS, *_build_rows(found)], width))
    else:
        click.echo("There are no handlers.")


def build_table(rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Return rows as lines with aligned columns; cells are wrapped where they must be.

    Args:
        rows: the headings and the cells, equally many in each row.
        width: the characters of a line; None for as many as it takes, one line for each row.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if width is not None:
        _narrow(widths, width - _GAP * (len(widths) - 1))
    return "\n".join(line for row in rows for line in _build_lines(row, widths))


def _narrow(widths: list[int], available: int) -> None:
    """Take from the widest columns until all of them fit."""
    while sum(widths) > available and (widest := max(widths)) > _NARROWEST:
        widths[widths.index(widest)] -= 1


def _build_lines(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    cells = [_Wrapper(width).wrap(cell) for cell, width in zip(row, widths, strict=True)]
    for parts in zip_longest(*cells, fillvalue=""):
        padded = (part.ljust(width) for part, width in zip(parts, widths, strict=True))
        yield (" " * _GAP).join(padded).rstrip()


def _build_rows(found: Collection[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    files = shorten_paths(item["source"]["file"] for item in found if item["source"])
    for item in found:
        source = item["source"]
        details = item["filters"] | item["options"]
        yield (
            item["handler"],
            _format_resource(item["resource"]),
            item["id"],
            "-" if source is None else f"{files[source['file']]}:{source['line']}",
            ", ".join(text for name, value in details.items() for text in _format(name, value)),
        )


def shorten_paths(files: Iterable[str]) -> dict[str, str]:
    """Return short names of files: from the current folder, or the end that tells them apart."""
    here = Path.cwd()
    short, unique = {}, set(files)
    for file in unique:
        path = Path(file)
        ends = ("/".join(path.parts[-length:]) for length in range(1, len(path.parts)))
        others = [f"/{other}" for other in unique - {file}]
        end = next((e for e in ends if not any(o.endswith(f"/{e}") for o in others)), file)
        short[file] = str(path.relative_to(here)) if path.is_relative_to(here) else end
    return short


def _format_resource(names: Mapping[str, Any] | None) -> str:
    """Write a selector as decorators take it: "pods", "crontabs.v1.example.com", "kind=Pod"."""
    if names is None:
        return "-"
    if "name" in names:
        return ".".join(str(names[key]) for key in ("name", "version", "group") if names.get(key))
    return " ".join(f"{key}={_format_value(value)}" for key, value in names.items())


def _format(name: str, value: Any) -> Iterator[str]:
    """Yield an option, or each item of one that has names in it, as ``name=value``."""
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
