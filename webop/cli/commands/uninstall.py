"""``webop uninstall``: list what operators have left in a cluster, and remove it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import click

from webop.admission.configurations.building import KINDS
from webop.admission.configurations.stored_configurations import find_managed, parse_configuration
from webop.cli.doctor.finalizer_removal import HeldObject, find_held, remove_finalizer
from webop.cli.doctor.findings import describe_seconds
from webop.cli.doctor.records import describe_replicas
from webop.cli.options import choose_scope, confirm, scope_options
from webop.cli.tables import print_table
from webop.client.api import Client
from webop.client.discovery import discover
from webop.client.self_review import review_self
from webop.client.standalone import connect_command
from webop.errors import APINotFoundError, APIStatusError, APIUnprocessableError
from webop.handlers.model import WebhookType
from webop.objects.names import join_names
from webop.objects.resources import Resource, parse_selector
from webop.settings.groups import OperatorSettings

_CHANGED = " If it has changed meanwhile, run the command again."

Found = Mapping[WebhookType, dict[str, Any]]
"""The webhook configurations of one name."""


class Choice(NamedTuple):
    """The webhook configurations to remove, and where to remove the finalizer."""

    configurations: tuple[str, ...]
    kinds: tuple[str, ...]
    has_scope: bool
    namespaces: tuple[str, ...]
    finalizer: str
    names: tuple[str, ...]
    everything: bool

    @property
    def is_list(self) -> bool:
        """Whether nothing is chosen: what there is is only listed."""
        return not (self.configurations or self.has_scope)


@click.command()
@click.argument("kinds", nargs=-1)
@click.option(
    "--managed", "configurations", metavar="NAME", multiple=True,
    help="Remove the webhook configurations of this name, as in settings.admission.managed; "
    "repeatable.",
)  # fmt: skip
@scope_options(
    click.option,
    "Remove the finalizer from objects of the whole cluster.",
    "Remove the finalizer from objects of a namespace; repeatable.",
)
@click.option(
    "--finalizer", metavar="NAME",
    help="The finalizer; by default settings.persistence.finalizer, which is Kopf's.",
)  # fmt: skip
@click.option(
    "--name", "names", multiple=True, metavar="NAME",
    help="Only objects with this name; repeatable.",
)  # fmt: skip
@click.option(
    "--all", "everything", is_flag=True,
    help="Also release objects that are not being deleted. A running operator adds it again.",
)  # fmt: skip
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--dry-run", "is_dry", is_flag=True,
    help="Let the API server check the changes without storing them.",
)  # fmt: skip
@click.pass_context
def uninstall(
    ctx: click.Context,
    /,
    clusterwide: bool,
    namespaces: tuple[str, ...],
    finalizer: str | None,
    is_sure: bool,
    is_dry: bool,
    **options: Any,
) -> None:
    """Remove what an operator has left: webhook configurations, and its finalizer of objects.

    \b
        webop uninstall                                             list what there is
        webop uninstall --managed operator.default.svc -A           remove all
        webop uninstall databases.example.com -n team-a --dry-run

    In a pod, webhooks stay when the operator stops: until it runs again, the API server refuses the
    requests that they are for. An operator with deletion handlers, daemons or timers adds its
    finalizer to the objects; without the operator, their deletion never ends.

    Stop the operator first: a running one restores all of it. Its deletion handlers are not called,
    so external resources of the objects can remain. KINDS are as for kubectl, such as pods,
    databases.example.com; by default, all kinds. Other finalizers stay. If the operator had
    settings.persistence.prefix, its finalizer is PREFIX/finalizer. The command asks before it
    changes anything.
    """  # noqa: D301  \b keeps click from wrapping the lines
    clusterwide, namespaces = choose_scope(ctx, clusterwide, namespaces)
    choice = Choice(
        has_scope=clusterwide or bool(namespaces),
        namespaces=namespaces,
        finalizer=finalizer or OperatorSettings.from_environment().persistence.finalizer,
        **options,
    )
    asyncio.run(_uninstall(choice, is_sure=is_sure, is_dry=is_dry))


async def _uninstall(choice: Choice, *, is_sure: bool, is_dry: bool) -> None:
    async with connect_command() as client:
        found: Mapping[str, Found] = {}
        failures: list[str] = []
        if choice.configurations or (choice.is_list and not choice.kinds):
            found, failures = await _find_configurations(client, choice.configurations)
        held: list[HeldObject] = []
        if choice.has_scope or choice.is_list:
            held, unread = await _find_objects(client, choice)
            failures += unread
        if choice.is_list:
            click.echo("To remove it: --managed NAME for webhooks, -A or -n for the finalizer.")
        elif found or held:
            if not (is_sure or is_dry):
                parts = ["these webhooks: objects are no longer checked"] * bool(found)
                parts += [f"the finalizer of these objects ({len(held)})"] * bool(held)
                confirm(f"Remove {', and '.join(parts)}?")
            suffix = " (dry run)" if is_dry else ""
            await _remove_configurations(client, found, is_dry=is_dry)
            for one in held:
                what = f"{one.resource.plural_name} {one.path}"
                try:
                    outcome = await remove_finalizer(client, one, choice.finalizer, is_dry=is_dry)
                except APIStatusError as exc:  # after others, all would fail in the same way
                    is_odd = isinstance(exc, APIUnprocessableError)
                    failures.append(f"{what}: {exc}{_CHANGED if is_odd else ''}")
                else:
                    click.echo(f"{what}: {outcome}{suffix}")
    if failures:
        raise click.ClickException("\n".join(failures))


async def _find_configurations(
    client: Client, names: Collection[str]
) -> tuple[Mapping[str, Found], list[str]]:
    """Print the webhook configurations of some names, or of all operators.

    Return them, and what is wrong with the names: one that is gone keeps nothing else from removal.
    """
    found, now = await find_managed(client), (await review_self(client)).now
    known = join_names(sorted(found)) or "none"
    unknown = [
        f"No operator keeps webhook configurations {name!r}; known: {known}."
        for name in sorted({*names} - {*found})
    ]
    chosen = {name: found[name] for name in sorted({*names} & {*found} if names else found)}
    if unknown and not chosen:
        return {}, unknown
    rows = [("WEBHOOK CONFIGURATION", "WEBHOOKS", "LIVE REPLICAS")]
    for name, both in chosen.items():
        webhooks = (one["name"] for body in both.values() for one in body.get("webhooks") or ())
        live = [one for body in both.values() for one in parse_configuration(body).list_live(now)]
        short = join_names(one.removesuffix(f".{name}") for one in webhooks)
        rows.append((name, short or "none", describe_replicas(live, now) or "none"))
    if chosen:
        print_table(rows)
    else:
        click.echo("No operator keeps webhook configurations.")
    return chosen, unknown


async def _find_objects(client: Client, choice: Choice) -> tuple[list[HeldObject], list[str]]:
    """Print the objects that have the finalizer, and return them, with the kinds that failed."""
    known = (await discover(client)).resources
    kinds = {one for kind in choice.kinds for one in find_kinds(kind, known)}
    if not choice.kinds:
        kinds = {one for one in known if one.preferred and {"list", "patch"} <= one.verbs}
    search = await find_held(client, kinds, choice.namespaces, choice.finalizer)
    held = [one for one in search.held if not choice.names or one.name in choice.names]
    if not (choice.everything or choice.is_list):
        held = [one for one in held if one.deleted_at]
    now = dt.datetime.now(dt.UTC)
    rows = [("KIND", "OBJECT", "STATE", "OTHER FINALIZERS")]
    for one in held:
        age = describe_seconds((now - (one.deleted_at or one.created_at)).total_seconds())
        state = f"being deleted for {age}" if one.deleted_at else f"created {age} ago"
        rows.append((one.resource.plural_name, one.path, state, ", ".join(one.others) or "none"))
    if held:
        print_table(rows)
    else:
        hint = (
            " that is being deleted; for the others, add --all."
            if search.held
            else ". If the operator has settings.persistence.prefix: --finalizer PREFIX/finalizer."
        )
        click.echo(f"No object has the finalizer {choice.finalizer}{hint}")
    return held, [str(exc) for _, exc in search.problems]


async def _remove_configurations(
    client: Client, found: Mapping[str, Found], *, is_dry: bool
) -> None:
    params, suffix = ({"dryRun": "All"}, " (dry run)") if is_dry else (None, "")
    for name, both in found.items():
        for kind in both:
            with contextlib.suppress(APINotFoundError):
                await client.request("DELETE", KINDS[kind].get_url(name=name), params=params)
                click.echo(f"{KINDS[kind].plural} {name}: removed{suffix}")


def find_kinds(kind: str, known: Collection[Resource]) -> Collection[Resource]:
    """Return the kinds of a cluster that a user means, who names them as for kubectl."""
    try:
        selector = parse_selector(kind)
    except TypeError as exc:
        raise click.UsageError(str(exc)) from exc
    if not (found := selector.find_candidates(known)):
        raise click.UsageError(f"The cluster has no kind {kind!r}.{selector.suggest(known)}")
    return found
