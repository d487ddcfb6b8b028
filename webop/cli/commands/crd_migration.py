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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import click

from webop.aio.backoff import Backoff
from webop.aio.concurrency import run_concurrently
from webop.cli.options import load_quietly, source_options
from webop.cli.required_rights import find_models
from webop.client.api import Client
from webop.client.http.requests import MERGE_PATCH, PARTIAL_LIST, Call, encode_body
from webop.client.standalone import connect_command
from webop.controlplane.progress_bar import Progress
from webop.errors import (
    APIConflictError,
    APIConnectionError,
    APIError,
    APIGoneError,
    APINotFoundError,
    APIStatusError,
    APITooManyRequestsError,
)
from webop.models.crd_comparison import list_drops
from webop.models.crds import build_crds, get_storage_version, is_converted
from webop.objects.fields import Json
from webop.objects.kept_annotations import find_records, has_lost, name_removal
from webop.objects.names import join_names
from webop.objects.resources import CRDS, Resource

_AT_ONCE = 16  # requests
_MAX_FAILURES = 100  # of single objects; then the rest would not do better
# Objects; a list has a minute, in which each of them may have to be converted, one after another.
_PAGE, _SMALLEST_PAGE = 100, 20
_PASSES = 5
_TOO_LARGE = (
    "it cannot be converted, and its content is too large for an annotation. It was not rewritten, "
    "as that would lose the content. Correct the function, or the object in its old version"
)
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds


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
    """Return the definitions of models with several versions, with the versions to store.

    Raises:
        click.ClickException: there are none.
    """
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
    async with connect_command() as client:
        for name, version in wanted.items():
            migration = _Migration(client, name, version, progress, is_dry, is_forced)
            is_done = await migration.run() and is_done
    return is_done


