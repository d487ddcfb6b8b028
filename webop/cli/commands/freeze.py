"""``webop freeze`` and ``webop resume``: pause operators from the command line.

A freeze is a record with a high priority and a lifetime in the peering object of the operators
(chapter "Peering"); see :mod:`webop.coordination.peer_records`.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import click

from webop.cli.help_layout import SectionCommand, build_option
from webop.cli.options import (
    DEV_PRIORITY,
    choose_scope,
    logging_options,
    scope_options,
)
from webop.client.api import Client
from webop.client.discovery import discover
from webop.client.standalone import connect_command, fetch
from webop.coordination.peer_records import (
    GROUPS,
    Peer,
    build_creation_command,
    build_kinds,
    build_record,
    format_time,
    parse_peers,
)
from webop.errors import APIStatusError
from webop.identities import detect_own_identity
from webop.logs.sanitizing import escape
from webop.objects.namespace_patterns import is_exact, select_namespaces
from webop.objects.resources import NAMESPACES, Resource

_DEFAULT_PRIORITY = 100


class Request(NamedTuple):
    """The peering objects in which to write or remove a record, and the name of the record."""

    peering: str
    clusterwide: bool
    patterns: tuple[str, ...]
    identity: str


_scope, _record = map(build_option, ("Scope", "Record"))


# The options that both commands have.
_choose_namespaces = scope_options(
    _scope,
    "Use a ClusterKopfPeering: for operators of the whole cluster.",
    "Use the KopfPeerings of namespaces, by name or glob pattern; repeatable.",
    takes_patterns=True,
)
_choose_peering = _scope(
    "-P",
    "--peering",
    "peering_name",
    required=True,
    metavar="NAME",
    help="The name of the peering object of the operators.",
)
_choose_identity = _record(
    "-i",
    "--id",
    "identity",
    metavar="ID",
    help="The name of the record; by default USER@HOST.",
)


def _build_request(
    *, clusterwide: bool, namespaces: tuple[str, ...], peering_name: str, identity: str | None
) -> Request:
    scope = choose_scope(click.get_current_context(), clusterwide, namespaces)
    if not any(scope):
        raise click.UsageError(
            "Add -A/--all-namespaces or -n/--namespace, to choose the operators."
        )
    return Request(peering_name, *scope, identity or detect_own_identity())


@click.command(cls=SectionCommand)
@_choose_namespaces
@_choose_peering
@_choose_identity
@_record(
    "-t",
    "--lifetime",
    type=click.IntRange(min=1),
    required=True,
    metavar="SECONDS",
    help="The length of the pause; then the operators resume by themselves.",
)
@_record(
    "-p",
    "--priority",
    type=int,
    default=_DEFAULT_PRIORITY,
    show_default=True,
    metavar="NUMBER",
    help="Pause the operators with this priority or a lower one.",
)
@_record("--dev", is_flag=True, help=f"The same as --priority={DEV_PRIORITY}.")
@_record("-m", "--message", metavar="TEXT", default="", help="The reason, which operators log.")
@logging_options
def freeze(lifetime: int, priority: int, dev: bool, message: str, **options: Any) -> None:
    """Pause the operators of a peering without stopping their processes.

    \b
        webop freeze -A --peering default --lifetime 600 --message 'backup is running'
        webop freeze -n prod -n 'team-*' --peering my-operator --lifetime 60

    The operators finish the calls that run and stop their daemons and timers. They handle no
    objects until the lifetime is over or you run 'webop resume'. They still serve webhooks.

    The exit code is 1 if the command failed in at least one namespace.
    """  # noqa: D301  \b keeps click from wrapping the lines
    request, priority = _build_request(**options), DEV_PRIORITY if dev else priority
    now = time.time()
    record = build_record(priority, lifetime, now, message)

    async def write(client: Client, kind: Resource, namespace: str | None) -> bool:
        body = await _patch(client, kind, namespace, request, record)
        if body is None:
            return False
        peers = parse_peers(body.get("status"))[0].values()
        others = [p for p in peers if p.identity != request.identity and p.deadline > time.time()]
        paused = [peer for peer in others if peer.priority <= priority]
        running = [peer for peer in others if peer.priority > priority]
        click.echo(
            f"The peering {request.peering!r} is frozen {_where(namespace)} for priorities up "
            f"to {priority}, by {request.identity}. Paused operators: {_enumerate(paused)}."
        )
        if running:
            text = f"Not paused, because their priority is higher: {_enumerate(running)}."
            click.echo(text, err=True)
        return True

    asyncio.run(_do_everywhere(request, write))
    scope = ["-A"] if request.clusterwide else [f"--namespace={p}" for p in request.patterns]
    target = shlex.join([*scope, "--peering", request.peering, "--id", request.identity])
    click.echo(
        f"The pause ends at {format_time(now + lifetime)}. To end it sooner: webop resume {target}"
    )


@click.command(cls=SectionCommand)
@_choose_namespaces
@_choose_peering
@_choose_identity
@logging_options
def resume(**options: Any) -> None:
    """Resume the operators of a peering that 'webop freeze' has paused.

    \b
        webop resume -A --peering default
        webop resume -A --peering default --id alice@laptop

    The exit code is 1 if the command failed in at least one namespace.
    """  # noqa: D301  \b keeps click from wrapping the lines
    request = _build_request(**options)

    async def remove(client: Client, kind: Resource, namespace: str | None) -> bool:
        body = await fetch(client, kind.get_url(namespace=namespace, name=request.peering))
        if not body:
            return False
        where, status = _where(namespace), body.get("status")
        if isinstance(status, dict) and request.identity in status:
            await _patch(client, kind, namespace, request, None)
            click.echo(f"Removed the record of {request.identity} {where}.")
        else:
            # Operators remember a record if the object is deleted and created again. They forget it
            # when they see one that has expired, by all clocks, and remove that.
            await _patch(client, kind, namespace, request, build_record(0, 0, 0.0))
            click.echo(
                f"There is no record of {request.identity} {where}. Operators that remember one "
                "resume now. Other records:"
            )
            for peer in parse_peers(status)[0].values():
                click.echo(f"  {escape(str(peer))}")
        return True

    asyncio.run(_do_everywhere(request, remove))


async def _do_everywhere(
    request: Request, act: Callable[[Client, Resource, str | None], Awaitable[bool]]
) -> None:
    """Do something to each chosen peering object."""
    async with connect_command() as client:
        kind = await _find_kind(client, clusterwide=request.clusterwide)
        failures, done, absent = [], 0, f"There is no peering {request.peering!r}"
        for namespace, is_named in await _list_namespaces(client, request):
            try:
                is_there = await act(client, kind, namespace)
            except APIStatusError as exc:  # after others, all would fail in the same way
                failures.append(str(exc))
                continue
            done += is_there
            if not is_there and is_named:
                command = build_creation_command(kind, namespace, request.peering)
                failures.append(f"{absent} {_where(namespace)}. Create it: {command}")
    if failures or not done:
        raise click.ClickException("\n".join(failures) or f"{absent} in these namespaces.")


async def _find_kind(client: Client, *, clusterwide: bool) -> Resource:
    kinds = build_kinds(clusterwide=clusterwide)
    if found := [one for one in (await discover(client, GROUPS)).resources if one in kinds]:
        return min(found, key=kinds.index)
    raise click.ClickException(
        f"The cluster has no kind {kinds[0].kind}, so operators cannot see each other. Create it: "
        "kubectl apply -f manifests/peering.yaml, from webop's repository."
    )


async def _list_namespaces(client: Client, request: Request) -> list[tuple[str | None, bool]]:
    """Return the namespaces, None for the cluster, and whether they are named without a pattern."""
    if request.clusterwide:
        return [(None, True)]
    exact = [pattern for pattern in request.patterns if is_exact(pattern)]
    globs = [pattern for pattern in request.patterns if not is_exact(pattern)]
    names: list[str] = []
    if globs:
        async for page in client.list_pages(NAMESPACES):
            names += [item["metadata"]["name"] for item in page.items]
    matching = sorted(select_namespaces(names, globs) - set(exact))
    return [*((name, True) for name in exact), *((name, False) for name in matching)]


async def _patch(
    client: Client,
    kind: Resource,
    namespace: str | None,
    request: Request,
    record: dict[str, Any] | None,
) -> dict[str, Any] | None:
    patch = {"status": {request.identity: record}}
    subresource = "status" if "status" in kind.subresources else None
    return await client.patch(kind, namespace, request.peering, patch, subresource)


def _enumerate(peers: list[Peer]) -> str:
    return escape(", ".join(f"{peer.identity} ({peer.priority})" for peer in peers)) or "none now"


def _where(namespace: str | None) -> str:
    return f"in the namespace {namespace!r}" if namespace else "cluster-wide"
