"""``webop freeze`` and ``webop resume``: pausing operators from the command line.

A freeze is a record with a high priority in the peering object of the operators (chapter
"Peering"), which lives for as long as it is told to; see :mod:`webop.coordination.peers`.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from webop.cli.layout import SectionCommand, build_option
from webop.cli.options import DEV_PRIORITY, choose_scope, logging_options
from webop.errors import APIConnectionError, APIError, APINotFoundError
from webop.escaping import escape
from webop.identities import detect_own_identity

if TYPE_CHECKING:
    from webop.client.api import Client
    from webop.coordination.peers import Peer
    from webop.objects.resources import Resource

_DEFAULT_PRIORITY = 100

_EPILOG = """\b
Exit codes:
    0  it is done
    1  it is not, at least not everywhere; the message says why
    2  the command line is wrong
"""

_FREEZE_EPILOG = f"""\b
Examples:
    webop freeze -A --peering default --lifetime 600 --message 'backup is running'
    webop freeze -n prod -n 'team-*' --peering my-operator --lifetime 60

\b
Environment:
    WEBOP_FREEZE_<OPTION>     an option, as WEBOP_FREEZE_PEERING=name
    KUBECONFIG                the files with the credentials

{_EPILOG}"""

_RESUME_EPILOG = f"""\b
Examples:
    webop resume -A --peering default
    webop resume -A --peering default --id alice@laptop

\b
Environment:
    WEBOP_RESUME_<OPTION>     an option, as WEBOP_RESUME_PEERING=name
    KUBECONFIG                the files with the credentials

{_EPILOG}"""


class Request(NamedTuple):
    """Where a record is to be written or removed, and whose it is."""

    peering: str
    clusterwide: bool
    patterns: tuple[str, ...]
    identity: str


_scope, _record = map(build_option, ("Scope", "Record"))


def _target_options(command: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options that both commands have, and gather them in a request."""
    prefix = f"WEBOP_{command}"

    def decorate(fn: Callable[..., None]) -> Callable[..., None]:
        @_scope(
            "-A",
            "--all-namespaces",
            "clusterwide",
            is_flag=True,
            envvar=f"{prefix}_ALL_NAMESPACES",
            help="The operators of the whole cluster: a ClusterKopfPeering.",
        )
        @_scope(
            "-n",
            "--namespace",
            "namespaces",
            multiple=True,
            metavar="PATTERN",
            envvar=[f"{prefix}_NAMESPACES", f"{prefix}_NAMESPACE"],
            help="The operators of namespaces, by name or glob pattern: KopfPeerings; repeatable.",
        )
        @_scope(
            "-P",
            "--peering",
            "peering_name",
            required=True,
            metavar="NAME",
            envvar=f"{prefix}_PEERING",
            help="The name of their peering object.",
        )
        @_record(
            "-i",
            "--id",
            "identity",
            metavar="ID",
            envvar=f"{prefix}_ID",
            help="The name of the record; by default USER@HOST, or POD_ID from the environment.",
        )
        @functools.wraps(fn)
        def wrapper(
            *args: Any,
            clusterwide: bool,
            namespaces: tuple[str, ...],
            peering_name: str,
            identity: str | None,
            **kwargs: Any,
        ) -> None:
            ctx = click.get_current_context()
            clusterwide, namespaces = choose_scope(ctx, clusterwide, namespaces)
            if not clusterwide and not namespaces:
                raise click.UsageError(
                    "Say whose operators: those of -A/--all-namespaces, or of some -n/--namespace."
                )
            identity = identity or detect_own_identity()
            request = Request(peering_name, clusterwide, namespaces, identity)
            fn(*args, request=request, **kwargs)

        return wrapper

    return decorate


@click.command(cls=SectionCommand, short_help="Pause operators.", epilog=_FREEZE_EPILOG)
@_target_options("FREEZE")
@_record(
    "-t",
    "--lifetime",
    type=click.IntRange(min=1),
    required=True,
    metavar="SECONDS",
    help="For how long; then they go on by themselves.",
)
@_record(
    "-p",
    "--priority",
    type=int,
    default=_DEFAULT_PRIORITY,
    show_default=True,
    metavar="NUMBER",
    help="Operators of this priority and below are paused.",
)
@_record("--dev", is_flag=True, help=f"The same as --priority={DEV_PRIORITY}.")
@_record("-m", "--message", metavar="TEXT", default="", help="Why; operators put it in their logs.")
@logging_options
def freeze(request: Request, lifetime: int, priority: int, dev: bool, message: str) -> None:
    """Pause the operators of a peering, without stopping them.

    They finish what they are doing, stop their daemons and timers, and handle nothing until the
    time is over or 'webop resume' ends it. Admission is served meanwhile.
    """
    from webop.coordination.peers import build_record, format_time  # noqa: PLC0415  --help is quick

    priority = DEV_PRIORITY if dev else priority
    now = time.time()
    record = build_record(priority, lifetime, now, message)

    async def write(client: Client, kind: Resource, namespace: str | None) -> bool:
        body = await _patch(client, kind, namespace, request, record)
        if body is not None:
            _tell_whom(request, _where(namespace), priority, body)
        return body is not None

    asyncio.run(_do_everywhere(request, write))
    scope = "-A" if request.clusterwide else " ".join(f"-n '{p}'" for p in request.patterns)
    click.echo(
        f"It holds until {format_time(now + lifetime)}. To end it sooner: webop resume {scope} "
        f"--peering {request.peering} --id {request.identity}"
    )


