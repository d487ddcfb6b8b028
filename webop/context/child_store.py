"""The store of the children of reconcilers: which there are, and whom their changes call.

A child has the name of its operator, the uid of its parent and the id of its reconciler in labels,
by which it is found. An annotation has a digest of where it is and of what was applied: a copy of a
child is none.
Nothing is compared value by value: server-side apply does that. A write is left out only if the
same was applied before, and if all applied fields still belong to the reconciler: API servers note
the owners of fields in ``metadata.managedFields``; a change or a removal by somebody else takes a
field away.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import re
import sys
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

import orjson

from webop.client.watch_events import parse_number
from webop.context.field_owners import covers, is_applied
from webop.objects.fields import Json

if TYPE_CHECKING:
    from webop.handlers.model import ReconcileHandler

_PREFIX: Final = "webop.dev"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LABEL_LIMIT: Final = 63
_REMEMBERED: Final = 10_000  # places
_HASTE: Final = 1.0  # seconds


class Place(NamedTuple):
    """Where a child is: its kind, as in "deployments.apps", its namespace and its name."""

    kind: str
    namespace: str | None
    name: str

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.name!r} of {self.kind}{where}"


class Names(NamedTuple):
    """The names of the labels and of the annotation of children, and that of their operator."""

    owner: str
    reconciler: str
    operator: str
    digest: str
    own: str

    @classmethod
    @functools.cache
    def build(cls, prefix: str | None, own: str) -> Names:
        """Return the names, with the prefix of an operator that has one."""
        return cls._make([*(f"{prefix or _PREFIX}/{name}" for name in cls._fields[:-1]), own])


@functools.cache
def build_label(handler_id: str) -> str:
    """Return the id of a reconciler as a value of a label."""
    text = _UNSAFE.sub("_", handler_id).strip("._-")
    if text == handler_id and len(text) <= _LABEL_LIMIT:
        return text
    return f"{text[: _LABEL_LIMIT - 9] or 'id'}-{build_digest(handler_id, 8)}"


def build_digest(text: str, length: int) -> str:
    """Return as many hexadecimal digits of the hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def build_seal(place: Place, owner: str) -> str:
    """Return what the annotation of a child begins with: it is the child of one owner only."""
    return build_digest(f"{place.kind} {place.namespace} {place.name} {owner}", 8)


def name_manager(reconciler: str, owner: str) -> str:
    """Return the end of the field manager of a reconciler for one parent."""
    return f".{reconciler}.{build_digest(owner, 8)}"


@dataclass(slots=True)
class Child:
    """A child, as far as it is known.

    Whether others have changed it is known only after an apply and an event of the watch:

    - Only applied: ``fields`` is None, and it counts as unchanged.
    - Only shown, as after the start: ``unchecked`` are compared with what is applied next.
    - Both: others have changed it if ``fields`` differ from ``applied_fields``.
    """

    uid: str
    owner: str  # the uid of its parent
    reconciler: str  # the label of the reconciler that applied it
    controller: str | None  # the uid of the owner that manages it
    version: str
    digest: str  # of what was applied last
    is_deleting: bool
    is_former: bool  # it does not name its operator, as before these had names
    # A digest of the fields that belong to the reconciler; None if only the response to the last
    # apply has shown the child.
    fields: str | None = None
    applied_fields: str | None = None  # the same after the last apply; None before one
    unchecked: bytes | None = None  # these fields, if what belongs to the last apply is unknown
    raw: Json | None = None  # if its kind is read

    @property
    def known_raw(self) -> Json | None:
        """The object, unless it is not read, or its deletion has begun since it was read."""
        return None if self.is_deleting else self.raw

    def has(self, digest: str, content: Json) -> bool:
        """Return whether the child still is as it was applied, with this digest."""
        if self.is_deleting:
            return True  # its end calls the reconciler
        if self.digest != digest:
            return False
        if self.fields is None:
            return True
        if self.unchecked and self.applied_fields is None:
            rest = {k: v for k, v in content.items() if k not in ("apiVersion", "kind")}
            meta = content["metadata"].items()
            rest["metadata"] = {k: v for k, v in meta if k not in ("name", "namespace")}
            if covers(orjson.loads(self.unchecked), rest):
                self.applied_fields, self.unchecked = self.fields, None
        return self.fields == self.applied_fields


