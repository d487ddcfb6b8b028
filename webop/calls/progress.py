"""The states of the handlers of one object in the current handling cycle.

webop reads them from the records on the object, updates them by outcomes, and writes them back
(chapter "Continuity"). The format of the records is documented: another operator process, or Kopf,
can continue from them.
"""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from webop.aio.work_deadline import read_clock
from webop.calls.error_policy import Outcome
from webop.handlers.model import Handler
from webop.objects.body import Body
from webop.objects.patch import Patch
from webop.objects.storage.codec import log_damage
from webop.objects.storage.diffbase import EssenceDigest
from webop.objects.storage.progress import ProgressRecord, ProgressStorage

_LONGEST_DELAY = 1e9  # seconds, 31 years; dates end in the year 9999


def digest_essence(essence: Any) -> str:
    """Return a digest of an essence, short enough to be stored for many handlers."""
    return EssenceDigest.of(essence).sha256[:16]


def digest_content(body: Mapping[str, Any]) -> str:
    """Return a digest of all that an object says but its metadata and its status."""
    return digest_essence({k: v for k, v in body.items() if k not in ("metadata", "status")})


def identify_content(body: Body, *, has_generations: bool) -> str:
    """Return the generation of an object, or a digest of all but its metadata and its status.

    Without the subresource, a new status would be a new generation.
    """
    generation = body.metadata.get("generation") if has_generations else None
    return str(generation or digest_content(body))


class _Clock:
    """Unix time for delays and timeouts: it follows jumps of the wall clock slowly.

    A clock that is set back by an hour must not stop retries for an hour, and one that is set
    forward must not exceed timeouts. Seconds are up to a tenth longer or shorter until it agrees.
    """

    def __init__(self) -> None:
        self._time, self._read_at = time.time(), read_clock()

    def read(self) -> float:
        """Return the current moment."""
        moment = read_clock()
        passed, self._read_at = moment - self._read_at, moment
        difference = time.time() - self._time - passed
        if abs(difference) > passed / 10:
            difference = math.copysign(passed / 10, difference)
        self._time += passed + difference
        return self._time


_clock = _Clock()


def now() -> dt.datetime:
    """Return the current moment, in UTC."""
    return dt.datetime.fromtimestamp(_clock.read(), dt.UTC)


@dataclass(slots=True)
class HandlerState:
    """The state of one handler. Times are in UTC; None if it has not happened.

    Code replaces it and never changes it; a frozen dataclass takes three times as long to create.

    ``seen`` is a digest of the state that the handler was called for, or of its field, as own
    writes have left it: while a change is being handled, no handler misses a later one. It is the
    only field of the records that Kopf does not know; Kopf ignores it.
    """

    started: dt.datetime
    purpose: str | None = None
    stopped: dt.datetime | None = None
    delayed: dt.datetime | None = None
    retries: int = 0
    success: bool = False
    failure: bool = False
    message: str | None = None
    subrefs: frozenset[str] = frozenset()
    seen: str | None = None
    stored: Mapping[str, object] | None = field(default=None, compare=False)

    @classmethod
    def from_record(cls, record: ProgressRecord) -> HandlerState:
        """Restore the state from a record on the object.

        Raises:
            ValueError: this is not a record: anybody who can write the object can change it.
            TypeError: likewise.
        """
        retries: object = record.get("retries") or 0
        subrefs = frozenset(record.get("subrefs") or ())
        if not isinstance(retries, int):
            raise TypeError(f"'retries' must be a number, got {retries!r:.99}")
        for name in ("purpose", "message", "seen"):
            if not isinstance(value := record.get(name), str | None):
                raise TypeError(f"{name!r} must be a string, got {value!r:.99}")
        if not all(isinstance(key, str) for key in subrefs):
            raise TypeError("'subrefs' must be strings")
        return cls(
            started=_parse_time(record.get("started")) or now(),
            purpose=record.get("purpose") or None,
            stopped=_parse_time(record.get("stopped")),
            delayed=_parse_time(record.get("delayed")),
            retries=retries,
            success=bool(record.get("success")),
            failure=bool(record.get("failure")),
            message=record.get("message"),
            subrefs=subrefs,
            seen=record.get("seen"),
            stored=_without_nones(record),
        )

    def build_record(self) -> ProgressRecord:
        """Return the state in the documented format; absent fields are None."""
        record: ProgressRecord = {
            "started": _format_time(self.started),
            "stopped": _format_time(self.stopped),
            "delayed": _format_time(self.delayed),
            "purpose": self.purpose,
            "retries": self.retries,
            "success": self.success,
            "failure": self.failure,
            "message": self.message,
            "subrefs": sorted(self.subrefs) or None,
        }
        if self.seen is not None:
            record["seen"] = self.seen
        return record

    @property
    def is_finished(self) -> bool:
        """Whether the handler has succeeded or failed for good."""
        return self.success or self.failure

    @property
    def is_due(self) -> bool:
        """Whether the handler must be called now."""
        return not self.is_finished and (self.delayed is None or self.delayed <= now())

    def with_outcome(self, outcome: Outcome) -> HandlerState:
        """Return the state after one more attempt."""
        moment, delayed = now(), None
        failed = outcome.exception is not None
        if not outcome.final and outcome.delay is not None:
            delayed = moment + dt.timedelta(seconds=max(0, min(outcome.delay, _LONGEST_DELAY)))
        return HandlerState(  # replace() takes almost three times as long
            self.started,
            self.purpose,
            stopped=moment if outcome.final else None,
            delayed=delayed,
            retries=self.retries + 1,
            success=outcome.final and not failed,
            failure=outcome.final and failed,
            message=str(outcome.exception) if failed else None,
            subrefs=self.subrefs | outcome.subrefs,
            seen=self.seen,
            stored=self.stored,
        )


