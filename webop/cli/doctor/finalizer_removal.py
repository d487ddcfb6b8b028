"""Find objects with the operator's finalizer in the cluster, and remove it."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from webop.aio.concurrency import run_concurrently
from webop.client.api import Client
from webop.client.http.requests import JSON_PATCH, Selection
from webop.errors import APINotFoundError, APIStatusError
from webop.logs.sanitizing import escape
from webop.objects.resources import Resource

_AT_ONCE = 8  # requests


@dataclass(frozen=True, slots=True)
class HeldObject:
    """An object with the finalizer.

    Attributes:
        deleted_at: when its deletion was asked for; None if it was not.
        created_at: when it was created.
        position: of the finalizer among all finalizers.
        others: the other finalizers.
    """

    resource: Resource
    namespace: str | None
    name: str
    uid: str
    position: int
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
                    metadata["uid"],
                    finalizers.index(finalizer),
                    dt.datetime.fromisoformat(metadata["creationTimestamp"]),
                    dt.datetime.fromisoformat(deleted) if deleted else None,
                    tuple(name for name in finalizers if name != finalizer),
                )
                found.append(one)
    return found


async def remove_finalizer(client: Client, one: HeldObject, finalizer: str, *, is_dry: bool) -> str:
    """Remove a finalizer from an object as it was found; return what happened.

    Raises:
        APIUnprocessableError: it has changed, or the API server takes it for invalid.
    """
    place = f"/metadata/finalizers/{one.position}"
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": one.uid},
        {"op": "test", "path": place, "value": finalizer},
        {"op": "remove", "path": place},
    ]
    path = one.resource.get_url(namespace=one.namespace, name=one.name)
    params = {"dryRun": "All"} if is_dry else None
    try:
        await client.request("PATCH", path, params=params, body=patch, content_type=JSON_PATCH)
    except APINotFoundError:
        return "already gone"
    return f"released; still held by {', '.join(one.others)}" if one.others else "released"
