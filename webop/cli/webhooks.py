"""``webop webhooks``: list the webhook configurations that operators keep, and remove them."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

import click

from webop.cli.tables import build_table

if TYPE_CHECKING:
    from webop.admission.managed.records import ReplicaRecord
    from webop.client.api import Client
    from webop.handling.handlers import WebhookType

    Found = dict[WebhookType, dict[str, Any]]
    """The configurations of one name."""


@click.group(short_help="List and remove the webhook configurations of operators.")
def webhooks() -> None:
    """List the webhook configurations that operators keep, and remove them.

    In a pod, webhooks stay when the operator stops: until it runs again, the API server refuses the
    requests that they are for. So remove them when you uninstall an operator for good.

    \b
        webop webhooks list
        webop webhooks remove operator.default.svc
    """  # noqa: D301  \b keeps click from wrapping the lines


@webhooks.command(name="list", short_help="List the webhook configurations of operators.")
def list_() -> None:
    """List the webhook configurations that operators keep or have left, with live replicas."""
    asyncio.run(_list())


@webhooks.command(short_help="Remove the webhook configurations of an operator.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask for confirmation.")
def remove(names: tuple[str, ...], is_sure: bool) -> None:
    """Remove the validating and mutating webhook configurations NAME of an operator.

    Stop the operator first: a running one restores them within a minute. From then on, objects are
    no longer checked. The command asks before it changes anything.
    """
    asyncio.run(_remove(names, is_sure=is_sure))


async def _list() -> None:
    from webop.client.connecting import connect_command  # noqa: PLC0415 - keeps --help fast

    async with connect_command() as client:
        found = await _find(client)
        if not found:
            click.echo("There are no webhook configurations of webop.")
            return
        rows = [("NAME", "WEBHOOKS", "REPLICAS")]
        for name, both in sorted(found.items()):
            alive = await _list_alive(client, both)
            rows.append((name, ", ".join(_list_webhooks(name, both)) or "none", _describe(alive)))
        click.echo(build_table(rows, shutil.get_terminal_size().columns))


async def _remove(names: tuple[str, ...], *, is_sure: bool) -> None:
    from webop.admission.managed.configurations import KINDS  # noqa: PLC0415 - keeps --help fast
    from webop.client.connecting import connect_command  # noqa: PLC0415
    from webop.errors import APINotFoundError  # noqa: PLC0415

    async with connect_command() as client:
        found = await _find(client)
        if unknown := sorted(set(names) - set(found)):
            known = ", ".join(sorted(found)) or "none"
            raise click.UsageError(
                f"No operator keeps webhook configurations {', '.join(unknown)}; known: {known}."
            )
        for name in names:
            click.echo(f"{name}: {', '.join(_list_webhooks(name, found[name])) or 'no webhooks'}")
            if alive := await _list_alive(client, found[name]):
                click.echo(f"It is running, and will restore them: {_describe(alive)}", err=True)
        if not is_sure:
            click.confirm("Remove them? Objects are then no longer checked.", abort=True)
        for name in names:
            for kind in found[name]:
                try:
                    await client.delete(KINDS[kind], None, name)
                except APINotFoundError:
                    continue
                click.echo(f"Removed {KINDS[kind].plural}/{name}.")


async def _find(client: Client) -> dict[str, Found]:
    """Return the configurations of operators, by their names."""
    from webop.admission.managed.configurations import KINDS  # noqa: PLC0415 - keeps --help fast
    from webop.admission.managed.shared_configurations import is_managed  # noqa: PLC0415

    found: dict[str, Found] = {}
    for kind, resource in KINDS.items():
        listed = await client.request("GET", resource.get_url())
        for body in listed.get("items") or ():
            if is_managed(body["metadata"]):
                found.setdefault(body["metadata"]["name"], {})[kind] = body
    return found


def _list_webhooks(name: str, both: Found) -> list[str]:
    names = [one["name"] for body in both.values() for one in body.get("webhooks") or ()]
    return [one.removesuffix(f".{name}") for one in names]


async def _list_alive(client: Client, both: Found) -> list[ReplicaRecord]:
    """Return the records of live replicas."""
    from webop.admission.managed.records import decode_record  # noqa: PLC0415 - keeps --help fast
    from webop.admission.managed.shared_configurations import parse_configuration  # noqa: PLC0415
    from webop.client.self_review import review_self  # noqa: PLC0415

    now = (await review_self(client)).now
    texts = [text for body in both.values() for text in parse_configuration(body).records.values()]
    return [record for record in map(decode_record, texts) if record.is_fresh(now)]


def _describe(alive: list[ReplicaRecord]) -> str:
    names = sorted({record.identity for record in alive})
    return f"{len(names)} alive ({', '.join(names)})" if names else "none"