class Progress(dict[str, HandlerState]):
    """The states of all handlers in the current cycle of one object, by id.

    Attributes:
        min_delay: the shortest pause before the next call, in seconds.
    """

    min_delay = 0.0

    @classmethod
    def start(cls, handlers: Iterable[Handler]) -> Progress:
        """Return states without attempts: for activities, which store no records."""
        moment = now()
        return cls({handler.id: HandlerState(moment) for handler in handlers})

    @classmethod
    def restore(
        cls, handlers: Iterable[Handler], recorded: Mapping[str, HandlerState], *, purpose: str
    ) -> Progress:
        """Restore the states from the records on the object that have the same purpose.

        Records with another purpose are replaced: a deletion ignores an unfinished creation.
        """
        states: dict[str, HandlerState] = {}
        moment = now()
        for handler in handlers:
            state = recorded.get(handler.id)
            # Others must know if it is still to be called, whatever the cycle is about.
            wanted = "resume" if getattr(handler, "initial", False) else purpose
            if state is None:
                state = HandlerState(moment, wanted)
            elif state.purpose in (None, purpose, wanted):
                state = replace(state, purpose=wanted)
            else:  # the records of its sub-handlers must go with this one
                state = HandlerState(moment, wanted, subrefs=state.subrefs, stored=state.stored)
            states[handler.id] = state
        return cls(states)

    @property
    def is_finished(self) -> bool:
        """Whether all handlers have finished in this cycle."""
        return all(state.is_finished for state in self.values())

    @property
    def delay(self) -> float | None:
        """Seconds until the next handler is due; None if all are finished."""
        moment = now()
        waits = [
            0.0 if state.delayed is None else (state.delayed - moment).total_seconds()
            for state in self.values()
            if not state.is_finished
        ]
        return max(self.min_delay, min(waits)) if waits else None

    def due(self, handlers: Iterable[Handler]) -> list[Handler]:
        """Return the handlers that must be called now."""
        return [h for h in handlers if self[h.id].is_due]

    def record(self, handler: Handler, outcome: Outcome) -> None:
        """Record an attempt."""
        self[handler.id] = self[handler.id].with_outcome(outcome)

    def restart(self, key: str) -> None:
        """Reset a handler, so that it can be called again.

        Until it is, its record stays as it is: the change for it can be undone. Keep the ids of its
        sub-handlers: their records must be found even if it is never called.
        """
        old = self[key]
        state = HandlerState(now(), old.purpose, subrefs=old.subrefs, seen=old.seen)
        state.stored = _without_nones(state.build_record())
        self[key] = state

    def hurry(self, pause: float) -> None:
        """Let handlers that wait for a retry be due after a pause in seconds, if not before."""
        moment = now() + dt.timedelta(seconds=pause)
        for key, state in self.items():
            if state.delayed is not None and state.delayed > moment and not state.is_finished:
                self[key] = replace(state, delayed=moment)

    def store(self, *, body: Body, patch: Patch, storage: ProgressStorage) -> None:
        """Put the changed records into the patch of the object."""
        for key, state in self.items():
            record = state.build_record()
            if _without_nones(record) != state.stored:
                storage.store(key=key, record=record, body=body, patch=patch)
        storage.flush()

    def purge(
        self, keys: Iterable[str], *, body: Body, patch: Patch, storage: ProgressStorage
    ) -> None:
        """Remove the records of these handlers, and of all with a state and their sub-handlers."""
        purged = dict.fromkeys(keys)
        for key, state in self.items():
            purged.update(dict.fromkeys([key, *sorted(state.subrefs)]))
        for key in purged:
            storage.purge(key=key, body=body, patch=patch)
        storage.flush()

    def list_all(self, *, body: Body, storage: ProgressStorage) -> dict[str, HandlerState]:
        """Return the states of the handlers, and of their sub-handlers as recorded in the body."""
        states = dict(self)
        children = {key: state.purpose for state in self.values() for key in state.subrefs}
        for key, purpose in sorted(children.items()):
            state = _fetch(storage, key, body)
            if state is not None and state.purpose in (None, "resume", purpose):  # of this cycle
                states[key] = state
        return states


def fetch_states(
    handlers: Iterable[Handler], *, body: Body, storage: ProgressStorage
) -> dict[str, HandlerState]:
    """Return the states of handlers that are recorded on an object, by their ids."""
    states: dict[str, HandlerState] = {}
    for handler in handlers:
        if handler.id not in states and (state := _fetch(storage, handler.id, body)) is not None:
            states[handler.id] = state
    return states


def _fetch(storage: ProgressStorage, key: str, body: Body) -> HandlerState | None:
    """Return the state of a handler that is recorded on an object, if it can be read."""
    record = storage.fetch(key=key, body=body)
    try:
        return HandlerState.from_record(record) if record else None
    except (TypeError, ValueError) as exc:
        log_damage(f"the record of {key!r}", body, exc)
        return None


def _without_nones(record: ProgressRecord) -> dict[str, object]:
    """Return a record for comparison: some storages keep fields that are None, others do not."""
    return {key: value for key, value in record.items() if value is not None}


def _format_time(moment: dt.datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="microseconds")


def _parse_time(text: str | None) -> dt.datetime | None:
    """Parse ISO 8601; older records have no time zone and are in UTC."""
    if not text:
        return None
    moment = dt.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
