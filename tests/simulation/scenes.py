"""Stories that break the rules of the simulation, or just do not: what ``test_rules.py`` tells.

A scene is a real :class:`World` with a real cluster. Its replicas do nothing but what a story makes
of them: it calls handlers, writes objects and ends processes as if they were operators' doings.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import Any

from tests.simulation.admission import Server
from tests.simulation.admission_rules import Attempt
from tests.simulation.cluster import Json, Request, Response
from tests.simulation.plans import HandlerPlan, Plan, Step
from tests.simulation.replicas import GROUP, NAMESPACE, PLURAL, Call, ReplicaProcess, Wish
from tests.simulation.virtual import EPOCH, VirtualLoop
from tests.simulation.world import OBJECTS, World

FINALIZER = "kopf.zalando.org/KopfFinalizerMarker"
DIFFBASE = "kopf.zalando.org/last-handled-configuration"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations"
WEBHOOKS = {"Mutating": ("stamp",), "Validating": ("check", "twin", "twin-2", "grow")}
CALM = 20.0  # seconds until all must converge
QUIET = CALM + 130.0  # a moment when nothing more must be written or called


class Idle:
    """An operator that does nothing, until it is told to end.

    Attributes:
        ending: done when it ends by itself.
        is_stubborn: whether it goes on when it is told to end.
    """

    def __init__(self) -> None:
        self.ending = asyncio.get_running_loop().create_future()
        self.is_stubborn = False
        self.context = SimpleNamespace(indices={})
        self.webhooks = SimpleNamespace(manager=SimpleNamespace(is_applied=asyncio.Event()))

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


class Scene:
    """A world of which nothing happens but what a story tells."""

    def __init__(self, **plan: Any) -> None:
        self.loop = VirtualLoop()
        steps = (*plan.pop("steps", ()), Step(CALM, "compact"))
        self.world = World(Plan(0, replicas=0, steps=steps, **plan), self.loop)
        self.plans = {handler.id: handler for handler in self.world.plan.handlers}

    def play(self, story: Callable[..., Awaitable[None]], options: Json) -> list[str]:
        """Tell a story in a history that else is empty; return the complaints."""
        try:
            self.loop.run_until_complete(self._play(story, options))
        finally:
            self.loop.run_until_complete(self._clean_up())
        return self.world.judge.violations

    async def _play(self, story: Callable[..., Awaitable[None]], options: Json) -> None:
        if self.world.admission is None:
            await asyncio.gather(story(self, **options), self.world.live())
        else:  # the judge of webhooks alone: without users, and without an end
            await story(self, **options)

    async def _clean_up(self) -> None:
        for process in self.world.processes:
            process.operator.is_stubborn = process.is_paused = False  # type: ignore[attr-defined]
        self.loop.resume()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def add_replica(self) -> Replica:
        serial = len(self.world.processes) + 1
        process = Replica(self.world, 0, serial)
        self.world.processes.append(process)
        return process

    def begin(self, process: Replica, handler: str = "create0", **details: Any) -> Call:
        """Call a handler."""
        usual = {"uid": "u1", "name": "one", "essence": "{}", "wish": Wish(1, False, 0), "retry": 0}
        values = {**usual, "reason": "create", "begin": self.loop.time(), **details}
        plan = self.plans[handler.partition("/")[0]]
        return self.world.begin_call(Call(process, plan, handler, **values))

    def end(self, call: Call, outcome: str = "ok", delay: float = 0.0) -> None:
        call.outcome, call.delay = outcome, delay
        self.world.end_call(call)

    def create(self, name: str = "one", status: Any = None, **metadata: Any) -> Json:
        head = {"apiVersion": f"{GROUP}/v1", "kind": "Thing"}
        body = {**head, "metadata": {"name": name, **metadata}, "spec": {"value": 1}}
        return self.world.request("POST", "", {**body, "status": status or {}}).body

    def write(self, process: Replica, method: str, path: str, body: Json) -> None:
        """Write something as a replica."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = json.dumps(body).encode()
        sent = Request(method, path, {}, {"content-type": kind}, content, process.identity)
        assert self.world.cluster.handle(sent).status < 300

    def annotate(self, process: Replica) -> None:
        """Write something to the object that means nothing."""
        self.write(process, "PATCH", f"{OBJECTS}/one", {"metadata": {"annotations": {"a": "1"}}})


