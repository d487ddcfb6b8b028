"""Metadata of objects: what is kept, what is refused, what an update cannot change. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from webop.models import structural
from webop.objects.fields import resolve
from webop.objects.names import RFC1123_LABEL, SUBDOMAIN, is_label_key, is_label_value
from webop.objects.patch import is_same

from .kinds import METADATA, TEXT
from .messages import Json

_STANDARD_FINALIZERS = {"kubernetes", "orphan", "foregroundDeletion"}
_OWNER_FIELDS = ("apiVersion", "kind", "name", "uid")
_NO_OWNERS = {("v1", "Event")}
_ANNOTATIONS_LIMIT = 256 * 1024  # bytes, of all keys and values


class MetadataError(Exception):
    """This is no metadata."""


def decode_metadata(raw: Any) -> Json:
    """Return a copy with the known fields that are not empty; nulls count as absent.

    Raises:
        MetadataError: a field is of a wrong type.
    """
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise MetadataError("cannot unmarshal it into Go value of type v1.ObjectMeta")
    metadata: Json = {}
    for name, found in raw.items():
        schema = METADATA["properties"].get(name)
        if found is None or schema is None or name in {"selfLink", "managedFields"}:
            continue
        value = found
        if isinstance(value, dict) and None in value.values():
            value = {key: "" if item is None else item for key, item in value.items()}
        value = value if schema is TEXT else structural.fit(value, schema)
        if any(structural.find_faults(value, schema, checks=(structural.check_format,))):
            raise MetadataError(f"cannot unmarshal it into Go struct field ObjectMeta.{name}")
        if value or value == 0:
            metadata[name] = value
    if "ownerReferences" in metadata:
        empty = dict.fromkeys(_OWNER_FIELDS, "")
        metadata["ownerReferences"] = [empty | owner for owner in metadata["ownerReferences"]]
    return metadata


def wipe(metadata: Json) -> None:
    """Remove from new metadata what only the server says."""
    for field in ("creationTimestamp", "uid", "deletionTimestamp", "deletionGracePeriodSeconds"):
        metadata.pop(field, None)


def find_faults(metadata: Json, *, is_label: bool = False) -> Iterator[str]:
    """Yield what is invalid; is_label: whether its name must be without dots."""
    name = metadata.get("name", "")
    limit, form = (63, RFC1123_LABEL) if is_label else (253, SUBDOMAIN)
    if not name:
        yield "metadata.name: Required value: name or generateName is required"
    elif len(name) > limit or not form.fullmatch(name):
        yield f"metadata.name: Invalid value: {name!r}"
    for key, value in metadata.get("labels", {}).items():
        if not is_label_key(key) or not is_label_value(value):
            yield f"metadata.labels: Invalid value: {key!r}: {value!r}"
    annotations = metadata.get("annotations", {})
    for key in annotations:
        if not is_label_key(key.lower()):
            yield f"metadata.annotations: Invalid value: {key!r}"
    if sum(len(key) + len(value) for key, value in annotations.items()) > _ANNOTATIONS_LIMIT:
        yield f"metadata.annotations: Too long: may not be more than {_ANNOTATIONS_LIMIT} bytes"
    for finalizer in metadata.get("finalizers", ()):
        if not is_label_key(finalizer):
            yield f"metadata.finalizers: Invalid value: {finalizer!r}"
    yield from _find_faults_of_owners(metadata.get("ownerReferences", ()))


def _find_faults_of_owners(owners: Sequence[Json]) -> Iterator[str]:
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        yield "metadata.ownerReferences: Invalid value: only one reference can be the controller"
    for owner in owners:
        if (owner["apiVersion"], owner["kind"]) in _NO_OWNERS:
            yield "metadata.ownerReferences: Invalid value: is disallowed from being an owner"
    for owner, field in product(owners, _OWNER_FIELDS):
        if not owner.get(field):
            yield f"metadata.ownerReferences.{field}: Invalid value: must not be empty"


def find_core_faults(metadata: Json) -> Iterator[str]:
    """Yield what is invalid in objects of built-in kinds only."""
    for finalizer in metadata.get("finalizers", ()):
        if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            yield f"metadata.finalizers: Invalid value: {finalizer!r}: not fully qualified"


def find_frozen_changes(raw: Json, old: Json, fields: Iterable[str]) -> Iterator[str]:
    """Yield the fields that an update must not change but does."""
    if old.get("immutable") is True:
        fields = (*fields, "immutable", "data", "binaryData")
    for path in fields:
        before, after = (resolve(each, tuple(path.split("."))) for each in (old, raw))
        if not is_same(before, after):
            yield f"{path}: Invalid value: field is immutable"


def carry_over(new: Json, old: Json) -> None:
    """Put back into the metadata what an update cannot change, silently."""
    new["name"] = old["name"]
    new.setdefault("uid", old["uid"])
    new["creationTimestamp"] = old["creationTimestamp"]
    # Kept if it is there; what is new in it is found as a fault.
    for field in ("namespace", "generation", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if field in old:
            new[field] = old[field]
    if "generation" not in old:
        new.pop("generation", None)


def find_changes_refused(new: Json, old: Json) -> Iterator[str]:
    """Yield what an update must not change but does."""
    for field in ("uid", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if new.get(field) != old.get(field):
            yield f"metadata.{field}: Invalid value: {new.get(field)!r}: field is immutable"
    if "deletionTimestamp" in old:
        added = set(new.get("finalizers", ())) - set(old.get("finalizers", ()))
        if added:
            yield (
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is "
                f"being deleted, found new finalizers {sorted(added)}"
            )
