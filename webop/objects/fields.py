"""Fields of nested documents: how they are named, read, written and removed.

A field is named by a dotted string or by a sequence of keys (chapter "Filtering" of the manual);
keys that contain dots, such as most annotations, need a sequence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeGuard, TypeVar, cast

import orjson

from webop.objects.json_text import LEVELS, cut, load

Json: TypeAlias = dict[str, Any]
"""An object of JSON."""

FieldPath: TypeAlias = tuple[str, ...]
"""The path of a field as handlers get it: ``("spec", "size")``."""

FieldSpec: TypeAlias = str | FieldPath | list[str] | None
"""A field as you name it: ``"spec.size"``, or a sequence of keys if a key contains dots."""

T = TypeVar("T", bound=Mapping[str, Any])

ABSENT_FIELD: Final[Any] = object()

_NAMED_LEVELS: Final = 8  # of the path of a value that JSON cannot represent
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Return whether the value is a mapping; far cheaper for scalars than ``isinstance``."""
    if isinstance(value, dict):
        return True
    return type(value) not in _SCALARS and isinstance(value, Mapping)


def unwrap_mapping(value: Any) -> dict[str, Any]:
    """Convert views of objects for JSON encoders (their ``default=``)."""
    if is_mapping(value):
        return dict(value)
    raise TypeError(f"JSON cannot represent {type(value).__name__}: {value!r}")


def parse_field(spec: FieldSpec) -> FieldPath:
    """Turn a field as users write it into a path of keys; None is the whole document.

    Raises:
        ValueError: it is neither a string nor a sequence of strings, or it has an empty key.
    """
    match spec:
        case None:
            return ()
        case str():
            return _check_keys(tuple(spec.split(".")))
        case list() | tuple():
            return _check_keys(tuple(spec))
        case _:
            raise ValueError(
                f"A field must be 'a.dotted.string' or a sequence of keys, got {spec!r}."
            )


@lru_cache(maxsize=1024)
def _check_keys(path: FieldPath) -> FieldPath:
    if not all(key and isinstance(key, str) for key in path):
        raise ValueError(f"The keys of a field must be strings that are not empty, got {path!r}.")
    return path


def find_attribute(model: Any, key: str) -> str | None:
    """Return the name of a field of a pydantic class by its name in JSON; None if it has none."""
    fields = model.model_fields.items()
    return next((name for name, info in fields if key in (info.alias, name)), None)


def resolve(mapping: Mapping[str, Any] | None, path: FieldPath, default: Any = None) -> Any:
    """Return the value at the path, or the default if there is none.

    A path that leads through None or through anything else that is not a mapping leads nowhere:
    people do put a string where a structure belongs, and that must not stop an operator.
    """
    value: Any = mapping
    for key in path:
        if type(value) is not dict and not is_mapping(value):
            return default
        value = value.get(key, ABSENT_FIELD)
        if value is ABSENT_FIELD:
            return default
    return value


def ensure(mutable: MutableMapping[str, Any], path: FieldPath, value: Any) -> None:
    """Set the value at the path in place, creating the parents.

    A parent that is not a mapping gives way to one, as in a JSON merge patch (RFC 7386).
    """
    if not path:
        raise ValueError("Cannot set the whole document. Name a field.")
    parent: Any = mutable
    for key in path[:-1]:
        child = parent.get(key)
        if child is None or not isinstance(child, (dict, MutableMapping)):
            child = parent[key] = {}
        parent = child
    parent[path[-1]] = value


def remove(mutable: MutableMapping[str, Any], path: FieldPath) -> None:
    """Remove the field in place, and with it the parents that hold nothing any more.

    Nothing happens if it is not there.
    """
    if not path:
        raise ValueError("Cannot remove the whole document. Name a field.")
    key, *rest = path
    child = mutable.get(key)
    if not rest:
        mutable.pop(key, None)
    elif child and isinstance(child, (dict, MutableMapping)):
        remove(child, (*rest,))
        if not child:
            del mutable[key]


