"""Server-side apply: who owns which fields, conflicts, and what an apply makes of an object. Pure.

(Kubernetes API: "Server-Side Apply".) An object becomes a tree: lists with keys and sets become
mappings. A field is the path to a leaf of the tree; other lists are leaves.

The owners are not in the objects: ``metadata.managedFields`` stays absent, and an apply that only
changes owners does not change the resource version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from webop.models.cel_rules import LIST_KEYS, LIST_TYPE, MAP_TYPE

from .kinds import Kind
from .messages import Json, Refusal
from .store import Change, Store

Path = tuple[Any, ...]

_IDENTITY = {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp"}


class _Items(dict[Path, Any]):
    """A list whose items have keys, or a set."""


class _Atomic(dict[str, Any]):
    """A mapping that is a leaf."""


class Owner(NamedTuple):
    """A manager with its way to write: one that also writes otherwise is another owner then."""

    manager: str
    is_applying: bool
    subresource: str = ""


class Owners:
    """The fields that managers own, by the uids of objects."""

    def __init__(self, store: Store) -> None:
        self._owners: dict[str, dict[Owner, set[Path]]] = {}
        store.observers.append(self._forget)

    def _forget(self, change: Change) -> None:
        if change.new is None:
            self._owners.pop(change.seen["metadata"]["uid"], None)

    def note(self, kind: Kind, old: Json | None, new: Json, manager: str) -> None:
        """Give the fields that a write has changed to its manager."""
        before, after = _list_leaves(kind, old or {}), _list_leaves(kind, new)
        changed = {
            path for path, value in after.items() if path not in before or before[path] != value
        }
        owners = self._owners.setdefault(new["metadata"]["uid"], {})
        for fields in owners.values():
            fields.difference_update(changed, before.keys() - after.keys())
        owners.setdefault(Owner(manager, is_applying=False), set()).update(changed)

    def apply(self, kind: Kind, old: Json, config: Json, owner: Owner, *, is_forced: bool) -> Json:
        """Return an object with the fields of a configuration.

        Raises:
            Refusal: other managers own fields of it that have other values.
        """
        config = _select_part(kind, config, owner.subresource)
        owners = self._owners.get(old["metadata"]["uid"], {})
        others = {key: fields for key, fields in owners.items() if key != owner}
        present, wanted = _list_leaves(kind, old), _list_leaves(kind, config)
        changed = {path for path in wanted.keys() & present if present[path] != wanted[path]}
        conflicts = [(key, path) for key, fields in others.items() for path in fields & changed]
        if conflicts and not is_forced:
            raise _refuse_conflicts(kind, sorted(conflicts, key=str))
        merged = _merge(_grow(kind, old), _grow(kind, config))
        kept = {path[:end] for path in wanted for end in range(1, len(path) + 1)}
        for path in owners.get(owner, set()).difference(kept, *others.values()):
            _remove(merged, path)
        made: Json = _shrink(merged)
        return made

    def take(self, kind: Kind, old: Json | None, stored: Json, config: Json, owner: Owner) -> None:
        """Give the fields of an applied configuration to its manager.

        Other managers lose those that have changed.
        """
        config = _select_part(kind, config, owner.subresource)
        before = {} if old is None else _list_leaves(kind, old)
        after, wanted = _list_leaves(kind, stored), _list_leaves(kind, config)
        owners = self._owners.setdefault(stored["metadata"]["uid"], {})
        for fields in owners.values():
            lost = {path for path in fields if before.get(path) != after.get(path)}
            fields.difference_update(lost)
        owners[owner] = wanted.keys() & after.keys()


def _select_part(kind: Kind, config: Json, subresource: str) -> Json:
    """Return what a request can write: the status, or all but the status."""
    if not kind.has_status:
        return config
    return {
        name: value
        for name, value in config.items()
        if name in ("apiVersion", "kind") or (name == "status") == (subresource == "status")
    }


def _list_leaves(kind: Kind, raw: Json) -> dict[Path, Any]:
    """Return the fields of an object by their paths, except its identity."""
    return dict(_walk(_grow(kind, raw), ()))


def _walk(tree: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if not (_is_granular(tree) and tree):
        yield path, tree
        return
    if path and isinstance(path[-1], tuple):  # an item with keys has owners itself
        yield path, None
    for name, below in tree.items():
        is_identity = path == ("metadata",) and name in _IDENTITY
        if not is_identity and (path or name not in ("apiVersion", "kind")):
            yield from _walk(below, (*path, name))


def _grow(kind: Kind, raw: Json) -> Any:
    """Return an object as a tree."""

    def grow(value: Any, schema: Json) -> Any:
        if isinstance(value, dict) and schema.get(MAP_TYPE) == "atomic":
            return _Atomic(value)
        if isinstance(value, dict):
            known = schema.get("properties") or {}
            rest = schema.get("additionalProperties")
            rest = rest if isinstance(rest, dict) else {}
            return {key: grow(item, known.get(key) or rest) for key, item in value.items()}
        keys = schema.get(LIST_KEYS) or ()
        if not isinstance(value, list) or schema.get(LIST_TYPE) not in {"set", "map"}:
            return value
        if keys and not all(isinstance(item, dict) for item in value):
            return value
        items = schema.get("items") or {}
        return _Items((_read_key(item, keys, items), grow(item, items)) for item in value)

    return grow(raw, kind.whole_schema)


def _is_granular(tree: Any) -> bool:
    return isinstance(tree, dict) and not isinstance(tree, _Atomic)


def _read_key(item: Any, keys: Sequence[str], schema: Json) -> Path:
    if not keys:
        return (item,)
    known = schema.get("properties") or {}
    found = ((key, item.get(key, known.get(key, {}).get("default"))) for key in keys)
    return tuple((key, value) for key, value in found if value is not None)


def _shrink(tree: Any) -> Any:
    """Return the value of a tree."""
    if isinstance(tree, _Items):
        return [_shrink(item) for item in tree.values()]
    if isinstance(tree, dict):
        return {name: _shrink(below) for name, below in tree.items()}
    return tree


def _merge(tree: Any, other: Any) -> Any:
    if other is None and _is_granular(tree):
        return tree  # null says nothing about the fields of an object
    if type(tree) is not type(other) or not _is_granular(tree):
        return other
    return type(tree)(
        (name, _merge(tree[name], other[name]))
        if name in tree and name in other
        else (name, tree[name] if name in tree else other[name])
        for name in _interleave(list(tree), list(other))
    )


def _interleave(old: list[Any], new: list[Any]) -> Iterator[Any]:
    """Yield the keys of both: the new ones in their order, the old ones where they were."""
    known, done = set(new), set[Any]()
    while old or new:
        if old and (old[0] not in known or old[0] in done):
            name = old.pop(0)
            if name not in known:
                yield name
            continue
        name = new.pop(0)
        done.add(name)
        yield name


def _remove(tree: Any, path: Path) -> None:
    """Remove a leaf or an item, and what becomes empty by that."""
    name, *rest = path
    if not isinstance(tree, dict) or name not in tree:
        return
    if not rest:
        del tree[name]
        return
    below = tree[name]
    _remove(below, tuple(rest))
    if not below and isinstance(below, dict):
        del tree[name]


def _refuse_conflicts(kind: Kind, conflicts: list[tuple[Owner, Path]]) -> Refusal:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{owner.manager}"'
            + (f' with subresource "{owner.subresource}"' if owner.subresource else "")
            + ("" if owner.is_applying else f" using {kind.api_version}"),
            "field": _show(path),
        }
        for owner, path in conflicts
    ]
    count = f"{len(causes)} conflict{'s' if len(causes) > 1 else ''}"
    texts = "\n".join(f"{cause['message']}: {cause['field']}" for cause in causes)
    return Refusal(409, "Conflict", f"Apply failed with {count}: {texts}", {"causes": causes})


def _show(path: Path) -> str:
    """Return a path as API servers write it: ``.spec.containers[name="web"].image``."""
    shown = ""
    for part in path:
        if not isinstance(part, tuple):
            shown += f".{part}"
        elif part and isinstance(part[0], tuple):
            keys = (
                f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"
                for key, value in part
            )
            shown += f"[{','.join(keys)}]"
        else:
            shown += f'[="{part[0]}"]'
    return shown
