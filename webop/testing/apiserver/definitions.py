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
_NAMES = ("plural", "singular", "kind", "listKind")
_ACCEPTED = "the initial names have been accepted"
_NOT_ACCEPTED = "not all names are accepted"


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
                assert change.old is not None  # noqa: S101 - for the type checker
                self._withdraw(change.old)
            elif change.old is None or change.old["spec"] != change.new["spec"]:
                self._establish(change.new, is_new=change.old is None)
        elif change.new is None:
            self._finish(self._store.tables[CRDS].objects.get(change.resource))

    def begin_deletion(self, crd: Json, stamp: str, request: Request) -> Json:
        """Mark a CRD as deleted, and delete its objects; return its state."""
        name, metadata = crd["metadata"]["name"], crd["metadata"]
        if "deletionTimestamp" in metadata:
            if "deletionGracePeriodSeconds" in metadata:
                return crd
            return self._write(crd, {**metadata, "deletionGracePeriodSeconds": 0}, request=request)
        finalizers = [*metadata.get("finalizers", ()), _CLEANUP]
        metadata = {**metadata, "deletionTimestamp": stamp, "finalizers": finalizers}
        problem = (
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"
        )
        pending = _build_condition("Terminating", stamp, "InstanceDeletionPending", problem)
        conditions = list(crd["status"]["conditions"] or ())
        marked = self._write(crd, metadata, {"conditions": [*conditions, pending]}, request)
        begun = _build_condition(
            "Terminating",
            stamp,
            "InstanceDeletionInProgress",
            "CustomResource deletion is in progress",
        )
        crd = self._write(marked, dict(marked["metadata"]), {"conditions": [*conditions, begun]})
        for kind in build_custom_kinds(crd, self._converter):
            if (kind.group, kind.version, kind.plural) in self._served:
                self._served[kind.group, kind.version, kind.plural] = kind
        if name in self._store.tables:
            self._delete_objects(self._store.tables[name], stamp)
        self._finish(self._store.tables[CRDS].objects.get(name))
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
        """Accept the names of a CRD, if no other has them, and serve its versions."""
        stamp = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        taken = self._find_taken_names(crd)
        names = {field: name for field, name in crd["spec"]["names"].items() if field not in taken}
        if taken:
            field, name = list(taken.items())[-1]
            reason = f"{field[0].upper()}{field[1:]}Conflict"
            message = f'"{name}" is already in use'
            conditions = [
                _build_condition("NamesAccepted", stamp, reason, message, is_true=False),
                _build_condition("Established", stamp, "NotAccepted", _NOT_ACCEPTED, is_true=False),
            ]
            accepted = {"plural": "", "kind": "", **names}
            self._write(
                crd, dict(crd["metadata"]), {"conditions": conditions, "acceptedNames": accepted}
            )
            return
        if is_new:
            _warn_of_rules(crd)
            conditions = [
                _build_condition("NamesAccepted", stamp, "NoConflicts", "no conflicts found"),
                _build_condition("Established", stamp, "Installing", _ACCEPTED, is_true=False),
            ]
            status = {"conditions": conditions, "acceptedNames": names}
            crd = self._write(crd, dict(crd["metadata"]), status)
            established = _build_condition("Established", stamp, "InitialNamesAccepted", _ACCEPTED)
            status = {"conditions": [conditions[0], established]}
            crd = self._write(crd, dict(crd["metadata"]), status)
        elif crd["status"]["acceptedNames"] != names:
            crd = self._write(crd, dict(crd["metadata"]), {"acceptedNames": names})
        self._serve_all(crd)

    def _serve_all(self, crd: Json) -> None:
        """Serve the versions of a CRD as it is now; earlier watches end."""
        name = crd["metadata"]["name"]
        for key in [key for key, kind in self._served.items() if kind.resource == name]:
            del self._served[key]
        table = self._store.open_table(name)
        table.advance(len(table.log))
        table.end_watches()  # the server starts again with it, and with its cache
        table.oldest = self._store.version
        for kind in build_custom_kinds(crd, self._converter):
            self._served[kind.group, kind.version, kind.plural] = kind

    def _find_taken_names(self, crd: Json) -> Json:
        """Return the names that other CRDs of the group have, by their fields."""
        names = crd["spec"]["names"]
        taken = {}
        for field in _NAMES:
            for other in self._store.tables[CRDS].objects.values():
                is_other = other["metadata"]["name"] != crd["metadata"]["name"]
                is_near = is_other and other["spec"]["group"] == crd["spec"]["group"]
                if is_near and other["status"]["acceptedNames"].get(field) == names.get(field):
                    taken[field] = names[field]
        return taken

    def _write(
        self,
        crd: Json,
        metadata: Json,
        status: Json | None = None,
        request: Request | None = None,
    ) -> Json:
        """Store a new state of a CRD, return it."""
        new = {**crd, "metadata": metadata, "status": {**crd["status"], **(status or {})}}
        self._store.commit(self._store.tables[CRDS], metadata["name"], new, request)
        return new

    def _withdraw(self, crd: Json) -> None:
        """Serve a kind no longer."""
        name = crd["metadata"]["name"]
        for key in [key for key, kind in self._served.items() if kind.resource == name]:
            del self._served[key]
        if name in self._store.tables:
            self._store.drop_table(name)

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
