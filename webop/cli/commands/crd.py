"""``webop crd``: CustomResourceDefinitions of models: print, compare, apply.

Stored objects are rewritten by :mod:`webop.cli.commands.crd_migration`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import click

from webop.admission.configurations.crd_conversions import build_conversion
from webop.cli.commands.crd_migration import migrate
from webop.cli.options import load_quietly, source_options
from webop.cli.required_rights import find_models
from webop.cli.yaml_text import dump
from webop.client.api import Client
from webop.client.http.requests import APPLY_PATCH, Call, encode_yaml
from webop.client.standalone import connect_command, fetch
from webop.client.waiting import wait_served
from webop.errors import APIStatusError
from webop.models.crd_comparison import compare, compare_versions
from webop.models.crds import build_crds, is_converted
from webop.models.versions import collect_versions
from webop.objects.fields import Json
from webop.objects.resources import CRDS

_MANAGER = "webop-crd"
_CONVERSION_MANAGER = "webop-crd-conversion"
_NOWHERE = "https://no-operator-yet.invalid/convert"
_PATIENCE = 30.0  # seconds until a new kind is served


@click.group()
def crd() -> None:
    """Print, compare and apply the CustomResourceDefinitions of models.

    The models are the classes with @webop.models.resource() in the files, and those that handlers
    name.

    \b
        webop crd print models.py > crds.yaml
        webop crd check models.py              compare them with the cluster
        webop crd apply models.py              apply them to the cluster
        webop crd migrate models.py            rewrite stored objects in the stored version
    """  # noqa: D301  \b keeps click from wrapping the lines


crd.add_command(migrate)


@crd.command(name="print", short_help="Print the definitions.")
@source_options()
def print_(paths: tuple[str, ...], modules: tuple[str, ...]) -> None:
    """Print the CustomResourceDefinitions of the models in PATHS as YAML.

    The command imports the files, but calls no handlers, and needs no cluster.
    """
    definitions, _ = _load(paths, modules)
    click.echo("\n---\n".join(map(dump, definitions)))


@crd.command(short_help="Compare the definitions with the cluster.")
@source_options()
def check(paths: tuple[str, ...], modules: tuple[str, ...]) -> None:
    """Compare the CustomResourceDefinitions of the models in PATHS with the cluster.

    It names what would break stored objects. The exit code is 1 if anything does, or if a
    definition differs or is missing.
    """
    if not asyncio.run(_check(*_load(paths, modules))):
        click.get_current_context().exit(1)


@crd.command(name="apply", short_help="Apply the definitions to the cluster.")
@source_options()
@click.option(
    "--force", is_flag=True, help="Apply them even if that breaks stored objects or clients."
)
@click.option(
    "--force-conflicts",
    is_flag=True,
    help="Take over fields that others have applied, such as 'kubectl apply --server-side'.",
)
def apply(
    paths: tuple[str, ...], modules: tuple[str, ...], *, force: bool, force_conflicts: bool
) -> None:
    """Apply the CustomResourceDefinitions of the models in PATHS, and wait until they are served.

    The command first names what would break stored objects or clients. If there is anything, or if
    the API server refuses a definition, none is applied.
    """
    definitions, converted = _load(paths, modules)
    asyncio.run(_apply(definitions, converted, is_breaking=force, is_taking_over=force_conflicts))


def _load(paths: tuple[str, ...], modules: tuple[str, ...]) -> tuple[list[Json], set[str]]:
    """Return the definitions, and the names of those that have converters."""
    if not paths and not modules:
        command = click.get_current_context().command_path
        raise click.UsageError(f"Name the files or modules with the models: {command} models.py")
    registry, _ = load_quietly(paths, modules)
    models = find_models(registry)
    if not models:
        raise click.ClickException(
            f"There are no models in {', '.join((*paths, *modules))}: decorate their classes with "
            "@webop.models.resource(GROUP, VERSION)."
        )
    converted = {*collect_versions(registry.select_converters())}
    return build_crds(models), converted


async def _check(definitions: Sequence[Json], converted: set[str]) -> bool:
    """Print how definitions differ from the cluster; return whether they are the same."""
    is_same = True
    async with connect_command() as client:
        for wanted in definitions:
            name = wanted["metadata"]["name"]
            present = await fetch(client, CRDS.get_url(name=name))
            problems = _find_problems(present, wanted, converted)
            for problem in problems:
                click.echo(problem)
            planned = await _send(client, wanted, is_dry=True, is_forced=True)
            if not present:
                click.echo(f"{name}: is not in the cluster")
                is_same = False
                continue
            is_changed = planned["spec"] != present["spec"]
            if not problems:
                click.echo(f"{name}: {'differs, compatibly' if is_changed else 'is the same'}")
            is_same = is_same and not problems and not is_changed
    return is_same


async def _apply(
    definitions: Sequence[Json], converted: set[str], *, is_breaking: bool, is_taking_over: bool
) -> None:
    async with connect_command() as client:
        problems, found = [], dict[str, Json]()
        for wanted in definitions:
            name = wanted["metadata"]["name"]
            present = found[name] = await fetch(client, CRDS.get_url(name=name))
            problems += _find_problems(present, wanted, converted)
        if problems:
            title = "These changes break stored objects or clients:"
            if not any(found.values()):  # so nothing is stored yet
                title = "These versions lose fields of each other:"
            click.echo("\n".join((title, *problems)), err=True)
        for wanted in definitions:  # the API server must accept all of them first
            await _send(client, wanted, is_dry=True, is_forced=is_taking_over)
        if problems and not is_breaking:
            raise click.ClickException(
                "Nothing was applied. If these changes are all right, repeat the command with "
                "--force."
            )
        for wanted in definitions:
            name = wanted["metadata"]["name"]
            if name in converted:
                await _prepare_conversion(client, wanted, found[name])
            await _send(client, wanted, is_dry=False, is_forced=is_taking_over)
            click.echo(f"{name}: applied")
        for wanted in definitions:
            await _wait_served(client, wanted)


def _find_problems(present: Json, wanted: Json, converted: set[str]) -> list[str]:
    """Return what breaks stored objects or clients if a definition is applied."""
    name, problems = wanted["metadata"]["name"], compare(present, wanted) if present else []
    if name not in converted and not is_converted(present or wanted):
        stored = present.get("status", {}).get("storedVersions", ())
        problems += compare_versions(wanted, stored)
    return [f"{name}: {problem}" for problem in problems]


async def _prepare_conversion(client: Client, wanted: Json, present: Json) -> None:
    """Let requests in other versions fail until the operator runs and writes its address.

    Otherwise, the API server would only change ``apiVersion``, and drop the fields that the other
    version does not have.

    Two managers apply the conversion, so that it stays when the definition is applied without it.
    None of them must be an updater: it would own all fields, and each later change be a conflict.
    """
    if is_converted(present or wanted):
        return
    spec = {"conversion": build_conversion({"url": _NOWHERE})}
    if not present:
        whole = {**wanted, "spec": {**wanted["spec"], **spec}}
        await _send(client, whole, is_dry=False, is_forced=False)
    part = {**wanted, "metadata": {"name": wanted["metadata"]["name"]}, "spec": spec}
    await _send(client, part, is_dry=False, is_forced=True, manager=_CONVERSION_MANAGER)


async def _send(
    client: Client, wanted: Json, *, is_dry: bool, is_forced: bool, manager: str = _MANAGER
) -> Json:
    """Apply a definition on the server."""
    params = {"fieldManager": manager, "force": "true" if is_forced else "false"}
    params |= {"dryRun": "All"} if is_dry else {}
    path = CRDS.get_url(name=wanted["metadata"]["name"])
    call = Call("PATCH", path, params, encode_yaml(wanted), APPLY_PATCH)
    try:
        found: Json = await client.perform(call)
    except APIStatusError as exc:
        causes = cast("Sequence[dict[str, str]]", exc.details.get("causes") or ())
        conflicts = [one for one in causes if one.get("reason") == "FieldManagerConflict"]
        if conflicts:
            fields = "; ".join(f"{one['message']}: {one['field']}" for one in conflicts)
            raise click.ClickException(
                f"The API server refuses {wanted['metadata']['name']}: {fields}. To take over "
                "these fields, repeat the command with --force-conflicts."
            ) from exc
        if exc.status != 422:
            raise
        raise click.ClickException(f"The API server refuses the definition: {exc}") from exc
    return found


async def _wait_served(client: Client, wanted: Json) -> None:
    """Wait until all versions of a kind are served."""
    name = wanted["metadata"]["name"]
    if await wait_served(client, wanted, _PATIENCE):
        present = await client.get(CRDS, None, name)
        conditions = {each["type"]: each for each in present["status"].get("conditions") or ()}
        why = conditions.get("NamesAccepted", {}).get("message") or "no reason is known"
        raise click.ClickException(f"{name} was applied, but is not served: {why}")
