"""The items of a plan, and how certain they are. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

MASKED: Final = "(masked)"
_SECRET: Final = ("data", "stringData", "metadata.annotations")
_OF_SERVERS: Final = frozenset({
    *("creationTimestamp", "deletionGracePeriodSeconds", "generation", "managedFields"),
    *("resourceVersion", "selfLink", "uid"),
})  # fmt: skip


class Certainty(enum.StrEnum):
    """How certain an item is; if it is not, it has a reason."""

    WILL = "will"
    MAY = "may"
    UNKNOWN = "unknown after this step"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field that becomes another one; None stands for no value."""

    field: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that would be done: an action, such as "call", and a handler or an object.

    ``is_change`` is whether it writes, or calls a handler for a change, or hides whether anything
    does. Each start begins daemons, for example: that is none.
    """

    action: str
    target: str
    certainty: Certainty = Certainty.WILL
    reason: str = ""
    fields: Sequence[FieldChange] = ()
    is_change: bool = True

    @property
    def is_routine(self) -> bool:
        """Whether each start does it."""
        return not self.is_change and self.certainty is Certainty.WILL


note = partial(Item, is_change=False)


@dataclass(slots=True)
class Section:
    """The items about the objects of a kind, or about the whole operator.

    Attributes:
        count: the number of objects.
        changed: the number of objects with changes.
        left_out: the number of objects with items that are not shown.
        notes: items about the whole section.
        objects: items by the namespaces and names of the objects that are shown.
        at_each_start: what each start does, with the numbers of objects.
    """

    title: str
    count: int = 0
    changed: int = 0
    left_out: int = 0
    notes: list[Item] = field(default_factory=list)
    objects: dict[str, list[Item]] = field(default_factory=dict)
    at_each_start: Counter[str] = field(default_factory=Counter)

    def add(self, place: str, items: list[Item], *, is_shown: bool) -> None:
        """Add an object; show it if there is more than each start does."""
        routine = [one for one in items if one.is_routine]
        self.count += 1
        self.changed += any(item.is_change for item in items)
        self.at_each_start.update(f"{item.action} {item.target}" for item in routine)
        if len(routine) == len(items):
            return
        if is_shown:
            self.objects[place] = items
        else:
            self.left_out += 1


@dataclass(slots=True)
class Plan:
    """The sections of a plan; ``startup`` are the startup handlers that were called for it."""

    startup: Sequence[str] = ()
    sections: list[Section] = field(default_factory=list)

    @property
    def has_changes(self) -> bool:
        """Whether anything would be written, or a handler be called for a change, or is unknown."""
        return any(one.changed or any(i.is_change for i in one.notes) for one in self.sections)


def list_changes(
    old: Any, new: Any, path: str = "", *, is_secret: bool = False
) -> Iterator[FieldChange]:
    """Yield the fields that differ; items of lists are known by their names or their positions.

    The fields that API servers set themselves do not count. The values of Secrets are masked.
    """
    if old == new:
        return
    pair, form = (old or {}, new or {}), "{}.{}"
    if not all(isinstance(one, Mapping) for one in pair) or not any(pair):
        pair, form = (_name_items(old, new), _name_items(new, old)), "{}[{}]"
    if (bool(old), bool(new)) != (bool(pair[0]), bool(pair[1])) or not any(pair):
        if is_secret and path.startswith(_SECRET):
            old, new = (value if value is None else MASKED for value in (old, new))
        yield FieldChange(path, old, new)
        return
    names = [[*one] for one in pair]
    if form == "{}[{}]" and names[0] != names[1] and pair[0].keys() == pair[1].keys():
        yield FieldChange(f"{path}[*].name", *names)
    for key in {**pair[0], **pair[1]}:
        if path != "metadata" or key not in _OF_SERVERS:
            where, (before, after) = form.format(path, key).lstrip("."), pair
            yield from list_changes(before.get(key), after.get(key), where, is_secret=is_secret)


def _name_items(value: Any, other: Any) -> Mapping[Any, Any]:
    """Return the items of a list by their names, or else by their positions in lists as long."""
    items = value if isinstance(value, list) else []
    names = [one.get("name") if isinstance(one, Mapping) else None for one in items]
    named = {key: one for key, one in zip(names, items, strict=True) if key and type(key) is str}
    if len(named) == len(items):
        return named
    is_alike = isinstance(other, list) and len(other) == len(items)
    is_alike = is_alike and all(isinstance(one, Mapping) for one in items)
    return dict(enumerate(items)) if is_alike else {}
