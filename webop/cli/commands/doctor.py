"""``webop doctor``: parse the options and print the report of :mod:`webop.cli.doctor`."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import click

from webop.cli.doctor.check_context import Context
from webop.cli.doctor.diagnosis import examine
from webop.cli.doctor.findings import Level, build_json, build_text, count_levels
from webop.cli.options import (
    CLIControls,
    choose_scope,
    load_quietly,
    scope_options,
    set_lease,
    source_options,
    startup_option,
)
from webop.settings.groups import OperatorSettings

_option = functools.partial(click.option, show_default=True)
_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "failure": "red"}


def paint(text: str, level: Level) -> str:
    """Return a text in the colour of a level; click drops it if there is no terminal."""
    return click.style(text, fg=_COLOURS[level])


def _check_account(_: click.Context, __: click.Parameter, account: str | None) -> str | None:
    parts = (account or "").split(":")
    if parts[:2] == ["system", "serviceaccount"] and (len(parts) != 4 or not all(parts)):
        raise click.BadParameter("write service accounts as system:serviceaccount:NAMESPACE:NAME.")
    return account


@click.command()
@_option(
    "--managed", metavar="NAME",
    help="The name of the webhook configurations, as in settings.admission.managed.",
)  # fmt: skip
@_option(
    "--as", "account", metavar="ACCOUNT", callback=_check_account,
    help="The account whose permissions to check: system:serviceaccount:NAMESPACE:NAME.",
)  # fmt: skip
@scope_options(_option)
@_option("--lease", "lease_name", metavar="NAME", help="The Lease, as for 'webop run'.")
@_option("--shards", "shards_name", metavar="NAME", help="The shards, as for 'webop run'.")
@_option("-P", "--peering", "peering_name", metavar="NAME", help="The peering, as for 'webop run'.")
@_option("--standalone", is_flag=True, help="Skip peering, as for 'webop run'.")
@source_options()
@startup_option(_option)
@_option(
    "--probe/--no-probe", "is_probing", default=True,
    help="Make the API server call the webhooks, by dry runs.",
)  # fmt: skip
@_option(
    "-o", "--output", "form", type=click.Choice(["text", "json"]), default="text",
    help="The format of the report.",
)  # fmt: skip
@click.make_pass_decorator(CLIControls, ensure=True)
@click.pass_context
def doctor(ctx: click.Context, controls: CLIControls, /, form: str, **options: Any) -> None:
    """Check an operator in a cluster; report problems and how to fix them.

    For webhooks: do live replicas maintain them, is the certificate trusted, and can the API
    server call them (by dry runs: handlers get dryrun=True, and nothing is stored)? For objects:
    who holds the Lease or owns the shards, who pauses the operator, which deletions wait for it?
    And permissions.

    With the files in PATHS, the doctor also checks that their handlers have webhooks, that their
    rules (webop.rule) are in force, and that RBAC permits what the handlers and the settings need.
    It imports the files and calls their startup handlers, which change settings, and then the
    cleanup handlers. It calls no others.

    \b
        webop doctor                            all operators of the cluster
        webop doctor --managed auto.example.com handlers.py
        webop doctor --as system:serviceaccount:default:operator handlers.py
        webop doctor --as ACCOUNT -n team-a --lease my-operator handlers.py
        kubectl exec deploy/operator -- webop doctor --managed auto.example.com

    The exit code is 1 if a finding is a failure.
    """  # noqa: D301  \b keeps click from wrapping the lines
    registry, _ = load_quietly(options.pop("paths"), options.pop("modules"), controls.registry)
    settings = controls.settings or OperatorSettings.from_environment()
    _, namespaces = choose_scope(ctx, options.pop("clusterwide"), options.pop("namespaces"))
    set_lease(settings, options.pop("lease_name"), options.pop("shards_name"))
    settings.peering.standalone |= options.pop("standalone")
    if name := options.pop("peering_name"):
        settings.peering.name, settings.peering.mandatory = name, True
    context = Context(settings=settings, namespaces=namespaces, registry=registry, **options)
    found = asyncio.run(examine(context))
    click.echo(build_json(found) if form == "json" else build_text(found, paint))
    ctx.exit(1 if count_levels(found)[Level.FAILURE] else 0)
