"""The cluster that a test in virtual time calls; also the clock, and the fate of the operator."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from webop.client.objects import Obj, SyncClient
from webop.testing.played_controllers import (
    build_finished_status,
    build_ready_status,
    write_status,
)
from webop.testing.simulation.fate import Order
from webop.testing.simulation.network import Fault

if TYPE_CHECKING:
    from webop.client.kinds import Kind
    from webop.objects.fields import Json
    from webop.testing.apiserver import Change
    from webop.testing.simulation.world import World

R = TypeVar("R")


class SimulatedCluster(SyncClient):
    """A cluster in virtual time, in which the operator runs: the argument of a simulated test.

    ::

        def test_a_backup_is_made(cluster):
            cluster.create(Database(metadata={"name": "main"}, spec={"schedule": "0 3 * * *"}))
            cluster.advance(hours=26)
            assert len(cluster.list("jobs")) == 1

    The methods of the client (``get``, ``list``, ``create``, ``apply``, ``patch``, ``delete``,
    ``wait_for``, ``wait_gone``) are those of a user, and not async. Their requests pass through the
    webhooks of the operator. While they wait, time goes on. See docs/howto/testing_simulated.md.

    Attributes:
        seed: of this run.
    """

    __slots__ = ("_world", "seed")

    def __init__(self, world: World) -> None:
        super().__init__(world.user, world.loop)
        self._world = world
        self.seed = world.seed

    def wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in virtual time, and return its result."""
        return self._world.run(coroutine)

    @property
    def now(self) -> dt.datetime:
        """The time, in UTC."""
        return self._world.read_clock()

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Let so much time pass."""
        delta = dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if delta < dt.timedelta(0):
            raise ValueError(f"Time cannot go back: advance() got {delta.total_seconds():g} s.")
        self._world.advance(delta.total_seconds())

    def settle(self, within: float = 900) -> None:
        """Let time pass until nothing is left to do.

        That is: no object waits for its turn or for another attempt, and nothing has changed in the
        cluster for five seconds (Leases and Events do not count). It does not wait for later work,
        such as timers and ``webop.again()``.

        Args:
            within: seconds.

        Raises:
            SimulationError: that does not come, or no operator runs.
        """
        self._world.settle(within)

    def kill(self, replica: int | None = None) -> None:
        """Kill the operator, in the middle of anything, as SIGKILL does. It stays away.

        Args:
            replica: the number of one, from 0; by default, all are killed.
        """
        self._world.kill(replica)

    def stop(self, replica: int | None = None) -> None:
        """Stop the operator as SIGTERM does, and wait for its end. It stays away.

        Args:
            replica: the number of one, from 0; by default, all are stopped.
        """
        self._world.stop(replica)

    def start(self) -> None:
        """Start the operator, with its modules imported again, unless it runs."""
        self._world.start()

    def restart(self) -> None:
        """Stop the operator if it runs, and start it."""
        self._world.stop()
        self._world.start()

    def fail(
        self,
        method: str = "",
        kind: Kind | None = None,
        *,
        status: int | None = 500,
        times: int = 1,
        lost: bool = False,
        seconds: float = 0,
    ) -> None:
        """Let the next requests of the operator fail.

        ::

            cluster.fail("PATCH", "databases", status=500, times=3)

        Args:
            method: of the requests, such as "PATCH"; all if it is empty.
            kind: of the objects, such as "databases"; all requests if it is None.
            status: of the answers; None if the API server cannot be reached.
            times: how many requests.
            lost: whether the requests are carried out, and their answers are lost.
            seconds: what ``Retry-After`` says; 0 for none.

        In the run of seed 0, the test fails if no such request was sent.

        Raises:
            APINotFoundError: there is no such kind.
            ValueError: the status is not that of an error, or ``times`` is less than 1.
        """
        if status is not None and not 400 <= status < 600:
            raise ValueError(f"status= must be that of an error, from 400 to 599, got {status}.")
        if times < 1:
            raise ValueError(f"times= must be at least 1, got {times}.")
        resource = None if kind is None else self._world.find_kind(kind)
        how = "lost" if lost else "refused" if status is None else "status"
        fault = Fault(how, status=status or 0, seconds=seconds)
        self._world.fate.orders.append(Order(method.upper(), resource, fault, times))

    def make_ready(self, kind: Kind, name: str, *, namespace: str = "default") -> Obj:
        """Write the status that controllers write when all Pods of an object are ready.

        As :meth:`webop.testing.FakeClient.make_ready`.
        """
        return self._play(kind, name, namespace, build_ready_status)

    def finish(
        self, kind: Kind, name: str, *, namespace: str = "default", succeeded: bool = True
    ) -> Obj:
        """Write the status of a Job or a Pod that has finished.

        As :meth:`webop.testing.FakeClient.finish`.
        """
        build = functools.partial(build_finished_status, succeeded=succeeded)
        return self._play(kind, name, namespace, build)

    def play(self, kind: Kind, *, after: float = 1, succeeded: bool = True) -> None:
        """Play the controller of a kind from now on: new objects become ready, or finish.

        ::

            cluster.play("jobs", after=30)

        Args:
            kind: "jobs" or "pods", which finish; or one of :meth:`make_ready`.
            after: so many seconds after they were created.
            succeeded: how Jobs and Pods finish.
        """
        name = self._world.find_kind(kind).plural_name

        def note(change: Change) -> None:
            if change.verb == "create" and change.resource == name:
                assert change.new is not None  # noqa: S101 - for the type checker
                self._world.server.play_later(after, name, change.new, act)

        def act(raw: Json, stamp: str) -> Json:
            if name in {"jobs.batch", "pods"}:
                return build_finished_status(raw, stamp, succeeded=succeeded)
            return build_ready_status(raw, stamp)

        self._world.server.store.observers.append(note)

    def _play(
        self, kind: Kind, name: str, namespace: str, build: Callable[[Json, str], Json]
    ) -> Obj:
        resource = self._world.find_kind(kind)
        what = resource, name, namespace, build, self.now
        return self.wait(write_status(self.asynchronous, *what))
