"""In-memory indexes of the objects of a kind (chapter "In-memory indexing").

:func:`index_object` writes them in the event loop. Handlers read them, also in threads, and can
await during an iteration. So each iteration goes over the values at its start, and values keep
their order.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    ValuesView,
)
from typing import Any, Generic, TypeVar

from webop.calls.execution import attempt
from webop.calls.progress import HandlerState, now
from webop.calls.shared_options import CallOptions
from webop.handlers.causes import ResourceCause
from webop.handlers.filters import matches
from webop.handlers.model import IndexHandler

K = TypeVar("K")
V = TypeVar("V")

_NOTHING: Any = object()


class Store(Collection[V], Generic[V]):
    """All values under one key of an :class:`Index`, without an order.

    Equal values of several objects are repeated. A store is always current and never empty while
    it is in the index.
    """

    __slots__ = ()


class Index(Mapping[K, Store[V]], Generic[K, V]):
    """An index, as handlers get it: a read-only mapping of keys to stores of values.

    ::

        pods = pods_by_app.get("web", [])

    It is always current. It exists from the start, even without objects.
    """

    __slots__ = ()


class ObjectStore(Store[V]):
    """A store that knows the object of each value.

    Most stores have one value; a dict for it would take four times the memory of the rest.
    """

    __slots__ = ("_others", "_owner", "_value")

    def __init__(self) -> None:
        self._owner: str | None = None
        self._value: V = _NOTHING
        self._others: dict[str, V] | None = None

    def __len__(self) -> int:
        return (self._value is not _NOTHING) + len(self._others or ())

    def __iter__(self) -> Iterator[V]:
        value, others = self._value, self._others
        values = [] if others is None else list(others.values())
        return iter(values if value is _NOTHING else [value, *values])

    def __contains__(self, value: object) -> bool:
        return any(own is value or own == value for own in self)

    def __repr__(self) -> str:
        return repr(list(self))

    def put(self, owner: str, value: V) -> None:
        """Add the value of an object, or replace it in the same position."""
        if self._owner == owner or not self:
            self._owner, self._value = owner, value
        elif self._others is None:
            self._others = {owner: value}
        else:
            self._others[owner] = value

    def drop(self, owner: str) -> None:
        """Remove the value of an object."""
        if self._owner == owner:
            self._owner, self._value = None, _NOTHING
        elif self._others is not None:
            self._others.pop(owner, None)
            if not self._others:
                self._others = None


class ObjectIndex(Index[K, V]):
    """An index that knows the keys of each owner of values: an object, for one of its feeds.

    A change takes time in proportion to the keys of the object, not of the index.
    """

    __slots__ = ("_keys", "_stores")

    def __init__(self) -> None:
        self._stores: dict[K, ObjectStore[V]] = {}
        self._keys: dict[str, tuple[K, ...]] = {}

    def __len__(self) -> int:
        return len(self._stores)

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._stores))

    def __getitem__(self, key: K) -> Store[V]:
        return self._stores[key]

    def __contains__(self, key: object) -> bool:
        return key in self._stores

    def __repr__(self) -> str:
        return repr(self._stores.copy())

    def items(self) -> ItemsView[K, Store[V]]:
        """Return the current keys and stores."""
        return self._stores.copy().items()

    def values(self) -> ValuesView[Store[V]]:
        """Return the current stores."""
        return self._stores.copy().values()

    def replace(self, owner: str, values: Mapping[K, V]) -> None:
        """Replace all values of an object."""
        former = self._keys.pop(owner, ())
        for key, value in values.items():
            store = self._stores.get(key) or ObjectStore()
            store.put(owner, value)  # first, as stores in the index are never empty
            self._stores[key] = store
        for key in former:
            if key not in values:
                store = self._stores[key]
                if len(store) == 1:  # the store becomes empty
                    del self._stores[key]
                store.drop(owner)
        if values:
            self._keys[owner] = tuple(values)

    def discard(self, owner: str) -> None:
        """Remove all values of an object."""
        self.replace(owner, {})


class Feed:
    """A function that fills an index, with the states of the objects for which it failed.

    Several decorators of one function with the same id share one feed.
    """

    __slots__ = ("_suffix", "has_patched", "index", "states")

    def __init__(self, index: ObjectIndex[Any, Any], number: int) -> None:
        self.index = index
        self.states: dict[str, HandlerState] = {}
        self.has_patched = False
        self._suffix = f"/{number}" if number else ""

    def replace(self, uid: str, result: Any) -> None:
        """Index the result of the function for an object."""
        values = result if type(result) is dict else {None: result}
        self.index.replace(uid + self._suffix, values)

    def discard(self, uid: str) -> None:
        """Remove the values of an object; keep its failures."""
        self.index.discard(uid + self._suffix)

    def forget(self, uid: str) -> None:
        """Remove the values and the failures of an object."""
        self.discard(uid)
        self.states.pop(uid, None)


class Indexes(dict[str, ObjectIndex[Any, Any]]):
    """The indexes of an operator by name; handlers with the same id share one index."""

    def __init__(self, handlers: Iterable[IndexHandler] = ()) -> None:
        super().__init__()
        self._feeds: dict[tuple[Any, str], Feed] = {}
        for handler in handlers:
            if handler.key not in self._feeds:
                index = self.setdefault(handler.id, ObjectIndex())
                number = sum(feed.index is index for feed in self._feeds.values())
                self._feeds[handler.key] = Feed(index, number)

    def feed_of(self, handler: IndexHandler) -> Feed:
        """Return the feed of a handler."""
        return self._feeds[handler.key]

    def discard(self, uid: str, feeds: Iterable[Feed] | None = None) -> None:
        """Remove an object from all indexes, or from those of some feeds."""
        for feed in self._feeds.values() if feeds is None else feeds:
            feed.forget(uid)


async def index_object(
    handlers: Sequence[IndexHandler],
    cause: ResourceCause,
    uid: str,
    indexes: Indexes,
    options: CallOptions,
    *,
    is_wanted: Callable[[], bool],
) -> None:
    """Index an object with all handlers of its resource (chapter "In-memory indexing").

    Errors are treated as in other handlers, but without retries, and nothing is stored on the
    object.

    Guarantees: no error of a handler or of a filter leaves this function or prevents calls of other
    handlers. The patch of the cause is not applied. Results for objects that are not wanted any
    more are dropped.
    """
    for feed, handler in _choose(handlers, cause, indexes).items():
        if handler is None:
            feed.discard(uid)
            continue
        state = feed.states.get(uid)
        if state is not None and not state.is_due:
            continue
        state = state or HandlerState(started=now())
        outcome = await attempt(handler, cause, state, options)
        if not is_wanted():
            return
        if outcome.exception is not None:
            feed.discard(uid)
            feed.states[uid] = state.with_outcome(outcome)
        else:
            feed.states.pop(uid, None)
            if outcome.result is not None:  # ignored errors have none
                feed.replace(uid, outcome.result)
        if cause.patch and not feed.has_patched:
            feed.has_patched = True
            text = "%s has changed its patch. Patches of indexers are ignored."
            cause.logger.warning(text, handler)
        cause.patch.clear()


def _choose(
    handlers: Sequence[IndexHandler], cause: ResourceCause, indexes: Indexes
) -> dict[Feed, IndexHandler | None]:
    """Return the first matching handler of each feed, or None.

    If a filter fails, webop does not know whether the object matches. As after other failures of
    an indexer, the values stay: the feed is not returned.
    """
    chosen: dict[Feed, IndexHandler | None] = {}
    failed: set[Feed] = set()
    for handler in handlers:
        feed = indexes.feed_of(handler)
        if chosen.setdefault(feed, None) is not None:
            continue
        try:
            if matches(handler, cause, is_about_change=False):
                chosen[feed] = handler
        except Exception:
            cause.logger.exception("A filter of %s failed.", handler)
            failed.add(feed)
    return {f: h for f, h in chosen.items() if h is not None or f not in failed}
