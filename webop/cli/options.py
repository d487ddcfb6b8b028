"""Options that several commands share, and :class:`CLIControls`, which other code passes in.

If options exclude each other, those of the command line win over those of the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from webop.cli.help_layout import build_option
from webop.errors import WebopError
from webop.kopf_alias import advise_about_kopf, alias_kopf
from webop.logs import LogFormat, configure, configure_terminal
from webop.objects.names import join_names

if TYPE_CHECKING:
    from webop.client.auth.vault import Vault
    from webop.handlers.registry import OperatorRegistry
    from webop.settings.groups import OperatorSettings

DEV_PRIORITY = 666  # the manual's, "Development mode"
logger = logging.getLogger(__name__)
_option = build_option("Logging")


@dataclass
class CLIControls:
    """Flags and parts that code can pass to an operator run by the command line."""

    ready_flag: Any = None
    stop_flag: Any = None
    vault: Vault | None = None
    registry: OperatorRegistry | None = None
    settings: OperatorSettings | None = None
    loop: asyncio.AbstractEventLoop | None = None


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def source_options(option: Callable[..., Decorator] = click.option) -> Decorator:
    """Return a decorator that adds the options for files and modules, declared by `option`."""
    decorators = (
        option(
            "-m",
            "--module",
            "modules",
            multiple=True,
            metavar="MODULE",
            help="Import a module with handlers, as in 'python -m'; repeatable.",
        ),
        option(
            "--aliased",
            is_flag=True,
            expose_value=False,
            envvar="WEBOP_ALIASED",
            allow_from_autoenv=False,
            callback=lambda _ctx, _param, wanted: alias_kopf() if wanted else None,
            help="Make 'import kopf' import webop, also in packages that the handlers import.",
        ),
        click.argument("paths", nargs=-1, type=click.Path()),
    )
    return lambda fn: functools.reduce(lambda made, add: add(made), reversed(decorators), fn)


def load_quietly(
    paths: tuple[str, ...], modules: tuple[str, ...], registry: OperatorRegistry | None = None
) -> tuple[OperatorRegistry, list[str]]:
    """Return the handlers of files and modules, and warnings about them.

    Redirect the output of the files to stderr, since programs read the stdout of the command.

    Raises:
        ConfigurationError: a file cannot be imported, or a handler cannot be called.
    """
    from webop.handlers.validation import check_registry  # noqa: PLC0415 - not for --help
    from webop.runtime.loading import load_handlers  # noqa: PLC0415

    with contextlib.redirect_stdout(sys.stderr):
        registry = load_handlers(paths, modules, registry)
    return registry, check_registry(registry)


def check_handlers(registry: OperatorRegistry, sources: Iterable[str]) -> None:
    """Check that files and modules have registered handlers, if any are named.

    Raises:
        click.ClickException: there are none; the message says why, or what to do.
    """
    places = join_names(sources)
    if len(registry) or not places:
        return  # without files, code passes its own registry, and can add handlers later
    if registry.rules:
        raise click.ClickException(
            f"There are only rules in {places}, no handlers. Name the files with the handlers, too."
        )
    advice = advise_about_kopf() or " Decorate a function, such as with @webop.on.create('pods')."
    raise click.ClickException(f"There are no handlers in {places}.{advice}")


def confirm(question: str) -> None:
    """Ask for a confirmation; abort without one."""
    try:
        click.confirm(question, abort=True)
    except click.Abort as exc:
        if isinstance(exc.__context__, EOFError):
            click.echo(err=True)
            raise click.ClickException("Nobody can answer here. To confirm, add --yes.") from None
        raise


def scope_options(
    option: Callable[..., Decorator],
    everywhere: str = "The operator works in the whole cluster; the default.",
    somewhere: str = "A namespace that the operator works in, as for 'webop run'; repeatable.",
    *,
    takes_patterns: bool = False,
) -> Decorator:
    """Return a decorator that adds the options for namespaces, declared by `option`.

    The texts are their help. Patterns can be accepted in place of names.
    """
    named: dict[str, Any] = {"metavar": "NAMESPACE", "callback": _check_names}
    how = {"metavar": "PATTERN"} if takes_patterns else named
    every = option("-A", "--all-namespaces", "clusterwide", is_flag=True, help=everywhere)
    some = option("-n", "--namespace", "namespaces", multiple=True, help=somewhere, **how)
    return lambda fn: every(some(fn))


def startup_option(option: Callable[..., Decorator]) -> Decorator:
    """Return a decorator that adds ``--startup``, declared by `option`."""
    return option(
        "--startup/--no-startup",
        "calls_startup",
        default=True,
        help="Call the startup handlers, which can change settings, and then the cleanup handlers.",
    )


def _check_names(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse patterns."""
    if patterns := [name for name in names if set(name) & set("*?!,")]:
        raise click.BadParameter(f"{patterns[0]!r} is a pattern; this command needs exact names.")
    return names


