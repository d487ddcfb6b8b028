"""The results of a watch for users of the client: changes of objects, or the states of one."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import orjson

from webop.aio.backoff import Once
from webop.client.watch import ListingFinished, ListingStarted, WatchItem
from webop.client.watch_events import get_uid
from webop.errors import MisfitError

logger = logging.getLogger(__name__)

T = TypeVar("T")

Json = dict[str, Any]


class Change(NamedTuple, Generic[T]):
    """A change of an object, as ``client.watch()`` yields it.

    Attributes:
        type: "ADDED" for objects that exist at the start, too; or "MODIFIED", or "DELETED".
        object: its new state, or the last one of a deleted object: a dict, or the model.
    """

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: T


class _Known(NamedTuple):
    uid: str
    version: str | None
    content: bytes  # takes a fifth of the memory of a dict


class Comparison(Generic[T]):
    """The objects that a watch has shown, to report each change once, also after lists.

    An object that does not fit its model is left out, as one that has left the selection.
    """

    def __init__(self, fit: Callable[[Json], T]) -> None:
        self._fit = fit
        self._known: dict[str, _Known] = {}
        self._unlisted: set[str] = set()
        self._once = Once()

    def compare(self, item: WatchItem) -> Iterator[Change[T]]:
        """Yield what an item of the watch changes."""
        if isinstance(item, ListingStarted):
            self._unlisted = set(self._known)
        elif isinstance(item, ListingFinished):
            for key in self._unlisted:
                yield self._forget(key)
        else:
            yield from self._compare(*item)

    def _compare(self, kind: str | None, raw: Json) -> Iterator[Change[T]]:
        meta, uid = raw["metadata"], get_uid(raw)
        key, version = f"{meta.get('namespace')}/{meta['name']}", meta.get("resourceVersion")
        self._unlisted.discard(key)
        known = self._known.get(key)
        is_same = known is not None and (known.uid, known.version) == (uid, version)
        if is_same and version and kind != "DELETED":
            return
        try:
            found = self._fit(raw)
        except MisfitError as exc:
            level = self._once.choose_level(uid)
            logger.log(level, "A watch of the client leaves out an object: %s", exc)
            if known is not None:
                yield self._forget(key)
            return
        if known is not None and kind == "DELETED":
            del self._known[key]
            yield Change("DELETED", found)
        elif kind != "DELETED":
            if known is not None and known.uid != uid:  # another one of the same name
                yield self._forget(key)
                known = None
            self._known[key] = _Known(uid, version, orjson.dumps(raw))
            yield Change("ADDED" if known is None else "MODIFIED", found)

    def _forget(self, key: str) -> Change[T]:
        return Change("DELETED", self._fit(orjson.loads(self._known.pop(key).content)))


class Shown(NamedTuple):
    """A state of the only object of a watch (None: absent), and whether a list has shown it."""

    object: Json | None
    version: str
    is_listed: bool


async def follow(items: AsyncGenerator[WatchItem, None]) -> AsyncGenerator[Shown, None]:
    """Yield the states of the only object of a watch."""
    is_there = False
    async for item in items:
        if isinstance(item, ListingStarted):
            is_there = False
        elif isinstance(item, ListingFinished):
            if not is_there:
                yield Shown(None, item.resource_version, is_listed=True)
        else:
            kind, raw = item
            is_there = kind != "DELETED"
            version = raw["metadata"].get("resourceVersion") or ""
            yield Shown(raw if is_there else None, version, is_listed=kind is None)
