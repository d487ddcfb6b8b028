"""The layout of ``--help``: sections of options and commands, and suggestions for misspelt ones.

:mod:`click` prints all options in one list, which is hard to search with twenty of them.
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from webop.errors import WebopError
from webop.logs.sanitizing import escape

_Row = tuple[str, str]

_OTHER_OPTIONS = "Other options"
_WIDEST = 30  # characters of the first column; click's own limit


class SectionOption(click.Option):
    """An option that ``--help`` shows under a heading."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


def build_option(section: str) -> Callable[..., Callable[..., Callable[..., Any]]]:
    """Return a variant of ``click.option`` for the options of one section."""
    return functools.partial(click.option, cls=SectionOption, section=section)


class SectionCommand(click.Command):
    """A command whose ``--help`` groups the options by section, in the order of declaration."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options; those without a section come last."""
        sections: dict[str, list[_Row]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if isinstance(param, click.Option) and record is not None:
                sections.setdefault(getattr(param, "section", _OTHER_OPTIONS), []).append(record)
        sections[_OTHER_OPTIONS] = sections.pop(_OTHER_OPTIONS, [])
        _write_sections(formatter, sections)


class SectionGroup(click.Group):
    """A group whose ``--help`` lists the commands by section; it loads a command that is used.

    Args:
        sections: the names of the commands and their lines in the help, by heading.
        load: returns the command of a name.
    """

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Mapping[str, str]],
        load: Callable[[str], click.Command],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections
        self._load = load

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands in the order of ``--help``."""
        return [name for lines in self._sections.values() for name in lines]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name; None if there is none."""
        return self._load(cmd_name) if cmd_name in self.list_commands(ctx) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands."""
        _write_sections(formatter, {title: s.items() for title, s in self._sections.items()})

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; turn errors of webop into a message and exit code 1.

        The variable NO_COLOR turns colours off (https://no-color.org).
        """
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        try:
            return super().invoke(ctx)
        except WebopError as exc:
            raise click.ClickException(escape(str(exc), keep="\n")) from exc

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command by its name, or fail with a suggestion."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not ctx.resilient_parsing:
            guess = f"The commands are: {', '.join(sorted(known))}."
            if name.endswith(".py"):
                guess = f"Did you mean '{self.name} run {name}'?"
            elif nearest := difflib.get_close_matches(name, known, n=1):
                guess = f"Did you mean {nearest[0]!r}?"
            ctx.fail(f"There is no command {name!r}. {guess}")
        return super().resolve_command(ctx, args)


def _write_sections(formatter: click.HelpFormatter, sections: Mapping[str, Iterable[_Row]]) -> None:
    """Write rows under their headings; all sections have columns of the same width."""
    widest = max((len(name) for rows in sections.values() for name, _ in rows), default=0)
    for heading, rows in sections.items():
        padded = [(name.ljust(min(widest, _WIDEST)), text) for name, text in rows]
        if padded:
            with formatter.section(heading):
                formatter.write_dl(padded)
