"""Server-side apply: who owns which fields, conflicts, and what an apply makes of an object. Pure.

(Kubernetes API: "Server-Side Apply".) An object becomes a tree: lists with keys and sets become
mappings. A field is the path to a leaf of the tree; other lists are leaves.

The owners are not in the objects: ``metadata.managedFields`` stays absent, and an apply that only
changes owners does not change the resource version. Fields have the names of the version that their
owner has written; objects are converted to it to compare them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from webop.models.keywords import LIST_KEYS, LIST_TYPE, MAP_TYPE
from webop.objects.patch import is_same

from .kinds import Kind
from .messages import Json, Refusal
from .store import Change, Store

Path = tuple[Any, ...]
Leaves = dict[Path, Any]

_IDENTITY = {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp"}


class _Items(dict[Path, Any]):
    """A list whose items have keys, or a set."""


class _Atomic(dict[str, Any]):
    """A mapping that is a leaf."""


class Owner(NamedTuple):
    """A manager with its way to write: one that also writes otherwise is another owner then.

    Attributes:
        api_version: of its fields.
    """

    manager: str
    api_version: str
    subresource: str = ""
    is_applying: bool = False

    def replaces(self, other: Owner) -> bool:
        """Return whether the other one is the same manager, and it applied, in any version."""
        return self.is_applying and self == other._replace(api_version=self.api_version)


class Owners:
    """The fields that managers own, by the uids of objects."""

    def __init__(self, store: Store) -> None:
        self._owners: dict[str, dict[Owner, set[Path]]] = {}
        store.observers.append(self._forget)

    def _forget(self, change: Change) -> None:
        if change.new is None:
            self._owners.pop(change.seen["metadata"]["uid"], None)

    def note(self, kind: Kind, old: Json | None, new: Json, manager: str) -> None:
        """Give the fields that a write has changed to its manager.

        If the object cannot be converted for that, the owners are forgotten until the next apply.
        """
        uid, owner = new["metadata"]["uid"], Owner(manager, kind.api_version)
        owners = self._owners.setdefault(uid, {}) if old is None else self._owners.get(uid)
        if owners is None:
            return
        compare = _build_comparison(kind, old, new)
        try:
            states = [compare(key.api_version) for key in (*owners, owner)]
        except Refusal:
            del self._owners[uid]
            return
        for fields, (before, after) in zip(owners.values(), states, strict=False):
            fields.difference_update(_find_changed(before, after), before.keys() - after.keys())
        owners.setdefault(owner, set()).update(_find_changed(*states[-1]))

    def apply(self, kind: Kind, old: Json, config: Json, owner: Owner, *, is_forced: bool) -> Json:
        """Return an object with the fields of a configuration; the same one if it has them.

        Raises:
            Refusal: other managers own fields of it that have other values.
        """
        config = _select_part(kind, config, owner.subresource)
        if (uid := old["metadata"]["uid"]) not in self._owners:
            unknown = Owner("before-first-apply", kind.api_version)
            self._owners[uid] = {unknown: set(_list_leaves(kind, old))}
        owners = self._owners[uid]
        others = {key: fields for key, fields in owners.items() if not owner.replaces(key)}
        wanted = _list_leaves(kind, config)
        merged: Json = _shrink(_merge(_grow(kind, old), _grow(kind, config)))
        compare = _build_comparison(kind, old, merged)
        conflicts = [
            (key, path)
            for key, fields in ({} if is_forced else others).items()
            for path in fields & _find_changed(*compare(key.api_version))
        ]
        if conflicts:
            raise _refuse_conflicts(sorted(conflicts, key=str))
        others[owner] = {path[:end] for path in wanted for end in range(1, len(path) + 1)}
        for key in filter(owner.replaces, owners):
            merged = _prune(kind, merged, key.api_version, owners[key], others)
        return old if is_same(merged, old) else merged

    def take(self, kind: Kind, old: Json | None, stored: Json, config: Json, owner: Owner) -> None:
        """Give the fields of an applied configuration to its manager.

        Other managers lose those that have changed.
        """
        config = _select_part(kind, config, owner.subresource)
        compare = _build_comparison(kind, old, stored)
        owners = self._owners.setdefault(stored["metadata"]["uid"], {})
        for key in [key for key in owners if owner.replaces(key)]:
            del owners[key]
        for key, fields in owners.items():
            before, after = compare(key.api_version)
            lost = {path for path in fields if before.get(path) != after.get(path)}
            fields.difference_update(lost)
        owners[owner] = _list_leaves(kind, config).keys() & compare(kind.api_version)[1].keys()


def _build_comparison(
    kind: Kind, old: Json | None, new: Json
) -> Callable[[str], tuple[Leaves, Leaves]]:
    """Return what lists the fields of two states of an object in a version."""

    @functools.cache
    def compare(api_version: str) -> tuple[Leaves, Leaves]:
        one = kind.find_version(api_version)
        before = {} if old is None else _list_leaves(one, one.convert(old))
        return before, _list_leaves(one, one.convert(new))

    return compare


def _find_changed(before: Leaves, after: Leaves) -> set[Path]:
    return {path for path, value in after.items() if path not in before or before[path] != value}


def _prune(
    kind: Kind, merged: Json, api_version: str, fields: set[Path], others: dict[Owner, set[Path]]
) -> Json:
    """Return an object without the fields that only an earlier apply has owned, in its version."""
    owned: dict[str, set[Path]] = {api_version: set()}
    for key, paths in others.items():
        owned.setdefault(key.api_version, set()).update(paths)
    pruned, lost = merged, fields - owned[api_version]
    if not lost:
        return merged
    for version, paths in owned.items():
        one = kind.find_version(version)
        whole = one.convert(merged)
        if version != api_version:
            lost = _list_leaves(one, whole).keys() - _list_leaves(one, one.convert(pruned)).keys()
        tree = _grow(one, whole)
        for path in lost - paths:
            _remove(tree, path)
        pruned = _shrink(tree)
    return kind.convert(pruned)


def _select_part(kind: Kind, config: Json, subresource: str) -> Json:
    """Return what a request can write: the status, or all but the status."""
    if not kind.has_status:
        return config
    return {
        name: value
        for name, value in config.items()
        if name in ("apiVersion", "kind") or (name == "status") == (subresource == "status")
    }


def _list_leaves(kind: Kind, raw: Json) -> Leaves:
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


def _refuse_conflicts(conflicts: list[tuple[Owner, Path]]) -> Refusal:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{owner.manager}"'
            + (f' with subresource "{owner.subresource}"' if owner.subresource else "")
            + ("" if owner.is_applying else f" using {owner.api_version}"),
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
