"""The progress of handlers on an object: one record each, kept until the handling is over.

A record outlives the process, so that a restarted operator goes on where it was: finished
handlers are not called again, delayed ones in due time (chapters "Continuity" and "Configuration"
of the manual).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from webop.objects.body import get_raw
from webop.objects.fields import (
    ABSENT_FIELD,
    FieldPath,
    FieldSpec,
    build_without,
    ensure,
    is_mapping,
    remove,
    resolve,
)
from webop.objects.storage import codec
from webop.objects.storage.codec import ANNOTATIONS, decode, encode, measure
from webop.objects.storage.keys import DEFAULT_PREFIX, AnnotationNaming, EssenceCleaning, NamedField

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from webop.objects.body import Body, BodyEssence
    from webop.objects.patch import Patch

_MESSAGE_LIMITS: Final = (1000, 200, 50, 0)
"""Characters of a message: as many as fit, and never more than the first of them."""


class ProgressRecord(TypedDict, total=False):
    """The state of one handler in a handling cycle; times are ISO 8601 in UTC."""

    started: str | None  # when it was first called
    stopped: str | None  # when it succeeded or failed for good
    delayed: str | None  # when it must be called again
    purpose: str | None  # the reason of the cycle, such as "create"
    retries: int | None  # how many attempts there were
    success: bool | None
    failure: bool | None  # whether it has failed for good
    message: str | None  # the text of the last error
    subrefs: Collection[str] | None  # the ids of its sub-handlers
    # A digest of the state that a finished handler was called for, in unfinished cycles. Kopf
    # ignores it.
    seen: str


class ProgressStorage(EssenceCleaning, ABC):
    """Keeps the progress of handlers; to be inherited by storages of one's own.

    Records are independent: none is merged with another or with what it was before.
    """

    is_in_metadata: bool = False
    """Whether it needs only the metadata of objects."""

    _makes_essences = "clear"

    @abstractmethod
    def fetch(self, *, key: str, body: Body) -> ProgressRecord | None:
        """Return the record of a handler by its id; None if it was not called in this cycle."""

    @abstractmethod
    def store(self, *, key: str, record: ProgressRecord, body: Body, patch: Patch) -> None:
        """Put the record of a handler into the patch, or keep it elsewhere."""

    @abstractmethod
    def purge(self, *, key: str, body: Body, patch: Patch) -> None:
        """Forget the record of a handler, be it stored already or only in the patch."""

    @abstractmethod
    def touch(self, *, body: Body, patch: Patch, value: str | None) -> None:
        """Make the patch change the object, so that an event follows; None takes it back."""

    @abstractmethod
    def clear(self, *, essence: BodyEssence) -> BodyEssence:
        """Build an essence without the data of the storage; this implementation removes nothing."""
        return self._own(essence)

    def flush(self) -> None:  # documented as optional to override
        """Write buffered records, if there are any."""

    def fit(self, *, body: Body, patch: Patch) -> None:  # optional to override
        """Shorten records that do not fit in a complete patch, just before it is written."""


class AnnotationsProgressStorage(AnnotationNaming, ProgressStorage):
    """Keeps each record as JSON in a separate annotation: ``<prefix>/<handler's id>``.

    Args:
        prefix: of the annotations; another one for each operator that handles the same objects.
        verbose: whether the fields of a record that are None are written too.
        touch_key: the name of the annotation that only serves to change the object.
        v1: whether the annotations are also kept under their older names, if these differ.
    """

    is_in_metadata = True

    def __init__(
        self,
        *,
        prefix: str = DEFAULT_PREFIX,
        verbose: bool = False,
        touch_key: str = "touch-dummy",
        v1: bool = True,
    ) -> None:
        super().__init__(prefix=prefix, v1=v1)
        self.verbose = verbose
        self.touch_key = touch_key

    def fetch(self, *, key: str, body: Body) -> ProgressRecord | None:
        """Return the record from the annotation."""
        record: ProgressRecord | None = self._read_state(key, body, decode)
        return record

    def store(self, *, key: str, record: ProgressRecord, body: Body, patch: Patch) -> None:
        """Put the record into the patch."""
        text = self._encode(record, _MESSAGE_LIMITS[0])
        raw = get_raw(body)
        for name in self.make_keys(key, body=body):
            ensure(patch, (*ANNOTATIONS, name), text)
        self.store_marker(body=raw, patch=patch)

    def purge(self, *, key: str, body: Body, patch: Patch) -> None:
        """Delete the annotation, if it is there."""
        raw = get_raw(body)
        is_any = resolve(raw, ANNOTATIONS) or resolve(patch, ANNOTATIONS)
        for name in self.make_keys(key, body=body) if is_any else ():
            _purge((*ANNOTATIONS, name), raw, patch)

    def touch(self, *, body: Body, patch: Patch, value: str | None) -> None:
        """Set the annotation for touching, if it is not of that value already."""
        raw = get_raw(body)
        is_any = value is not None or resolve(raw, ANNOTATIONS)
        for name in self.make_keys(self.touch_key, body=body) if is_any else ():
            path = (*ANNOTATIONS, name)
            if resolve(raw, path) != value:
                ensure(patch, path, value)
                self.store_marker(body=raw, patch=patch)

    def clear(self, *, essence: BodyEssence) -> BodyEssence:
        """Remove all annotations under the prefix."""
        essence = self._own(essence)
        annotations = resolve(essence, ANNOTATIONS)
        # A stored state is what anybody has written who may write the object.
        for name in annotations if is_mapping(annotations) else ():
            if name.startswith(f"{self.prefix}/"):
                essence = build_without(essence, (*ANNOTATIONS, name))
        return essence

    def fit(self, *, body: Body, patch: Patch) -> None:
        """Cut the messages of all records alike, so that the annotations fit into the object.

        The records themselves stay, so that no retry is lost. Those that are in the object
        already are cut as well, if need be. The mappings around the annotations are replaced, not
        changed in place: the patch of the handlers can share them.
        """
        changes = resolve(patch, ANNOTATIONS)
        if not is_mapping(changes):
            return
        merged = codec.merge_annotations(get_raw(body), patch)
        excess = codec.measure_all(merged) - codec.ANNOTATIONS_LIMIT
        if excess <= 0:
            return
        records = self._find_records(merged)
        size = sum(measure(merged[name]) for name in records)
        texts: dict[str, str] = {}
        for limit in _MESSAGE_LIMITS[1:]:
            texts = {name: self._encode(record, limit) for name, record in records.items()}
            if size - sum(map(measure, texts.values())) >= excess:
                break
        cut = {name: text for name, text in texts.items() if text != merged[name]}
        patch["metadata"] = {**patch["metadata"], "annotations": {**changes, **cut}}

    def _find_records(self, annotations: Mapping[str, Any]) -> dict[str, ProgressRecord]:
        """Return the records with messages; other annotations of the prefix are none."""
        found: dict[str, ProgressRecord] = {}
        for name, text in annotations.items():
            if not name.startswith(f"{self.prefix}/") or not isinstance(text, str):
                continue
            with suppress(ValueError):  # anybody can have written it
                record = decode(text) if '"message":' in text else None
                if record is not None and record.keys() <= ProgressRecord.__annotations__.keys():
                    found[name] = cast("ProgressRecord", record)
        return found

    def _encode(self, record: ProgressRecord, limit: int) -> str:
        content = _shorten(record, limit)
        return encode({k: val for k, val in content.items() if self.verbose or val is not None})


class StatusProgressStorage(ProgressStorage):
    """Keeps the records as a structure in a field: ``status.<name>.progress.<handler's id>``.

    Args:
        name: of the operator, for the default fields.
        field: where the records are; ``{name}`` in it stands for the name.
        touch_field: what only serves to change the object.
    """

    field = NamedField()
    touch_field = NamedField()

    def __init__(
        self,
        *,
        name: str = "kopf",
        field: FieldSpec = "status.{name}.progress",
        touch_field: FieldSpec = "status.{name}.dummy",
    ) -> None:
        super().__init__()
        self.name = name
        self.field = field
        self.touch_field = touch_field

    def fetch(self, *, key: str, body: Body) -> ProgressRecord | None:
        """Return the record from the field."""
        records = resolve(get_raw(body), self.field)
        record = records.get(key) if isinstance(records, dict) else None
        return cast("ProgressRecord", record) if isinstance(record, dict) else None

    def store(self, *, key: str, record: ProgressRecord, body: Body, patch: Patch) -> None:  # noqa: ARG002
        """Put the record into the patch; what is None in it deletes what was there before."""
        ensure(patch, (*self.field, key), _shorten(record, _MESSAGE_LIMITS[0]))

    def purge(self, *, key: str, body: Body, patch: Patch) -> None:
        """Delete the record, if it is there."""
        _purge((*self.field, key), get_raw(body), patch)

    def touch(self, *, body: Body, patch: Patch, value: str | None) -> None:
        """Set the field for touching, if it is not of that value already."""
        if resolve(get_raw(body), self.touch_field) != value:
            ensure(patch, self.touch_field, value)

    def clear(self, *, essence: BodyEssence) -> BodyEssence:
        """Remove the field of the records."""
        return build_without(self._own(essence), self.field)


class _ReadOnlyStatusProgressStorage(StatusProgressStorage):
    """Reads and purges records of older operators, but writes none."""

    is_in_metadata = True  # without a status, there are no such records

    def store(self, *, key: str, record: ProgressRecord, body: Body, patch: Patch) -> None:
        pass

    def touch(self, *, body: Body, patch: Patch, value: str | None) -> None:
        pass


class MultiProgressStorage(ProgressStorage):
    """Keeps the records in several storages, to move from one to another.

    Args:
        storages: all are written; the first that has a record is believed.
    """

    def __init__(self, storages: Collection[ProgressStorage]) -> None:
        super().__init__()
        self.storages = storages
        self.is_in_metadata = all(storage.is_in_metadata for storage in storages)

    def fetch(self, *, key: str, body: Body) -> ProgressRecord | None:
        """Return the record from the first storage that has it."""
        for storage in self.storages:
            record = storage.fetch(key=key, body=body)
            if record is not None:
                return record
        return None

    def store(self, *, key: str, record: ProgressRecord, body: Body, patch: Patch) -> None:
        """Store the record in all storages."""
        for storage in self.storages:
            storage.store(key=key, record=record, body=body, patch=patch)

    def purge(self, *, key: str, body: Body, patch: Patch) -> None:
        """Forget the record in all storages."""
        for storage in self.storages:
            storage.purge(key=key, body=body, patch=patch)

    def touch(self, *, body: Body, patch: Patch, value: str | None) -> None:
        """Touch the object in the way of each storage."""
        for storage in self.storages:
            storage.touch(body=body, patch=patch, value=value)

    def clear(self, *, essence: BodyEssence) -> BodyEssence:
        """Build an essence without the data of any of the storages."""
        essence = self._own(essence)
        for storage in self.storages:
            essence = storage.clear(essence=essence)
        return essence

    def flush(self) -> None:
        """Write the buffered records of all storages."""
        for storage in self.storages:
            storage.flush()

    def fit(self, *, body: Body, patch: Patch) -> None:
        """Let all storages shorten their records in the patch."""
        for storage in self.storages:
            storage.fit(body=body, patch=patch)


class SmartProgressStorage(MultiProgressStorage):
    """Keeps the records in annotations, and believes what older operators have left in status.

    The default. For the arguments, see :class:`AnnotationsProgressStorage` and
    :class:`StatusProgressStorage`.
    """

    def __init__(  # noqa: PLR0913  # the documented signature
        self,
        *,
        name: str = "kopf",
        field: FieldSpec = "status.{name}.progress",
        touch_key: str = "touch-dummy",
        touch_field: FieldSpec = "status.{name}.dummy",
        prefix: str = DEFAULT_PREFIX,
        v1: bool = True,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            [
                AnnotationsProgressStorage(
                    prefix=prefix, v1=v1, verbose=verbose, touch_key=touch_key
                ),
                _ReadOnlyStatusProgressStorage(name=name, field=field, touch_field=touch_field),
            ]
        )


def _shorten(record: ProgressRecord, limit: int) -> ProgressRecord:
    """Cut the text of an error, which can be a whole document; None if nothing is left of it."""
    message = record.get("message")
    if not isinstance(message, str) or len(message) <= limit:
        return record
    ellipsis = "…"
    kept = message.removesuffix(ellipsis)[:limit]  # what was cut before is not cut again for that
    return {**record, "message": f"{kept}{ellipsis}" if kept else None}


def _purge(path: FieldPath, raw: Mapping[str, Any], patch: Patch) -> None:
    if resolve(raw, path, ABSENT_FIELD) is not ABSENT_FIELD:
        ensure(patch, path, None)
    else:
        remove(patch, path)
