"""Where stories happen that break the rules of the simulation.

A scene is a real :class:`World` with a real cluster. Its replicas do nothing but what a story makes
of them: it calls handlers, writes objects and ends processes as if they were operators' doings.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from tools.simulation.plans import HandlerPlan, Plan, Step
from tools.simulation.replicas import (
    GROUP,
    Call,
    ReplicaProcess,
    Wish,
    run_sync,
)
from tools.simulation.virtual import VirtualThreads
from tools.simulation.world import OBJECTS, World
from webop import Patch
from webop.client.http.transport import Request as TransportRequest
from webop.context.ownership import Ownership
from webop.context.pausing import Pausing
from webop.testing.apiserver import Json, Request
from webop.testing.simulation.network import Fault
from webop.testing.simulation.virtual_loop import VirtualLoop

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations"
CALM = 20.0  # seconds until all must converge
QUIET = CALM + 130.0  # a moment when nothing more must be written or called


class Idle:
    """An operator that does nothing, until it is asked to end.

    Attributes:
        ending: done when it ends by itself.
        is_stubborn: whether it goes on when it is asked to end.
        obstacles: why it is not ready.
    """

    def __init__(self) -> None:
        self.ending = asyncio.get_running_loop().create_future()
        self.is_stubborn = False
        self.obstacles: list[str] = []
        self.context = SimpleNamespace(indices={}, pausing=Pausing(), ownership=Ownership())
        self.webhooks = SimpleNamespace(manager=SimpleNamespace(is_applied=asyncio.Event()))

    def list_obstacles(self) -> list[str]:
        return self.obstacles

    async def run(self) -> None:
        while True:
            try:
                return await asyncio.shield(self.ending)
            except asyncio.CancelledError:
                if not self.is_stubborn:
                    raise


class Replica(ReplicaProcess):
    """A process whose operator is idle."""

    operator: Any

    def _build(self) -> None:
        self.operator = Idle()

    async def stop(self) -> None:
        """Ask the operator to end, and wait until it has."""
        self.is_stopping = True
        self.operator.ending.set_result(None)
        await asyncio.sleep(0.1)


class Scene:
    """A world of which nothing happens but what a story tells."""

    def __init__(self, **plan: Any) -> None:
        self.loop = VirtualLoop()
        steps = (*plan.pop("steps", ()), Step(CALM, "compact"))
        self.world = World(Plan(0, replicas=0, steps=steps, **plan), self.loop)
        self.plans = {handler.id: handler for handler in self.world.plan.handlers}

    def play(self, story: Callable[..., Awaitable[Any]], options: Json) -> list[str]:
        """Tell a story in a history that else is empty; return the complaints."""
        try:
            self.loop.run_until_complete(self._play(story, options))
        finally:
            self.loop.run_until_complete(self._clean_up())
        return self.world.judge.violations

    async def _play(self, story: Callable[..., Awaitable[Any]], options: Json) -> None:
        if self.world.admission is None:
            await asyncio.gather(story(self, **options), self.world.live())
        else:  # the judge of webhooks alone: without users, and without an end
            await story(self, **options)

    async def _clean_up(self) -> None:
        for process in self.world.processes:
            process.operator.is_stubborn = False  # type: ignore[attr-defined]
        self.loop.resume()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def add_replica(self, number: int = 0) -> Replica:
        serial = len(self.world.processes) + 1
        process = Replica(self.world, number, serial)
        self.world.processes.append(process)
        self.world.disturb(0.0, "start")
        return process

    def begin(self, process: Replica, handler: str = "create0", **details: Any) -> Call:
        usual = {"uid": "u1", "name": "one", "essence": "{}", "wish": Wish(1, False, 0), "retry": 0}
        values = {**usual, "reason": "create", "begin": self.loop.time(), **details}
        plan = self.plans[handler.partition("/")[0]]
        return self.world.begin_call(Call(process, plan, handler, **values))

    def end(self, call: Call, outcome: str = "ok", delay: float = 0.0) -> None:
        call.outcome, call.delay = outcome, delay
        self.world.end_call(call)

    def run(self, process: Replica, handler: str, body: Json) -> None:
        """Let a handler do in a thread what is planned for it."""
        what = {"uid": get_uid(body), "name": "one", "body": body, "patch": Patch()}
        VirtualThreads().submit(run_sync, process, self.plans[handler], **what)

    def create(self, name: str = "one", status: Any = None, **metadata: Any) -> Json:
        head = {"apiVersion": f"{GROUP}/v1", "kind": "Thing"}
        body = {**head, "metadata": {"name": name, **metadata}, "spec": {"value": 1}}
        return self.world.request("POST", "", {**body, "status": status or {}}).body

    def write(self, process: Replica, method: str, path: str, body: Json) -> None:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = json.dumps(body).encode()
        sent = Request(method, path, {}, {"content-type": kind}, content, process.identity)
        assert self.world.cluster.handle(sent).status < 300

    def submit(self, process: Replica, method: str, path: str, body: Any) -> None:
        """Send a request as a replica, by the network; nobody waits for the answer."""
        head = b"content-type: application/merge-patch+json\r\n"
        sent = TransportRequest(method, path, head, json.dumps(body).encode())
        self.world.network.submit(process, sent, self.loop.create_future())

    def annotate(self, process: Replica) -> None:
        """Write something to the object that means nothing."""
        self.write(process, "PATCH", f"{OBJECTS}/one", {"metadata": {"annotations": {"a": "1"}}})


def get_uid(body: Json) -> str:
    return str(body["metadata"]["uid"])


def make(*ids: str, **details: Any) -> tuple[HandlerPlan, ...]:
    """Plan handlers whose ids begin with their kinds."""
    return tuple(HandlerPlan(name, name.rstrip("0123456789"), **details) for name in ids)


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A story and what is complained of.

    Attributes:
        rule: the name of the rule that is broken.
        what: in words.
        story: tells it.
        options: of the story; those of the plan are under "plan".
    """

    rule: str
    what: str
    story: Callable[..., Awaitable[Any]]
    options: Json

    def judge(self) -> list[str]:
        options = {**self.options}
        scene = Scene(**options.pop("plan", {}))
        with contextlib.closing(scene.loop):
            return scene.play(self.story, options)


def tell(rule: str, what: str, story: Callable[..., Awaitable[Any]], /, **options: Any) -> Case:
    return Case(rule, what, story, options)


def disturb(kind: str, at: float = 0.0, **fault: Any) -> Json:
    """Plan a fault that lasts for a second."""
    return {"steps": (Step(at, "fault", None, 1.0, Fault(kind, **fault)),)}
