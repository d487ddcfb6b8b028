"""Storages of the last handled state of an object, and its contents.

The reactor compares the essence of an object with the stored one to find out what has happened
to the object, and stores the essence when all handlers have succeeded (chapters "Configuration"
and "Handlers" of the manual).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, cast

from webop.aio.backoff import Once
from webop.objects.body import Body, BodyEssence, build_object_reference, get_raw
from webop.objects.fields import (
    ABSENT_FIELD,
    FieldPath,
    FieldSpec,
    build_without,
    ensure,
    parse_field,
    resolve,
)
from webop.objects.storage import codec
from webop.objects.storage.codec import ANNOTATIONS, EssenceDigest, StoredEssence
from webop.objects.storage.keys import (
    DEFAULT_PREFIX,
    DROPPED_IF_EMPTY,
    AnnotationNaming,
    EssenceCleaning,
    NamedField,
    find_managed_prefixes,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from webop.objects.patch import Patch

__all__ = ["EssenceDigest", "StoredEssence"]

logger = logging.getLogger(__name__)

_KUBECTL: Final = "kubectl.kubernetes.io/last-applied-configuration"
_SYSTEM_STANZAS: Final = frozenset({"apiVersion", "kind", "metadata", "status"})
_TOO_LARGE: Final = (
    "The state of %s %s takes %d bytes: too many for an annotation, even if compressed, as all "
    "annotations of an object can have %d together. Only its digest is stored: changes are "
    "noticed, but handlers of updates get an empty 'old', and a 'diff' in which everything is new. "
    "This is so for all such objects of the kind. To have it otherwise, put StatusDiffBaseStorage "
    "into settings.persistence.diffbase_storage, or name the large fields in its ignored_fields."
)


class DiffBaseStorage(EssenceCleaning, ABC):
    """Keeps the last handled state; to be inherited by storages of one's own.

    Args:
        ignored_fields: what is left out of the essence, though it were a part of it.
    """

    is_in_metadata: bool = False
    """Whether it needs only the metadata of objects."""

    _makes_essences = "build"

    def __init__(self, ignored_fields: Iterable[FieldSpec] | None = None) -> None:
        super().__init__()
        self.ignored_fields = list(ignored_fields or ())
        for field in self.ignored_fields:
            parse_field(field)  # to complain where the mistake is made

    def build(self, *, body: Body, extra_fields: Iterable[FieldSpec] | None = None) -> BodyEssence:
        """Build the essence: the part whose changes handlers are called for.

        It is the object without `apiVersion`, `kind`, `status` and `metadata`, but with labels
        and annotations; the annotations of operators and of kubectl are not in it.

        The extra fields, those of handlers, are included wherever they are.
        """
        raw = get_raw(body)
        essence = {key: value for key, value in raw.items() if key not in _SYSTEM_STANZAS}
        meta, metadata = raw.get("metadata") or {}, {}
        if labels := meta.get("labels"):
            metadata["labels"] = labels
        if annotations := meta.get("annotations"):
            managed = find_managed_prefixes(annotations)
            kept = {key: val for key, val in annotations.items() if not key.startswith(managed)}
            kept.pop(_KUBECTL, None)
            if kept:
                metadata["annotations"] = kept
        if metadata:
            essence["metadata"] = metadata
        for field in extra_fields or ():
            _include(raw, essence, parse_field(field))
        for field in self.ignored_fields:
            essence = build_without(essence, parse_field(field))
        return self._own(cast("BodyEssence", essence))

    @abstractmethod
    def fetch(self, *, body: Body) -> StoredEssence | None:
        """Return the stored essence, or None if the object was never handled.

        It is a digest where the essence was too large to be stored.
        """

    @abstractmethod
    def store(self, *, body: Body, patch: Patch, essence: BodyEssence) -> None:
        """Put the essence into the patch, or keep it elsewhere."""


def _include(raw: Mapping[str, Any], essence: dict[str, Any], path: FieldPath) -> None:
    """Put a field into the essence, without a write to what is shared with the raw body."""
    value = resolve(raw, path, ABSENT_FIELD)
    if not path or value is ABSENT_FIELD or resolve(essence, path, ABSENT_FIELD) is value:
        return
    if path == ("metadata",) and isinstance(value, dict):
        # It changes with each write, that of the essence included: a handler would never rest.
        value = {key: val for key, val in value.items() if key != "resourceVersion"}
    if value or path not in DROPPED_IF_EMPTY:
        ensure(essence, path, value)


class AnnotationsDiffBaseStorage(AnnotationNaming, DiffBaseStorage):
    """Keeps the last handled state in an annotation.

    It is plain JSON wherever that fits beside the other annotations of the object; otherwise,
    see :mod:`webop.objects.storage.codec`.

    Args:
        prefix: of the annotation; another one for each operator that handles the same objects.
        key: the name of the annotation under the prefix.
        ignored_fields: what is left out of the essence.
        v1: whether the annotation is also kept under its older name, if it differs.
    """

    is_in_metadata = True

    def __init__(
        self,
        *,
        prefix: str = DEFAULT_PREFIX,
        key: str = "last-handled-configuration",
        ignored_fields: Iterable[FieldSpec] | None = None,
        v1: bool = True,
    ) -> None:
        super().__init__(prefix=prefix, v1=v1, ignored_fields=ignored_fields)
        self.key = key
        self._told = Once()

    def build(self, *, body: Body, extra_fields: Iterable[FieldSpec] | None = None) -> BodyEssence:
        """Build the essence, without the annotation itself."""
        essence = super().build(body=body, extra_fields=extra_fields)
        # The managed annotations are not in it, but those of extra fields can be.
        if resolve(essence, ANNOTATIONS):
            for name in self.make_keys(self.key, body=body):
                essence = build_without(essence, (*ANNOTATIONS, name))
        return essence

    def fetch(self, *, body: Body) -> StoredEssence | None:
        """Return the essence from the annotation, or its digest."""
        essence: StoredEssence | None = self._read_state(self.key, body, codec.decode_essence)
        return essence

    def store(self, *, body: Body, patch: Patch, essence: BodyEssence) -> None:
        """Put the essence into the patch, as text with a line end for a clean ``kubectl get``."""
        text = codec.encode(essence) + "\n"
        raw = get_raw(body)
        name, *older = self.make_keys(self.key, body=body)
        others = codec.merge_annotations(raw, patch)
        for key in (name, *older):
            others.pop(key, None)
        room = codec.ANNOTATIONS_LIMIT - codec.RESERVE - codec.measure_all({**others, name: ""})
        size = codec.measure(text)
        if size > room:
            text = self._shrink(body, essence, room, size)
        ensure(patch, (*ANNOTATIONS, name), text)
        for key in older:  # beside the first one, if both fit
            room -= codec.measure(text) + codec.measure(key)
            ensure(patch, (*ANNOTATIONS, key), text if codec.measure(text) <= room else None)
        self.store_marker(body=raw, patch=patch)

    def _shrink(self, body: Body, essence: BodyEssence, room: int, size: int) -> str:
        """Return a shorter text: compressed, or the digest if that does not fit."""
        document = cast("dict[str, Any]", essence)
        if (text := codec.compress(document, room - 1)) is not None:
            return text + "\n"
        kind = body.get("kind")
        if self._told.is_new((body.get("apiVersion"), kind)):
            namespace, name = body.metadata.namespace, body.metadata.name
            address = f"{namespace}/{name}" if namespace else f"{name}"
            extra = {"k8s_ref": build_object_reference(body)}
            logger.warning(_TOO_LARGE, kind, address, size, codec.ANNOTATIONS_LIMIT, extra=extra)
        return codec.summarize(document) + "\n"


class StatusDiffBaseStorage(DiffBaseStorage):
    """Keeps the last handled state in a field, as text, usually in ``status``.

    Args:
        name: of the operator, for the default field.
        field: where the text is; ``{name}`` in it stands for the name.
        ignored_fields: what is left out of the essence.
    """

    field = NamedField()

    def __init__(
        self,
        *,
        name: str = "kopf",
        field: FieldSpec = "status.{name}.last-handled-configuration",
        ignored_fields: Iterable[FieldSpec] | None = None,
    ) -> None:
        super().__init__(ignored_fields=ignored_fields)
        self.name = name
        self.field = field

    def build(self, *, body: Body, extra_fields: Iterable[FieldSpec] | None = None) -> BodyEssence:
        """Build the essence, without the field itself."""
        essence = super().build(body=body, extra_fields=extra_fields)
        return build_without(essence, self.field)

    def fetch(self, *, body: Body) -> BodyEssence | None:
        """Return the essence from the field."""
        raw = get_raw(body)
        text = resolve(raw, self.field)
        try:
            essence: Any = None if text is None else codec.decode(text)
        except ValueError as exc:
            codec.log_damage(f"the field {'.'.join(self.field)}", raw, exc)
            return None
        return cast("BodyEssence | None", essence)

    def store(self, *, body: Body, patch: Patch, essence: BodyEssence) -> None:  # noqa: ARG002
        """Put the essence into the patch as text, which is never merged with an old value."""
        ensure(patch, self.field, codec.encode(essence))


class MultiDiffBaseStorage(DiffBaseStorage):
    """Keeps the last handled state in several storages, to move from one to another.

    Args:
        storages: all are written; the first that has a state is believed.
    """

    def __init__(self, storages: Collection[DiffBaseStorage]) -> None:
        super().__init__()
        self.storages = storages
        self.is_in_metadata = all(storage.is_in_metadata for storage in storages)

    def build(self, *, body: Body, extra_fields: Iterable[FieldSpec] | None = None) -> BodyEssence:
        """Build the essence, without the data of any of the storages."""
        extra_fields = list(extra_fields or ())
        essence = super().build(body=body, extra_fields=extra_fields)
        for storage in self.storages:
            # Storages name their annotations by kind and owners, which are in no essence.
            rest: dict[str, Any] = {"kind": body.get("kind"), **essence}
            if owners := body.metadata.get("ownerReferences"):
                rest["metadata"] = {**rest.get("metadata", {}), "ownerReferences": owners}
            essence = storage.build(body=Body(rest), extra_fields=extra_fields)
        return essence

    def fetch(self, *, body: Body) -> StoredEssence | None:
        """Return the essence from the first storage that has one.

        If that one has only a digest, the same essence from any other storage is better.
        """
        digest: EssenceDigest | None = None
        for storage in self.storages:
            stored = storage.fetch(body=body)
            if isinstance(stored, EssenceDigest):
                digest = digest or stored
            elif stored is not None and (digest is None or digest.matches(cast("Any", stored))):
                return stored
        return digest

    def store(self, *, body: Body, patch: Patch, essence: BodyEssence) -> None:
        """Store the essence in all storages."""
        for storage in self.storages:
            storage.store(body=body, patch=patch, essence=essence)
