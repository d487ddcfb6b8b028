"""Differences between two states of an object, as handlers get them in the kwarg `diff`.

The states are the last handled and the present essence, those of an admission review, or the
values of the handler's field in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, overload

from webop.objects.body import get_raw
from webop.objects.fields import FieldPath, is_mapping

# A path in the deepest object that is decoded takes 2 KB.
_MAX_ITEMS: Final = 5000


class DiffOperation(StrEnum):
    """How a field changed."""

    ADD = "add"
    """It did not exist before."""
    CHANGE = "change"
    """It has another value."""
    REMOVE = "remove"
    """It does not exist any more."""

    def __repr__(self) -> str:
        return repr(self.value)


class DiffItem(NamedTuple):
    """A difference of one field; unpacked as a tuple of four, and equal to it or to such a list.

    Attributes:
        operation: what has happened.
        field: the path from the root of what was compared; empty for the root itself.
        old: the value before; None if there was none.
        new: the value after; None if there is none.
    """

    operation: DiffOperation
    field: FieldPath
    old: Any
    new: Any

    @property
    def op(self) -> DiffOperation:
        """A shorter name of the operation."""
        return self.operation

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __eq__(self, other: object) -> bool:
        return _equals(self, other)

    def __ne__(self, other: object) -> bool:
        return not _equals(self, other)

    def __hash__(self) -> int:
        return hash(tuple(self))


class Diff(Sequence[DiffItem]):
    """The argument ``diff``: all differences between two states; equal to tuples of the same items.

    ::

        for operation, path, old, new in diff:
            logger.info("%s of %s", operation, ".".join(path))

    The states are compared when the differences are read for the first time, as few handlers
    read them.

    Args:
        items: what :class:`DiffItem` can be made of.
    """

    __slots__ = ("_items", "_new", "_old")

    _items: tuple[DiffItem, ...] | None
    _old: Any
    _new: Any

    def __init__(self, items: Iterable[Iterable[Any]] = ()) -> None:
        made = (item if type(item) is DiffItem else DiffItem(*item) for item in items)
        self._items = tuple(made)

    @property
    def items(self) -> tuple[DiffItem, ...]:
        """The differences."""
        if self._items is None:
            old, new = get_raw(self._old), get_raw(self._new)
            items: list[DiffItem] = []
            if is_mapping(old) and is_mapping(new):
                _collect(old, new, [], items)
            elif old != new:
                items.append(_build_item((), old, new))
            self._items = tuple(items)
            self._old = self._new = None  # do not keep the objects in memory
        return self._items

    @overload
    def __getitem__(self, index: int) -> DiffItem: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[DiffItem, ...]: ...

    def __getitem__(self, index: int | slice) -> DiffItem | tuple[DiffItem, ...]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[DiffItem]:
        return iter(self.items)

    def __eq__(self, other: object) -> bool:
        return _equals(self, other)

    def __hash__(self) -> int:
        return hash(self.items)

    def __repr__(self) -> str:
        return repr(self.items)


def _equals(values: Sequence[Any], other: object) -> bool:
    return isinstance(other, Sequence) and tuple(values) == tuple(other)


def diff(old: Any, new: Any) -> Diff:
    """Return the differences between two states; None is the absence of one.

    Mappings are compared key by key, everything else (lists too) as a whole. The order is that
    of the new state, what was removed from a mapping comes after what remained in it.

    Of more than 5000 differences, those of whole mappings are joined: they are one change of the
    mapping then. So a diff is never much larger than the states.
    """
    found = Diff.__new__(Diff)
    found._items, found._old, found._new = None, old, new  # noqa: SLF001  as its constructor does
    return found


def _collect(
    old: Mapping[str, Any], new: Mapping[str, Any], path: list[str], items: list[DiffItem]
) -> None:
    """Add the differences of two mappings in one pass: each value is looked at once."""
    begin = len(items)
    for key, after in new.items():
        before = old.get(key)
        if before is after:
            continue
        if is_mapping(before) and is_mapping(after):
            path.append(key)
            _collect(before, after, path, items)
            path.pop()
        elif before != after:
            items.append(_build_item((*path, key), before, after))
        if len(items) > _MAX_ITEMS:
            break
    else:
        for key, before in old.items():
            if before is not None and key not in new:
                items.append(_build_item((*path, key), before, None))
                if len(items) > _MAX_ITEMS:
                    break
    if len(items) > _MAX_ITEMS:
        items[begin:] = [_build_item(tuple(path), old, new)]


def _build_item(path: FieldPath, old: Any, new: Any) -> DiffItem:
    if old is None:
        return DiffItem(DiffOperation.ADD, path, None, new)
    if new is None:
        return DiffItem(DiffOperation.REMOVE, path, old, None)
    return DiffItem(DiffOperation.CHANGE, path, old, new)
