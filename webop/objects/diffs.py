"""Differences between two states of an object, as handlers get them in the kwarg `diff`.

Made by the reactor from the last handled and the present essence, and reduced to the field of
the handler where it has one (tutorial "Diffing the fields" of the manual).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Self

from webop.objects.fields import FieldPath, is_mapping, resolve


class DiffOperation(StrEnum):
    """How a field changed."""

    ADD = "add"
    CHANGE = "change"
    REMOVE = "remove"

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


class Diff(tuple[DiffItem, ...]):
    """All differences between two states; equal to tuples and lists of the same items.

    Args:
        items: what :class:`DiffItem` can be made of.
    """

    __slots__ = ()

    def __new__(cls, items: Iterable[Iterable[Any]] = ()) -> Self:
        """Make the items of tuples or lists of four."""
        made = (item if type(item) is DiffItem else DiffItem(*item) for item in items)
        return super().__new__(cls, made)

    def __eq__(self, other: object) -> bool:
        return _equals(self, other)

    def __ne__(self, other: object) -> bool:
        return not _equals(self, other)

    __hash__ = tuple.__hash__


def _equals(values: tuple[Any, ...], other: object) -> bool:
    return isinstance(other, Sequence) and tuple(values) == tuple(other)


def diff(old: Any, new: Any) -> Diff:
    """Compare two states; None is the absence of one.

    Mappings are compared key by key, everything else (lists too) as a whole. The order is that
    of the new state, what was removed from a mapping comes after what remained in it.
    """
    return tuple.__new__(Diff, _compare(old, new))


def _compare(old: Any, new: Any) -> list[DiffItem]:
    items: list[DiffItem] = []
    if old != new:
        _collect(old, new, (), items)
    return items


def _collect(old: Any, new: Any, path: FieldPath, items: list[DiffItem]) -> None:
    """Add the differences of two states that are not equal."""
    if old is None:
        items.append(DiffItem(DiffOperation.ADD, path, None, new))
    elif new is None:
        items.append(DiffItem(DiffOperation.REMOVE, path, old, None))
    elif is_mapping(old) and is_mapping(new):
        for key, value in new.items():
            before = old.get(key)
            if before != value:
                _collect(before, value, (*path, key), items)
        for key, value in old.items():
            if key not in new and value is not None:
                _collect(value, None, (*path, key), items)
    else:
        items.append(DiffItem(DiffOperation.CHANGE, path, old, new))


def reduce(diff: Sequence[DiffItem], path: FieldPath) -> Diff:
    """Return the changes of one field, with paths relative to it.

    A parent of the field that was added, changed or removed as a whole counts as far as the
    field itself differs by it.
    """
    if not path:
        return Diff(diff)
    depth = len(path)
    reduced: list[DiffItem] = []
    for item in diff:
        field = item.field
        if field[:depth] == path:
            reduced.append(DiffItem(item.operation, field[depth:], item.old, item.new))
        elif field == path[: len(field)]:
            rest = path[len(field) :]
            reduced.extend(_compare(resolve(item.old, rest), resolve(item.new, rest)))
    return Diff(reduced)
