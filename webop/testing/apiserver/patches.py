"""Merge patches (RFC 7396) and JSON patches (RFC 6902) as the API server applies them. Pure.

The deviations from RFC 6902 are those of the library that kube-apiserver uses: an absent key
can be replaced, is equal to null in a test, and is copied as null; indices can be negative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webop.objects.fields import clone
from webop.objects.patch import is_same

from .messages import Json, Refusal, refuse_body

_REJECTION = "the server rejected our request due to an error in our request"


def apply_merge_patch(target: Json, patch: Any) -> Json:
    """Return a patched copy; it shares the unpatched parts.

    Raises:
        Refusal: it is no patch of an object.
    """
    if not isinstance(patch, dict):
        raise refuse_body("error decoding patch: cannot unmarshal it into a map")
    return _merge(target, patch)


def _merge(target: Json, patch: Json) -> Json:
    result = dict(target)
    for key, value in patch.items():
        before = result.get(key)
        if value is None:
            result.pop(key, None)
        elif not isinstance(before, dict):
            result[key] = _prune(value)
        else:
            result[key] = _merge(before, value) if isinstance(value, dict) else value
    return result


def _prune(value: Any) -> Any:
    """Return a new value without the nulls of its objects, also those in lists."""
    if isinstance(value, dict):
        return {key: _prune(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_prune(item) for item in value]
    return value


def apply_json_patch(target: Json, patch: Any) -> Any:
    """Return a patched copy.

    Raises:
        Refusal: it is no list of operations, one is impossible, or a test does not hold.
    """
    if not isinstance(patch, list) or not all(isinstance(item, dict) for item in patch):
        raise refuse_body("error decoding patch: cannot unmarshal it into []handlers.jsonPatchOp")
    document = [clone(target)]
    for operation in patch:
        try:
            _OPERATIONS[operation["op"]](document, operation)
        except (KeyError, IndexError, ValueError, TypeError) as exc:
            raise Refusal(422, "Invalid", _REJECTION, {}) from exc
    return document[0]


def _add(document: list[Any], operation: Json) -> None:
    _insert(document, operation["path"], clone(operation.get("value")))


def _remove(document: list[Any], operation: Json) -> None:
    parent, key = _find(document, operation["path"])
    if parent is document:
        raise KeyError(key)
    del parent[key]


def _replace(document: list[Any], operation: Json) -> None:
    parent, key = _find(document, operation["path"])
    if isinstance(parent, list):
        parent[key]  # it must be there
    parent[key] = clone(operation.get("value"))


def _copy(document: list[Any], operation: Json) -> None:
    parent, key = _find(document, operation["from"])
    value = parent.get(key) if isinstance(parent, dict) else parent[key]
    _insert(document, operation["path"], clone(value))


def _move(document: list[Any], operation: Json) -> None:
    parent, key = _find(document, operation["from"])
    value = parent[key]
    del parent[key]
    _insert(document, operation["path"], value)


def _test(document: list[Any], operation: Json) -> None:
    parent, key = _find(document, operation["path"])
    if parent is document:
        raise KeyError(key)
    found = parent.get(key) if isinstance(parent, dict) else parent[key]
    if not is_same(found, operation.get("value")):
        raise ValueError("a test does not hold")


def _insert(document: list[Any], path: str, value: Any) -> None:
    parent, key = _find(document, path, is_insertion=True)
    if parent is document:
        raise KeyError(key)
    if isinstance(parent, list):
        parent.insert(key, value)
    else:
        parent[key] = value


def _find(document: list[Any], path: str, *, is_insertion: bool = False) -> tuple[Any, Any]:
    """Return the container and the key in it that a pointer means (RFC 6901)."""
    if path == "":
        return document, 0
    root, *tokens = path.split("/")
    if root:
        raise ValueError(path)
    parent: Any = document[0]
    *before, last = [token.replace("~1", "/").replace("~0", "~") for token in tokens]
    for token in before:
        parent = parent[_parse_index(token, len(parent)) if isinstance(parent, list) else token]
    if isinstance(parent, dict):
        return parent, last
    if not isinstance(parent, list):
        raise TypeError(path)
    if is_insertion and last == "-":
        return parent, len(parent)
    return parent, _parse_index(last, len(parent) + is_insertion)


def _parse_index(token: str, length: int) -> int:
    index = int(token)
    if not -length <= index < length:
        raise IndexError(token)
    return index + length if index < 0 else index


_OPERATIONS: dict[str, Callable[[list[Any], Json], None]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "copy": _copy,
    "move": _move,
    "test": _test,
}
