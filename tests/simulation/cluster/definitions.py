"""CRDs: the kinds that come, change and go with them, as the controllers of the server do it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from .kinds import BUILT_IN, CRDS, Kind, build_custom_kinds
from .messages import Json, Request
from .store import Change, Store

_CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
_NAMES = ("plural", "singular", "kind", "listKind")


class Kinds:
    """The kinds that are served, and those that discovery tells.

    Attributes:
        serving_lag: for how many seconds a new CRD is not served.
        discovery_lag: for how many seconds discovery does not know that something has changed.
    """

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self.serving_lag = 0.0
        self.discovery_lag = 0.0
        self._store = store
        self._now = now
        self._served: dict[tuple[str, str, str], Kind] = {}
        self._since: dict[Kind, datetime] = {}
        self._told: list[tuple[datetime, tuple[Kind, ...]]] = []
        store.react = self._react
        for kind in BUILT_IN:
            self._served[kind.group, kind.version, kind.plural] = kind
            store.open_table(kind.resource)
        self._publish()

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """Return a kind that is served; None if there is none."""
        kind = self._served.get((group, version, plural))
        if kind is None or not kind.is_custom or not self.serving_lag:
            return kind
        age = self._now() - self._since[kind]
        return kind if age >= timedelta(seconds=self.serving_lag) else None

    def list_served(self) -> list[Kind]:
        """Return all kinds, each version of them."""
        return list(self._served.values())

    def list_told(self) -> Iterable[Kind]:
        """Return what discovery knows."""
        latest = self._now() - timedelta(seconds=self.discovery_lag)
        while len(self._told) > 1 and self._told[1][0] <= latest:
            del self._told[0]
        return self._told[0][1]

    def _react(self, change: Change) -> None:
        """Do what follows from a change: the controllers of the server in one."""
        if change.resource == CRDS:
            if change.new is None:
                assert change.old is not None
                self._withdraw(change.old)
            elif change.old is None or change.old["spec"] != change.new["spec"]:
                self._establish(change.new, is_new=change.old is None)
        elif change.new is None:
            self._finish(self._store.tables[CRDS].objects.get(change.resource))

    def begin_deletion(self, crd: Json, stamp: str, request: Request) -> Json:
        """Mark a CRD as deleted, and delete its objects; return its state."""
        if "deletionTimestamp" in crd["metadata"]:
            return crd
        finalizers = [*crd["metadata"].get("finalizers", ()), _CLEANUP]
        metadata = {**crd["metadata"], "deletionTimestamp": stamp, "finalizers": finalizers}
        condition = {
            "type": "Terminating",
            "status": "True",
            "lastTransitionTime": stamp,
            "reason": "InstanceDeletionPending",
            "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will "
            "begin soon",
        }
        conditions = [*(crd["status"]["conditions"] or ()), condition]
        new = {**crd, "metadata": metadata, "status": {**crd["status"], "conditions": conditions}}
        name = crd["metadata"]["name"]
        self._store.commit(self._store.tables[CRDS], name, new, request)
        for kind in build_custom_kinds(new):
            if (kind.group, kind.version, kind.plural) in self._served:
                self._serve(kind)
        self._publish()
        table = self._store.tables.get(name)
        for key, raw in list(table.objects.items() if table else ()):
            assert table is not None
            if raw["metadata"].get("finalizers"):
                below = {**raw["metadata"], "deletionTimestamp": stamp}
                below["deletionGracePeriodSeconds"] = 0
                below["generation"] = below.get("generation", 0) + 1
                if "deletionTimestamp" not in raw["metadata"]:
                    self._store.commit(table, key, {**raw, "metadata": below}, None)
            else:
                self._store.commit(table, key, None, None)
        self._finish(self._store.tables[CRDS].objects.get(name))
        return new

    def _establish(self, crd: Json, *, is_new: bool) -> None:
        """Accept the names of a CRD, if no other has them, and serve its versions."""
        name, stamp = crd["metadata"]["name"], self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        problem = self._find_conflict(crd)
        accepted = {
            "type": "NamesAccepted",
            "status": "False" if problem else "True",
            "lastTransitionTime": stamp,
            "reason": "ConflictingNames" if problem else "NoConflicts",
            "message": problem or "no conflicts found",
        }
        established = {
            "type": "Established",
            "status": "False" if problem else "True",
            "lastTransitionTime": stamp,
            "reason": "NotAccepted" if problem else "InitialNamesAccepted",
            "message": "not all names are accepted"
            if problem
            else "the initial names have been accepted",
        }
        status = {
            **crd["status"],
            "conditions": [accepted, established],
            "acceptedNames": crd["spec"]["names"],
        }
        if is_new:
            new = {**crd, "metadata": dict(crd["metadata"]), "status": status}
            self._store.commit(self._store.tables[CRDS], name, new, None)
        if problem:
            return
        for key in [key for key, kind in self._served.items() if kind.resource == name]:
            del self._served[key]
        table = self._store.open_table(name)
        table.advance(len(table.log))
        table.end_watches()  # the server begins anew with it, also with its cache
        table.oldest = self._store.version
        for kind in build_custom_kinds(crd):
            self._serve(kind)
        self._publish()

    def _find_conflict(self, crd: Json) -> str:
        names = crd["spec"]["names"]
        for other in self._store.tables[CRDS].objects.values():
            if other is crd or other["spec"]["group"] != crd["spec"]["group"]:
                continue
            if other["metadata"]["name"] == crd["metadata"]["name"]:
                continue
            for field in _NAMES:
                if names.get(field) == other["status"]["acceptedNames"].get(field):
                    return f'"{names[field]}" is already in use'
        return ""

    def _serve(self, kind: Kind) -> None:
        self._served[kind.group, kind.version, kind.plural] = kind
        self._since[kind] = self._now()

    def _withdraw(self, crd: Json) -> None:
        """Serve a kind no longer."""
        name = crd["metadata"]["name"]
        for key in [key for key, kind in self._served.items() if kind.resource == name]:
            self._since.pop(self._served.pop(key))
        if name in self._store.tables:
            self._store.drop_table(name)
        self._publish()

    def _finish(self, crd: Json | None) -> None:
        """Remove a CRD that is deleted when its last object is gone."""
        if crd is None or _CLEANUP not in crd["metadata"].get("finalizers", ()):
            return
        name = crd["metadata"]["name"]
        table = self._store.tables.get(name)
        if table is not None and table.objects:
            return
        others = [item for item in crd["metadata"]["finalizers"] if item != _CLEANUP]
        metadata = {**crd["metadata"], "finalizers": others}
        new = {**crd, "metadata": metadata} if others else None
        self._store.commit(self._store.tables[CRDS], name, new, None)

    def _publish(self) -> None:
        self._told.append((self._now(), tuple(self._served.values())))
