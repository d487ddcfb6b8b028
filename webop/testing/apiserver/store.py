"""The store and its watch caches: versions, changes, snapshots of the past, watches.

Objects are never modified once they are stored: everybody shares them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from .messages import Json, Refusal, Request
from .selectors import Predicate

Verb = Literal["create", "update", "delete"]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the store.

    Attributes:
        version: of the store after it.
        resource: the plural name with the group, such as "widgets.example.com".
        key: "namespace/name", or the name alone.
        verb: what has happened, whatever the method of the request.
        old: the object before it; None for a creation.
        new: the object after it; None for a deletion.
        seen: the object that watchers are shown.
        request: what has caused it; None for the work of the API server itself.
    """

    version: int
    resource: str
    key: str
    verb: Verb
    old: Json | None
    new: Json | None
    seen: Json
    request: Request | None


class Watch:
    """The events of one watch that wait to be taken.

    Attributes:
        events: what waits; take it from the left. The objects are shared: never modify them.
        on_event: called after something was added, or after the end.
        is_over: whether nothing more comes: the server has ended it, or :meth:`close` was called.
    """

    def __init__(
        self,
        table: Table,
        after: int,
        prefix: str,
        is_selected: Predicate | None,
        show: Callable[[Json], Json],
        bookmark: Json | None,
    ) -> None:
        self.events: deque[Json] = deque()
        self.on_event: Callable[[], None] | None = None
        self.is_over = False
        self._table = table
        self._after = after
        self._prefix = prefix
        self._is_selected = is_selected
        self._show = show
        self._bookmark = bookmark

    def close(self) -> None:
        """Stop watching; nothing happens if it is over already."""
        self.is_over = True
        self._table.watches.pop(self, None)

    def end(self) -> None:
        """End it on the side of the server."""
        self.close()
        self._notify()

    def fail(self, refusal: Refusal) -> None:
        """Send the error as an event, and end it."""
        self.events.append({"type": "ERROR", "object": refusal.build_status()})
        self.end()

    def list_objects(self, objects: dict[str, Json]) -> None:
        """Send objects as if they had just been created."""
        for key in sorted(objects):
            if key.startswith(self._prefix) and self._concerns(raw := self._show(objects[key])):
                self.events.append({"type": "ADDED", "object": raw})

    def send_bookmark(self, version: int, *, is_end_of_list: bool = False) -> None:
        """Tell that everything up to this version has been sent, if bookmarks are wanted."""
        if self._bookmark is None or version < self._after:
            return
        metadata: Json = {"resourceVersion": str(version)}
        if is_end_of_list:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        self.events.append({"type": "BOOKMARK", "object": {**self._bookmark, "metadata": metadata}})
        self._notify()

    def take(self, change: Change) -> None:
        """Send a change if it is later than the beginning, and concerns this watch."""
        if change.version <= self._after or self.is_over:
            return
        old, new = change.old, change.new
        try:
            new = new and self._show(new)
            if old is not None and (new is None or self._is_selected is not None):
                old = self._show(old)
        except Refusal:
            self.end()  # kube-apiserver tries again for 30 s before that
            return
        if not change.key.startswith(self._prefix):
            return
        was = old is not None and self._concerns(old)
        if new is not None and self._concerns(new):
            kind, raw = "MODIFIED" if was else "ADDED", new
        elif was:
            assert old is not None  # noqa: S101 - for the type checker
            # One that is not selected any more is shown as it was, but with the new version.
            kind, raw = "DELETED", _set_version(old, change.version)
        else:
            return
        self.events.append({"type": kind, "object": raw})
        self._notify()

    def _concerns(self, raw: Json) -> bool:
        return self._is_selected is None or self._is_selected(raw)

    def _notify(self) -> None:
        if self.on_event is not None:
            self.on_event()


@dataclass(eq=False)
class Table:
    """The objects of one resource, its latest changes, and its watch cache.

    Attributes:
        objects: by "namespace/name", or by the name alone.
        log: the changes that are not compacted.
        cached: how many changes of the log the watch cache has taken.
        oldest: watches can begin at this version at the earliest.
        compacted: lists can be as of this version at the earliest.
        watches: those that are open, in the order of their beginnings.
    """

    resource: str
    oldest: int
    compacted: int = 0
    objects: dict[str, Json] = field(default_factory=dict)
    log: list[Change] = field(default_factory=list)
    cached: int = 0
    watches: dict[Watch, None] = field(default_factory=dict)

    def get_objects_at(self, version: int) -> dict[str, Json]:
        """Return the objects of a version that is not compacted."""
        objects = dict(self.objects)
        for change in reversed(self.log):
            if change.version <= version:
                break
            if change.old is None:
                del objects[change.key]
            else:
                objects[change.key] = change.old
        return objects

    def advance(self, count: int) -> None:
        """Let the watch cache take changes until it has so many, and send them."""
        while self.cached < count:
            change = self.log[self.cached]
            self.cached += 1
            for watch in list(self.watches):
                watch.take(change)

    def compact(self, count: int, version: int) -> None:
        """Forget the first changes of the log: reads and watches begin at a version from now on."""
        self.oldest = self.compacted = version
        del self.log[:count]
        self.cached -= count

    def end_watches(self) -> None:
        """End all watches."""
        for watch in list(self.watches):
            watch.end()


class Store:
    """All tables under one counter of versions.

    Attributes:
        version: of the latest change.
        lag: how many changes of a resource its watch cache is late.
        observers: called after each change.
        react: called after them, and after the watches: what the server itself does then.
    """

    def __init__(self) -> None:
        self.version = 100
        self.lag = 0
        self.observers: list[Callable[[Change], None]] = []
        self.tables: dict[str, Table] = {}
        self.react: Callable[[Change], None] | None = None

    def open_table(self, resource: str) -> Table:
        """Return the table of a resource; a new one if there is none."""
        table = self.tables.get(resource)
        if table is None:
            table = self.tables[resource] = Table(resource, self.version)
        return table

    def drop_table(self, resource: str) -> None:
        """Forget a resource whose objects are gone; its watches end."""
        table = self.tables.pop(resource)
        table.advance(len(table.log))
        table.end_watches()

    def commit(self, table: Table, key: str, new: Json | None, request: Request | None) -> None:
        """Store a new state of an object, or its end; its resource version is set."""
        self.version += 1
        old = table.objects.get(key)
        if new is not None:
            new["metadata"]["resourceVersion"] = str(self.version)
            table.objects[key] = seen = new
            verb: Verb = "create" if old is None else "update"
        else:
            seen = _set_version(table.objects.pop(key), self.version)
            verb = "delete"
        change = Change(self.version, table.resource, key, verb, old, new, seen, request)
        table.log.append(change)
        for observer in self.observers:
            observer(change)
        table.advance(len(table.log) - self.lag)
        if self.react is not None:
            self.react(change)


def _set_version(raw: Json, version: int) -> Json:
    return {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(version)}}
