"""CRDs: the kinds that come, change and go with them, as the controllers of the server do it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import datetime

from .builtin import list_kinds
from .conversions import Converter
from .kinds import CRDS, Kind, build_custom_kinds
from .messages import Json, Request
from .rules import list_unevaluated
from .store import Change, Store, Table

_CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
_ACCEPTED = "the initial names have been accepted"


class Kinds:
    """The kinds that are served."""

    def __init__(
        self,
        store: Store,
        now: Callable[[], datetime],
        converter: Converter | None = None,
    ) -> None:
        self._store = store
        self._now = now
        self._converter = converter
        self._served: dict[tuple[str, str, str], Kind] = {}
        store.react = self._react
        for kind in list_kinds():
            self._served[kind.group, kind.version, kind.plural] = kind
            store.open_table(kind.resource)

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """Return a kind that is served; None if there is none."""
        return self._served.get((group, version, plural))

    def list_served(self) -> list[Kind]:
        """Return all kinds, each version of them."""
        return list(self._served.values())

    def _react(self, change: Change) -> None:
        """Do what follows from a change: the controllers of the server in one."""
        if change.resource == CRDS:
            if change.new is None:
                self._withdraw(change.key)
                self._store.drop_table(change.key)
            elif change.old is None or change.old["spec"] != change.new["spec"]:
                self._establish(change.new, is_new=change.old is None)
        elif change.new is None:
            self._finish(self._store.tables[CRDS].objects.get(change.resource))

    def begin_deletion(self, crd: Json, stamp: str, request: Request) -> Json:
        """Mark a CRD as deleted, and delete its objects; return its state."""
        metadata = crd["metadata"]
        if "deletionTimestamp" in metadata:
            if "deletionGracePeriodSeconds" in metadata:
                return crd
            return self._write(crd, {"deletionGracePeriodSeconds": 0}, {}, request)
        finalizers = [*metadata.get("finalizers", ()), _CLEANUP]
        former = crd["status"]["conditions"]
        problem = (
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"
        )
        pending = _build_condition("Terminating", stamp, "InstanceDeletionPending", problem)
        marks = {"deletionTimestamp": stamp, "finalizers": finalizers}
        marked = self._write(crd, marks, {"conditions": [*former, pending]}, request)
        progress = "CustomResource deletion is in progress"
        begun = _build_condition("Terminating", stamp, "InstanceDeletionInProgress", progress)
        crd = self._write(marked, {}, {"conditions": [*former, begun]})
        self._serve(crd)
        self._delete_objects(self._store.tables[metadata["name"]], stamp)
        self._finish(self._store.tables[CRDS].objects.get(metadata["name"]))
        return marked

    def _delete_objects(self, table: Table, stamp: str) -> None:
        """Delete all objects; those that finalizers hold are marked."""
        for key, raw in list(table.objects.items()):
            metadata = raw["metadata"]
            if not metadata.get("finalizers"):
                self._store.commit(table, key, None, None)
            elif "deletionTimestamp" not in metadata:
                marks = {"deletionTimestamp": stamp, "deletionGracePeriodSeconds": 0}
                generation = {"generation": metadata["generation"] + 1}
                new = {**raw, "metadata": {**metadata, **marks, **generation}}
                self._store.commit(table, key, new, None)

    def _establish(self, crd: Json, *, is_new: bool) -> None:
        """Accept the names of a CRD, and serve its versions as they are now."""
        stamp = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        names = crd["spec"]["names"]
        if is_new:
            _warn_of_rules(crd)
            accepted = _build_condition("NamesAccepted", stamp, "NoConflicts", "no conflicts found")
            for reason in ("Installing", "InitialNamesAccepted"):
                is_true = reason != "Installing"
                established = _build_condition(
                    "Established", stamp, reason, _ACCEPTED, is_true=is_true
                )
                status = {"conditions": [accepted, established], "acceptedNames": names}
                crd = self._write(crd, {}, status)
        elif crd["status"]["acceptedNames"] != names:
            crd = self._write(crd, {}, {"acceptedNames": names})
        self._serve(crd)
        table = self._store.open_table(crd["metadata"]["name"])
        table.advance(len(table.log))
        table.end_watches()  # the server starts again with it, and with its cache
        table.oldest = self._store.version

    def _serve(self, crd: Json) -> None:
        self._withdraw(crd["metadata"]["name"])
        for kind in build_custom_kinds(crd, self._converter):
            self._served[kind.group, kind.version, kind.plural] = kind

    def _withdraw(self, resource: str) -> None:
        for key in [key for key, kind in self._served.items() if kind.resource == resource]:
            del self._served[key]

    def _write(
        self, crd: Json, metadata: Json, status: Json, request: Request | None = None
    ) -> Json:
        """Store a CRD with changes of its metadata and its status, return it."""
        metadata, status = {**crd["metadata"], **metadata}, {**crd["status"], **status}
        new = {**crd, "metadata": metadata, "status": status}
        self._store.commit(self._store.tables[CRDS], metadata["name"], new, request)
        return new

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


def _warn_of_rules(crd: Json) -> None:
    """Tell the test that CEL rules are not evaluated."""
    schemas = [
        version["schema"].get("openAPIV3Schema") or {} for version in crd["spec"]["versions"]
    ]
    rules = [rule for schema in schemas for rule in list_unevaluated(schema)]
    listed = "; ".join(dict.fromkeys(rules))
    if rules:
        warnings.warn(
            f"Rules of {crd['metadata']['name']} are not evaluated: {listed}. "
            "Install cel-expr-python, or use a real API server.",
            UserWarning,
            stacklevel=2,
        )


def _build_condition(
    kind: str, stamp: str, reason: str, message: str, *, is_true: bool = True
) -> Json:
    return {
        "type": kind,
        "status": "True" if is_true else "False",
        "lastTransitionTime": stamp,
        "reason": reason,
        "message": message,
    }