class Left(NamedTuple):
    """How the operator has left a child: with a digest, or pruned, if that is empty.

    ``undone`` is how often in a row it had found the child otherwise before that.
    """

    uid: str
    digest: str
    undone: int


class Parent(Protocol):
    """An object with a reconciler (:class:`webop.reactor.entry.Entry`)."""

    uid: str
    namespace: str | None
    name: str

    def call_again(self, handler_id: str, because: str) -> None:
        """Call a reconciler of the object again."""


@dataclass(slots=True)
class ChildStore:
    """The children of all reconcilers of an operator, and where their parents are.

    It is never older than what the operator has applied itself.
    """

    _children: dict[Place, Child] = field(default_factory=dict)
    _of_owner: dict[str, dict[Place, Child]] = field(default_factory=dict)
    _parents: dict[str, dict[str, tuple[Parent, ReconcileHandler]]] = field(default_factory=dict)
    _named: dict[tuple[str, str | None, str], Parent] = field(default_factory=dict)
    _called_soon: set[tuple[str, str]] = field(default_factory=set)  # for all objects, and why
    # The newest version that was shown of each child that is being applied; "" for none.
    _applying: dict[Place, str] = field(default_factory=dict)
    _locks: WeakValueDictionary[Place, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    _left: dict[Place, Left] = field(default_factory=dict)
    # The labels of the reconcilers that share their children with those of another operator.
    rivalled: set[str] = field(default_factory=set)

    def register(self, parent: Parent, handler: ReconcileHandler) -> None:
        """Call a reconciler of this object when a child of it changes."""
        self._parents.setdefault(parent.uid, {})[build_label(handler.id)] = (parent, handler)
        self._named[handler.id, parent.namespace, parent.name] = parent

    def has_parent(self, uid: str, reconciler: str = "") -> bool:
        """Return whether an object has this reconciler, or any."""
        known = self._parents.get(uid, {})
        return reconciler in known if reconciler else bool(known)

    def forget(self, uid: str) -> None:
        """Forget an object that is gone; its children are forgotten when they are gone."""
        for parent, handler in self._parents.pop(uid, {}).values():
            key = (handler.id, parent.namespace, parent.name)
            if self._named.get(key) is parent:
                del self._named[key]

    def drop(self, kind: str, namespace: str | None) -> None:
        """Forget the children of a kind in a namespace, or in all: no watch shows them."""
        for place, child in self._list_in(kind, namespace):
            self._remove(place, child)

    def call_named(self, handler_id: str, found: Any, kind: str, namespace: str | None) -> None:
        """Call a reconciler for the objects that a function of ``watches=`` has named."""
        for one in _list_names(found, namespace):
            parent = self._named.get((handler_id, *one)) or self._named.get(
                (handler_id, None, one[1])
            )
            if parent is not None:
                parent.call_again(handler_id, kind)

    def call_all_soon(self, handler_id: str, because: str) -> None:
        """Call a reconciler for all of its objects, once for all that happens in a second."""
        if (handler_id, because) not in self._called_soon:
            self._called_soon.add((handler_id, because))
            asyncio.get_running_loop().call_later(_HASTE, self._call_all, handler_id, because)

    def _call_all(self, handler_id: str, because: str) -> None:
        self._called_soon.discard((handler_id, because))
        for key, parent in [*self._named.items()]:
            if key[0] == handler_id:
                parent.call_again(handler_id, because)

    def find(self, place: Place) -> Child | None:
        """Return a child; None if it is not known."""
        return self._children.get(place)

    def list_of(self, uid: str) -> list[tuple[Place, Child]]:
        """Return the children of an object."""
        return [*self._of_owner.get(uid, {}).items()]

    def note(
        self, kind: str, event_type: str | None, raw: Json, names: Names, *, is_read: bool
    ) -> None:
        """Accept a state that a watch or a list has shown; call the parent if it matters.

        A state that an own apply has made does not matter. Of a kind that is not read, only a loss,
        a deletion and a change of applied fields matter.
        """
        meta = raw["metadata"]
        place = Place(kind, meta.get("namespace"), meta["name"])
        old = self._children.get(place)
        self._note_shown(place, meta.get("resourceVersion") or "")
        child = None if event_type == "DELETED" else read_child(place, raw, names, is_read=is_read)
        if child is None:
            if old is not None and old.uid == meta.get("uid", ""):
                self._remove(place, old)
                self._tell(place, old)
            return
        # A list can go back in time, as after a restored backup, but not behind an own apply.
        if (
            old is not None
            and (event_type is not None or old.fields is None)
            and _is_older(child.version, old.version)
        ):
            return
        if old is not None and old.uid == child.uid:
            if old.version == child.version:  # perhaps the echo of an own apply
                if old.fields is None:
                    old.fields = old.applied_fields = child.fields
                return  # it is known
            if child.digest == old.digest:  # else they are of another apply
                child.applied_fields = old.applied_fields
        if child.applied_fields is not None:
            child.unchecked = None
        self._put(place, child)
        is_news = is_read or old is None or _get_essence(old) != _get_essence(child)
        if is_news and place not in self._applying:
            self._tell(place, child)

    def note_list(
        self, kind: str, namespace: str | None, uids: Collection[str], version: int
    ) -> None:
        """Forget the children that are not in a complete list of a version; call their parents.

        Of these, only the response to an own apply has told.
        """
        for place, child in self._list_in(kind, namespace):
            if child.uid not in uids and 0 < parse_number(child.version) <= version:
                self._remove(place, child)
                self._tell(place, child)
        for place in self._applying:
            if place not in self._children and _is_in(place, kind, namespace):
                self._note_shown(place, str(version))

    @contextlib.asynccontextmanager
    async def applying(self, place: Place) -> AsyncIterator[None]:
        """Let one call at a time apply a child; events of it wait for the response.

        At the end, what was not the echo of the apply calls the parent.
        """
        async with self._locks.setdefault(place, asyncio.Lock()):
            self._applying[place] = ""
            try:
                yield
            finally:
                child = self._children.get(place)
                if self._applying.pop(place) and child is not None:
                    self._tell(place, child)

    def note_applied(self, place: Place, raw: Json, names: Names, *, is_read: bool) -> None:
        """Accept the response to an own apply, unless what came later has overtaken it."""
        known, child = self._children.get(place), read_child(place, raw, names, is_read=is_read)
        if child is None:
            return
        child.fields = child.unchecked = None  # responses do not show them
        if known is not None and (known.uid, known.version) == (child.uid, child.version):
            known.applied_fields, known.unchecked = known.fields, None
            self._applying[place] = ""  # the event was its echo
        elif _is_older(child.version, self._applying[place]):  # perhaps it is deleted
            self._applying[place] = ""
            self._tell(place, child)
        else:
            self._put(place, child)

    def count_undone(self, place: Place) -> int:
        """Return how often in a row a child was not as the operator has left it.

        Only an operator of this name changes a digest, or restores a child that was pruned.
        """
        child, left = self._children.get(place), self._left.get(place)
        if child is None or left is None:
            return 0
        is_undone = child.digest != left.digest if left.digest else child.uid != left.uid
        return left.undone + 1 if is_undone else 0

    def note_left(self, place: Place, left: Left | None) -> None:
        """Remember how a child was left, of the newest places; None if that is not known."""
        self._left.pop(place, None)
        if left is not None:
            self._left[place] = left
        if len(self._left) > _REMEMBERED:
            del self._left[next(iter(self._left))]

    def count(self, kind: str, namespace: str | None, reconcilers: Collection[str]) -> int:
        """Return how many children of a kind these reconcilers have in a namespace, or in all."""
        labels = {*map(build_label, reconcilers)}
        found = [child for _, child in self._list_in(kind, namespace) if not child.is_former]
        return sum(child.reconciler in labels for child in found)

    def forget_left(self) -> None:
        """Forget how children were left: in a pause, another replica can change them."""
        self._left.clear()

    def _note_shown(self, place: Place, version: str) -> None:
        known = self._applying.get(place)
        if known is not None and not _is_older(version, known):
            self._applying[place] = version

    def _list_in(self, kind: str, namespace: str | None) -> list[tuple[Place, Child]]:
        """Return the children of a kind in a namespace, or in all: a copy, for removals."""
        return [
            (place, child)
            for place, child in self._children.items()
            if _is_in(place, kind, namespace)
        ]

    def _put(self, place: Place, child: Child) -> None:
        if (old := self._children.get(place)) is not None:
            self._remove(place, old)
        self._children[place] = child
        self._of_owner.setdefault(child.owner, {})[place] = child

    def _remove(self, place: Place, child: Child) -> None:
        del self._children[place]
        siblings = self._of_owner[child.owner]
        del siblings[place]
        if not siblings:
            del self._of_owner[child.owner]

    def _tell(self, place: Place, child: Child) -> None:
        if found := self._parents.get(child.owner, {}).get(child.reconciler):
            parent, handler = found
            if reaches(parent.namespace, handler, place):
                parent.call_again(handler.id, place.kind)


def reaches(namespace: str | None, handler: ReconcileHandler, place: Place) -> bool:
    """Return whether a child can be there: others can write in other namespaces, and forge one."""
    return handler.across_namespaces or namespace in (None, place.namespace)


def read_digest(raw: Json, names: Names) -> str:
    """Return the annotation of a child, which begins with its seal; empty if it has none."""
    return (raw["metadata"].get("annotations") or {}).get(names.digest) or ""


def read_child(place: Place, raw: Json, names: Names, *, is_read: bool) -> Child | None:
    """Return what matters of an object; None if it is no child."""
    meta = raw["metadata"]
    labels = meta.get("labels") or {}
    owner, reconciler = labels.get(names.owner), labels.get(names.reconciler)
    digest = read_digest(raw, names)
    is_own = (operator := labels.get(names.operator)) in (None, names.own)
    if not (owner and reconciler and is_own and digest.startswith(build_seal(place, owner))):
        return None
    references = meta.get("ownerReferences") or ()
    controller = next((one["uid"] for one in references if one.get("controller")), None)
    child = Child(
        uid=meta.get("uid") or "",
        owner=owner,
        reconciler=sys.intern(reconciler),
        controller=owner if controller == owner else controller,  # one text in memory, not two
        version=meta.get("resourceVersion") or "",
        digest=digest,
        is_deleting=meta.get("deletionTimestamp") is not None,
        is_former=operator is None,
        raw=raw if is_read else None,
    )
    if not meta.get("managedFields"):  # some servers do not note them: each version is another
        child.fields = f"version {child.version}"
        return child
    end = name_manager(reconciler, owner)
    for entry in meta["managedFields"]:
        fields = entry.get("fieldsV1")
        if is_applied(entry) and fields and str(entry.get("manager") or "").endswith(end):
            text = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
            # A copy, as the buffer of the original is larger than the text.
            child.unchecked = bytes(memoryview(text))
            child.fields = build_digest(text.decode(), 16)
            return child
    return None  # nothing of it was applied by the reconciler, or others have taken all of it


def _get_essence(child: Child) -> tuple[Any, ...]:
    identity = child.owner, child.reconciler, child.is_former
    return child.fields, child.digest, child.is_deleting, *identity


def _is_in(place: Place, kind: str, namespace: str | None) -> bool:
    return place.kind == kind and namespace in (None, place.namespace)


def _is_older(version: str, known: str) -> bool:
    return 0 < parse_number(version) < parse_number(known)


def _list_names(found: Any, namespace: str | None) -> Iterator[tuple[str | None, str]]:
    """Yield the namespaces and names that a function of ``watches=`` has returned."""
    for one in (found,) if isinstance(found, str) else found or ():
        if isinstance(one, str):
            place, _, name = one.rpartition("/")
            yield place or namespace, name
        elif isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], str):
            yield one
        else:
            raise TypeError(f"A function of watches= must return names, got {one!r:.99}.")
