"""The last handled state of an object: what it consists of, and where it is kept.

The reactor compares the essence of an object with the stored one to find out what has happened
to the object, and stores the essence when all handlers have succeeded (chapters "Configuration"
and "Handlers" of the manual). Users choose or write a storage in
``settings.persistence.diffbase_storage``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from webop.objects.body import Body, BodyEssence, get_raw
from webop.objects.fields import (
    ABSENT_FIELD,
    FieldPath,
    FieldSpec,
    build_without,
    clone,
    ensure,
    parse_field,
    resolve,
)
from webop.objects.storage.codec import decode, encode
from webop.objects.storage.keys import (
    DEFAULT_PREFIX,
    AnnotationNaming,
    find_managed_prefixes,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from webop.objects.patch import Patch

_KUBECTL: Final = "kubectl.kubernetes.io/last-applied-configuration"
_SYSTEM_STANZAS: Final = frozenset({"apiVersion", "kind", "metadata", "status"})
_DROPPED_IF_EMPTY: Final = frozenset(
    {("status",), ("metadata",), ("metadata", "labels"), ("metadata", "annotations")}
)


class DiffBaseStorage(ABC):
    """Keeps the last handled state; to be inherited by storages of one's own.

    The essence shares its parts with the raw body, which must not be changed. A class from
    elsewhere that overrides :meth:`build` gets a copy from ``super()`` that is its own.

    Args:
        ignored_fields: what is left out of the essence, though it were a part of it.
    """

    _gives_copies: ClassVar[bool] = False

    def __init__(self, ignored_fields: Iterable[FieldSpec] | None = None) -> None:
        super().__init__()
        self.ignored_fields = [parse_field(field) for field in ignored_fields or ()]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "build" in vars(cls) and cls.__module__ != __name__:
            cls._gives_copies = True

    def build(self, *, body: Body, extra_fields: Iterable[FieldSpec] | None = None) -> BodyEssence:
        """Build the essence: what handlers are called for when it changes.

        It is the object without `apiVersion`, `kind`, `status` and `metadata`, but with labels
        and annotations; the annotations of operators and of kubectl are not in it.

        Args:
            body: the object.
            extra_fields: fields of handlers, which are included wherever they are.
        """
        raw = get_raw(body)
        essence = {key: value for key, value in raw.items() if key not in _SYSTEM_STANZAS}
        if metadata := _build_metadata(raw):
            essence["metadata"] = metadata
        for field in extra_fields or ():
            _include(raw, essence, parse_field(field))
        for path in self.ignored_fields:
            essence = build_without(essence, path)
        return cast("BodyEssence", clone(essence) if self._gives_copies else essence)

    @abstractmethod
    def fetch(self, *, body: Body) -> BodyEssence | None:
        """Return the stored essence, or None if the object was never handled."""

    @abstractmethod
    def store(self, *, body: Body, patch: Patch, essence: BodyEssence) -> None:
        """Put the essence into the patch, or keep it elsewhere."""


def _build_metadata(raw: Mapping[str, Any]) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    if labels := resolve(raw, ("metadata", "labels")):
        metadata["labels"] = labels
    if annotations := resolve(raw, ("metadata", "annotations")):
        prefixes = find_managed_prefixes(annotations)
        kept = {
            key: value
            for key, value in annotations.items()
            if key != _KUBECTL and not key.startswith(prefixes)
        }
        if kept:
            metadata["annotations"] = kept
    return metadata


def _include(raw: Mapping[str, Any], essence: dict[str, Any], path: FieldPath) -> None:
    """Put a field into the essence, without a write to what is shared with the raw body."""
    value = resolve(raw, path, ABSENT_FIELD)
    if not path or value is ABSENT_FIELD or resolve(essence, path, ABSENT_FIELD) is value:
        return
    if path == ("metadata",) and isinstance(value, dict):
        # It changes with each write, that of the essence included: a handler would never rest.
        value = {key: val for key, val in value.items() if key != "resourceVersion"}
    if value or path not in _DROPPED_IF_EMPTY:
        ensure(essence, path, value)


def _drop_annotations(essence: BodyEssence, names: Iterable[str]) -> BodyEssence:
    document = cast("dict[str, Any]", essence)
    annotations = resolve(document, ("metadata", "annotations")) or {}
    for name in names:
        if name in annotations:
            document = build_without(document, ("metadata", "annotations", name))
    return cast("BodyEssence", document)


class AnnotationsDiffBaseStorage(AnnotationNaming, DiffBaseStorage):
    """Keeps the last handled state in an annotation.

    Args:
        prefix: of the annotation; another one for each operator that handles the same objects.
        key: the name of the annotation under the prefix.
        ignored_fields: what is left out of the essence.
        v1: whether the annotation is also kept under its older name, if it differs.
    """

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

    def build(self, *, body: Body, extra_fields: Iterable[FieldSpec] | None = None) -> BodyEssence:
        """Build the essence, without the annotation itself."""
        essence = super().build(body=body, extra_fields=extra_fields)
        return _drop_annotations(essence, self.make_keys(self.key, body=get_raw(body)))

    def fetch(self, *, body: Body) -> BodyEssence | None:
        """Return the essence from the annotation."""
        raw = get_raw(body)
        annotations = resolve(raw, ("metadata", "annotations")) or {}
        for name in self.make_keys(self.key, body=raw):
            text = annotations.get(name)
            essence = None if text is None else decode(text, place=f"the annotation {name}")
            if essence is not None:
                return cast("BodyEssence", essence)
        return None

    def store(self, *, body: Body, patch: Patch, essence: BodyEssence) -> None:
        """Put the essence into the patch, as text with a line end for a clean ``kubectl get``."""
        text = encode(essence) + "\n"
        raw = get_raw(body)
        for name in self.make_keys(self.key, body=raw):
            ensure(patch, ("metadata", "annotations", name), text)
        self.store_marker(body=raw, patch=patch)


class StatusDiffBaseStorage(DiffBaseStorage):
    """Keeps the last handled state in a field, as text, usually in ``status``.

    Args:
        name: of the operator, for the default field.
        field: where the text is; ``{name}`` in it stands for the name.
        ignored_fields: what is left out of the essence.
    """

    def __init__(
        self,
        *,
        name: str = "kopf",
        field: FieldSpec = "status.{name}.last-handled-configuration",
        ignored_fields: Iterable[FieldSpec] | None = None,
    ) -> None:
        super().__init__(ignored_fields=ignored_fields)
        self.field = parse_field(field.format(name=name) if isinstance(field, str) else field)

    def build(self, *, body: Body, extra_fields: Iterable[FieldSpec] | None = None) -> BodyEssence:
        """Build the essence, without the field itself."""
        essence = super().build(body=body, extra_fields=extra_fields)
        return cast("BodyEssence", build_without(cast("dict[str, Any]", essence), self.field))

    def fetch(self, *, body: Body) -> BodyEssence | None:
        """Return the essence from the field."""
        text = resolve(get_raw(body), self.field)
        place = f"the field {'.'.join(self.field)}"
        return None if text is None else cast("BodyEssence | None", decode(text, place=place))

    def store(self, *, body: Body, patch: Patch, essence: BodyEssence) -> None:  # noqa: ARG002
        """Put the essence into the patch; text is never merged with what was there."""
        ensure(patch, self.field, encode(essence))


class MultiDiffBaseStorage(DiffBaseStorage):
    """Keeps the last handled state in several storages, to move from one to another.

    Args:
        storages: all are written; the first that has a state is believed.
    """

    def __init__(self, storages: Collection[DiffBaseStorage]) -> None:
        super().__init__()
        self.storages = storages

    def build(self, *, body: Body, extra_fields: Iterable[FieldSpec] | None = None) -> BodyEssence:
        """Build the essence, without what any of the storages keeps in the object."""
        extra_fields = list(extra_fields or ())
        essence = super().build(body=body, extra_fields=extra_fields)
        for storage in self.storages:
            rest = Body(_restore_identity(body, essence))
            essence = storage.build(body=rest, extra_fields=extra_fields)
        return essence

    def fetch(self, *, body: Body) -> BodyEssence | None:
        """Return the essence from the first storage that has one."""
        for storage in self.storages:
            essence = storage.fetch(body=body)
            if essence is not None:
                return essence
        return None

    def store(self, *, body: Body, patch: Patch, essence: BodyEssence) -> None:
        """Store the essence in all storages."""
        for storage in self.storages:
            storage.store(body=body, patch=patch, essence=essence)


def _restore_identity(body: Body, essence: BodyEssence) -> dict[str, Any]:
    """Build a body of what is left of it: storages name their annotations by kind and owners."""
    document: dict[str, Any] = {"kind": body.get("kind"), **essence}
    if owners := body.metadata.get("ownerReferences"):
        metadata = document.pop("metadata", {})
        document["metadata"] = {**metadata, "ownerReferences": owners}
    return document
