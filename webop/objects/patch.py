"""Patches: the changes that handlers and webop make in an object.

The reactor sends them as a JSON merge patch (RFC 7386) and, for the functions of `patch.fns`, as a
JSON patch (RFC 6902). The admission answers with a JSON patch for both kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any, TypeAlias, cast

import orjson

from webop.objects.body import RawBody, get_raw
from webop.objects.fields import ABSENT_FIELD, FieldPath, clone, ensure, is_mapping, remove, resolve
from webop.objects.status_conditions import build_condition, put_condition

PatchFn: TypeAlias = Callable[[RawBody], None]
"""A function in ``patch.fns``: it changes the raw object in place, and can be called again."""

JSONPatchOp: TypeAlias = dict[str, Any]
"""An operation of a JSON patch: `op`, `path`, and `value` where there is one."""


_PLAIN = frozenset({str, int, bool, type(None)})


class StanzaPatch(MutableMapping[str, Any]):
    """A part of a patch that appears in it when something is written, and not before."""

    __slots__ = ("_patch", "_path")

    def __init__(self, patch: Patch, path: FieldPath) -> None:
        self._patch = patch
        self._path = path

    def _read(self) -> Mapping[str, Any]:
        stanza = resolve(self._patch, self._path)
        return stanza if is_mapping(stanza) else {}

    def __getitem__(self, key: str) -> Any:
        return self._read()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        ensure(self._patch, (*self._path, key), value)

    def __delitem__(self, key: str) -> None:
        if key not in self._read():
            raise KeyError(key)
        remove(self._patch, (*self._path, key))

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return repr(dict(self._read()))


class MetaPatch(StanzaPatch):
    """``metadata`` of a patch, with its labels and annotations."""

    __slots__ = ()

    @property
    def labels(self) -> StanzaPatch:
        """The labels to set, or to delete if None."""
        return StanzaPatch(self._patch, ("metadata", "labels"))

    @property
    def annotations(self) -> StanzaPatch:
        """The annotations to set, or to delete if None."""
        return StanzaPatch(self._patch, ("metadata", "annotations"))


class StatusPatch(StanzaPatch):
    """``status`` of a patch, with its conditions."""

    __slots__ = ()

    def set_condition(
        self,
        type: str,  # noqa: A002 - its name in the API
        status: bool | None,  # noqa: FBT001 - it reads as in the API
        *,
        reason: str,
        message: str = "",
    ) -> None:
        """Set a condition in ``status.conditions``, by the API conventions of Kubernetes.

        Changes of others to the list in the cluster are kept. ``lastTransitionTime`` changes only
        with the status. ``observedGeneration`` is the generation of the object that the handler
        sees; kinds without the status subresource have none, as it would change with each
        condition. A condition that does not change is not written again.

        Args:
            type: such as "Ready".
            status: True, False, or None for "Unknown".
            reason: one word for programs, such as "PodsStarting".
            message: a sentence for people.

        Raises:
            ValueError: API servers would refuse it.
        """
        condition = build_condition(type, status, reason, message, self._patch.generation)
        self._patch.fns.append(partial(put_condition, condition=condition))


class Patch(dict[str, Any]):
    """Changes to an object: a dict with the meaning of a merge patch, and functions.

    ::

        patch.spec["size"] = "10Gi"
        patch.status["phase"] = "Ready"
        patch.metadata.labels["tier"] = None  # removed
        patch.fns.append(lambda body: body["spec"]["users"].append("jane"))

    See docs/howto/patching.md.

    In the dict, None deletes a field, mappings are merged, all other values overwrite. The views
    (`patch.status["x"] = 1`) create their stanzas when something is written.

    Args:
        src: initial content; of another patch, its functions too.
        body: what the JSON patch is made against, unless it is given then.
        fns: functions that change a raw body in place.
        has_generations: whether the generation of the body counts changes of the spec, and not
            those of the status, as it does with the status subresource only.

    Attributes:
        fns: the transformation functions, to be appended to.
        writer: writes the changes and clears them; None where they are written only in the end.
    """

    __slots__ = ("_body", "_has_generations", "fns", "writer")

    def __init__(
        self,
        src: Mapping[str, Any] | None = None,
        /,
        body: Mapping[str, Any] | None = None,
        fns: Iterable[PatchFn] = (),
        *,
        has_generations: bool = True,
    ) -> None:
        if src is not None:
            self.update(src)
        self._has_generations = has_generations
        self.writer: Callable[[], Any] | None = None
        self._body = body
        self.fns: list[PatchFn] = [*src.fns, *fns] if isinstance(src, Patch) else [*fns]

    @property
    def generation(self) -> int | None:
        """The generation of the object as the handler sees it, if it says something."""
        found = resolve(self._body, ("metadata", "generation")) if self._has_generations else None
        return found if isinstance(found, int) else None

    @property
    def spec(self) -> StanzaPatch:
        """Changes of ``spec``."""
        return StanzaPatch(self, ("spec",))

    @property
    def status(self) -> StatusPatch:
        """Changes of ``status``."""
        return StatusPatch(self, ("status",))

    @property
    def metadata(self) -> MetaPatch:
        """Changes of ``metadata``."""
        return MetaPatch(self, ("metadata",))

    meta = metadata

    def __bool__(self) -> bool:
        return len(self) > 0 or len(self.fns) > 0

    def __repr__(self) -> str:
        parts = [super().__repr__()] if len(self) else []
        parts += [f"fns={self.fns!r}"] if self.fns else []
        return f"{type(self).__name__}({', '.join(parts)})"

    def clear(self) -> None:
        """Forget all changes, the functions included."""
        super().clear()
        self.fns.clear()

    def apply(self) -> Any:
        """Write the changes of a daemon or a timer now, not only when it ends; then forget them.

        Async functions must await the result: ``await patch.apply()``; sync ones just call it.
        Changes that cannot be written are logged and kept, or dropped, as at the end ("Patching").

        Raises:
            LookupError: not in a daemon or a timer.
        """
        if self.writer is None:
            raise LookupError(
                "patch.apply() works only in daemons and timers. The patch of other handlers is "
                "written when they end."
            )
        return self.writer()

    def as_json_patch(self, body: Mapping[str, Any] | None = None) -> list[JSONPatchOp]:
        """Build the operations that apply the patch to a body.

        The content of the dict is applied first, then the functions, in order, on a
        separate copy. Unchanged values yield no operation. Lists are replaced as a whole.

        Args:
            body: the state that the operations are for; by default, that of the constructor.

        Returns:
            Operations `add`, `replace` and `remove` of RFC 6902, none that tests the version.

        Raises:
            ValueError: there is something to apply, but no body.
        """
        if not self:
            return []
        base = self._body if body is None else body
        if base is None:
            raise ValueError("A JSON patch needs the body that it is for: as_json_patch(body).")
        before = get_raw(base)
        after = apply_merge_patch(before, self)
        if self.fns:
            after = clone(after)
            for fn in self.fns:
                fn(cast("RawBody", after))
        return build_json_patch(before, after)


def apply_merge_patch(target: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Build the document that a merge patch makes of another, which stays as it is (RFC 7386).

    Values that the patch does not touch are shared with the original. Unlike in the RFC, a mapping
    of the patch that only deletes does not create an empty mapping where there was none.
    """
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif is_mapping(value):
            present = result.get(key)
            stanza = present if is_mapping(present) else None
            merged = apply_merge_patch({} if stanza is None else stanza, value)
            if merged or stanza is not None or not value:
                result[key] = merged
        else:
            result[key] = clone(value)
    return result


