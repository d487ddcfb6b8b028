"""What the operator knows of the cluster: its resources, its namespaces, the indexed objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from webop.handling.indexes import Feed
from webop.objects.resources import Resource

Origin = tuple[str, str, str | None]
"""Whose objects: the API group, the plural name, and the namespace; None for the whole cluster."""


@dataclass(slots=True)
class Indexed:
    """The objects of one origin that are in indexes, and the feeds that put them there.

    A feed is complete when the indexes have got all objects by it.
    """

    uids: set[str] = field(default_factory=set)
    feeds: set[Feed] = field(default_factory=set)
    complete: set[Feed] = field(default_factory=set)


class ClusterView:
    """The known resources; empty until the cluster has been asked, or when there is none.

    Attributes:
        namespaces: those that are served, if not the whole cluster is; None before they are known.
        groups: API groups to discover, even if no handler is for them.
        served_groups: those that the cluster has, whether they are discovered or not.
        indexed: the objects in the indexes; they stay there from one watch to the next one.
        left: what the next watch must know of the objects of one that has ended, by the API version
            and by their uids.
    """

    def __init__(self) -> None:
        self.namespaces: frozenset[str] | None = None
        self.groups: frozenset[str] = frozenset()
        self.served_groups: frozenset[str] = frozenset()
        self.indexed: dict[Origin, Indexed] = {}
        self.left: dict[Origin, dict[str, dict[str, Any]]] = {}
        self._moved = asyncio.Event()
        self._resources: Mapping[Resource, Resource] = {}
        self._listeners: list[Callable[[], None]] = []
        self.is_known = False
        self.is_awaited = False  # whether the cluster will be asked

    @property
    def resources(self) -> frozenset[Resource]:
        """All resources that the cluster is known to serve."""
        return frozenset(self._resources)

    def update(self, resources: Iterable[Resource], groups: Iterable[str] = ()) -> None:
        """Accept the result of a discovery."""
        self._resources = {resource: resource for resource in resources}
        self.served_groups = frozenset(groups)
        self.is_known, self.is_awaited = True, False
        for listener in self._listeners:
            listener()

    def find(self, resource: Resource) -> Resource:
        """Return what is known of a resource beyond its names; itself if nothing is."""
        return self._resources.get(resource, resource)

    def has(self, resource: Resource) -> bool:
        """Tell whether a resource has been discovered."""
        return resource in self._resources

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call a function after each discovery."""
        self._listeners.append(listener)

    def demand(self, groups: Iterable[str]) -> None:
        """Discover these API groups, too, even if no handler is for them."""
        self.groups |= frozenset(groups)

    def serve(self, namespaces: frozenset[str]) -> None:
        """Set the namespaces that are served from now on."""
        self.namespaces = namespaces
        self._moved.set()
        self._moved = asyncio.Event()

    async def wait_for_namespaces(self, known: frozenset[str] | None = None) -> frozenset[str]:
        """Wait until the served namespaces differ from those known to the caller; return them."""
        while self.namespaces is None or self.namespaces == known:
            await self._moved.wait()
        return self.namespaces
