"""Write what the code knows into the pages: settings, commands, metrics.

``python -m tools.site.reference`` (``make reference``) fills in what is between the comments
``<!-- settings: GROUP ... -->``, ``<!-- commands -->`` or ``<!-- metrics -->`` and
``<!-- end -->`` in the pages; the rest of them is written by hand.
:mod:`tools.site.messages` and :mod:`tools.site.api_reference` make whole pages, at the build.
``test_reference_pages.py`` compares the pages with the code.
"""

from __future__ import annotations

import concurrent.futures
import inspect
import json
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click
import kopf

import webop
from tests.kit.pages import DOCS, ROOT
from tools.site.options import format_text, read_texts
from webop.cli import main as webop_command
from webop.controlplane.versions import PINNED_VERSION
from webop.monitoring.metrics import DEFINITIONS
from webop.settings.base import Section, find_setters, list_fields
from webop.settings.thread_pools import PoolSection

PAGES = tuple(
    DOCS / f"{name}.md"
    for name in (
        "reference/settings",
        "reference/command_line",
        "howto/monitoring",
        "project/support",
    )
)

_BLOCK = re.compile(
    r"<!-- (?P<kind>settings|commands|metrics|support)(?:: (?P<names>[\w ]+))? -->\n"
    r".*?<!-- end -->",
    re.DOTALL,
)
_MANY = 8  # numbers of a series that are shown


def fill(page: str) -> str:
    """Return the text of a page with its blocks as the code has them."""

    def build(match: re.Match[str]) -> str:
        names = (match["names"] or "").split()
        kind = match["kind"]
        lines = _BUILDERS[kind](names)
        opening = match[0].partition("\n")[0]
        return "\n".join([opening, "", *lines, "<!-- end -->"])

    return _BLOCK.sub(build, page)


def build_settings(names: Iterable[str]) -> Iterator[str]:
    """Yield the lines of the table of some groups."""
    yield "| setting | default | meaning |"
    yield "|---|---|---|"
    settings, peer = webop.OperatorSettings(), kopf.OperatorSettings()
    for group in names:
        section: Section = getattr(settings, group)
        with warnings.catch_warnings(action="ignore"):  # of names that have newer ones
            theirs = dir(getattr(peer, group, None))
        for name, meaning in _list_meanings(type(section)):
            shown = f"`{group}.{name}`" if name in theirs else f"*`{group}.{name}`*"
            default = _format_default(section, name)
            yield f"| {shown} | {default} | {format_text(meaning)} |"
    yield ""


def _list_meanings(section: type[Section]) -> Iterator[tuple[str, str]]:
    """Yield the settings of a group with the texts below them in the code."""
    kind: type = section
    texts = read_texts(kind)
    for name in list_fields(section):
        if name not in texts:
            raise LookupError(f"There is no text below {section.__name__}.{name}.")
        yield name, texts[name]
    for name, setter in find_setters(section).items():
        yield name, inspect.getdoc(setter) or ""


def _format_default(section: Section, name: str) -> str:
    value = getattr(section, name)
    if isinstance(section, PoolSection) and name == "max_workers" and section.threads.size is None:
        return "Python's own"
    if isinstance(value, concurrent.futures.Executor):
        return "a thread pool"
    if value == () or (isinstance(value, Mapping) and not value):
        return ""
    if isinstance(value, tuple):
        shown = ", ".join(map(str, value[:_MANY]))
        return f"`{shown}`" if len(value) <= _MANY else f"`{shown}, … {value[-1]}`"
    is_plain = value is None or isinstance(value, bool | int | float | str)
    return f"`{value}`" if is_plain else f"`{type(value).__name__}()`"


def build_metrics(_: Iterable[str]) -> Iterator[str]:
    yield "| metric | type | labels | meaning |"
    yield "|---|---|---|---|"
    for name, kind, labels, text, _read in DEFINITIONS:
        shown = ", ".join(f"`{label}`" for label in labels)
        meaning = format_text(text).replace("<", "&lt;")
        yield f"| `{name}` | {kind} | {shown} | {meaning} |"
    yield ""


def build_support(_: Iterable[str]) -> Iterator[str]:
    """Yield the lines of the table of the versions that CI runs on."""
    versions = json.loads((ROOT / ".github" / "versions.json").read_text(encoding="utf-8"))
    pythons, clusters = versions["python"], versions["kubernetes"]
    default = PINNED_VERSION.rpartition(".")[0]
    yield "| version | tests |"
    yield "|---|---|"
    for version in pythons:
        yield f"| Python {version} | all, for each change, with Kubernetes {default} |"
    for version in clusters:
        yield f"| Kubernetes {version} | all, each night |"
    yield "| Linux | all |"
    yield "| macOS | those without an API server, and a part of the others, for each change |"
    yield ""


def build_commands(_: Iterable[str]) -> Iterator[str]:
    settings: Any = webop_command.context_settings
    context = click.Context(webop_command, info_name="webop", **settings)
    for name in webop_command.list_commands(context):
        command = webop_command.get_command(context, name)
        assert command is not None
        yield from _build_command(command, context, "##")


def _build_command(command: click.Command, parent: click.Context, level: str) -> Iterator[str]:
    settings: Any = command.context_settings
    context = click.Context(command, info_name=command.name, parent=parent, **settings)
    usage = " ".join([context.command_path, *filter(None, command.collect_usage_pieces(context))])
    yield from (f"{level} {context.command_path}", "", "```text", usage, "```", "")
    yield from _build_help(command.help or "")
    sections: dict[str, list[click.Option]] = {}
    for param in command.params:
        if isinstance(param, click.Option):
            sections.setdefault(getattr(param, "section", ""), []).append(param)
    for heading, options in sections.items():
        yield from [f"**{heading}**", ""] if heading else []
        has_variables = any(get_variable(option, context) for option in options)
        yield f"| option | {'variable | ' * has_variables}meaning |"
        yield f"|---|{'---|' * has_variables}---|"
        for option in options:
            record = option.get_help_record(context)
            assert record is not None
            names, text = (format_text(cell) for cell in record)
            variable = get_variable(option, context)
            cell = f" {variable and f'`{variable}`'} |" if has_variables else ""
            yield f"| `{names}` |{cell} {text} |"
        yield ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from _build_command(command.commands[name], context, f"{level}#")


def _build_help(text: str) -> Iterator[str]:
    """Yield the paragraphs; those that click leaves as they are become code."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            code = textwrap.dedent(paragraph.removeprefix("\b\n"))
            yield from ("```text", code, "```", "")
        else:
            yield from (*textwrap.wrap(paragraph, 99), "")


def get_variable(option: click.Option, context: click.Context) -> str:
    """Return the environment variable of an option that is shown."""
    if isinstance(option.envvar, str):
        return option.envvar
    prefix = context.auto_envvar_prefix
    return f"{prefix}_{option.name}".upper() if prefix else ""


_BUILDERS = {
    "settings": build_settings,
    "commands": build_commands,
    "metrics": build_metrics,
    "support": build_support,
}


def main() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(fill(text), encoding="utf-8")


if __name__ == "__main__":
    main()
