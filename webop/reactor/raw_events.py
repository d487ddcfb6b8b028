"""Queues of raw events for event handlers: in order, separate from other work on the object."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from webop.backoff import Once
from webop.errors import WebopError
from webop.objects.body import RawEventType
from webop.reactor.process import Processor
from webop.reactor.slots import SharedSlots, Slots
from webop.reactor.tracking import Tracked

logger = logging.getLogger(__name__)

_LIMIT = 20  # events of one object that wait


class RawEvents:
    """The queued events of the objects of one stream; if too many wait, the oldest are skipped.

    Attributes:
        slots: limits how many objects are shown at once.
    """

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self.slots = Slots("events", SharedSlots())
        self._once = Once()

    def keep(self, obj: Tracked, event_type: RawEventType, raw: dict[str, Any]) -> None:
        """Queue an event, as a copy that handlers may modify."""
        text = self.slots.pack(raw, is_needed=event_type == "DELETED")
        if obj.events is None:
            obj.events = deque()
        if len(obj.events) >= _LIMIT:
            self.slots.drop(obj.events.popleft()[1])
            if self._once.is_new("skipped"):
                logger.warning(
                    "Events of %s arrive faster than its handlers run. More than %d wait: the "
                    "oldest are skipped. This is logged once per kind.",
                    obj,
                    _LIMIT,
                    extra=self._processor.ctx.refer_to(obj),
                )
        obj.events.append((event_type, text))

    def drop(self, obj: Tracked) -> None:
        """Forget the events of an object, but the deletion of what handlers have got before."""
        events, obj.events = obj.events or (), None
        for event_type, text in events:
            if event_type == "DELETED" and obj.is_shown:
                obj.events = deque([(event_type, text)])
            else:
                self.slots.drop(text)

    def begin(self, obj: Tracked) -> None:
        """Call the handlers as soon as a slot is free, unless they already run."""
        if not obj.events or obj.event_task is not None:
            return
        if self.slots.is_free:
            self._start(obj)
        else:
            self.slots.wait(self._start, obj, is_urgent=obj.event_type is not None)

    def _start(self, obj: Tracked) -> None:
        if obj.events and obj.event_task is None and not obj.controller.is_stopped:
            self.slots.enter()
            obj.event_task = obj.controller.run(obj, self._show(obj), self._finish)

    async def _show(self, obj: Tracked) -> None:
        """Call the handlers for the events of an object: for one of them if other objects wait."""
        while obj.events and not (obj.controller.is_stopped or obj.controller.is_holding):
            event_type, text = obj.events.popleft()
            try:
                raw = self.slots.unpack(text) if text else await self._processor.read(obj)
                if raw is not None:
                    with self.slots.running_handlers():
                        await self._show_one(obj, event_type, raw)
            except WebopError as exc:
                extra = self._processor.ctx.refer_to(obj)
                logger.warning("Skipped an event of %s: %s", obj, exc, extra=extra)
            if self.slots.has_waiting:
                break

    async def _show_one(self, obj: Tracked, event_type: RawEventType, raw: dict[str, Any]) -> None:
        obj.is_shown = event_type != "DELETED"
        if obj.is_shown and obj.is_being_indexed:
            await self._processor.index_newest(obj)
            if obj.controller.is_stopped:  # the next listing shows it again
                return
        await self._processor.show_event(obj, event_type, raw)

    def _finish(self, obj: Tracked, task: asyncio.Task[None]) -> None:
        self.slots.leave()
        obj.event_task = None
        if obj.events and not task.cancelled():
            obj.controller.show_events(obj)
            return
        self.drop(obj)
        if obj.is_gone:
            obj.controller.check(obj)
