"""Watches of CRDs and namespaces, and the permissions for them.

The observer uses them (:mod:`webop.reactor.observer`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from webop.aio.backoff import Backoff
from webop.client.api import Client
from webop.client.http.requests import Selection
from webop.client.watch import ListingFinished, ListingStarted, WatchOptions, watch
from webop.client.watch_events import get_uid
from webop.errors import APIError, APIForbiddenError
from webop.objects.resources import CRDS, NAMESPACES, Resource

logger = logging.getLogger(__name__)

_CHECK_PAUSES = (1.0, 5.0, 30.0, 60.0, 300.0)  # seconds between checks of a missing permission


async def may_watch(client: Client, resource: Resource) -> bool:
    """Return whether webop may list a resource; if not, log the consequence."""
    try:
        await _list_one(client, resource)
    except APIForbiddenError as exc:
        logger.warning(
            "%s webop does not notice changes of %s until it may list and watch them.",
            exc,
            resource.plural,
        )
        return False
    except APIError as exc:
        logger.warning("Cannot list %s yet: %s", resource.plural, exc)
    return True


async def wait_for_permission(client: Client, resource: Resource) -> None:
    """Wait until webop may list a resource; :func:`may_watch` has logged that it may not."""
    backoff = Backoff(_CHECK_PAUSES, jitter=0.2)
    is_permitted = False
    while not is_permitted:
        await asyncio.sleep(backoff.next() or 0)
        with contextlib.suppress(APIError):
            await _list_one(client, resource)
            is_permitted = True
    logger.info("webop may list and watch %s now; it notices their changes.", resource.plural)


async def _list_one(client: Client, resource: Resource) -> None:
    async with contextlib.aclosing(client.list_pages(resource, None, {"limit": "1"})) as pages:
        await anext(pages)


class _ServedVersion(NamedTuple):
    """One served version of a custom resource, as selectors and patches see it."""

    version: str
    shortcuts: frozenset[str]
    categories: frozenset[str]
    subresources: frozenset[str]


class Definitions:
    """The kinds that custom resource definitions declare; discovery shows them later."""

    def __init__(self) -> None:
        # By names and uids: while a long list is read, a definition can be created again before the
        # old one is listed. Names stay: the discovery must not show those that are gone.
        self._versions: dict[str, dict[str, frozenset[_ServedVersion]]] = {}

    async def follow(
        self, client: Client, options: WatchOptions, on_change: Callable[[], None]
    ) -> None:
        """Watch the definitions for ever; call a function when one changes in what matters."""
        unseen: set[tuple[str, str]] = set()
        async with contextlib.aclosing(watch(client, CRDS, None, options)) as items:
            async for item in items:
                if isinstance(item, ListingStarted):
                    unseen = {
                        (name, uid) for name, known in self._versions.items() for uid in known
                    }
                elif isinstance(item, ListingFinished):
                    for name, uid in unseen:
                        del self._versions[name][uid]
                    if unseen:
                        on_change()
                else:
                    event_type, raw = item
                    name, uid = raw["metadata"]["name"], get_uid(raw)
                    unseen.discard((name, uid))
                    known = self._versions.setdefault(name, {})
                    before = dict(known)
                    if event_type == "DELETED":
                        known.pop(uid, None)
                    else:
                        known[uid] = _read_versions(raw)
                    if known != before:
                        on_change()

    def are_shown_by(
        self, resources: Iterable[Resource], groups: Collection[str] | None = None
    ) -> bool:
        """Return whether discovery, maybe of some groups only, shows all definitions."""
        defined = {
            name: set[_ServedVersion]().union(*known.values())
            for name, known in self._versions.items()
            if groups is None or name.partition(".")[2] in groups
        }
        shown: dict[str, set[_ServedVersion]] = {name: set() for name in defined}
        for resource in resources:
            if (versions := shown.get(f"{resource.plural}.{resource.group}")) is not None:
                subresources = resource.subresources & {"status", "scale"}
                version = _ServedVersion(
                    resource.version, resource.shortcuts, resource.categories, subresources
                )
                versions.add(version)
        return shown == defined


def _read_versions(definition: dict[str, Any]) -> frozenset[_ServedVersion]:
    """Return what the discovery should show for a definition; nothing before it is established."""
    status = definition.get("status") or {}
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
    if conditions.get("Established") != "True":
        return frozenset()
    names = status["acceptedNames"]
    shortcuts = frozenset(names.get("shortNames") or ())
    categories = frozenset(names.get("categories") or ())
    return frozenset(
        _ServedVersion(
            version["name"], shortcuts, categories, frozenset(version.get("subresources") or ())
        )
        for version in definition["spec"]["versions"]
        if version["served"]
    )


async def watch_namespaces(
    client: Client,
    options: WatchOptions,
    selection: Selection,
    on_names: Callable[[Iterable[str]], None],
) -> None:
    """Call a function with the names of the namespaces whenever they change, for ever."""
    # While a long list is read, a namespace can be created again before the old one is listed.
    known: set[tuple[str, str | None]] = set()
    is_listing = True
    async with contextlib.aclosing(
        watch(client, NAMESPACES, None, options, selection=selection)
    ) as items:
        async for item in items:
            if isinstance(item, ListingStarted):
                known, is_listing = set(), True
            elif isinstance(item, ListingFinished):
                is_listing = False
            else:
                event_type, raw = item
                key = raw["metadata"]["name"], raw["metadata"].get("uid")
                known.discard(key) if event_type == "DELETED" else known.add(key)
            if not is_listing:
                on_names({name for name, _ in known})
