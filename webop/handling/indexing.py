"""Keeping the indexes: what index handlers say of an object gets into the indexes, or out of them.

Flow: the reactor → :func:`index_object` → :func:`webop.handling.execute.attempt` → the user's
function → :mod:`webop.handling.indexes`. The policy of errors is the common one; what is special
is that nothing is retried by itself and that nothing is stored on the object.
"""

from __future__ import annotations

from collections.abc import Sequence

from webop.handling.causes import ResourceCause
from webop.handling.execute import attempt
from webop.handling.filters import prematches
from webop.handling.handlers import IndexHandler
from webop.handling.indexes import Feed, Indexes
from webop.handling.policy import Outcome
from webop.handling.progress import HandlerState, now
from webop.handling.terms import Terms


async def index_object(
    handlers: Sequence[IndexHandler],
    cause: ResourceCause,
    uid: str,
    indexes: Indexes,
    terms: Terms,
) -> None:
    """Index an object anew with all handlers of its resource (chapter "In-memory indexing").

    Guarantees: no error of a handler or of a filter leaves this function, nor keeps the other
    handlers from being called. If the object is discarded or begun to be indexed anew meanwhile,
    this is the older news, and its results are dropped.

    Args:
        handlers: the index handlers of the resource, whether they match the object or not.
        cause: the object, with a patch of its own, which is not applied to anything.
        uid: whose the values are.
        indexes: what is to be filled.
        terms: with IGNORED as the default mode of errors, and a level for successes that is not
            seen by default: there are as many as there are events.
    """
    turn = indexes.begin(uid)
    try:
        for feed, handler in _choose(handlers, cause, indexes).items():
            if handler is None:
                feed.discard(uid)
                continue
            state = feed.standings.get(uid)
            if state is not None and not state.is_due(now()):
                continue
            state = state or HandlerState(started=now())
            outcome = await attempt(handler, cause, state, terms)
            if not indexes.has_turn(uid, turn):
                break
            _record(feed, uid, state, outcome)
            _refuse_patch(feed, handler, cause)
    finally:
        indexes.end(uid, turn)


def _choose(
    handlers: Sequence[IndexHandler], cause: ResourceCause, indexes: Indexes
) -> dict[Feed, IndexHandler | None]:
    """Return the first matching handler of each feed; None where there is none.

    If a filter fails, it is not known whether the object matches. This is taken as any failure
    of an indexer: the values stay as they are, so the feed is not here.
    """
    chosen: dict[Feed, IndexHandler | None] = {}
    doubtful: set[Feed] = set()
    for handler in handlers:
        feed = indexes.feed_of(handler)
        if chosen.setdefault(feed, None) is not None:
            continue
        try:
            if prematches(handler, cause):
                chosen[feed] = handler
        except Exception:
            cause.logger.exception("%s has a filter that failed.", handler)
            doubtful.add(feed)
    return {f: h for f, h in chosen.items() if h is not None or f not in doubtful}


def _record(feed: Feed, uid: str, state: HandlerState, outcome: Outcome) -> None:
    """Take over an outcome; an ignored error is the same as no result (IDX-12, IDX-16)."""
    if outcome.exception is not None:
        feed.discard(uid)
        feed.standings[uid] = state.with_outcome(outcome)
        return
    feed.standings.pop(uid, None)
    if outcome.result is not None:
        feed.replace(uid, outcome.result)


def _refuse_patch(feed: Feed, handler: IndexHandler, cause: ResourceCause) -> None:
    """Say once that indexing changes no objects: it also happens where there are no changes."""
    if not cause.patch:
        return
    if not feed.has_patched:
        feed.has_patched = True
        cause.logger.warning("%s has filled its patch, which is ignored.", handler)
    cause.patch.clear()
