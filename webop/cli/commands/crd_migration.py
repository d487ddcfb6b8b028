"""``webop crd migrate``: rewrite the stored objects of kinds with several versions.

An API server stores an object in the storage version of that moment, and leaves it so until the
next write. Only when all objects were written again, an old version can be removed from the
CustomResourceDefinition (Kubernetes: "Upgrade existing objects to a new stored version").

An empty merge patch makes the API server store the object in the present storage version; if it is
stored so already, nothing is written. So the command can be interrupted and repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import click

from webop.aio.concurrency import run_concurrently
from webop.cli.options import load_quietly, source_options
from webop.cli.required_rights import find_models
from webop.client.api import Client
from webop.client.http.requests import MERGE_PATCH, Selection
from webop.client.standalone import connect_command
from webop.controlplane.progress_bar import Progress
from webop.errors import APIConflictError, APINotFoundError, APIStatusError
from webop.models.crd_comparison import list_drops
from webop.models.crds import build_crds, get_storage_version, is_converted
from webop.objects.fields import Json
from webop.objects.kept_annotations import find_records, has_lost, name_removal
from webop.objects.names import join_names
from webop.objects.resources import CRDS, Resource

_AT_ONCE = 16  # requests
_MAX_FAILURES = 100  # of single objects; then the rest would not do better
# Objects; a list has a minute, in which each of them may have to be converted, one after another.
_PAGE = "20"
_PASSES = 5
_TOO_LARGE = (
    "it cannot be converted, and its content is too large for an annotation. It was not rewritten, "
    "as that would lose the content. Correct the function, or the object in its old version"
)
_PAUSES = (0.5, 1.0, 2.0, 4.0)  # seconds; between the attempts of a request


@click.command(short_help="Rewrite stored objects in the storage version of their kinds.")
@source_options()
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="The name of a CustomResourceDefinition in the cluster, such as widgets.example.com, in "
    "place of files; repeatable.",
)
@click.option(
    "--dry-run",
    "is_dry",
    is_flag=True,
    help="Ask the API server to check all of it, and to store nothing.",
)
@click.option(
    "--force", is_flag=True, help="Rewrite them even if that drops fields of stored objects."
)
def migrate(
    paths: tuple[str, ...],
    modules: tuple[str, ...],
    names: tuple[str, ...],
    *,
    is_dry: bool,
    force: bool,
) -> None:
    """Rewrite the stored objects of the kinds of the models in PATHS that have several versions.

    Do so after a change of the stored version, and before the removal of an old one. The API server
    converts each object and stores it in the present storage version. At the end, the list of
    versions in the CustomResourceDefinition (status.storedVersions) is reduced to this one.

    The command can be interrupted and repeated. If an object cannot be rewritten, it is named, the
    others are rewritten, the list stays, and the exit code is 1.

    \b
        webop crd migrate models.py
        webop crd migrate --name widgets.example.com --dry-run
    """  # noqa: D301  \b keeps click from wrapping the lines
    wanted: dict[str, str | None] = dict.fromkeys(names)
    if paths or modules:
        wanted |= _find_kinds(paths, modules)
    elif not names:
        raise click.UsageError("Name files with models, or a definition with --name.")
    progress = Progress(sys.stderr)
    try:
        is_done = asyncio.run(_migrate(wanted, progress, is_dry=is_dry, is_forced=force))
    except KeyboardInterrupt:
        progress.note("Interrupted. Nothing needs to be undone: run the command again.")
        click.get_current_context().exit(130)
    if not is_done:
        click.get_current_context().exit(1)


def _find_kinds(paths: tuple[str, ...], modules: tuple[str, ...]) -> dict[str, str | None]:
    """Return the definitions of models with several versions, with the versions to store."""
    registry, _ = load_quietly(paths, modules)
    found: dict[str, str | None] = {}
    for definition in build_crds(find_models(registry)):
        if len(definition["spec"]["versions"]) > 1:
            found[definition["metadata"]["name"]] = get_storage_version(definition)
    if not found:
        raise click.ClickException(
            f"No kind in {', '.join((*paths, *modules))} has several versions. If an old one was "
            "removed from the files, name its definition with --name."
        )
    return found


async def _migrate(
    wanted: Mapping[str, str | None], progress: Progress, *, is_dry: bool, is_forced: bool
) -> bool:
    """Migrate some kinds; return whether all their objects are stored in the storage versions."""
    is_done = True
    async with connect_command(_PAUSES) as client:
        for name, version in wanted.items():
            migration = _Migration(client, name, version, progress, is_dry, is_forced)
            is_done = await migration.run() and is_done
    return is_done


@dataclass
class _Migration:
    """The migration of one kind."""

    client: Client
    name: str  # of the CustomResourceDefinition
    wanted: str | None  # the version that must be the storage version; None for any
    progress: Progress
    is_dry: bool
    is_forced: bool
    failures: list[str] = field(default_factory=list)
    count: int = 0

    async def run(self) -> bool:
        """Rewrite the objects, then the list of versions; return whether all of it succeeded.

        Raises:
            click.ClickException: the definition is not as it must be, or keeps changing.
        """
        for _ in range(_PASSES):
            definition = await self._read()
            storage = get_storage_version(definition)
            stored = definition["status"]["storedVersions"]
            if stored == [storage]:
                click.echo(f"{self.name}: all objects are stored as {storage}")
                return True
            self._check_drops(definition, storage)
            try:
                await self._rewrite_all(_build_resource(definition, storage))
            except APIStatusError as exc:  # such as a list with an object that cannot be converted
                self.failures.append(f"{self.name}: {exc}")
            if self.failures:
                click.echo("\n".join(self.failures), err=True)
                click.echo(
                    f"{self.name}: objects cannot be rewritten. storedVersions stays as it is. "
                    "Correct them, and run the command again.",
                    err=True,
                )
                return False
            if self.is_dry:
                click.echo(
                    f"{self.name}: {self.count} objects can be stored as {storage}; "
                    "nothing was changed (--dry-run)"
                )
                return True
            version = {"resourceVersion": definition["metadata"]["resourceVersion"]}
            patch = {"metadata": version, "status": {"storedVersions": [storage]}}
            try:
                await self.client.patch(CRDS, None, self.name, patch, "status")
            except APIConflictError:
                click.echo(f"{self.name}: the definition has changed; beginning again", err=True)
                continue
            gone = ", ".join(each for each in stored if each != storage)
            click.echo(
                f"{self.name}: {self.count} objects are stored as {storage}; {gone} can "
                "be removed from the definition"
            )
            return True
        raise click.ClickException(
            f"{self.name} keeps changing: storedVersions stays as it is. Run the command again."
        )

    def _check_drops(self, definition: Json, storage: str) -> None:
        """Check that the objects lose no fields."""
        if self.is_forced or is_converted(definition):
            return
        stored = definition["status"]["storedVersions"]
        drops = [drop for each in stored for drop in list_drops(definition, each, storage)]
        if drops:
            click.echo("\n".join(f"{self.name}: {drop}" for drop in drops), err=True)
            raise click.ClickException(
                f"Nothing was rewritten. Write functions that convert the objects of {self.name} "
                "(@webop.on.convert), or repeat the command with --force."
            )

    async def _read(self) -> Json:
        try:
            found = await self.client.get(CRDS, None, self.name)
        except APINotFoundError:
            raise click.ClickException(
                f"There is no CustomResourceDefinition {self.name} in the cluster."
            ) from None
        storage = get_storage_version(found)
        if self.wanted not in (None, storage):
            raise click.ClickException(
                f"{self.name}: objects are stored as {storage} in the cluster, but the models say "
                f"{self.wanted}. Apply the definition first: webop crd apply."
            )
        return found

    async def _rewrite_all(self, resource: Resource) -> None:
        """Rewrite all objects of a kind, several at once.

        Raises:
            APIStatusError: they cannot be listed.
        """
        found: list[tuple[str | None, str, bool]] = []
        selection = Selection({"limit": _PAGE}, is_partial=True)
        async for page in self.client.list_to_the_end(resource, None, selection):
            for item in page.items:
                metadata = item["metadata"]
                found.append((metadata.get("namespace"), metadata["name"], has_lost(item)))
        waiting, self.count = iter(found), 0
        verb = "Checking" if self.is_dry else "Rewriting"

        async def work() -> None:
            for namespace, name, is_lost in waiting:
                if len(self.failures) >= _MAX_FAILURES:
                    return
                if why := await self._rewrite(resource, namespace, name, is_lost=is_lost):
                    place = "/".join(filter(None, (namespace, name)))
                    self.failures.append(f"{resource.plural} {place}: {why}")
                else:
                    self.count += 1
                what = f"{verb} the objects of {self.name}"
                self.progress.step(what, self.count, len(found), "objects")

        await run_concurrently(work() for _ in range(_AT_ONCE))
        self.progress.finish()

    async def _rewrite(
        self, resource: Resource, namespace: str | None, name: str, *, is_lost: bool
    ) -> str:
        """Rewrite an object; return why that is impossible, or an empty text."""
        path = resource.get_url(namespace=namespace, name=name)
        try:
            # The list can be from a cache.
            if is_lost and has_lost(await self.client.get(resource, namespace, name)):
                return _TOO_LARGE
            made = await self._touch(path)
            for record in find_records(made):  # its function may work now
                older = replace(resource, version=record.rpartition("/")[2])
                with contextlib.suppress(APINotFoundError):
                    await self._touch(older.get_url(namespace=namespace, name=name))
                    made = await self._touch(path)
        except (APINotFoundError, APIConflictError):
            return ""  # it is gone, or somebody else has written it
        except APIStatusError as exc:
            return str(exc)
        records = find_records(made)
        if self.is_dry or not records:  # a dry run stores nothing for the second attempt
            return ""
        command = name_removal(resource.plural_name, namespace, name, records)
        return (
            f"it cannot be converted; {join_names(records)} keeps what it was. If nobody needs "
            f"that: {command}"
        )

    async def _touch(self, path: str) -> Json:
        """Have the API server store an object again, and return it."""
        params = {"dryRun": "All"} if self.is_dry else None
        made: Json = await self.client.request(
            "PATCH", path, params=params, body={}, content_type=MERGE_PATCH
        )
        return made


def _build_resource(definition: Json, version: str) -> Resource:
    """Return the kind in its storage version, or in another one that is served."""
    spec = definition["spec"]
    served = [each["name"] for each in spec["versions"] if each["served"]]
    if not served:
        raise click.ClickException(f"{definition['metadata']['name']}: no version is served.")
    chosen = version if version in served else served[0]
    return Resource(spec["group"], chosen, spec["names"]["plural"], kind=spec["names"]["kind"])