@dataclass
class _Migration:
    """The migration of one kind.

    Attributes:
        client: for the requests.
        name: of the CustomResourceDefinition.
        wanted: the version that must be the storage version; None for any.
        progress: shows the objects.
        is_dry: whether nothing is stored.
        is_forced: whether fields can be dropped.
        failures: the objects that cannot be rewritten, with the reasons.
        count: how many objects were rewritten.
        total: how many there are.
    """

    client: Client
    name: str
    wanted: str | None
    progress: Progress
    is_dry: bool
    is_forced: bool
    failures: list[str] = field(default_factory=list)
    count: int = 0
    total: int = 0

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
            if not await self._rewrite_all(_build_resource(definition, storage)):
                return False
            if self.is_dry:
                click.echo(
                    f"{self.name}: {self.count} objects can be stored as {storage}; "
                    "nothing was changed (--dry-run)"
                )
                return True
            version = {"resourceVersion": definition["metadata"]["resourceVersion"]}
            patch = {"metadata": version, "status": {"storedVersions": [storage]}}
            path = CRDS.get_url(name=self.name, subresource="status")
            try:
                await self._send(Call("PATCH", path, None, encode_body(patch), MERGE_PATCH))
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
        """Check that the objects lose no fields.

        Raises:
            click.ClickException: they do.
        """
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
            found: Json = await self._send(Call("GET", CRDS.get_url(name=self.name)))
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

    async def _rewrite_all(self, resource: Resource) -> bool:
        """Rewrite all objects of a kind; return whether that has succeeded."""
        self.count = self.total = 0
        self.failures.clear()
        self._show()
        size, token, problem = _PAGE, "", ""
        while len(self.failures) < _MAX_FAILURES:
            query = {"limit": str(size), **({"continue": token} if token else {})}
            try:
                call = Call("GET", resource.get_url(), query, accept=PARTIAL_LIST)
                listed = await self._send(call, is_patient=size <= _SMALLEST_PAGE)
            except APIGoneError as exc:  # the rest of the list is of a later moment
                if not (token := str(exc.details.get("continue") or "")):
                    raise
                continue
            except (APIConnectionError, APIStatusError) as exc:
                if _is_brief(exc) and size > _SMALLEST_PAGE:
                    size //= 5
                    continue
                if isinstance(exc, APIConnectionError):
                    raise
                problem = str(exc)  # one of the objects cannot be converted
                break
            metadata = listed["metadata"]
            left = metadata.get("remainingItemCount", 0)
            self.total = self.count + len(listed["items"]) + left
            await self._rewrite_page(resource, [item["metadata"] for item in listed["items"]])
            if not (token := metadata.get("continue") or ""):
                break
        self.progress.finish()
        return self._report(problem)

    def _show(self) -> None:
        verb = "Checking" if self.is_dry else "Rewriting"
        total = max(self.total, self.count)
        self.progress.step(f"{verb} the objects of {self.name}", self.count, total, "objects")

    def _report(self, problem: str) -> bool:
        for failure in self.failures[:_MAX_FAILURES]:
            click.echo(failure, err=True)
        if problem:
            click.echo(f"{self.name}: the objects cannot be listed: {problem}", err=True)
        if problem or self.failures:
            more = " or more" if len(self.failures) >= _MAX_FAILURES else ""
            many = "" if len(self.failures) == 1 else "s"
            count = f"{len(self.failures)}{more} object{many}" if self.failures else "Some objects"
            click.echo(
                f"{self.name}: {count} cannot be rewritten. storedVersions stays as it is. Correct "
                "them, and run the command again.",
                err=True,
            )
        return not (problem or self.failures)

    async def _rewrite_page(self, resource: Resource, items: Sequence[Json]) -> None:
        slots = asyncio.Semaphore(_AT_ONCE)
        params = {"dryRun": "All"} if self.is_dry else None

        async def rewrite(item: Json) -> None:
            namespace, name = item.get("namespace"), item["name"]
            path = resource.get_url(namespace=namespace, name=name)
            async with slots:
                if len(self.failures) >= _MAX_FAILURES:
                    return
                place = f"{namespace}/{name}" if namespace else name
                call = Call("PATCH", path, params, b"{}", MERGE_PATCH)
                try:
                    if has_lost({"metadata": item}):  # the list can be from a cache
                        made = await self._send(Call("GET", path))
                        if has_lost(made):
                            self.failures.append(f"{resource.plural} {place}: {_TOO_LARGE}")
                            return
                    made = await self._send(call)
                    for record in find_records(made):  # its function may work now
                        older = replace(resource, version=record.rpartition("/")[2])
                        url = older.get_url(namespace=namespace, name=name)
                        with contextlib.suppress(APINotFoundError):
                            await self._send(Call("PATCH", url, params, b"{}", MERGE_PATCH))
                            made = await self._send(call)
                except (APINotFoundError, APIConflictError):
                    made = None  # it is gone, or somebody else has written it
                except APIStatusError as exc:
                    self.failures.append(f"{resource.plural} {place}: {exc}")
                    return
                # A dry run cannot know: it stores nothing for the second attempt.
                if made and not params and (records := find_records(made)):
                    command = name_removal(resource.plural_name, namespace, name, records)
                    self.failures.append(
                        f"{resource.plural} {place}: it cannot be converted; {join_names(records)} "
                        f"keeps what it was. If nobody needs that: {command}"
                    )
                    return
            self.count += 1
            self._show()

        await run_concurrently(map(rewrite, items))

    async def _send(self, call: Call, *, is_patient: bool = True) -> Any:
        """Send a request; if the caller is patient, again after errors that pass.

        Raises:
            APIError: it failed.
        """
        backoff = Backoff(_PAUSES, is_endless=False)
        while True:
            try:
                return await self.client.perform(call)
            except APIError as exc:
                is_repeated = _is_brief(exc) and is_patient
                pause = backoff.next(getattr(exc, "retry_after", None)) if is_repeated else None
                if pause is None:
                    raise
            await asyncio.sleep(pause)


def _is_brief(exc: APIError) -> bool:
    """Return whether an error passes. That of a failing conversion, a 500, does not."""
    is_passing = isinstance(exc, APIConnectionError | APITooManyRequestsError)
    return is_passing or getattr(exc, "status", 0) in (503, 504)


def _build_resource(definition: Json, version: str) -> Resource:
    """Return the kind in its storage version, or in another one that is served."""
    spec = definition["spec"]
    served = [each["name"] for each in spec["versions"] if each["served"]]
    if not served:
        raise click.ClickException(f"{definition['metadata']['name']}: no version is served.")
    chosen = version if version in served else served[0]
    return Resource(spec["group"], chosen, spec["names"]["plural"], kind=spec["names"]["kind"])
