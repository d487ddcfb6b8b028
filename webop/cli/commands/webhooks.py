"""``webop webhooks``: list the webhook configurations that operators keep, and remove them."""

from __future__ import annotations

import asyncio
import datetime as dt
import shutil
from typing import Any

import click

from webop.admission.configurations.building import KINDS
from webop.admission.configurations.stored_configurations import find_managed, parse_configuration
from webop.cli.doctor.records import describe_replicas
from webop.cli.options import confirm
from webop.cli.tables import build_table
from webop.client.self_review import review_self
from webop.client.standalone import connect_command
from webop.errors import APINotFoundError
from webop.handlers.model import WebhookType

Found = dict[WebhookType, dict[str, Any]]
"""The configurations of one name."""


@click.group()
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
    async with connect_command() as client:
        found, now = await find_managed(client), (await review_self(client)).now
        if not found:
            click.echo("There are no webhook configurations of webop.")
            return
        rows = [("NAME", "WEBHOOKS", "REPLICAS")]
        for name, both in sorted(found.items()):
            names = ", ".join(_list_webhooks(name, both)) or "none"
            rows.append((name, names, _describe_live(both, now) or "none"))
        click.echo(build_table(rows, shutil.get_terminal_size().columns))


async def _remove(names: tuple[str, ...], *, is_sure: bool) -> None:
    async with connect_command() as client:
        found, now = await find_managed(client), (await review_self(client)).now
        if unknown := sorted(set(names) - set(found)):
            known = ", ".join(sorted(found)) or "none"
            raise click.UsageError(
                f"No operator keeps webhook configurations {', '.join(unknown)}; known: {known}."
            )
        for name in names:
            click.echo(f"{name}: {', '.join(_list_webhooks(name, found[name])) or 'no webhooks'}")
            if live := _describe_live(found[name], now):
                click.echo(f"These replicas restore them, if they still run: {live}", err=True)
        if not is_sure:
            confirm("Remove them? Objects are then no longer checked.")
        for name in names:
            for kind in found[name]:
                try:
                    await client.delete(KINDS[kind], None, name)
                except APINotFoundError:
                    continue
                click.echo(f"Removed {KINDS[kind].plural}/{name}.")


def _list_webhooks(name: str, both: Found) -> list[str]:
    names = [one["name"] for body in both.values() for one in body.get("webhooks") or ()]
    return [one.removesuffix(f".{name}") for one in names]


def _describe_live(both: Found, now: dt.datetime) -> str:
    live = [one for body in both.values() for one in parse_configuration(body).list_live(now)]
    return describe_replicas(live, now)
