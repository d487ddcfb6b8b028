"""The decision whether an operator handles objects, from its start to its handover.

Flow: :meth:`Coordinator.begin` pauses the operator if it has a Lease or a peering.
:meth:`Coordinator.run` pauses and resumes it. When it is cancelled, it waits for the handlers; then
the Lease and the records are given up.
"""

from __future__ import annotations

import asyncio

from webop.client.api import Client
from webop.context.operator_context import OperatorContext
from webop.coordination.election import Elector
from webop.coordination.members import Members
from webop.coordination.peering import Peering
from webop.handlers.stopping import DAEMONS_TIMEOUT


class Coordinator:
    """The elector and the peering of an operator; ``namespace`` is the only one that it serves."""

    def __init__(self, operator: OperatorContext, namespace: str | None = None) -> None:
        self._operator = operator
        self._elector = Elector(operator, namespace)
        self._peering = Peering(operator, self._elector)
        # The elector comes first: it knows the name of the Lease when peering begins.
        self._coordinators: tuple[Elector | Peering, ...] = (self._elector, self._peering)
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Apply the settings, after the startup handlers."""
        for coordinator in self._coordinators:
            coordinator.begin()

    async def run(self, client: Client) -> None:
        """Coordinate forever; when cancelled, hand over."""
        self._task = asyncio.current_task()
        async with asyncio.TaskGroup() as group:
            for coordinator in self._coordinators:
                group.create_task(coordinator.run(client), name=type(coordinator).__name__.lower())
            try:
                await asyncio.Event().wait()
            finally:
                if self._elector.is_enabled or self._peering.has_records:
                    # Wait for the handlers before others may act; meanwhile the Lease is renewed.
                    patience = self._operator.settings.batching.exit_timeout
                    self._operator.pausing.stop()
                    await self._operator.pausing.finish(max(patience, DAEMONS_TIMEOUT))

    def describe(self) -> str:
        """Return a text: the role of this replica; empty without a Lease."""
        return self._elector.describe()

    @property
    def leadership(self) -> tuple[str, bool] | None:
        """The name of the Lease, and whether this replica holds it; None if there is no Lease."""
        name = self._operator.settings.leadership.lease_name
        if self.members is not None:
            name = self.members.slot or name
        return None if name is None else (name, self._elector.is_leading)

    @property
    def members(self) -> Members | None:
        """The replicas that share the shards; None if they elect a leader, or do not run yet."""
        return self._elector.shared

    def list_obstacles(self) -> list[str]:
        """Return texts: what prevents the operator from acting until somebody fixes it."""
        return [coordinator.obstacle for coordinator in self._coordinators if coordinator.obstacle]

    async def resign(self) -> None:
        """Hand over for good: the operator is stopping."""
        self._coordinators = ()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
