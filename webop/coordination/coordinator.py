"""What decides whether an operator acts, from its start to its handover.

Flow: :meth:`Coordinator.begin` makes the operator stand by if there is anything to be decided,
:meth:`Coordinator.run` decides as long as it runs, and hands over when it is cancelled.
"""

from __future__ import annotations

import asyncio

from webop.client.api import Client
from webop.coordination.election import Elector
from webop.coordination.peering import Peering
from webop.handling.context import OperatorContext


class Coordinator:
    """All who have a say in whether this operator acts.

    The namespace is the only one that is served, if there is only one, given by its name.
    """

    def __init__(self, operator: OperatorContext, namespace: str | None = None) -> None:
        self._operator = operator
        self._elector = Elector(operator, namespace)
        peering = Peering(operator, self._elector)
        # The elector comes first: it knows the name of the Lease when peering begins.
        self._arbiters: tuple[Elector | Peering, ...] = (self._elector, peering)
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Take over what is set, after the startup handlers.

        Raises:
            ConfigurationError: the settings make no sense.
        """
        for arbiter in self._arbiters:
            arbiter.begin()

    async def run(self, client: Client) -> None:
        """Decide for ever; when cancelled, hand over."""
        self._task = asyncio.current_task()
        async with asyncio.TaskGroup() as group:
            for arbiter in self._arbiters:
                group.create_task(arbiter.run(client), name=type(arbiter).__name__.lower())

    def describe(self) -> str:
        """Return the role among the replicas, in words, for people; nothing if all are equal."""
        return self._elector.describe()

    @property
    def leadership(self) -> tuple[str, bool] | None:
        """The name of the Lease, and whether this replica holds it; None if there is no Lease."""
        name = self._operator.settings.leadership.lease_name
        return None if name is None else (name, self._elector.is_leading)

    def list_obstacles(self) -> list[str]:
        """Return what keeps the operator from acting until somebody puts it right, in words."""
        return [arbiter.obstacle for arbiter in self._arbiters if arbiter.obstacle]

    async def resign(self) -> None:
        """Hand over now, and for good; the operator is stopping."""
        self._arbiters = ()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
