"""Changes of the cluster itself: definitions of kinds, and namespaces.

The observer goes by them (:mod:`webop.reactor.observer`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable

from webop.client.api import Client
from webop.client.watch import ListingFinished, ListingStarted, WatchEvent, WatchOptions, watch
from webop.errors import APIError, APIForbiddenError
from webop.objects.resources import Resource

logger = logging.getLogger(__name__)

DEFINITIONS = Resource(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    kind="CustomResourceDefinition",
    namespaced=False,
)
NAMESPACES = Resource(
    group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False
)


async def may_watch(client: Client, resource: Resource) -> bool:
    """Tell whether the permissions suffice; if not, say what is lost without them."""
    try:
        async with contextlib.aclosing(client.list_pages(resource, None, limit=1)) as pages:
            await anext(pages)
    except APIForbiddenError as exc:
        logger.warning("%s Changes of %s go unnoticed.", exc, resource.plural)
        return False
    except APIError as exc:
        logger.warning("%s cannot be listed yet: %s", resource.plural, exc)
    return True


async def watch_definitions(
    client: Client, options: WatchOptions, on_change: Callable[[], None]
) -> None:
    """Call a function whenever a custom resource definition has changed, for ever."""
    known: dict[str, object] = {}
    async with contextlib.aclosing(watch(client, DEFINITIONS, None, options)) as items:
        async for item in items:
            # What is no event begins or ends a listing: some may have gone unnoticed.
            if not isinstance(item, tuple) or _is_new_definition(item, known):
                on_change()


async def watch_namespaces(
    client: Client, options: WatchOptions, on_names: Callable[[Iterable[str]], None]
) -> None:
    """Call a function with the names of all namespaces whenever they change, for ever."""
    names: set[str] = set()
    is_listing = True
    async with contextlib.aclosing(watch(client, NAMESPACES, None, options)) as items:
        async for item in items:
            if isinstance(item, ListingStarted):
                names, is_listing = set(), True
            elif isinstance(item, ListingFinished):
                is_listing = False
            else:
                event_type, raw = item
                name = raw["metadata"]["name"]
                names.discard(name) if event_type == "DELETED" else names.add(name)
            if not is_listing:
                on_names(names)


def _is_new_definition(event: WatchEvent, known: dict[str, object]) -> bool:
    """Tell whether a definition of a kind has changed in what matters, and remember it."""
    event_type, raw = event
    metadata = raw["metadata"]
    # The generation counts the changes of all but the status and the metadata.
    state = (_is_established(raw), metadata.get("generation"), event_type == "DELETED")
    is_new = known.get(metadata["name"]) != state
    known[metadata["name"]] = state
    return is_new


def _is_established(definition: dict[str, object]) -> bool:
    status = definition.get("status")
    conditions = (status.get("conditions") if isinstance(status, dict) else None) or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)