def get_uid(body: Json) -> str:
    return str(body["metadata"]["uid"])


def make(*ids: str, **details: Any) -> tuple[HandlerPlan, ...]:
    """Plan handlers whose ids begin with their kinds."""
    return tuple(HandlerPlan(name, name.rstrip("0123456789"), **details) for name in ids)


# Stories.


async def call_twice(
    scene: Scene,
    *,
    outcome: str = "ok",
    delay: float = 0.0,
    pause: float | None = 1.0,
    duration: float = 0.1,
    is_other: bool = False,
    fate: str = "",
    first: str = "create0",
    again: str = "create0",
    cause: str = "create",
    **details: Any,
) -> None:
    """Call a handler, and once more after a pause, or at once while the first call goes on."""
    await asyncio.sleep(0.5)
    one = scene.add_replica()
    two = scene.add_replica() if is_other else one
    uid = get_uid(scene.create()) if fate == "deleted" else "u1"
    before = scene.begin(one, first, uid=uid, reason=cause)
    if fate == "killed":
        scene.world.kill(one)
    if fate == "deleted":
        scene.world.request("DELETE", "one")
    if pause is not None:
        await asyncio.sleep(duration)
        scene.end(before, outcome, delay)
        await asyncio.sleep(pause)
    one.is_paused = fate == "paused"
    one.skew = 3.0 if fate == "skewed" else 0.0
    after = scene.begin(two, again, **{"uid": uid, "reason": cause, **details})
    one.is_paused = False
    scene.end(before)
    scene.end(after)


async def call_timer(scene: Scene, *, age: float = 1.0, written: float = 0.0) -> None:
    """Change an object, let the replica write to it after a while, then call a timer for it."""
    await asyncio.sleep(0.5)
    process, body = scene.add_replica(), scene.create(finalizers=[FINALIZER])
    await asyncio.sleep(written)
    scene.annotate(process)
    await asyncio.sleep(age - written)
    scene.end(scene.begin(process, "timer0", uid=get_uid(body)))


async def renew(scene: Scene, *, pause: float = 9.0, first: str = "one", then: str = "one") -> None:
    """Take a lease, and write it once more after a while."""
    await asyncio.sleep(0.5)
    process = scene.add_replica()
    spec = {"holderIdentity": first, "leaseTransitions": 1}
    head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    body = {**head, "metadata": {"name": "operator"}, "spec": spec}
    scene.write(process, "POST", LEASES, body)
    await asyncio.sleep(pause)
    changed = {"spec": {"holderIdentity": then, "leaseTransitions": 2}}
    scene.write(process, "PATCH", f"{LEASES}/operator", changed)


async def count(scene: Scene, *, second: int = 3, is_other: bool = False) -> None:
    """Write two values of a timer, one after another."""
    scene.create(finalizers=[FINALIZER])
    one = scene.add_replica()
    two = scene.add_replica() if is_other else one
    for process, value in ((one, 4), (two, second)):
        scene.write(process, "PATCH", f"{OBJECTS}/one", {"status": {"count-timer0": value}})
    scene.annotate(one)


async def end_operator(
    scene: Scene, *, owner: int = 0, seconds: float = 20.0, error: Exception | None = None
) -> None:
    """End an operator by itself, while there is another task, and another operator."""
    processes = [scene.add_replica(), scene.add_replica()]
    processes[0].is_stopping = True
    scene.loop.create_task(asyncio.sleep(seconds), context=processes[owner].context.copy())
    await asyncio.sleep(1.0)
    if error is None:
        processes[0].operator.ending.set_result(None)
    else:
        processes[0].operator.ending.set_exception(error)


async def stop_at_the_end(scene: Scene, *, is_stubborn: bool) -> None:
    """Have an operator in the end that is told to stop."""
    scene.add_replica().operator.is_stubborn = is_stubborn