def choose_scope(
    ctx: click.Context, clusterwide: bool, namespaces: tuple[str, ...]
) -> tuple[bool, tuple[str, ...]]:
    """Return the scope; that of the command line wins over that of the environment.

    Raises:
        click.UsageError: both options are on the command line, or both in the environment.
    """
    if not all(pattern.strip() for pattern in namespaces):
        raise click.UsageError("-n/--namespace is empty. Name a namespace, or use -A for all.")
    if not clusterwide or not namespaces:
        return clusterwide, namespaces
    if _is_on_command_line(ctx, "clusterwide") == _is_on_command_line(ctx, "namespaces"):
        raise click.UsageError("-n/--namespace and -A/--all-namespaces exclude each other.")
    clusterwide = _is_on_command_line(ctx, "clusterwide")
    return clusterwide, () if clusterwide else namespaces


def set_lease(settings: OperatorSettings, lease: str | None, shards: str | None) -> None:
    """Set what ``--lease`` and ``--shards`` say.

    Raises:
        click.UsageError: both are given.
    """
    if lease and shards:
        raise click.UsageError("--lease and --shards exclude each other: one works, or all do.")
    settings.leadership.lease_name = lease or shards or settings.leadership.lease_name
    if lease or shards:
        settings.leadership.sharded = bool(shards)


def _is_on_command_line(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


class LogFormatParamType(click.Choice[LogFormat]):
    """The names of the log formats, converted to :class:`webop.LogFormat`."""

    def __init__(self) -> None:
        super().__init__(LogFormat, case_sensitive=False)


def logging_options(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of logging to a command, and apply them before it runs."""

    @_option("-v", "--verbose", is_flag=True, help="Also log debug messages of the framework.")
    @_option(
        "-d", "--debug", is_flag=True, help="Also log debug messages of asyncio and the client."
    )
    @_option("-q", "--quiet", is_flag=True, help="Log only warnings and errors.")
    @_option(
        "--log-format",
        type=LogFormatParamType(),
        default="full",
        show_default=True,
        help="The format of the log lines.",
    )
    @_option(
        "--log-prefix/--no-log-prefix",
        default=None,
        help="Begin messages about objects with their names; by default, only in text formats.",
    )
    @_option(
        "--log-refkey",
        metavar="KEY",
        help="The key of the object reference in JSON logs; by default 'object'.",
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
        chosen = click.get_current_context().get_parameter_source("log_format")
        if chosen is ParameterSource.DEFAULT and sys.stderr is not None and sys.stderr.isatty():
            configure_terminal(has_prefix=log_prefix is not False)
        try:
            return fn(*args, **kwargs)
        except click.UsageError:
            raise
        except (click.ClickException, WebopError) as exc:
            if log_format is not LogFormat.JSON:
                raise
            # Whatever parses the JSON lines must be able to parse the last one, too.
            logger.log(logging.ERROR, "%s", exc)
            return click.get_current_context().exit(1)

    return wrapper
