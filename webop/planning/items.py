"""What a plan says: items about objects, and how certain they are. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

MASKED: Final = "(masked)"
_OF_SERVERS: Final = frozenset({
    *("creationTimestamp", "deletionGracePeriodSeconds", "generation", "managedFields"),
    *("resourceVersion", "selfLink", "uid"),
})  # fmt: skip
_SECRET: Final = ("data", "stringData", "metadata.annotations")


class Certainty(enum.StrEnum):
    """How certain an item is; for the others, it has the reason."""

    WILL = "will"
    MAY = "may"
    UNKNOWN = "unknown after this step"


class FieldChange(NamedTuple):
    """A field that becomes another one; None stands for no value."""

    field: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that would be done.

    Attributes:
        action: what, such as "call" or "create".
        target: a handler, or an object.
        certainty: how certain it is.
        reason: why it would be done, or why it is not certain.
        fields: what it would change.
        is_change: whether it writes, or calls a handler for a change; what each start does, such as
            the start of daemons, does not.
    """

    action: str
    target: str
    certainty: Certainty = Certainty.WILL
    reason: str = ""
    fields: tuple[FieldChange, ...] = ()
    is_change: bool = True


@dataclass(slots=True)
class Section:
    """The items about the objects of a kind.

    Attributes:
        title: the kind.
        count: the number of objects.
        changed: the number of objects with changes.
        left_out: the number of objects with items that are not shown.
        notes: items about the whole kind.
        objects: the items of the shown objects, by their namespaces and names.
        routine: what each start does, whatever the version: the numbers of objects.
    """

    title: str
    count: int = 0
    changed: int = 0
    left_out: int = 0
    notes: list[Item] = field(default_factory=list)
    objects: dict[str, list[Item]] = field(default_factory=dict)
    routine: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, place: str, items: Sequence[Item], limit: int | None) -> None:
        """Add the items of an object; show them if there is more than each start does."""
        self.count += 1
        self.changed += any(item.is_change for item in items)
        is_routine = [not item.is_change and item.certainty is Certainty.WILL for item in items]
        self.routine.update(
            (item.action, item.target)
            for item, is_one in zip(items, is_routine, strict=True)
            if is_one
        )
        if all(is_routine):
            return
        if limit is not None and len(self.objects) >= limit:
            self.left_out += 1
        else:
            self.objects[place] = list(items)


@dataclass(slots=True)
class Plan:
    """What would happen.

    Attributes:
        startup: the startup handlers that were called for it.
        sections: by kind; then what concerns the whole operator.
    """

    startup: Sequence[str] = ()
    sections: list[Section] = field(default_factory=list)

    @property
    def has_changes(self) -> bool:
        """Whether anything would be written, or a handler be called for a change."""
        return any(
            section.changed or any(note.is_change for note in section.notes)
            for section in self.sections
        )


def list_changes(
    old: Any, new: Any, path: str = "", *, is_secret: bool = False
) -> Iterator[FieldChange]:
    """Yield the fields that differ; those of items in lists are named after these, if they can be.

    What API servers set themselves does not count. The values of Secrets are masked.
    """
    if old == new:
        return
    if isinstance(old or {}, Mapping) and isinstance(new or {}, Mapping) and (old or new):
        pairs, form = (old or {}, new or {}), "{}.{}"
    elif named := _by_names(old, new):
        pairs, form = named, "{}[{}]"
    else:
        if is_secret and path.startswith(_SECRET):
            old, new = (value if value is None else MASKED for value in (old, new))
        yield FieldChange(path, old, new)
        return
    for key in {**pairs[0], **pairs[1]}:
        if path != "metadata" or key not in _OF_SERVERS:
            where, (before, after) = form.format(path, key).lstrip("."), pairs
            yield from list_changes(before.get(key), after.get(key), where, is_secret=is_secret)


def _by_names(old: Any, new: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the items of two lists by their names; None if they have none."""
    found = []
    for items in (old or [], new or []):
        if not isinstance(items, list) or not all(
            isinstance(one, dict) and one.get("name") for one in items
        ):
            return None
        found.append({one["name"]: one for one in items})
        if len(found[-1]) < len(items):
            return None
    return (found[0], found[1]) if any(found) else None
