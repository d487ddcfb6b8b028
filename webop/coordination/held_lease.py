"""The Lease as one process has observed it, and whether it holds the Lease.

:mod:`webop.coordination.election` decides when to acquire, renew and release it. This module does
it, and moves the end of the fence after each success.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import math
from contextlib import aclosing
from typing import Any

from webop.aio.work_deadline import Fence
from webop.client.changes import follow
from webop.client.watch import WatchOptions
from webop.coordination.lease_content import (
    NOTHING,
    LeaseTimes,
    Record,
    claim,
    is_newer,
    release,
    renew,
)
from webop.coordination.timed_requests import LeaseAccess

_ATTEMPTS = 3  # of a write, if others have changed other fields of the Lease


class ObservedLease:
    """A Lease that this process holds or wants to hold; its requests raise APIError.

    Attributes:
        times: when what must have happened.
        marks: labels and annotations that it gets when it is written.
        claimed: the last claim; it can have succeeded although its response was lost.
        raw: the newest known object; None if it does not exist.
        record: the newest known content; of a deleted Lease, the last one.
        free_at: when it can be acquired, by the clock of the fence.
        sent_at: when the last successful claim or renewal was sent, by the clock of the fence.
        changed: set when somebody else has changed the Lease.
        ends_if_deleted: whether its holder loses it if somebody deletes it: others could have ended
            its term before that.
    """

    def __init__(self, access: LeaseAccess, times: LeaseTimes, identity: str, fence: Fence) -> None:
        self._access = access
        self.times = times
        self._identity = identity
        self._fence = fence
        self.marks: dict[str, dict[str, str]] = {}
        self.ends_if_deleted = False
        self.claimed: Record | None = None
        self.raw: dict[str, Any] | None = None
        self.record = NOTHING
        self.free_at = -math.inf
        self.sent_at = 0.0
        self.changed = asyncio.Event()

    def __str__(self) -> str:
        return str(self._access)

    @property
    def name(self) -> str:
        """The name of the Lease."""
        return self._access.name

    @property
    def age(self) -> float:
        """The seconds since the last successful claim or renewal was sent."""
        return self._fence.clock() - self.sent_at

    @property
    def is_own(self) -> bool:
        """Whether its holder is the last claim of this process, with or without a response."""
        return self.record.is_of_term(self.claimed)

    @property
    def wait(self) -> float:
        """The seconds until it can be acquired, unless it changes; 0 if it is free."""
        return 0.0 if self.is_own else max(0.0, self.free_at - self._fence.clock())

    async def watch(self, options: WatchOptions) -> None:
        """Observe changes forever."""
        async with aclosing(self._access.watch(options)) as items:
            async for raw, version, _ in follow(items):
                if is_newer(version, self.raw):  # than our last response
                    self.note_change(raw)

    async def refresh(self, *, if_unwatched: bool = False) -> None:
        """Read it now; with ``if_unwatched``, only if the watch does not report changes."""
        if not if_unwatched or not self._access.is_watched:
            self.observe(await self._access.read())

    async def hold(self) -> bool:
        """Acquire it, or renew it; return whether this process holds it now.

        If somebody has deleted it, its holder creates it again, or loses it (``ends_if_deleted``).
        If somebody else has held it in between, it must be acquired again.
        """
        was_own = self.is_own
        for _ in range(_ATTEMPTS):
            if self.wait or self.is_own is not was_own:
                return False
            before, now = self.raw, dt.datetime.now(dt.UTC)
            if was_own and before is None and self.ends_if_deleted:
                return False
            if was_own and before is not None:
                raw = renew(before, self.times.duration, now)
            else:
                raw = claim(self._access.name, before, self._identity, self.times.duration, now)
            former, self.claimed = self.claimed, Record.parse(raw)
            if await self._write(raw):
                return True
            self.claimed = former  # this one was refused: perhaps because of the former one
            await self.refresh()
        return was_own and self.is_own

    async def release(self) -> bool:
        """Release it; return whether this process held it."""
        for _ in range(_ATTEMPTS):
            raw = self.raw
            if raw is None or not self.is_own:
                break
            stored = await self._access.write(release(raw, dt.datetime.now(dt.UTC)))
            if stored is not None:
                self.observe(stored)
                return True
            await self.refresh()
        self.claimed = None  # if somebody has deleted it, it counts for its time, as for others
        return False

    async def expire(self) -> None:
        """Release it for a holder that has not renewed it in time, and cannot do so after this."""
        if self.record.holder and not self.is_own and not self.wait:
            raw = self.raw or {"metadata": {"name": self.name}}  # somebody can have deleted it
            raw = release(raw, dt.datetime.now(dt.UTC))
            if (stored := await self._access.write(self._mark(raw))) is not None:
                self.observe(stored)
            else:
                await self.refresh()

    def _mark(self, raw: dict[str, Any]) -> dict[str, Any]:
        meta = raw["metadata"]
        marks = {key: {**(meta.get(key) or {}), **added} for key, added in self.marks.items()}
        return {**raw, "metadata": {**meta, **marks}}

    async def _write(self, raw: dict[str, Any]) -> bool:
        sent_at = self._fence.clock()
        stored = await self._access.write(self._mark(raw))
        if stored is None:
            return False
        self.observe(stored)
        self.sent_at = sent_at
        self._fence.ends_at = sent_at + self.times.end
        return True

    def observe(self, raw: dict[str, Any] | None) -> None:
        """Note the present object, or its absence.

        A Lease can be deleted while its holder acts, so a deleted Lease still counts until its end.
        """
        self.raw = raw
        record = self.record if raw is None else Record.parse(raw)
        if record != self.record:
            duration = record.duration or self.times.duration
            self.free_at = self._fence.clock() + duration if record.holder else -math.inf
            self.record = record

    def expect(self, holder: str, since: str) -> None:
        """Note the holder of a Lease that does not exist; it counts from now on for its time."""
        self.record = Record(holder, None, since, "")
        self.free_at = self._fence.clock() + self.times.duration

    def note_change(self, raw: dict[str, Any] | None) -> None:
        """Accept a newer state that a watch has shown; None for none."""
        self.observe(raw)
        if raw is None or not self.is_own:
            self.changed.set()