def merge_patches(patch: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return one merge patch with the effect of two, one after the other; both stay unchanged.

    A field that the first one removes, and the second one sets to a mapping, keeps what it had
    beside that: a merge patch cannot replace a mapping.
    """
    result = dict(patch)
    for key, value in other.items():
        present: Any = result.get(key)
        if is_mapping(present) and is_mapping(value):
            result[key] = merge_patches(present, value)
        else:
            result[key] = value
    return result


def join_patches(patch: Patch, newer: Patch) -> Patch:
    """Return one patch with the effect of two; each can be empty, and is returned as it is then."""
    if not (patch and newer):
        return patch or newer
    if len(newer) and (patch.fns or _replaces(patch, newer)):
        return Patch(patch, fns=[partial(_merge_into, patch=dict(newer)), *newer.fns])
    return Patch(merge_patches(patch, newer), fns=[*patch.fns, *newer.fns])


def _replaces(patch: Mapping[str, Any], newer: Mapping[str, Any]) -> bool:
    """Return whether a patch sets a mapping that another one has removed: they cannot be merged."""
    for key, value in newer.items():
        if is_mapping(value) and key in patch:
            former = patch[key]
            if former is None or (is_mapping(former) and _replaces(former, value)):
                return True
    return False


def _merge_into(raw: Any, *, patch: dict[str, Any]) -> None:
    merged = apply_merge_patch(raw, patch)
    raw.clear()
    raw.update(merged)


def subtract_patch(
    patch: Mapping[str, Any], sent: Mapping[str, Any], kept: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a patch without the values that were sent, except for those to keep."""
    rest: dict[str, Any] = {}
    if not kept and patch == sent:
        return rest
    for key, value in patch.items():
        former: Any = sent.get(key)
        if is_mapping(value) and is_mapping(former) and value:
            if inner := subtract_patch(value, former, kept.get(key) or {}):
                rest[key] = inner
        elif key not in sent or key in kept or value != former:
            rest[key] = value
    return rest


def split_status(patch: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parts of a patch for the object and for its status."""
    if "status" not in patch:
        return dict(patch), {}
    return without_status(patch), {"status": patch["status"]}


def without_status(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an object or a patch without the status."""
    return {key: value for key, value in raw.items() if key != "status"}


def list_fields(patch: Mapping[str, Any]) -> str:
    """Return the paths of the values in a patch, as `spec.a, spec.b`."""

    def walk(value: Any, path: str) -> Iterator[str]:
        if is_mapping(value) and value:
            for key, item in value.items():
                yield from walk(item, f"{path}.{key}" if path else key)
        else:
            yield path

    return ", ".join(walk(patch, ""))


def build_merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that turns one document into another, except for empty mappings."""
    patch: dict[str, Any] = {}
    for key in {**before, **after}:
        old, new = before.get(key), after.get(key, {} if is_mapping(before.get(key)) else None)
        if is_mapping(old) and is_mapping(new):
            if inner := build_merge_patch(old, new):
                patch[key] = inner
        elif key not in before or not is_same(old, new):
            patch[key] = new
    return patch


def find_missing(patch: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a merge patch whose fields are not in a document that should have them."""
    missing: dict[str, Any] = {}
    for key, value in patch.items():
        if is_mapping(value):
            present = document.get(key)
            if inner := find_missing(value, present if is_mapping(present) else {}):
                missing[key] = inner
        elif value is not None and key not in document:
            missing[key] = value
    return missing


def build_json_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[JSONPatchOp]:
    """Return the operations that turn one document into another; lists are replaced as a whole."""
    operations: list[JSONPatchOp] = []
    _add_operations(operations, before, after, "")
    return operations


def _add_operations(operations: list[JSONPatchOp], before: Any, after: Any, pointer: str) -> None:
    for key, value in after.items():
        old = before.get(key, ABSENT_FIELD)
        if old is value:
            continue
        path = f"{pointer}/{_escape(key)}"
        if old is ABSENT_FIELD:
            operations.append({"op": "add", "path": path, "value": value})
        elif is_mapping(old) and is_mapping(value):
            _add_operations(operations, old, value, path)
        elif not is_same(old, value):
            operations.append({"op": "replace", "path": path, "value": value})
    for key in before:
        if key not in after:
            path = f"{pointer}/{_escape(key)}"
            operations.append({"op": "remove", "path": path})


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def is_same(old: Any, new: Any) -> bool:
    """Compare as JSON does: for Python, 1 and True and 1.0 are equal, in a document they differ."""
    if old != new:
        return False
    if type(old) is type(new) and type(old) in _PLAIN:
        return True
    try:
        return _dump(old) == _dump(new)
    except TypeError:  # not all of it can be in a document, so there is nothing to tell apart
        return True


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, default=dict, option=orjson.OPT_SORT_KEYS)