async def keep_object(
    scene: Scene,
    *,
    handled: Json | bool | None = True,
    called: Iterable[str] = ("create0",),
    outcome: str = "ok",
    value: int = 1,
    is_deleted: bool = False,
    is_dead: bool = False,
    successors: int = 0,
    notes: Iterable[str] = (),
    **metadata: Any,
) -> None:
    """Handle an object that stays: what is called for it, and what it is like in the end."""
    process = scene.add_replica()
    for _ in range(successors):
        scene.add_replica()
    body = scene.create(**metadata)
    for handler in called:
        call = scene.begin(process, handler, uid=get_uid(body), wish=Wish(value, False, 0))
        scene.end(call, outcome)
    if handled:
        state = {"spec": {"value": 1}} if handled is True else handled
        notes = {"metadata": {"annotations": {DIFFBASE: json.dumps(state)}}}
        scene.write(process, "PATCH", f"{OBJECTS}/one", notes)
    for note in notes:
        value_of_note = {"uid": get_uid(body)} if note == "create0" else get_uid(body)
        scene.write(process, "PATCH", f"{OBJECTS}/one", {"status": {note: value_of_note}})
    if is_dead:
        scene.world.kill(process)
    if is_deleted:
        scene.world.request("DELETE", "one")


async def update_object(
    scene: Scene,
    *,
    called: Iterable[str] = ("update0",),
    value: int = 2,
    created: Iterable[str] = ("create0",),
    uid: str = "",
) -> None:
    """Change an object that was handled before, and write to it once more in the end."""
    await keep_object(scene, called=created)
    scene.world.request("PATCH", "one", {"spec": {"value": 2}})
    process = scene.add_replica()
    uid = uid or get_uid(scene.world.list_objects()["one"])
    for handler in called:
        scene.end(
            scene.begin(process, handler, uid=uid, wish=Wish(value, False, 0), reason="update")
        )
    state = {"metadata": {"annotations": {DIFFBASE: json.dumps({"spec": {"value": 2}})}}}
    scene.write(process, "PATCH", f"{OBJECTS}/one", state)
    scene.annotate(process)


async def delete_object(
    scene: Scene,
    *,
    outcome: str = "",
    finalizers: Iterable[str] = (FINALIZER,),
    is_released: bool = False,
) -> None:
    """Delete an object, call its handler, and release it."""
    process, body = scene.add_replica(), scene.create(finalizers=[*finalizers])
    if is_released:
        scene.write(process, "PATCH", f"{OBJECTS}/one", {"metadata": {"finalizers": ["a.b/c"]}})
    scene.world.request("DELETE", "one")
    if outcome:
        call = scene.begin(process, "delete0", uid=get_uid(body), reason="delete")
        scene.end(call, outcome)
    if finalizers:
        release = {"metadata": {"finalizers": None}}
        scene.write(process, "PATCH", f"{OBJECTS}/one", release)


async def call_in_the_calm(
    scene: Scene, *, handler: str = "create0", at: float = 1.0, seconds: float = 1.0
) -> None:
    await asyncio.sleep(at)
    call = scene.begin(scene.add_replica(), handler)
    await asyncio.sleep(seconds)
    scene.end(call)


async def write_in_the_calm(scene: Scene, *, at: float = QUIET, name: str = "one") -> None:
    process = scene.add_replica()
    timers = any(plan.kind == "timer" for plan in scene.plans.values())
    scene.create(finalizers=[FINALIZER] if timers else [])
    await asyncio.sleep(at)
    path = f"{OBJECTS}/one" if name == "one" else f"/api/v1/namespaces/{name}"
    scene.write(process, "PATCH", path, {"metadata": {"annotations": {"a": "1"}}})


async def run_daemons(
    scene: Scene,
    *,
    counts: Iterable[int] = (1,),
    labels: Json | None = None,
    has_ended: bool = False,
    stopped_at: float | None = None,
    dies: bool = False,
    lost_at: float | None = None,
) -> None:
    """Run daemons for an object, as many in each replica."""
    is_guarded = labels is None and not has_ended
    await asyncio.sleep(1.0)
    body = scene.create(finalizers=[FINALIZER] if is_guarded else [], labels=labels or {})
    key = "daemon0", get_uid(body)
    for number in counts:
        process = scene.add_replica()
        process.daemons[key] = number
        if has_ended:
            process.ended_daemons.add(key)
        if stopped_at is not None:
            process.stopped_daemons[key] = stopped_at
    if dies:
        scene.world.kill(scene.world.processes[-1])
    if lost_at is not None:
        await asyncio.sleep(lost_at)
        process.daemons[key] = 0


