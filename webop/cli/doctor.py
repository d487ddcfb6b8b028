"""``webop doctor``: :mod:`webop.doctor`, which is imported when the command runs."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import click

from webop.cli.options import (
    CLIControls,
    choose_scope,
    load_quietly,
    place_options,
    source_options,
    startup_option,
)

_option = functools.partial(click.option, show_default=True)
_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "failure": "red"}


def _check_account(_: click.Context, __: click.Parameter, account: str | None) -> str | None:
    parts = (account or "").split(":")
    if parts[:2] == ["system", "serviceaccount"] and (len(parts) != 4 or not all(parts)):
        raise click.BadParameter("a service account is system:serviceaccount:NAMESPACE:NAME.")
    return account


@click.command(short_help="Check an operator in a cluster.")
@_option("--managed", metavar="NAME", help="The webhook configurations, as in the settings.")
@_option(
    "--as", "account", metavar="ACCOUNT", callback=_check_account,
    help="Whose permissions to check: system:serviceaccount:NAMESPACE:NAME.",
)  # fmt: skip
@place_options(_option)
@_option("--lease", "lease_name", metavar="NAME", help="The Lease, as for 'webop run'.")
@_option("-P", "--peering", "peering_name", metavar="NAME", help="The peering, as for 'webop run'.")
@_option("--standalone", is_flag=True, help="There is no peering, as for 'webop run'.")
@source_options()
@startup_option(_option)
@_option(
    "--startup-timeout", type=click.FloatRange(min=0.1), default=10.0, metavar="SECONDS",
    help="How long these handlers may take.",
)  # fmt: skip
@_option(
    "--probe/--no-probe", "is_probing", default=True,
    help="Let the API server call the webhooks, by dry runs.",
)  # fmt: skip
@_option(
    "-o", "--output", "form", type=click.Choice(["text", "json"]), default="text",
    help="For people, or for programs.",
)  # fmt: skip
@click.make_pass_decorator(CLIControls, ensure=True)
@click.pass_context
def doctor(ctx: click.Context, controls: CLIControls, /, form: str, **options: Any) -> None:
    """Check an operator in a cluster, and say what to do.

    Webhooks: whether live replicas keep them, whether the certificate is trusted, and whether the
    API server can call them (by dry runs: handlers get dryrun=True, and nothing is stored).
    Objects: who holds the Lease, who pauses the operator, which deletions wait for it. Permissions.

    With the files in PATHS, also whether their handlers have webhooks, and whether RBAC suffices
    for all that they and the settings need. The files are imported. Their startup handlers are
    called for the settings, then the cleanup handlers. Nothing else is called.

    \b
        webop doctor                            all operators of the cluster
        webop doctor --managed auto.example.com handlers.py
        webop doctor --as system:serviceaccount:default:operator handlers.py
        webop doctor --as ACCOUNT -n team-a --lease my-operator handlers.py
        kubectl exec deploy/operator -- webop doctor --managed auto.example.com

    If a finding is a failure, the exit code is 1.
    """  # noqa: D301  \b is for click: what follows is not to be wrapped
    from webop.doctor.context import Context  # noqa: PLC0415
    from webop.doctor.diagnosis import examine  # noqa: PLC0415 - not for --help
    from webop.doctor.findings import Level, build_json, build_text, count_levels  # noqa: PLC0415
    from webop.settings import OperatorSettings  # noqa: PLC0415

    registry, _ = load_quietly(options.pop("paths"), options.pop("modules"), controls.registry)
    settings = controls.settings or OperatorSettings.from_environment()
    _, namespaces = choose_scope(ctx, options.pop("clusterwide"), options.pop("namespaces"))
    settings.leadership.lease_name = options.pop("lease_name") or settings.leadership.lease_name
    settings.peering.standalone |= options.pop("standalone")
    if name := options.pop("peering_name"):
        settings.peering.name, settings.peering.mandatory = name, True
    visit = Context(settings=settings, namespaces=namespaces, registry=registry, **options)
    found = asyncio.run(examine(visit))
    # click drops colours if this is no terminal.
    text = build_text(found, lambda text, level: click.style(text, fg=_COLOURS[level]))
    click.echo(build_json(found) if form == "json" else text)
    ctx.exit(1 if count_levels(found)[Level.FAILURE] else 0)
