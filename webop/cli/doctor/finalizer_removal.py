"""Find objects with the operator's finalizer in the cluster, and remove it."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from webop.aio.backoff import Backoff
from webop.aio.concurrency import run_concurrently
from webop.client.api import Client
from webop.client.http.requests import MERGE_PATCH, Selection
from webop.errors import APIConflictError, APINotFoundError, APIStatusError
from webop.logs.sanitizing import escape
from webop.objects.resources import Resource

_AT_ONCE = 8  # requests
_CONFLICT_DELAYS = (0.0, 0.1, 0.3, 1.0, 2.0)  # seconds


@dataclass(frozen=True, slots=True)
class HeldObject:
    """An object with the finalizer.

    Attributes:
        deleted_at: when its deletion was asked for; None if it was not.
        created_at: when it was created.
        others: the other finalizers.
    """

    resource: Resource
    namespace: str | None
    name: str
    uid: str
    created_at: dt.datetime
    deleted_at: dt.datetime | None = None
    others: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The namespace, if there is one, and the name; RBAC roles have any characters there."""
        return escape("/".join(filter(None, (self.namespace, self.name))))


@dataclass(slots=True)
class Search:
    """The objects that were found, and the kinds that could not be listed, maybe somewhere only."""

    held: list[HeldObject] = field(default_factory=list)
    problems: list[tuple[Resource, APIStatusError]] = field(default_factory=list)


async def find_held(
    client: Client, resources: Iterable[Resource], namespaces: Collection[str], finalizer: str
) -> Search:
    """Find all objects with a finalizer, those that are being deleted first, the oldest first.

    Without namespaces, it searches everywhere; of several versions of a kind, the last one.
    """
    search, gate = Search(), asyncio.Semaphore(_AT_ONCE)

    async def search_kind(resource: Resource, namespace: str | None) -> None:
        async with gate:
            try:
                search.held += await _list_held(client, resource, namespace, finalizer)
            except APIStatusError as exc:
                if exc.status not in (404, 405):  # gone meanwhile, or cannot be listed
                    search.problems.append((resource, exc))

    kinds = {(resource.group, resource.plural): resource for resource in resources}
    chosen = [resource for resource in kinds.values() if resource.namespaced or not namespaces]
    searched = namespaces or (None,)
    await run_concurrently(search_kind(kind, where) for kind in chosen for where in searched)
    search.held.sort(key=lambda one: (one.deleted_at is None, one.deleted_at or one.created_at))
    return search


async def _list_held(
    client: Client, resource: Resource, namespace: str | None, finalizer: str
) -> list[HeldObject]:
    found = []
    async for page in client.list_pages(resource, namespace, Selection(is_partial=True)):
        for metadata in (item["metadata"] for item in page.items):
            finalizers = metadata.get("finalizers") or ()
            if finalizer in finalizers:
                deleted = metadata.get("deletionTimestamp")
                one = HeldObject(
                    resource,
                    metadata.get("namespace"),
                    metadata["name"],
                    metadata.get("uid", ""),
                    dt.datetime.fromisoformat(metadata["creationTimestamp"]),
                    dt.datetime.fromisoformat(deleted) if deleted else None,
                    tuple(name for name in finalizers if name != finalizer),
                )
                found.append(one)
    return found


async def remove_finalizer(
    client: Client, one: HeldObject, finalizer: str, *, everything: bool, dry: bool
) -> str:
    """Remove a finalizer from an object, even if others change it; return what happened.

    Objects that are not being deleted keep it, unless everything is released.

    Raises:
        APIError: the finalizer is still there.
    """
    path = one.resource.get_url(namespace=one.namespace, name=one.name)
    backoff = Backoff(_CONFLICT_DELAYS, is_endless=False)
    while True:
        try:
            metadata = (await client.request("GET", path))["metadata"]
            if metadata.get("uid", "") != one.uid:
                return "already gone"  # this is another one of that name
            left = [name for name in metadata.get("finalizers") or () if name != finalizer]
            if finalizer not in (metadata.get("finalizers") or ()):
                return "already released"
            if not everything and "deletionTimestamp" not in metadata:
                return "skipped: it is not being deleted any more"
            version = metadata["resourceVersion"]
            await client.request(
                "PATCH",
                path,
                params={"dryRun": "All"} if dry else None,
                body={"metadata": {"finalizers": left, "resourceVersion": version}},
                content_type=MERGE_PATCH,
            )
        except APINotFoundError:
            return "already gone"
        except APIConflictError:
            if (delay := backoff.next()) is None:
                raise
            await asyncio.sleep(delay)
        else:
            return f"released; still held by {', '.join(left)}" if left else "released"