async def fill_index(
    scene: Scene, *, values: Iterable[int], labels: Json | None = None, dies: bool = False
) -> None:
    """Have values of an object in the index of a replica."""
    process, body = scene.add_replica(), scene.create(labels=labels or {})
    seen = [(get_uid(body), value) for value in values]
    process.operator.context.indices["index0"] = {"one": seen} if seen else {}
    if dies:
        scene.world.kill(process)


async def start_tasks(scene: Scene, *, number: int) -> None:
    scene.add_replica()
    for _ in range(number):
        scene.loop.create_task(asyncio.sleep(QUIET + 60.0))


async def patch_impatiently(
    scene: Scene,
    *,
    ended: str = "",
    at: float = 6.0,
    is_new: bool = False,
    is_other: bool = False,
    is_stopping: bool = False,
    path: str = f"{OBJECTS}/one",
) -> None:
    """Patch an object before the time that its refusal has told, which came in second 5."""
    process = scene.add_replica()
    if not is_new:
        scene.create()
    await asyncio.sleep(at)
    if is_new:
        scene.create()
    scene.annotate(process)
    if ended:
        caller = scene.add_replica() if is_other else process
        scene.end(scene.begin(caller, "event0", name=ended))
    scene.begin(process, "event0", name="one")
    process.is_stopping = is_stopping
    scene.world.judge.judge_impatience(process.identity, path, 5.0, 10.0)


async def overwrite(scene: Scene, *, count: int = 1, is_other: bool = True) -> None:
    """Write a value, let a user replace it, and write one more."""
    uid, process = get_uid(scene.create()), scene.add_replica()
    path = f"{OBJECTS}/one"
    scene.write(process, "PATCH", path, {"status": {"of-create0": f"{uid}#1"}})
    if is_other:
        scene.world.request("PATCH", "one", {"status": {"of-create0": "user#2"}})
    scene.annotate(process)
    scene.write(process, "PATCH", path, {"status": {"of-create0": f"{uid}#{count}"}})


async def go_on(
    scene: Scene, *, retry: int = 2, pause: float = 9.0, recorded: str = "create", **record: Any
) -> None:
    """Have a process call a handler of which there is a record from before it."""
    uid, before = get_uid(scene.create()), scene.add_replica()
    until = (EPOCH + dt.timedelta(seconds=5.0)).isoformat()
    record = {"purpose": recorded, "retries": 2, "delayed": until, **record}
    notes = {"kopf.zalando.org/create0": json.dumps(record)}
    scene.write(before, "PATCH", f"{OBJECTS}/one", {"metadata": {"annotations": notes}})
    await asyncio.sleep(1.0)
    process = scene.add_replica()
    await asyncio.sleep(pause - 1.0)
    scene.end(scene.begin(process, uid=uid, retry=retry))
    done = {"kopf.zalando.org/create0": None}
    scene.write(process, "PATCH", f"{OBJECTS}/one", {"metadata": {"annotations": done}})
    scene.world.request("DELETE", "one")


async def call_beside_peer(scene: Scene, *, priority: int = 1, pause: float = 5.0) -> None:
    """Call a handler while an operator of others is there."""
    process = scene.add_replica()
    scene.world.peers.join(priority, 10.0, is_lost=False)
    await asyncio.sleep(pause)
    scene.end(scene.begin(process))


async def look_into_index(
    scene: Scene, *, names: Iterable[str] = ("two",), pause: float = 5.0
) -> None:
    """Call a handler that sees an index while there is an object."""
    process, uid = scene.add_replica(), get_uid(scene.create())
    await asyncio.sleep(pause)
    process.operator.context.indices["index0"] = {name: [] for name in names}
    scene.world.judge.judge_sight(process, "event0")
    process.operator.context.indices["index0"] = {"one": [(uid, 1)]}


