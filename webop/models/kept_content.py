"""The content that objects keep in annotations where conversions cannot express it. Pure.

API servers accept values that a class refuses, and functions of users fail. If conversions failed
with them, one object would break each list of its kind. Instead, the other version shows what it
can have of the same fields, and an annotation keeps the content as it was. On the way back, what
was changed since is changed in that, too (:func:`merge`). The status is not kept: everybody who may
write annotations could forge it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Final

import orjson

from webop.models import structural
from webop.models.versions import (
    Model,
    build_object,
    get_content,
    get_definition,
    get_schema,
)
from webop.objects.fields import ABSENT_FIELD, Json
from webop.objects.json_text import load
from webop.objects.kept_annotations import TOO_LARGE, find_records
from webop.objects.storage.codec import ANNOTATIONS_LIMIT, measure_all
from webop.objects.storage.keys import KEPT_PREFIX

_LEVELS: Final = 10  # of merged changes; each level takes time for all that is below it


@dataclass(frozen=True)
class VersionChange:
    """The conversion of an object from one version to another one, with what it keeps."""

    source: Model
    target: Model
    body: Json  # without what it keeps
    records: Json  # what it keeps of further versions, by annotations
    kept: Json | None = None  # the object as it was in the target version, if it keeps that
    shown: Json | None = None  # what it was shown as then, in the version of the source

    @classmethod
    def begin(cls, source: Model, target: Model, body: Json) -> VersionChange:
        """Return an object as its annotations say; anybody can have edited these."""
        if not (records := find_records(body)):
            return cls(source, target, body, records)
        annotations = body["metadata"]["annotations"].items()
        body = _annotate(body, {name: text for name, text in annotations if name not in records})
        records.pop(_name(source), None)  # it came from a copy in another version
        with contextlib.suppress(TypeError, ValueError):
            content = load(records.pop(_name(target), ""))
            orjson.dumps([[[content]]])  # as deep as in a response
            if isinstance(content, dict) and _is_valid(content := _get_content(content), target):
                kept = build_object(target, body["metadata"], content)
                return cls(source, target, body, records, kept, _copy(kept, source))
        return cls(source, target, body, records)

    @cached_property
    def needs_function(self) -> bool:
        """Whether it must be called: by the paths of fields alone, something would be lost."""
        states = _copy(self._by_path, self.source), self.body
        shown, present = map(_get_content, states)
        return self.kept is None or shown != present

    @cached_property
    def _by_path(self) -> Json:
        return self._go_back(_copy(self.body, self.target))

    def end(self, converted: Json | None = None, shown_converted: Json | None = None) -> Json:
        """Return the object in the version of the target.

        Args:
            converted: what the function makes of the object; None if it cannot convert it.
            shown_converted: what the function makes of what the object was shown as. Without it,
                what the function made of changes alone is unknown, and only paths count.
        """
        if self.shown is not None and shown_converted is None:
            converted = None
        found = self._go_back(converted, shown_converted) if converted else self._by_path
        records = self.records
        if converted is None and self.needs_function:
            text = orjson.dumps(_get_content(self.body)).decode()
            records = {**records, _name(self.source): text}
        annotations = found["metadata"].get("annotations") or {}
        for name, text in records.items():
            for each in (text, TOO_LARGE):
                if measure_all(more := {**annotations, name: each}) <= ANNOTATIONS_LIMIT:
                    annotations = more
                    break
        return _annotate(found, annotations) if annotations else found

    def _go_back(self, found: Json, shown_converted: Json | None = None) -> Json:
        """Return what was kept with all changes since, and the status of what was found."""
        if self.kept is None or self.shown is None:
            return found
        states = found, shown_converted or _copy(self.shown, self.target), self.kept
        status = {key: found[key] for key in found if key == "status"}
        new, old, kept = map(_get_content, states)
        return build_object(self.target, found["metadata"], merge(new, old, kept) | status)


def _is_valid(content: Json, model: Model) -> bool:
    """Return whether API servers accept it, apart from CEL rules."""
    schema = get_schema(model)
    is_malformed = structural.is_malformed(content, schema)
    return not (is_malformed or any(structural.find_faults(content, schema)))


def _get_content(body: Json) -> Json:
    return {key: value for key, value in get_content(body).items() if key != "status"}


def _annotate(body: Json, annotations: Json) -> Json:
    return {**body, "metadata": {**body["metadata"], "annotations": annotations}}


def _name(model: Model) -> str:
    return f"{KEPT_PREFIX}/{get_definition(model).version}"


def _copy(body: Json, target: Model) -> Json:
    """Return an object as another version can have it: fields of the same path and type."""
    content = structural.fit(get_content(body), get_schema(target), drops_misfits=True)
    return build_object(target, body["metadata"], content)


def merge(new: Any, old: Any, kept: Any, levels: int = _LEVELS) -> Any:
    """Return a kept value, changed where a new one differs from an old one.

    Items of lists have no names: those that did not change belong together, and so do the others,
    in their order. A change below the levels replaces the kept value there.
    """
    if new == old:
        return kept
    if not levels:
        return new
    if isinstance(new, dict) and isinstance(old, dict) and isinstance(kept, dict):
        merged = {}
        for key in dict.fromkeys((*kept, *new)):
            item = merge(
                new.get(key, ABSENT_FIELD),
                old.get(key, ABSENT_FIELD),
                kept.get(key, ABSENT_FIELD),
                levels - 1,
            )
            if item is not ABSENT_FIELD:
                merged[key] = item
        return merged
    are_lists = isinstance(new, list) and isinstance(old, list) and isinstance(kept, list)
    if not are_lists or len(old) != len(kept):
        return new
    pairs: dict[bytes, deque[tuple[Any, Any]]] = {}
    for pair in zip(old, kept, strict=True):
        pairs.setdefault(_identify(pair[0]), deque()).append(pair)
    same = [each.popleft() if (each := pairs.get(_identify(item))) else None for item in new]
    others = chain.from_iterable(pairs.values())
    found = [pair or next(others, (ABSENT_FIELD, ABSENT_FIELD)) for pair in same]
    return [merge(item, *pair, levels - 1) for item, pair in zip(new, found, strict=True)]


def _identify(item: Any) -> bytes:
    return orjson.dumps(item, option=orjson.OPT_SORT_KEYS)
