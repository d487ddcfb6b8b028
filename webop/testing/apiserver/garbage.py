"""The garbage collector: what becomes of dependents when their owners are deleted.

(Kubernetes: "Garbage Collection".) It acts by requests, as the controller does, but at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import orjson

from .kinds import Kind
from .messages import Json, Request
from .server import Cluster
from .store import Change

_FORM = {"content-type": "application/merge-patch+json"}


class GarbageCollector:
    """Deletes the dependents of deleted owners. Owners that never existed count as present.

    Args:
        server: the API server whose objects it collects.
    """

    def __init__(self, server: Cluster) -> None:
        self._server = server
        self._gone: set[str] = set()
        self._ending: set[str] = set()  # the objects with a time of deletion, also those before
        self._counts: Counter[str] = Counter()  # of dependents, by the uids of their owners
        self._has_work = False
        server.store.observers.append(self._note)

    def run(self) -> None:
        """Act until nothing is left to do."""
        while self._has_work:
            self._has_work = any(self._act(kind, raw) for kind, raw in self._list())

    def _act(self, kind: Kind, raw: Json) -> bool:
        """Do the next step for an object; return whether there was one."""
        metadata = raw["metadata"]
        finalizers = metadata.get("finalizers") or ()
        if "deletionTimestamp" not in metadata:
            owners = set(_list_owners(raw))
            return bool(owners & self._gone) and self._collect(kind, raw, self._gone)
        owned = [pair for pair in self._list() if metadata["uid"] in _list_owners(pair[1])]
        if "orphan" in finalizers:
            for child, dependent in owned:
                self._disown(child, dependent, {metadata["uid"]})
            return self._release(kind, raw, "orphan")
        if "foregroundDeletion" not in finalizers:
            return False
        waiting = {metadata["uid"], *self._gone}
        for child, dependent in owned:
            if "deletionTimestamp" not in dependent["metadata"]:
                return self._collect(child, dependent, waiting)
        is_blocked = any(_list_owners(one)[metadata["uid"]] for _, one in owned)
        return not is_blocked and self._release(kind, raw, "foregroundDeletion")

    def _collect(self, kind: Kind, raw: Json, gone: set[str]) -> bool:
        """Delete an object that has no other owners; else, remove these from it."""
        if _list_owners(raw).keys() - gone:
            return self._disown(kind, raw, gone)
        has_own = any(raw["metadata"]["uid"] in _list_owners(one) for _, one in self._list())
        policy = "Foreground" if has_own and gone is not self._gone else "Background"
        return self._send("DELETE", kind, raw, {"propagationPolicy": policy})

    def _note(self, change: Change) -> None:
        metadata = change.seen["metadata"]
        former, owners = ([*_list_owners(raw)] if raw else [] for raw in (change.old, change.new))
        self._has_work |= not self._ending.isdisjoint({*former} - {*owners})  # they can wait for it
        self._counts.subtract(former)
        self._counts.update(owners)
        if change.new is None:
            self._gone.add(metadata["uid"])
            self._has_work |= self._counts.pop(metadata["uid"], 0) > 0
        elif "deletionTimestamp" in metadata:
            self._ending.add(metadata["uid"])
            self._has_work = True
        else:
            self._has_work |= not self._gone.isdisjoint(owners)

    def _list(self) -> Iterator[tuple[Kind, Json]]:
        tables = self._server.store.tables
        kinds = {kind.resource: kind for kind in self._server.kinds.list_served()}
        for resource, kind in kinds.items():
            yield from ((kind, raw) for raw in list(tables[resource].objects.values()))

    def _disown(self, kind: Kind, raw: Json, uids: set[str]) -> bool:
        kept = [one for one in raw["metadata"]["ownerReferences"] if one["uid"] not in uids]
        return self._send("PATCH", kind, raw, {"metadata": {"ownerReferences": kept}})

    def _release(self, kind: Kind, raw: Json, finalizer: str) -> bool:
        kept = [one for one in raw["metadata"]["finalizers"] if one != finalizer]
        return self._send("PATCH", kind, raw, {"metadata": {"finalizers": kept}})

    def _send(self, method: str, kind: Kind, raw: Json, body: Json) -> bool:
        path = kind.build_path(raw["metadata"])
        request = Request(method, path, {}, _FORM, orjson.dumps(body))
        return self._server.handle(request).status < 300


def _list_owners(raw: Json) -> dict[str, bool]:
    """Return the uids of the owners, and whether their deletion waits for this object."""
    references = raw["metadata"].get("ownerReferences") or ()
    return {one["uid"]: bool(one.get("blockOwnerDeletion")) for one in references}
