"""Whether this process acts on objects, or stands by because others do.

Peering and leadership decide (:mod:`webop.coordination`), the reactor obeys: an operator that
stands by serves admission and keeps its indexes filled, but calls no handlers of objects, and runs
no daemons and timers (chapters "Peering" and "Daemons").
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any
from weakref import WeakSet

from webop.handling.cancellation import Crew
from webop.handling.fence import Fence, Fenced, current_fence
from webop.handling.stopping import DaemonStoppingReason

_POLLING = 0.02  # seconds

Listener = Callable[[DaemonStoppingReason | None], None]
"""Called when the turn changes: with why it is over, or with None when one begins."""


class Duty:
    """On duty unless somebody objects; and everything that is being done about objects.

    Attributes:
        turn: counts the changes between acting and standing by.
        fence: when set, what is done about objects ends there at the latest: the end of a lease.
    """

    def __init__(self) -> None:
        self.turn = 0
        self.fence: Fence | None = None
        self._objections: dict[str, str] = {}
        self._listeners: list[Listener] = []
        self._crew: WeakSet[asyncio.Task[Any]] = WeakSet()  # their groups hold them
        self._changed = asyncio.Event()

    @property
    def is_active(self) -> bool:
        """Whether to act."""
        return not self._objections

    @property
    def objections(self) -> list[str]:
        """Why not to act, in words; nothing if there is no reason."""
        return list(self._objections.values())

    def object(
        self,
        who: str,
        why: str,
        reason: DaemonStoppingReason = DaemonStoppingReason.OPERATOR_PAUSING,
    ) -> None:
        """Stand by, from this very moment on; what is being done is let finish.

        Args:
            who: by whose decision; each one has one objection at most.
            why: in words, for people.
            reason: what daemons are told.
        """
        was_active = self.is_active
        self._objections[who] = why
        if was_active:
            self._change(reason)

    def consent(self, who: str) -> None:
        """Take an objection back; if it was the last one, act."""
        if self._objections.pop(who, None) is not None and self.is_active:
            self._change(None)

    @contextlib.contextmanager
    def subscribed(self, listener: Listener) -> Iterator[None]:
        """Have a function called at each change, before anything else happens."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    async def wait_until_active(self) -> None:
        """Wait for a turn to act."""
        while not self.is_active:
            await self._changed.wait()

    async def wait_until_idle(self) -> None:
        """Wait until nothing is being done any more, but in threads that nobody waits for.

        It can begin again if one is on duty.
        """
        while self._has_tasks():  # noqa: ASYNC110  a callback for each of the tasks costs more
            await asyncio.sleep(_POLLING)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being done, in threads neither if there is a fence."""
        return not self._has_tasks() and not (self.fence and self.fence.threads)

    def spawn(
        self, group: asyncio.TaskGroup | Crew, coroutine: Coroutine[Any, Any, None], *, name: str
    ) -> asyncio.Task[None]:
        """Start something that is done about an object, in a group of tasks, behind the fence."""
        if self.fence is None:
            task = group.create_task(coroutine, name=name)
        else:
            context = contextvars.copy_context()
            context.run(current_fence.set, self.fence)
            task = group.create_task(Fenced(coroutine, self.fence), name=name, context=context)
        self._crew.add(task)
        return task

    def cancel(self) -> None:
        """Cancel all that is still being done."""
        for task in self._crew:
            task.cancel()

    @contextlib.asynccontextmanager
    async def turn_of(self, turn: int) -> AsyncIterator[None]:
        """Limit a block to one turn: it is left, without an error, when the next one begins."""
        try:
            async with asyncio.timeout(None) as scope:

                def leave(_: DaemonStoppingReason | None = None) -> None:
                    if turn != self.turn and scope.when() is None:
                        scope.reschedule(asyncio.get_running_loop().time())

                leave()
                with self.subscribed(leave):
                    yield
        except TimeoutError:
            if not scope.expired():
                raise

    def _change(self, reason: DaemonStoppingReason | None) -> None:
        self.turn += 1
        for listener in list(self._listeners):
            listener(reason)
        self._changed.set()
        self._changed = asyncio.Event()

    def _has_tasks(self) -> bool:
        return any(not task.done() for task in self._crew)
