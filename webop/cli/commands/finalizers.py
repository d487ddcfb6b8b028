"""``webop finalizers``: list objects that have an operator's finalizer, and remove it."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import shlex
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import click

from webop.cli.doctor.finalizer_removal import HeldObject, Search, find_held, remove_finalizer
from webop.cli.doctor.findings import describe_seconds
from webop.cli.options import choose_scope, confirm, scope_options
from webop.cli.tables import build_table
from webop.client.api import Client
from webop.client.discovery import discover
from webop.client.standalone import connect_command
from webop.errors import APIStatusError
from webop.objects.resources import Resource, parse_selector
from webop.settings.groups import OperatorSettings

_OTHERS = "To search for another finalizer, use --finalizer NAME."


@click.group()
def finalizers() -> None:
    """Find objects that have an operator's finalizer, and remove it.

    An operator with deletion handlers, daemons or timers adds its finalizer to the objects. It
    removes the finalizer when these handlers have finished with a deleted object. If the operator
    no longer exists, the deletion never ends. If it had settings.persistence.prefix, name its
    finalizer: --finalizer PREFIX/finalizer.

    \b
        webop finalizers list
        webop finalizers list databases.example.com -n team-a
        webop finalizers release databases.example.com -n team-a --dry-run
        webop finalizers release -A --yes
    """  # noqa: D301  \b keeps click from wrapping the lines


def _searching(*, needs_scope: bool) -> Callable[[Callable[..., Awaitable[None]]], Any]:
    """Add the options and the argument that select objects, and pass what was found.

    Fail in the end if some kinds could not be searched.
    """

    def decorate(fn: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @click.argument("kinds", nargs=-1)
        @scope_options(click.option, "Search the whole cluster.", "Search a namespace; repeatable.")
        @click.option(
            "--finalizer",
            metavar="NAME",
            help="The finalizer; by default settings.persistence.finalizer, which is Kopf's.",
        )
        @functools.wraps(fn)
        def wrapper(
            kinds: tuple[str, ...],
            clusterwide: bool,
            namespaces: tuple[str, ...],
            finalizer: str | None,
            **options: Any,
        ) -> None:
            scope = choose_scope(click.get_current_context(), clusterwide, namespaces)
            if needs_scope and not any(scope):
                raise click.UsageError("Add -A/--all-namespaces or -n/--namespace.")
            name = finalizer or OperatorSettings.from_environment().persistence.finalizer

            async def run() -> None:
                async with connect_command() as client:
                    found = await _search(client, kinds, scope[1], name)
                    await fn(client, found, name, **options)
                    if found.problems:
                        raise click.ClickException("\n".join(str(exc) for _, exc in found.problems))

            asyncio.run(run())

        return wrapper

    return decorate


@finalizers.command(name="list", short_help="List the objects that have the finalizer.")
@_searching(needs_scope=False)
async def list_(_: Client, found: Search, finalizer: str) -> None:
    """List the objects that have the finalizer; those being deleted come first.

    KINDS are as for kubectl: pods, Pod, databases.example.com, databases.v1.example.com. The
    default is all kinds in all namespaces.
    """
    if found.held:
        _print_table(found.held)
    else:
        click.echo(f"No object has the finalizer {finalizer}. {_OTHERS}")


@finalizers.command(short_help="Remove the finalizer, so that deletions complete.")
@_searching(needs_scope=True)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only objects with this name; repeatable.",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also release objects that are not being deleted. A running operator adds it again.",
)
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--dry-run",
    "dry",
    is_flag=True,
    help="Let the API server check the changes without storing them.",
)
async def release(
    client: Client,
    found: Search,
    finalizer: str,
    *,
    names: tuple[str, ...],
    everything: bool,
    is_sure: bool,
    dry: bool,
) -> None:
    """Remove the finalizer from objects that are being deleted, so that Kubernetes deletes them.

    Use it only if the operator will not run again: its deletion handlers are not called, so
    external resources of the objects can remain. KINDS are as for 'webop finalizers list'; the
    default is all kinds. Other finalizers stay. The command asks before it changes anything.
    """
    chosen = [
        one
        for one in found.held
        if (everything or one.deleted_at) and (not names or one.name in names)
    ]
    if not chosen:
        hint = f"Other objects have it: webop finalizers list --finalizer {shlex.quote(finalizer)}"
        hint = hint if found.held else _OTHERS
        click.echo(f"Found no objects to release from {finalizer}. {hint}")
        return
    _print_table(chosen)
    if not (is_sure or dry):
        objects = "this object" if len(chosen) == 1 else f"these {len(chosen)} objects"
        confirm(f"Remove the finalizer from {objects}?")
    failures = []
    for one in chosen:
        what = f"{one.resource.plural_name} {one.path}"
        try:
            outcome = await remove_finalizer(client, one, finalizer, everything=everything, dry=dry)
        except APIStatusError as exc:  # after others, all objects would fail in the same way
            failures.append(f"{what}: {exc}")
        else:
            click.echo(f"{what}: {outcome}{' (dry run)' if dry else ''}")
    if failures:
        raise click.ClickException("\n".join(failures))


def find_kinds(kind: str, known: Collection[Resource]) -> Collection[Resource]:
    """Return the kinds of a cluster that a user means, who names them as for kubectl."""
    try:
        selector = parse_selector(kind)
    except TypeError as exc:
        raise click.UsageError(str(exc)) from exc
    if not (found := selector.find_candidates(known)):
        raise click.UsageError(f"The cluster has no kind {kind!r}.{selector.suggest(known)}")
    return found


async def _search(
    client: Client, kinds: tuple[str, ...], namespaces: tuple[str, ...], finalizer: str
) -> Search:
    known = (await discover(client)).resources
    chosen: set[Resource] = set()
    for kind in kinds:
        chosen.update(find_kinds(kind, known))
    if not kinds:
        chosen = {one for one in known if one.preferred and {"list", "patch"} <= one.verbs}
    return await find_held(client, chosen, namespaces, finalizer)


def _print_table(held: list[HeldObject]) -> None:
    now = dt.datetime.now(dt.UTC)
    rows = [("KIND", "OBJECT", "STATE", "OTHER FINALIZERS")]
    for one in held:
        age = describe_seconds((now - (one.deleted_at or one.created_at)).total_seconds())
        state = f"being deleted for {age}" if one.deleted_at else f"created {age} ago"
        rows.append((one.resource.plural_name, one.path, state, ", ".join(one.others) or "none"))
    click.echo(build_table(rows))
