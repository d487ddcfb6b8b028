"""Who owns which fields of a child, as ``metadata.managedFields`` says (Kubernetes API, FieldsV1).

Pure. Such a set has fields as "f:name", items of lists as "k:" with their keys, and values of sets
as "v:"; an empty set stands for all of a value. A change or a removal by somebody else takes a
field away from the manager that has applied it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from webop.objects.fields import Json, clone


def covers(fields: Any, content: Any) -> bool:
    """Return whether all fields of an applied object are in a set of fields of a manager."""
    if not isinstance(fields, dict) or not fields:
        return fields is not None
    if isinstance(content, dict):
        return all(
            value is None or (f"f:{key}" in fields and covers(fields[f"f:{key}"], value))
            for key, value in content.items()
        )
    if not isinstance(content, list):
        return True
    items = {key: part for key, part in fields.items() if key[:2] in ("k:", "v:")}
    return len(items) >= len(content) and all(
        any(covers(part, item) for key, part in items.items() if _is_key_of(key, item))
        for item in content
        if isinstance(item, dict)
    )


def is_applied(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry of ``managedFields`` is that of an apply of the whole object."""
    return entry.get("operation") == "Apply" and not entry.get("subresource")


def take_over(
    found: Json, manager: str, last_manager: str, content: Json | None
) -> list[Json] | None:
    """Return the owners of fields after a manager has taken over what must go; None if nothing.

    An apply removes what its manager owns and leaves out. So it can remove:

    - what a reconciler has applied for a former parent, or under a former name;
    - items of lists that others have renamed, such as a container or a port: else they stay beside
      the applied ones. In a list that has lost an applied item, all items of others are taken, but
      not those of others that apply the object, too.

    Args:
        found: the child.
        manager: the field manager.
        last_manager: the end of the name of the manager that has applied the child, by its labels.
        content: what the manager has applied last, if it will apply the same again.
    """
    before = found["metadata"].get("managedFields") or []
    entries: list[Json] = clone(before)
    applied = {str(one.get("manager")): one for one in entries if is_applied(one)}
    mine = applied.get(manager)
    for name, entry in applied.items():
        if mine is None and name.endswith(last_manager):
            mine = entry
            entry["manager"] = manager
    if mine is None:
        return None
    if content is not None:
        others = [one for one in entries if one is not mine and not one.get("subresource")]
        fields = dict[str, Any]()
        for entry in (mine, *others):
            _merge(fields, entry.get("fieldsV1") or {})
        kept = [one["fieldsV1"] for one in others if is_applied(one)]
        rest = {key: part for key, part in content.items() if key != "metadata"}
        for path in _find_foreign(mine["fieldsV1"], fields, rest):
            if not any(_has(path, one) for one in kept):
                for entry in others:
                    _move(path, entry["fieldsV1"], mine["fieldsV1"])
    entries = [one for one in entries if one.get("fieldsV1")]
    return entries if entries != before else None


def _merge(fields: Json, others: Mapping[str, Any]) -> None:
    for key, part in others.items():
        _merge(fields.setdefault(key, {}), part)


def _has(path: tuple[str, ...], fields: Json) -> bool:
    return not path or (path[0] in fields and _has(path[1:], fields[path[0]]))


def _move(path: tuple[str, ...], source: Json, target: Json) -> None:
    """Move a part of one set of fields into another one; drop what is empty then."""
    key, *rest = path
    if key not in source:
        return
    if rest:
        _move((*rest,), source[key], target.setdefault(key, {}))
        if not source[key]:
            del source[key]
    else:
        _merge(target.setdefault(key, {}), source.pop(key))


def _find_foreign(own: Any, fields: Any, content: Any) -> Iterator[tuple[str, ...]]:
    """Yield the items of others in lists that have lost an applied item, as paths of fields."""
    own = own or {}
    if isinstance(content, dict):
        for key in (f"f:{name}" for name in content):
            if key in fields:
                for path in _find_foreign(own.get(key), fields[key], content[key[2:]]):
                    yield key, *path
    elif isinstance(content, list):
        is_lost = len(_match(own, content)) < len(content)
        matched = _match(fields, content)
        for key in fields:
            if key in matched:
                for path in _find_foreign(own.get(key), fields[key], matched[key]):
                    yield key, *path
            elif is_lost and key.startswith("k:"):
                yield (key,)


def _match(fields: Json, content: list[Any]) -> dict[str, Any]:
    """Return the applied items by their keys; items with all parts of a key choose first."""
    found: dict[str, Any] = {}
    keys = {key: orjson.loads(key[2:]) for key in fields if key.startswith("k:")}
    names = {name for key in keys.values() if isinstance(key, dict) for name in key}
    items = [item for item in content if isinstance(item, dict)]
    for item in sorted(items, key=lambda one: -len(names & one.keys())):
        key = next((key for key in keys if key not in found and _is_key_of(key, item)), None)
        if key is not None:
            found[key] = item
    return found


def _is_key_of(key: str, item: Any) -> bool:
    """Return whether an item of a list has this key; a default can be missing in it."""
    found = orjson.loads(key[2:]) if key.startswith("k:") else None
    return (
        isinstance(found, dict)
        and isinstance(item, dict)
        and all(item.get(name, value) == value for name, value in found.items())
    )
