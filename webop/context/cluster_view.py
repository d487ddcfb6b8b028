"""The operator's view of the cluster: resources and namespaces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from webop.models.definitions import advise_creation
from webop.objects.resources import Resource, Selector


class ClusterView:
    """The known resources; empty until discovery has run."""

    def __init__(self) -> None:
        self.namespaces: frozenset[str] | None = None  # None for all, and before they are known
        self.groups: frozenset[str] = frozenset()  # to discover even if no handler needs them
        self.served_groups: frozenset[str] = frozenset()  # all of the cluster, discovered or not
        self._resources: Mapping[Resource, Resource] = {}
        self._by_kind: Mapping[tuple[str, str | None], Resource] = {}
        self._by_plural: Mapping[str, Resource] = {}
        self._listeners: list[Callable[[], None]] = []
        self.is_known = False
        self.is_awaited = False  # whether discovery will run

    @property
    def resources(self) -> frozenset[Resource]:
        """All resources that the cluster serves, as far as known."""
        return frozenset(self._resources)

    def update(
        self,
        resources: Iterable[Resource],
        groups: Iterable[str] = (),
        namespaces: frozenset[str] | None = None,
    ) -> None:
        """Accept the result of a discovery, and the namespaces to serve."""
        self._resources = {resource: resource for resource in resources}
        self._by_kind = {(each.api_version, each.kind): each for each in self._resources}
        preferred = sorted(self._resources, key=lambda each: each.preferred)
        self._by_plural = {each.plural_name: each for each in preferred}
        self.served_groups, self.namespaces = frozenset(groups), namespaces
        self.is_known, self.is_awaited = True, False
        for listener in self._listeners:
            listener()

    def find(self, resource: Resource) -> Resource:
        """Return the discovered resource equal to this one; this one if there is none."""
        return self._resources.get(resource, resource)

    def find_kind(self, api_version: str, kind: str) -> Resource | None:
        """Return the resource of objects with these fields, as far as known."""
        return self._by_kind.get((api_version, kind))

    def find_plural(self, plural_name: str) -> Resource | None:
        """Return a resource by its plural name and its group, such as "deployments.apps"."""
        return self._by_plural.get(plural_name)

    def has(self, resource: Resource) -> bool:
        """Return whether a resource has been discovered."""
        return resource in self._resources

    def explain_absence(self, selector: Selector) -> str:
        """Return why the cluster has no kind of a selector, and what helps; "" if it has one."""
        if selector.select(self._resources):
            return ""
        if rivals := selector.list_rivals(self._resources):
            return f"{selector} is ambiguous: {rivals}. Write one of these in the decorator."
        advice = advise_creation(selector) or selector.suggest(self._resources, self.served_groups)
        return f"{selector} is not in the cluster yet. Waiting for its definition (CRD).{advice}"

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call a function after each update."""
        self._listeners.append(listener)

    def demand(self, groups: Iterable[str]) -> None:
        """Discover these API groups even if no handler needs them."""
        self.groups |= frozenset(groups)
