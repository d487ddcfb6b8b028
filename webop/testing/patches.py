"""JSON patches (RFC 6902), applied as API servers do it with the answers of mutating webhooks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from webop.errors import WebopError
from webop.objects.fields import clone

_INDEX = re.compile(r"0|[1-9][0-9]*").fullmatch

Document = Any
Parts = list[str]


def apply_json_patch(document: Any, operations: Iterable[Mapping[str, Any]]) -> Any:
    """Return what a JSON patch makes of a document, which stays as it is.

    Args:
        document: any JSON.
        operations: ``add``, ``remove``, ``replace``, ``move``, ``copy``, ``test``.

    Raises:
        WebopError: an operation cannot be applied; the message says which one, and why.
    """
    result = clone(document)
    for operation in operations:
        try:
            result = _OPERATIONS[operation["op"]](result, operation)
        except (KeyError, IndexError, TypeError, ValueError) as exc:
            why = f"{exc.args[0]!r} is missing" if isinstance(exc, KeyError) else exc
            raise WebopError(f"{dict(operation)} cannot be applied: {why}.") from None
    return result


def _add(document: Document, operation: Mapping[str, Any]) -> Document:
    return _insert(document, _split(operation["path"]), clone(operation["value"]))


def _remove(document: Document, operation: Mapping[str, Any]) -> Document:
    return _delete(document, _split(operation["path"]))


def _replace(document: Document, operation: Mapping[str, Any]) -> Document:
    parts, value = _split(operation["path"]), clone(operation["value"])
    if not parts:
        return value
    parent = _resolve(document, parts[:-1])
    _resolve(parent, parts[-1:])
    parent[_to_key(parent, parts[-1])] = value
    return document


def _move(document: Document, operation: Mapping[str, Any]) -> Document:
    source, target = _split(operation["from"]), _split(operation["path"])
    if source != target and target[: len(source)] == source:
        raise ValueError("a value cannot be moved into itself")
    value = _resolve(document, source)
    return _insert(_delete(document, source), target, value)


def _copy(document: Document, operation: Mapping[str, Any]) -> Document:
    value = clone(_resolve(document, _split(operation["from"])))
    return _insert(document, _split(operation["path"]), value)


def _test(document: Document, operation: Mapping[str, Any]) -> Document:
    found = _resolve(document, _split(operation["path"]))
    if not _is_equal(found, operation["value"]):
        raise ValueError(f"there is {found!r}")
    return document


_OPERATIONS: dict[str, Callable[[Document, Mapping[str, Any]], Document]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}


def _split(pointer: str) -> Parts:
    """Return the parts of a JSON pointer (RFC 6901); none for the whole document."""
    if not pointer:
        return []
    if not pointer.startswith("/"):
        raise ValueError(f"{pointer!r} is not a JSON pointer, which begins with a slash")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")]


def _resolve(document: Document, parts: Parts) -> Document:
    for part in parts:
        document = document[_to_key(document, part)]
    return document


def _insert(document: Document, parts: Parts, value: Any) -> Document:
    if not parts:
        return value
    parent = _resolve(document, parts[:-1])
    if not isinstance(parent, list):
        parent[_to_key(parent, parts[-1])] = value
        return document
    index = len(parent) if parts[-1] == "-" else int(_to_key(parent, parts[-1]))
    if index > len(parent):
        raise IndexError(f"the list ends before {index}")
    parent.insert(index, value)
    return document


def _delete(document: Document, parts: Parts) -> Document:
    if not parts:
        return None
    parent = _resolve(document, parts[:-1])
    del parent[_to_key(parent, parts[-1])]
    return document


def _to_key(parent: Document, part: str) -> str | int:
    if isinstance(parent, dict):
        return part
    if not isinstance(parent, list):
        raise TypeError(f"{part!r} is not in a list or a mapping, but in {parent!r}")
    if not _INDEX(part):
        raise ValueError(f"{part!r} is no index of a list")
    return int(part)


def _is_equal(one: Any, other: Any) -> bool:
    """Compare as JSON does: numbers by their values, and true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    return bool(one == other)
