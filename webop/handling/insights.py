"""What the operator has found out about the cluster: the resources that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from webop.objects.resources import Resource


class Insights:
    """The known resources; empty until the cluster has been asked, or when there is none."""

    def __init__(self) -> None:
        self._resources: Mapping[Resource, Resource] = {}
        self._listeners: list[Callable[[], None]] = []
        self.is_known = False
        self.is_awaited = False  # whether the cluster is going to be asked

    @property
    def resources(self) -> frozenset[Resource]:
        """All resources that the cluster is known to serve."""
        return frozenset(self._resources)

    def update(self, resources: Iterable[Resource]) -> None:
        """Take over a discovery."""
        self._resources = {resource: resource for resource in resources}
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
        """Have a function called after each discovery."""
        self._listeners.append(listener)