def build_without(mapping: T, path: FieldPath) -> T:
    """Build a copy without a field and without the parents of it that are empty then.

    Only the mappings along the path are copied, everything else is shared with the original,
    which stays as it is; it is returned if it has nothing of the path. Unlike with :func:`remove`,
    parents that were empty before go too.
    """
    key, *rest = path
    if key not in mapping:
        return mapping
    result: dict[str, Any] = dict(mapping)
    if not rest:
        del result[key]
    elif is_mapping(result[key]):
        result[key] = build_without(result[key], (*rest,))
        if not result[key]:
            del result[key]
    return cast("T", result)


def clone(value: Any) -> Any:
    """Copy a JSON document deeply, with mappings as dicts and sequences as lists.

    A round trip through JSON text takes a tenth of the time of ``copy.deepcopy``. Values that
    JSON does not have stay as they are.
    """
    if type(value) in _SCALARS:
        return value
    text = _dump(value)
    return _clone_slowly(value) if text is None else load(text)


def convert_to_json(value: Any) -> Any:
    """Copy a value as it is after a way through JSON: tuples become lists, all keys strings.

    Raises:
        ValueError: JSON cannot represent it; the message names the field.
    """
    if (text := _dump(value)) is not None:
        return load(text)
    # Integers beyond 64 bits and keys that are not strings are slower, but valid JSON.
    try:
        return json.loads(_dump_slowly(value))
    except (TypeError, ValueError, RecursionError) as exc:
        place = ".".join(map(str, _find_odd_field(value)))
        raise ValueError(f"{place} ({exc})") from exc


def _dump(value: Any) -> bytes | None:
    """Return the text of a value; None if orjson cannot represent it."""
    try:
        text = orjson.dumps(value, default=unwrap_mapping)
    except TypeError:
        return None
    return None if is_lossy(text, value) else text


def _dump_slowly(value: Any) -> str:
    """Return the text of any value that JSON can represent; the handlers' can be very deep."""
    text = json.dumps(value, default=unwrap_mapping, allow_nan=False)
    if cut(text.encode(), LEVELS) != text.encode():
        raise ValueError(f"It is nested deeper than {LEVELS} levels")
    return text


def _find_odd_field(value: Any, path: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """Return where the first value is that JSON cannot represent; not deeper than some levels."""
    items: Iterable[tuple[Any, Any]] = ()
    if is_mapping(value):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    for key, item in items if len(path) < _NAMED_LEVELS else ():
        try:
            _dump_slowly({key: item})
        except (TypeError, ValueError, RecursionError):
            return _find_odd_field(item, (*path, key))
    return path


def is_lossy(text: bytes, value: Any) -> bool:
    """Return whether orjson replaced NaN or an infinity by null, which removes the field."""
    return b"null" in text and _has_nan(value)


def _has_nan(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if is_mapping(value):
        return any(map(_has_nan, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_has_nan, value))


class Snapshot:
    """A JSON document as it was before users' code got hold of it, which may change it in place.

    Nested lists and mappings of objects are ordinary ones, and ``spec["list"].append(…)`` is
    easily written. Comparing texts takes a fraction of the time of copies beforehand.
    """

    __slots__ = ("_text", "document")

    def __init__(self, document: Any) -> None:
        self.document = document
        self._text = orjson.dumps(document)

    def restore(self) -> Any:
        """Return the document, or a copy of its former state if it was changed."""
        try:
            is_same = orjson.dumps(self.document) == self._text
        except TypeError:  # something that JSON does not have was put into it
            is_same = False
        return self.document if is_same else load(self._text)


def _clone_slowly(value: Any) -> Any:
    if is_mapping(value):
        return {key: _clone_slowly(val) for key, val in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clone_slowly(val) for val in value]
    return value
