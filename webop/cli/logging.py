"""The options of logging that all commands share."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import click

from webop.cli.layout import build_option
from webop.logs import LogFormat, configure

logger = logging.getLogger(__name__)

_option = build_option("Logging")


class LogFormatParamType(click.Choice[str]):
    """The names of the log formats, converted to :class:`webop.LogFormat` (CLI-20)."""

    def __init__(self) -> None:
        super().__init__(choices=[item.name.lower() for item in LogFormat])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the format of a name."""
        if isinstance(value, LogFormat):
            return value
        return LogFormat[super().convert(value, param, ctx).upper()]


def logging_options(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of logging to a command, and apply them before it runs."""

    @_option("-v", "--verbose", is_flag=True, help="Show what the framework does.")
    @_option("-d", "--debug", is_flag=True, help="Show what asyncio and the client do, too.")
    @_option("-q", "--quiet", is_flag=True, help="Show only warnings and errors.")
    @_option(
        "--log-format",
        type=LogFormatParamType(),
        default="full",
        show_default=True,
        help="What a line of the log looks like.",
    )
    @_option(
        "--log-prefix/--no-log-prefix",
        default=None,
        help="Whether messages about objects begin with their names; by default in text only.",
    )
    @_option(
        "--log-refkey",
        metavar="KEY",
        help="The key of the object in JSON logs; by default 'object'.",
    )
    @functools.wraps(fn)
    def wrapper(
        *args: Any,
        verbose: bool,
        debug: bool,
        quiet: bool,
        log_format: LogFormat,
        log_prefix: bool | None,
        log_refkey: str | None,
        **kwargs: Any,
    ) -> Any:
        configure(
            debug=debug,
            verbose=verbose,
            quiet=quiet,
            log_format=log_format,
            log_prefix=log_format is not LogFormat.JSON if log_prefix is None else log_prefix,
            log_refkey=log_refkey,
        )
        try:
            return fn(*args, **kwargs)
        except click.UsageError:
            raise
        except click.ClickException as exc:
            if log_format is not LogFormat.JSON:
                raise
            # The last line is for the same reader as the others.
            logger.log(logging.ERROR, "%s", exc.format_message())
            return click.get_current_context().exit(exc.exit_code)

    return wrapper