# Stories of webhooks.


def serve(scene: Scene, version: int = 1, *, is_listed: bool = True) -> Replica:
    """Add a replica that serves webhooks, and is known to do so."""
    assert scene.world.admission is not None
    process = scene.add_replica()
    server = scene.world.admission.servers[process] = Server(process.identity)
    server.fn = process.operator.run
    process.operator.webhooks.manager.is_applied.set()
    scene.world.admission.versions[process] = version
    scene.world.admission.listed += [process] if is_listed else []
    return process


async def end(process: Replica) -> None:
    process.is_stopping = True
    process.operator.ending.set_result(None)
    await asyncio.sleep(0.1)


async def request(
    scene: Scene,
    *,
    answer: Response,
    attempt: tuple[str, str, str] = ("POST", PLURAL, ""),
    is_there: bool = True,
    is_listed: bool = True,
    meanwhile: str = "",
    old: str = "",
    since: float = 0.0,
) -> None:
    """Answer a request of a user, while something happens to the replica that serves.

    Args:
        scene: of it.
        answer: of the API server.
        attempt: the request: its method, its resource, and what is wrong with the object.
        is_there: whether there is a replica.
        is_listed: whether it is an endpoint.
        meanwhile: what happens to it.
        old: what has become of a replica of the old version.
        since: how long ago.
    """
    before = serve(scene, 0) if old else None
    if before is not None and old == "ended":
        await end(before)
    if before is not None and old == "killed":
        scene.world.kill(before)
    process = serve(scene, is_listed=is_listed) if is_there else None
    await asyncio.sleep(since)
    assert scene.world.admission is not None
    judge, made = scene.world.admission.judge, Attempt(*attempt)
    judge.judge_request(made)
    await asyncio.sleep(1.0)
    if process is not None:
        process.is_stopping = meanwhile == "stop"
        if meanwhile == "kill":
            scene.world.kill(serve(scene))
        elif meanwhile == "unlist":
            scene.world.admission.listed.remove(process)
        elif meanwhile == "end":
            await end(process)
            process.is_stopping = False
        elif meanwhile == "close":
            scene.world.admission.servers[process].fn = None
        elif meanwhile == "forget":
            process.operator.webhooks.manager.is_applied.clear()
    judge.judge_answer(made, answer)


async def configure(
    scene: Scene, *, lost: Iterable[str], is_there: bool = True, ends: str = "", others: int = 0
) -> None:
    """Write webhook configurations, drop webhooks, and then end replicas, if so wanted."""
    writer = scene.add_replica()
    for way, names in WEBHOOKS.items():
        path = CONFIGURATIONS.format(way.lower())
        head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "operator"}}
        body = {**head, "kind": f"{way}WebhookConfiguration", "webhooks": _build_webhooks(names)}
        scene.write(writer, "POST", path, body)
    serving = [serve(scene) for _ in range(others + 1)] if is_there or ends else []
    if ends:
        writer.ended_at = -1000.0  # long ago
        serving[0].is_stopping = True
    for process in serving if not is_there else ():
        process.is_stopping = True
    for way, names in WEBHOOKS.items():
        if set(lost) & set(names):
            rest = _build_webhooks([name for name in names if name not in lost])
            path = CONFIGURATIONS.format(way.lower())
            scene.write(writer, "PATCH", f"{path}/operator", {"webhooks": rest})
    scene.create()  # is no matter of webhooks
    if ends == "rough":
        scene.world.kill(serving.pop())
    if ends == "late":
        await end(serving.pop())
        await asyncio.sleep(60.0)
    if ends:
        await end(serving[0])


def _build_webhooks(names: Iterable[str]) -> list[Json]:
    rule = {"apiGroups": [GROUP], "apiVersions": ["v1"], "resources": [PLURAL]}
    return [
        {
            "name": f"{name}.sim.webop.dev",
            "clientConfig": {"url": "https://operator"},
            "rules": [{**rule, "operations": ["CREATE"]}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        for name in names
    ]