@click.command(cls=SectionCommand, short_help="End a pause.", epilog=_RESUME_EPILOG)
@_target_options("RESUME")
@logging_options
def resume(request: Request) -> None:
    """Let the operators of a peering go on, which were paused by 'webop freeze'."""
    from webop.coordination.peers import parse_peers  # noqa: PLC0415  keeps --help quick

    async def remove(client: Client, kind: Resource, namespace: str | None) -> bool:
        try:
            body = await client.get(kind, namespace, request.peering)
        except APINotFoundError:
            return False
        where, status = _where(namespace), body.get("status")
        if isinstance(status, dict) and request.identity in status:
            await _patch(client, kind, namespace, request, None)
            click.echo(f"The record of {request.identity} is removed {where}.")
        else:
            click.echo(f"There is no record of {request.identity} {where}. Of others:")
            for peer in parse_peers(status)[0].values():
                click.echo(f"  {escape(str(peer))}")
        return True

    asyncio.run(_do_everywhere(request, remove))


async def _do_everywhere(
    request: Request, act: Callable[[Client, Resource, str | None], Awaitable[bool]]
) -> None:
    """Do something to each peering object that is meant, and say where that has failed."""
    from webop.client.connecting import connect_command  # noqa: PLC0415  keeps --help quick
    from webop.coordination.peers import build_creation_command  # noqa: PLC0415

    async with connect_command() as client:
        kind = await _find_kind(client, clusterwide=request.clusterwide)
        failures = []
        missing = []
        done = 0
        for namespace, is_named in await _list_namespaces(client, request):
            try:
                is_there = await act(client, kind, namespace)
            except APIConnectionError:
                raise  # it would be the same everywhere
            except APIError as exc:
                failures.append(str(exc))
                continue
            done += is_there
            if not is_there and is_named:
                missing.append(namespace)
    absent = f"There is no peering {request.peering!r}"
    for namespace in missing:
        command = build_creation_command(kind, namespace, request.peering)
        failures.append(f"{absent} {_where(namespace)}. To create it: {command}")
    if failures or not done:
        raise click.ClickException("\n".join(failures) or f"{absent} in these namespaces.")


async def _find_kind(client: Client, *, clusterwide: bool) -> Resource:
    from webop.client.discovery import discover  # noqa: PLC0415
    from webop.coordination.peers import GROUPS, build_kinds  # noqa: PLC0415

    found = {resource: resource for resource in (await discover(client, GROUPS)).resources}
    kinds = build_kinds(clusterwide=clusterwide)
    for kind in kinds:
        if kind in found:
            return found[kind]
    raise click.ClickException(
        f"There is no kind {kinds[0].kind} in the cluster, so that operators do not see each "
        "other: kubectl apply -f manifests/peering.yaml, from webop's repository."
    )


async def _list_namespaces(client: Client, request: Request) -> list[tuple[str | None, bool]]:
    """Return where to do it, and whether it is named explicitly there."""
    from webop.objects.resources import Resource  # noqa: PLC0415
    from webop.reactor.scopes import is_exact, select_namespaces  # noqa: PLC0415

    if request.clusterwide:
        return [(None, True)]
    exact = [pattern for pattern in request.patterns if is_exact(pattern)]
    globs = [pattern for pattern in request.patterns if not is_exact(pattern)]
    names: list[str] = []
    if globs:
        async for page in client.list_pages(Resource("", "v1", "namespaces", namespaced=False)):
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


def _tell_whom(request: Request, where: str, priority: int, body: dict[str, Any]) -> None:
    """Say who is paused by a record, and who is not."""
    from webop.coordination.peers import parse_peers  # noqa: PLC0415  keeps --help quick

    peers = parse_peers(body.get("status"))[0].values()
    others = [p for p in peers if p.identity != request.identity and p.deadline > time.time()]
    paused = [peer for peer in others if peer.priority <= priority]
    running = [peer for peer in others if peer.priority > priority]
    click.echo(
        f"The peering {request.peering!r} is frozen {where} for priorities up to {priority}, by "
        f"{request.identity}. There are: {_enumerate(paused)}."
    )
    if running:
        click.echo(f"Of a higher priority, and not frozen: {_enumerate(running)}.", err=True)


def _enumerate(peers: list[Peer]) -> str:
    return escape(", ".join(f"{peer.identity} ({peer.priority})" for peer in peers)) or "none now"


def _where(namespace: str | None) -> str:
    return f"in the namespace {namespace!r}" if namespace else "cluster-wide"
