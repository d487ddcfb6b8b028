"""The API server of a world, with all that acts in its cluster besides the operator.

That is: webhooks, which are asked in virtual time, conversions, the garbage collector, the
controllers that the test plays, and the end of old Events.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from webop.errors import ReviewError
from webop.testing.apiserver import Change, Cluster, Json, Refusal, Request, Response
from webop.testing.apiserver.conversions import refuse_conversion
from webop.testing.apiserver.garbage import GarbageCollector
from webop.testing.apiserver.webhooks import Review
from webop.testing.conversions import convert
from webop.testing.played_controllers import build_stamp
from webop.testing.simulation.network import Fault, Network, Sender
from webop.testing.simulation.replica import SERVICE, Replica

if TYPE_CHECKING:
    from webop.testing.simulation.world import World

_PAUSE = 0.5  # seconds between two tries of a request of the test
_EVENTS = 3600.0  # seconds for which Events are kept
_LOG = 1000  # changes of a kind after which half of them is forgotten
_UNIMPORTANT = {"leases.coordination.k8s.io", "events", "events.events.k8s.io"}


class User:
    """The sender of the requests of the test."""

    number = -1
    identity = "test"


class ReviewedServer(Cluster):
    """The API server; see the module.

    Attributes:
        changed_at: when the last important change was, by the loop's clock.
        changes: the last of them, as texts.
        coming: how much the controllers that the test plays have still to do.
    """

    def __init__(self, world: World) -> None:
        self.changed_at, self.coming = 0.0, 0
        self.changes: deque[str] = deque(maxlen=5)
        self._world = world
        self._rng = random.Random(f"server {world.seed}")
        super().__init__(
            world.read_clock,
            random.Random(world.seed),
            collects=True,
            converter=self._convert,
        )
        self._collector = GarbageCollector(self)

    async def carry_out(self, request: Request) -> Response:
        """Carry out a request, with the webhooks that are concerned."""
        steps, verdict = self.perform(request), None
        while True:
            try:
                review = steps.send(verdict)
            except StopIteration as exc:
                response: Response = exc.value
                break
            verdict = await self._ask(review, is_patient=request.user == User.identity)
        self._collector.run()
        return response

    async def _ask(self, review: Review, *, is_patient: bool) -> Any:
        """Send a review to a replica that serves webhooks.

        Args:
            review: with its webhook.
            is_patient: whether it waits for replicas that start again.
        """
        while True:
            await asyncio.sleep(self._world.network.draw_latency())
            service = review.webhook["clientConfig"].get("service") or {}
            problem = "no endpoints available for service"
            if service.get("name") == SERVICE and (serving := self._world.serving):
                replica = self._rng.choice(serving)
                path = (service.get("path") or "").strip("/")
                verdict = await self._ask_replica(replica, review, path)
                if verdict is not None:
                    return verdict
                problem = "connection reset by peer"
            if not is_patient or not self._world.is_anybody_coming:
                return Refusal(500, "InternalError", problem)
            await asyncio.sleep(_PAUSE)

    async def _ask_replica(self, replica: Replica, review: Review, path: str) -> Any:
        """Return the answer of a replica; None if it was killed meanwhile."""
        assert replica.review is not None  # noqa: S101 - for the type checker
        reviewing = replica.review(orjson.loads(orjson.dumps(review)), webhook=path)
        call = self._world.loop.create_task(reviewing, context=replica.context.copy())
        awaited: set[asyncio.Future[Any]] = {call, replica.lost}
        limit = review.webhook["timeoutSeconds"]
        await asyncio.wait(awaited, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if not call.done() or call.cancelled():
            call.cancel()
            is_lost = replica.lost.done()
            problem = "context deadline exceeded"
            return None if is_lost else Refusal(500, "InternalError", problem)
        if isinstance(exc := call.exception(), ReviewError):
            return Refusal(500, "InternalError", f"HTTP {exc.status}: {exc}")
        return call.result()

    def play_later(
        self, seconds: float, resource: str, raw: Json, build: Callable[[Json, str], Json]
    ) -> None:
        """Write the status of an object some time later, as its controller does."""
        self.coming += 1
        self._world.network.later(seconds, self._play, resource, raw, build)

    def _play(self, resource: str, raw: Json, build: Callable[[Json, str], Json]) -> None:
        self.coming -= 1
        kind = next(one for one in self.kinds.list_served() if one.resource == resource)
        meta = raw["metadata"]
        status = build({**raw, "kind": kind.kind}, build_stamp(self._world.read_clock()))
        headers = {"content-type": "application/merge-patch+json"}
        path = f"{kind.build_path(meta)}/status"
        body = orjson.dumps({"metadata": {"uid": meta["uid"]}, "status": status})
        self.handle(Request("PATCH", path, {}, headers, body, "controller"))
        self._collector.run()

    def _convert(self, raw: Json, api_version: str) -> Json:
        if not (serving := self._world.serving):
            raise refuse_conversion(raw, "failed: no endpoints available for service")
        return convert(raw, api_version, serving[0].operator.context.registry)

    def note_change(self, change: Change) -> None:
        """Note a change; drop old ones, as API servers do."""
        if change.resource not in _UNIMPORTANT:
            self.changed_at = self._world.loop.time()
            who = change.request.user if change.request else "the API server"
            self.changes.append(f"{change.verb} of {change.resource} {change.key} by {who}")
        elif "events" in change.resource and change.verb == "create":
            self._world.network.later(_EVENTS, self._forget_event, change.resource, change.key)
        table = self.store.tables[change.resource]
        if len(table.log) > _LOG and table.cached == len(table.log):  # as the API server compacts
            table.compact(_LOG // 2 + 1, table.log[_LOG // 2].version)

    def _forget_event(self, resource: str, key: str) -> None:
        group = "/apis/events.k8s.io/v1" if "." in resource else "/api/v1"
        namespace, _, name = key.partition("/")
        self.handle(Request("DELETE", f"{group}/namespaces/{namespace}/events/{name}"))


class ReviewedNetwork(Network):
    """The network of a world: requests of operators fail by its fate, and pass through webhooks."""

    def __init__(self, world: World) -> None:
        rng = random.Random(f"network {world.seed}")
        super().__init__(world.loop, world.server, rng, world.note_request)
        self._world = world
        self._tasks: set[asyncio.Task[None]] = set()

    def choose(self, sender: Sender, sent: Request) -> Fault | None:
        """Return what goes wrong with a request of the operator."""
        if not isinstance(sender, Replica):
            return None
        fault = self._world.fate.choose(sent, functools.partial(self._world.strike, sender))
        if fault is not None:
            self._world.tell_fault(sender, sent, fault)
        return fault

    def carry(
        self, sender: Sender, sent: Request, waiter: asyncio.Future[Any] | None, extra: float
    ) -> None:
        """Carry a request out, and let its answer come back if anybody waits for it."""
        self._on_request(sender, sent)

        async def perform() -> None:
            try:
                response = await self._world.server.carry_out(sent)
            except Exception as exc:  # noqa: BLE001  the API server goes on
                response = Refusal(500, "InternalError", str(exc)).build_response()
            if waiter is not None:
                self.answer(waiter, response, extra)

        task = self.loop.create_task(perform(), context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
