"""Creations, replacements, patches, deletions: what kube-apiserver does, in its order.

Each is a generator, because of :class:`.Webhooks`. The stored object is checked again after it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from webop.models import structural
from webop.objects.fields import ABSENT_FIELD
from webop.objects.patch import is_same

from . import metadata as metadatas
from .applying import Owner, Owners
from .bodies import (
    APPLY,
    check_config,
    check_size,
    find_misfit,
    find_nulls,
    find_unknown,
    get_content_type,
    parse_body,
    parse_object,
    refuse_content_type,
    write_whole_numbers,
)
from .kinds import CRDS, NAMESPACES, Kind
from .messages import Json, Refusal, Response, refuse_body
from .patches import apply_json_patch, apply_merge_patch
from .rules import find_rule_faults
from .store import Store
from .targets import Target
from .webhooks import Operation, Webhooks

Steps = Generator[Any, Any, Response]

_STORE_LIMIT = 1_572_864
_ATTEMPTS = 5
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_PATCHES: dict[str, Callable[[Json, Any], Any]] = {
    "application/json-patch+json": apply_json_patch,
    "application/merge-patch+json": apply_merge_patch,
}
_CHECKS = (structural.check_value, structural.check_required)  # of built-in kinds
_KEEPS_STATUS = {CRDS, NAMESPACES, "nodes"}
_ORPHANING = "orphan"
_FOREGROUND = "foregroundDeletion"


class Writer:
    """Changes objects as requests want it."""

    def __init__(
        self,
        store: Store,
        now: Callable[[], datetime],
        rng: random.Random,
        webhooks: Webhooks,
    ) -> None:
        self._owners = Owners(store)
        self.collects = False
        self._store = store
        self._now = now
        self._rng = rng
        self._webhooks = webhooks

    def read(self, target: Target) -> tuple[Json, Json]:
        """Return the object as it is stored, and as it is in the version of the request.

        Raises:
            Refusal: it is absent, or it cannot be converted.
        """
        stored = target.table.objects.get(target.key)
        if stored is None:
            raise target.refuse_absent()
        return stored, target.kind.show(stored)

    def create(self, target: Target, raw: Json) -> Steps:
        """Create an object out of a decoded body."""
        kind = target.kind
        metadata = _decode_metadata(target, raw)
        self._check_namespace(target, metadata.get("name", ""))
        if kind.is_terminating:
            message = "create not allowed while custom resource definition is terminating"
            details = target.build_details(name=metadata.get("name", ""))
            raise Refusal(403, "Forbidden", message, details)
        metadatas.wipe(metadata)
        new: Json | None = _shape(target, {**raw, "metadata": metadata})
        name = metadata.get("name", "")
        operation = Operation("CREATE", target, name, {"kind": "CreateOptions"}, target.is_dry)
        new = yield from self._webhooks.mutate(operation, None, new, partial(_shape, target))
        assert new is not None  # noqa: S101 - for the type checker
        metadata = _decode_metadata(target, new)
        name = self._complete_new(kind, metadata)
        target = Target(kind, target.table, target.namespace, name, "", target.request)
        new = {**new, "metadata": metadata}
        if kind.has_status and kind.resource not in _KEEPS_STATUS:
            new.pop("status", None)
            new = _shape(target, new)  # the status can have a default
        if kind.counted != ():
            metadata["generation"] = 1
        kind.fill_in_new(new)
        kind.fill_in(new)
        _check(target, new)
        yield from self._webhooks.validate(operation, None, new)
        if metadata.pop("resourceVersion", "0") != "0":
            raise Refusal(500, "", "resourceVersion should not be set on objects to be created")
        stored = kind.store(new)
        if (there := target.table.objects.get(target.key)) is not None:
            prefix = "object is being deleted: " if "deletionTimestamp" in there["metadata"] else ""
            message = f'{prefix}{kind.resource} "{name}" already exists'
            raise Refusal(409, "AlreadyExists", message, target.build_details())
        self._write(target, new, stored)
        return Response(201, kind.show(stored))

    def replace(self, target: Target, raw: Json) -> Steps:
        """Put a decoded body in the place of an object."""
        metadata = _decode_metadata(target, raw)
        _check_same_name(target, metadata)
        uid = metadata.get("uid")

        def make(old: Json) -> Json:
            if uid not in (None, old["metadata"]["uid"]):
                raise target.refuse_conflict("StorageError: Precondition failed: UID")
            return raw

        is_created = target.key not in target.table.objects and target.kind.creates_on_update
        if is_created and not target.subresource:
            if uid:
                raise target.refuse_conflict("StorageError: Precondition failed: UID")
            metadata.pop("resourceVersion", None)
            return (yield from self.create(target, {**raw, "metadata": metadata}))
        return (yield from self._update(target, make, is_patch=False))

    def patch(self, target: Target) -> Steps:
        """Apply a patch; errors in it count only if the object is there."""
        content_type = get_content_type(target.request)
        if content_type == APPLY:
            return (yield from self._apply(target))
        if content_type not in _PATCHES:
            raise refuse_content_type(", ".join(_PATCHES))
        check_size(target.request)

        def make(old: Json) -> Any:
            made = _PATCHES[content_type](old, parse_body(target.request))
            return write_whole_numbers(target.request, made)

        return (yield from self._update(target, make, is_patch=True))

    def _apply(self, target: Target) -> Steps:
        """Apply a configuration: create the object, or set its fields."""
        query, kind = target.request.query, target.kind
        config = parse_object(kind, target.request)
        metadata = config.setdefault("metadata", {})
        metadata.setdefault("name", target.name)
        _check_same_name(target, metadata)
        if not (manager := query.get("fieldManager", "")):
            raise refuse_body("metadata.fieldManager: Required value: is required for apply patch")
        check_config(kind, config)
        owner = Owner(manager, kind.api_version, target.subresource, is_applying=True)
        old, uid = target.table.objects.get(target.key), metadata.get("uid")
        if old is None and target.subresource:
            raise target.refuse_absent()
        if old is None and uid:
            text = f"uid mismatch: the provided object specified uid {uid}, "
            raise target.refuse_conflict(f"{text}and no existing object was found")
        if old is not None and uid not in (None, old["metadata"]["uid"]):
            fault = f'metadata.uid: Invalid value: "{uid}": field is immutable'
            raise target.refuse_invalid(fault, kind=kind.kind, name=target.name)
        if old is None:
            if nulls := find_nulls(kind, config):
                raise target.refuse_invalid(*nulls)
            response = yield from self.create(target, config)
        else:

            def make(old: Json) -> Json:
                if metadata.get("resourceVersion"):
                    _check_version(target, metadata, old["metadata"])
                is_forced = query.get("force") == "true"
                made = self._owners.apply(kind, old, config, owner, is_forced=is_forced)
                if nulls := find_nulls(kind, made):
                    raise target.refuse_invalid(*nulls)
                return made

            response = yield from self._update(target, make, is_patch=True)
        if not target.is_dry:
            self._owners.take(kind, old and kind.show(old), response.body, config, owner)
        return response

    def delete(self, target: Target, options: Json) -> Steps:
        """Delete an object, or mark it as deleted if finalizers hold it."""
        kind, table = target.kind, target.table
        old = self.read(target)[1]
        is_dry = bool(options.get("dryRun"))
        _check_preconditions(target, old, options)
        wish = {"kind": "DeleteOptions", **options}
        operation = Operation("DELETE", target, target.name, wish, is_dry)
        yield from self._webhooks.mutate(operation, old, None)
        yield from self._webhooks.validate(operation, old, None)
        old = self.read(target)[1]
        _check_preconditions(target, old, options)
        new = self._mark_deleted(kind, old, options)
        is_over = is_finished(kind, new)
        is_written = new != old and not is_over
        if kind.resource == NAMESPACES:
            # It is marked first, in any case; the next request writes once more, and ends it.
            is_over = is_over and "deletionTimestamp" in old["metadata"]
            is_written = new != old or is_over
        if is_written and not is_dry:
            stored = kind.store(new)
            self._store.commit(table, target.key, stored, target.request)
            new = kind.show(stored)
        if is_over:
            if not is_dry:
                self._store.commit(table, target.key, None, target.request)
            if kind.returns_deleted:
                return Response(200, new)
            details = {**target.build_details(), "uid": old["metadata"]["uid"]}
            status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
            return Response(200, {**status, "details": details})
        return Response(200, new)

    def stamp(self) -> str:
        """Return the time as in metadata."""
        return self._now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _update(self, target: Target, make: Callable[[Json], Any], *, is_patch: bool) -> Steps:
        kind, table = target.kind, target.table
        wish = {"kind": "UpdateOptions"}
        operation = Operation("UPDATE", target, target.name, wish, target.is_dry)
        for _ in range(_ATTEMPTS):
            before, old = self.read(target)
            made = make(old)
            if not isinstance(made, dict) or not made.get("kind"):
                raise _refuse_patched("Object 'Kind' is missing")
            metadata = _decode_metadata(target, made, is_patch=is_patch)
            # An empty list is not the same as none, until it is stored.
            is_emptied = any(made.get(field) == [] for field in kind.counted or ())
            if is_patch and (unknown := find_unknown(kind, target.request, made)):
                raise _refuse_patched(unknown)
            is_shaped = made is old  # an apply that changes nothing does not set defaults
            made = {**made, "metadata": metadata}
            made = made if is_shaped else _shape(target, made)
            if is_patch:
                _check_same_name(target, made["metadata"])
            self._get_namespace(target)
            fit = partial(_shape, target)
            mutated = yield from self._webhooks.mutate(operation, old, made, fit)
            assert mutated is not None  # noqa: S101 - for the type checker
            if mutated is not made:
                metadata = _decode_metadata(target, mutated, is_patch=is_patch)
                mutated = _shape(target, {**mutated, "metadata": metadata})
            new = self._prepare_update(target, old, mutated)
            if is_emptied or _has_new_generation(kind, old, new):
                new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
            yield from self._webhooks.validate(operation, old, new)
            if table.objects.get(target.key) is not before:
                continue  # somebody else was faster than the webhooks
            if is_finished(kind, new):
                self._write(target, new, None)
                return Response(200, new)
            stored = kind.store(new)
            if not is_same(stored, before):
                self._write(target, new, stored)
            return Response(200, kind.show(stored))
        raise target.refuse_conflict("the object has been modified")

    def _prepare_update(self, target: Target, old: Json, raw: Json) -> Json:
        """Return the state to store; the resource version stays for now."""
        kind, before, metadata = target.kind, old["metadata"], {**raw["metadata"]}
        new = {**raw, "metadata": metadata}
        _check_version(target, metadata, before)
        if target.subresource:
            field = {"status": "status", "finalize": "spec"}[target.subresource]
            whole, new = new, {**old, "metadata": metadata}
            new.pop(field, None)
            if field in whole or not kind.is_custom:
                new[field] = whole.get(field, {})
            if kind.is_custom:
                metadata = new["metadata"] = dict(before)
        else:
            if kind.has_status:
                new.pop("status", None)
                new |= {"status": old["status"]} if "status" in old else {}
            if kind.resource == NAMESPACES:
                new["spec"] = old["spec"]
        metadatas.carry_over(metadata, before)
        kind.fill_in(new)
        faults = list(metadatas.find_changes_refused(metadata, before))
        if faults:
            raise target.refuse_invalid(*faults)
        _check(target, new, old)
        metadata["resourceVersion"] = before["resourceVersion"]
        return new

    def _write(self, target: Target, new: Json, stored: Json | None) -> None:
        """Store a new state, or remove the object if there is none."""
        body = target.request.body
        if body is not None and len(body) > _STORE_LIMIT:
            raise Refusal(500, "", "etcdserver: request is too large")
        if not target.is_dry:
            if get_content_type(target.request) != APPLY:
                before = target.table.objects.get(target.key)
                old = before and target.kind.show(before)
                manager = target.request.query.get("fieldManager", "unknown")
                self._owners.note(target.kind, old, new, manager)
            self._store.commit(target.table, target.key, stored, target.request)

    def _complete_new(self, kind: Kind, metadata: Json) -> str:
        """Fill in the metadata of an object to be created, return its name."""
        metadatas.wipe(metadata)
        metadata.pop("generation", None)
        metadata["uid"] = str(UUID(int=self._rng.getrandbits(128), version=4))
        metadata["creationTimestamp"] = self.stamp()
        if "name" not in metadata and "generateName" in metadata:
            suffix = "".join(self._rng.choices(_SUFFIX, k=5))
            metadata["name"] = f"{metadata['generateName'][:58]}{suffix}"
        if not kind.namespaced:
            metadata.pop("namespace", None)
        name: str = metadata.get("name", "")
        return name

    def _get_namespace(self, target: Target) -> Json | None:
        """Return the namespace that an object is in; it must be there."""
        if not target.namespace:
            return None
        namespace = self._store.tables[NAMESPACES].objects.get(target.namespace)
        if namespace is None:
            message = f'namespaces "{target.namespace}" not found'
            about = {"name": target.namespace, "kind": "namespaces"}
            raise Refusal(404, "NotFound", message, about)
        return namespace

    def _check_namespace(self, target: Target, name: str) -> None:
        """Refuse new objects in a namespace that is absent or being deleted."""
        namespace = self._get_namespace(target)
        if namespace is not None and "deletionTimestamp" in namespace["metadata"]:
            problem = (
                f"unable to create new content in namespace {target.namespace} because it is "
                "being terminated"
            )
            message = f'{target.kind.resource} "{name}" is forbidden: {problem}'
            causes = [{"reason": "NamespaceTerminating", "message": problem}]
            details: Json = {**target.build_details(name=name), "causes": causes}
            raise Refusal(403, "Forbidden", message, details)

    def _mark_deleted(self, kind: Kind, old: Json, options: Json) -> Json:
        """Return the object as it is while its finalizers are waited for."""
        metadata = dict(old["metadata"])
        finalizers = [
            name
            for name in metadata.pop("finalizers", ())
            if name not in {_ORPHANING, _FOREGROUND} or "propagationPolicy" not in options
        ]
        wanted = {"Orphan": _ORPHANING, "Foreground": _FOREGROUND}
        extra = wanted.get(options.get("propagationPolicy", self.collects and kind.deletes_by))
        if extra:
            finalizers.append(extra)
        if finalizers:
            metadata["finalizers"] = finalizers
        new = {**old, "metadata": metadata}
        if "deletionTimestamp" in metadata:
            return new
        metadata["deletionTimestamp"] = self.stamp()
        if kind.resource == NAMESPACES:
            new["status"] = {**old["status"], "phase": "Terminating"}
        elif kind.resource != CRDS:
            metadata["deletionGracePeriodSeconds"] = 0
            if "generation" in metadata:
                metadata["generation"] += 1
        return new


def is_finished(kind: Kind, raw: Json) -> bool:
    """Tell whether an object is deleted, and nothing holds it."""
    metadata = raw["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    return kind.resource != NAMESPACES or not raw["spec"].get("finalizers")


def _decode_metadata(target: Target, raw: Json, *, is_patch: bool = False) -> Json:
    try:
        metadata = metadatas.decode_metadata(raw.get("metadata"))
    except metadatas.MetadataError as exc:
        if is_patch:
            raise _refuse_patched(str(exc)) from exc
        raise refuse_body(f"{target.kind.kind} cannot be handled: json: {exc}") from exc
    if not target.kind.namespaced and target.kind.is_custom:
        metadata["namespace"] = ""
    if metadata.setdefault("namespace", target.namespace) != target.namespace:
        raise refuse_body(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if not target.namespace:
        del metadata["namespace"]
    return metadata


def _check_same_name(target: Target, metadata: Json) -> None:
    if "name" not in metadata:
        raise refuse_body("the name of the object was undeterminable: name must be provided")
    if (name := metadata["name"]) != target.name:
        text = f"the name of the object ({name}) does not match the name ({target.name})"
        raise refuse_body(text)


def _shape(target: Target, raw: Json) -> Json:
    """Return the object with the fields of its kind only."""
    kind = target.kind
    content = {
        key: value for key, value in raw.items() if key not in {"apiVersion", "kind", "metadata"}
    }
    content = structural.fit(content, kind.schema)
    if not kind.is_custom:
        if fault := find_misfit(kind, content):
            is_applied = get_content_type(target.request) == APPLY
            raise Refusal(500, "", fault) if is_applied else _refuse_patched(fault)
        content = {key: value for key, value in content.items() if value not in ({}, [], "")}
    return {
        "apiVersion": raw.get("apiVersion"),
        "kind": raw["kind"],
        "metadata": raw["metadata"],
        **content,
    }


def _check(target: Target, new: Json, old: Json | None = None) -> None:
    """Refuse an object that is not as it must be."""
    kind = target.kind
    faults = []
    if new["kind"] != kind.kind:
        faults.append(f"kind: Invalid value: must be {kind.kind}")
    if new["apiVersion"] != kind.api_version:
        faults.append(f"apiVersion: Invalid value: must be {kind.api_version}")
    faults += metadatas.find_faults(new["metadata"], is_label=kind.resource == NAMESPACES)
    if not kind.is_custom:
        faults += metadatas.find_core_faults(new["metadata"])
    content = {key: new[key] for key in new if key not in {"apiVersion", "kind", "metadata"}}
    if kind.is_custom:
        faults += structural.find_faults(content, kind.schema)
        faults += (
            []
            if faults
            else find_rule_faults(new, ABSENT_FIELD if old is None else old, kind.schema)
        )
    else:
        faults += structural.find_faults(content, kind.schema, "", _CHECKS)
        faults += [] if faults else kind.find_faults(new)
    if old is not None and not target.subresource:
        faults += metadatas.find_frozen_changes(new, old, kind.frozen)
    if faults:
        raise target.refuse_invalid(*faults, kind=new["kind"], name=target.name)


def _check_version(target: Target, new: Json, old: Json) -> None:
    """Compare resource versions: who gives one insists on it."""
    version = new.get("resourceVersion", "")
    if version in {"", "0"}:
        if not target.kind.updates_without_version:
            fault = "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
            raise target.refuse_invalid(fault, kind=target.kind.plural)
    elif not version.isdecimal():
        raise Refusal(500, "", f'strconv.ParseUint: parsing "{version}": invalid syntax')
    elif version != old["resourceVersion"]:
        raise target.refuse_conflict("the object has been modified; please apply your changes")


def _check_preconditions(target: Target, old: Json, options: Json) -> None:
    for field, wanted in (options.get("preconditions") or {}).items():
        if field in {"uid", "resourceVersion"} and wanted not in (None, old["metadata"][field]):
            problem = f"the {field} in the precondition does not match the one in record"
            raise target.refuse_conflict(problem, target.kind.kind)


def _has_new_generation(kind: Kind, old: Json, new: Json) -> bool:
    fields = kind.counted
    if fields is None:
        ignored = {"apiVersion", "kind", "metadata"} | ({"status"} if kind.has_status else set())
        fields = tuple({*old, *new} - ignored)
    return not all(is_same(old.get(field), new.get(field)) for field in fields)


def _refuse_patched(problem: str) -> Refusal:
    causes = [{"reason": "FieldValueInvalid", "message": problem, "field": "patch"}]
    return Refusal(422, "Invalid", f' "" is invalid: patch: {problem}', {"causes": causes})
