"""``webop plan``: parse the options, print what an operator would do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from functools import partial
from typing import Any

import click

from webop.cli.help_layout import SectionCommand, build_option
from webop.cli.options import (
    CLIControls,
    check_handlers,
    choose_scope,
    load_quietly,
    scope_options,
    source_options,
    startup_option,
)
from webop.cli.required_rights import find_models
from webop.errors import WebopError
from webop.logs import configure
from webop.logs.sanitizing import escape
from webop.models.crds import build_crds
from webop.planning.planner import Planner
from webop.planning.reports import build_json, build_markdown, build_text
from webop.reactor.observer import Scope
from webop.runtime.loading import guess_name
from webop.settings.groups import OperatorSettings

_FORMS = {"text": build_text, "json": build_json, "markdown": build_markdown}
_PAUSE = 2.0  # seconds between the lines about the progress
_handlers, _scope, _output = map(build_option, ("Handlers", "Scope", "Output"))


class _PlanCommand(SectionCommand):
    """A command whose exit code 2 is a result; that of a wrong command line is 1."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as exc:
            exc.show()
            raise click.exceptions.Exit(1) from exc


def _report(text: str, due: list[float]) -> None:
    """Print a line about long work, not more than one in two seconds."""
    if (now := time.monotonic()) >= due[0]:
        due[0] = now + _PAUSE
        click.echo(f"Planning: {text}", err=True)


@click.command(cls=_PlanCommand)
@source_options(_handlers)
@startup_option(_handlers)
@_handlers(
    "--call", "calls_reconcilers", is_flag=True,
    help="Call the reconcilers, with clients that only read and do dry runs; without this option, "
    "only those with plannable=True.",
)  # fmt: skip
@scope_options(
    _scope,
    "Plan for the whole cluster; the default.",
    "Plan for the namespaces that match a name or a glob pattern, as for 'webop run'; repeatable.",
    takes_patterns=True,
)
@_output(
    "-o", "--output", "form", type=click.Choice([*_FORMS]), default="text", show_default=True,
    help="The format of the plan.",
)  # fmt: skip
@_output(
    "--limit", type=click.IntRange(min=0), metavar="NUMBER",
    help="Show only so many objects of each kind, and call reconcilers only for these; the counts "
    "are those of all. Objects with nothing to show or to call do not count.",
)  # fmt: skip
@click.make_pass_decorator(CLIControls, ensure=True)
@click.pass_context
def plan(
    ctx: click.Context,
    controls: CLIControls,
    /,
    paths: tuple[str, ...],
    modules: tuple[str, ...],
    form: str,
    **options: Any,
) -> None:
    """Show what an operator would do if it began now, and do nothing.

    For each object: the handlers that would be called and why, the finalizer, daemons and timers.
    For the operator: its webhook configurations, definitions and rules, compared with the cluster.

    It imports the files in PATHS, and calls the startup handlers, with planning=True, and functions
    that filter objects; no others. With --call, reconcilers are called, too: their writes become
    dry runs, and the plan shows by field what they would change. The API server stores nothing.

    \b
        webop plan handlers.py
        webop plan --call -n 'team-*' handlers.py
        webop plan --call -o markdown -m package.handlers > plan.md

    \b
    Exit codes:
        0  Nothing would be written, and no handler be called for a change.
        2  Something would, or it is unknown, as without --call if there are reconcilers.
        1  There is no plan: the message says why. Also if the command line is wrong.
    """  # noqa: D301  \b keeps click from wrapping the lines
    if not (paths or modules or controls.registry):
        raise click.ClickException("No files are given. Write: webop plan handlers.py")
    clusterwide, namespaces = choose_scope(
        ctx, options.pop("clusterwide"), options.pop("namespaces")
    )
    configure(quiet=True)
    registry, _ = load_quietly(paths, modules, controls.registry)
    check_handlers(registry, (*paths, *modules))
    settings = controls.settings or OperatorSettings.from_environment()
    settings.operator.set_default(guess_name([*paths, *modules]))
    planner = Planner(
        registry=registry,
        settings=settings,
        scope=Scope(clusterwide or not namespaces, namespaces),
        definitions=build_crds(find_models(registry)),
        report=partial(_report, due=[time.monotonic() + _PAUSE]),
        **options,
    )
    loop, status = asyncio.new_event_loop(), 1
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = loop.run_until_complete(planner.plan())
        click.echo(_FORMS[form](found))
        status = 2 if found.has_changes else 0
    except WebopError as exc:
        click.ClickException(escape(str(exc), keep="\n")).show()
    except KeyboardInterrupt:
        click.echo("Aborted!", err=True)
    if asyncio.all_tasks(loop) or any(not one.daemon for one in threading.enumerate()[1:]):
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(status)  # else Python waits for calls that never end
    loop.close()
    ctx.exit(status)
