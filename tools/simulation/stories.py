"""Stories of handlers, objects and replicas: told by ``test_rules.py``."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import json
import math
from collections.abc import Iterable
from typing import Any

from tools.simulation.replicas import (
    DIFFBASE,
    FAILED,
    FINALIZER,
    GROUP,
    LABEL,
    NAMESPACE,
    Wish,
    list_keys,
    list_parts,
)
from tools.simulation.scenes import QUIET, Replica, Scene, get_uid
from tools.simulation.virtual import EPOCH
from tools.simulation.world import OBJECTS, PARTS_PATH
from webop.aio.work_deadline import Fence
from webop.handlers.stopping import AsyncDaemonStopped, Stopper
from webop.objects.shards import SHARDS, find_shard, parse_shards
from webop.testing.apiserver import Json
from webop.testing.simulation.network import Fault

FIRST_PATCH: Json = {"metadata": {"annotations": {"a": "1"}, "resourceVersion": "1"}}
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


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
    before = scene.begin(one, first, reason=cause)
    if pause is not None:
        await asyncio.sleep(duration)
        scene.end(before, outcome, delay)
        await asyncio.sleep(pause)
    if fate == "killed later":
        scene.world.kill(one)
    if fate == "stopped":
        await one.stop()
    after = scene.begin(two, again, **{"reason": cause, **details})
    scene.end(before)
    scene.end(after)


async def go_on_after_deletion(scene: Scene, *, times: int, outcome: str = "ok") -> None:
    """Call a handler several times for the same state of an object that is gone."""
    process = scene.add_replica()
    uid = get_uid(scene.create())
    scene.world.request("DELETE", "one")
    for retry in range(times):
        call = scene.begin(process, uid=uid, retry=retry if outcome in FAILED else 0)
        scene.end(call, outcome)
        await asyncio.sleep(0.2)


async def call_for_the_past(scene: Scene, *, is_deleted: bool = False) -> None:
    """Call a handler for a state that is outdated since a time, or for what is gone."""
    process = scene.add_replica()
    uid = get_uid(scene.create())
    await asyncio.sleep(0.5)
    if is_deleted:
        scene.world.request("DELETE", "one")
    else:
        scene.world.request("PATCH", "one", {"spec": {"value": 2}})
    await asyncio.sleep(3.0)
    scene.end(scene.begin(process, uid=uid, reason="update"))
    scene.world.request("DELETE", "one")


async def call_after_write(scene: Scene) -> None:
    """Call a handler, and once more after another process has written."""
    process, other = scene.add_replica(), scene.add_replica()
    uid = get_uid(scene.create())
    await asyncio.sleep(0.5)
    for _ in range(2):
        call = scene.begin(process, uid=uid)
        await asyncio.sleep(0.1)
        scene.end(call)
        await asyncio.sleep(1.0)
        scene.annotate(other)
    scene.world.request("DELETE", "one")


async def attempt(scene: Scene, *, age: float = 0.0, seconds: float = 0.1, **details: Any) -> None:
    """Call a handler some time after its first attempt."""
    await asyncio.sleep(0.5)
    process = scene.add_replica()
    started = EPOCH + dt.timedelta(seconds=scene.loop.time())
    await asyncio.sleep(age)
    call = scene.begin(process, started=started, **details)
    await asyncio.sleep(seconds)
    scene.end(call, "error")


async def call_as_state_returns(scene: Scene, *, moments: Iterable[float] = (0.3, 2.0)) -> None:
    """Call a handler twice for the first state of an object, which others change at moments.

    The calls begin at 1.0 and 3.0. Each change adds a label, or removes it again.
    """
    process, body = scene.add_replica(), scene.create()
    at = 0.0
    events = sorted([(moment, False) for moment in moments] + [(1.0, True), (3.0, True)])
    label = itertools.cycle(("yes", None))
    for moment, is_call in events:
        await asyncio.sleep(moment - at)
        at = moment
        if is_call:
            essence = json.dumps({"value": 1})
            scene.end(scene.begin(process, "update0", uid=get_uid(body), essence=essence))
        else:
            scene.world.request("PATCH", "one", {"metadata": {"labels": {"l": next(label)}}})
    scene.world.request("DELETE", "one")


async def call_beside_each_other(scene: Scene) -> None:
    """Call a handler in two replicas, and in the first one again after a pause."""
    await asyncio.sleep(0.5)
    one, two = scene.add_replica(), scene.add_replica()
    first = scene.begin(one)
    await asyncio.sleep(0.3)
    second = scene.begin(two)
    await asyncio.sleep(0.1)
    scene.end(first, "temporary", 1.0)
    await asyncio.sleep(0.2)
    scene.end(second, "temporary", 1.0)
    await asyncio.sleep(0.5)
    scene.end(scene.begin(one, retry=1))


async def call_timer(scene: Scene) -> None:
    """Create an object, and call a timer for it after a second."""
    await asyncio.sleep(0.5)
    process, body = scene.add_replica(), scene.create()
    await asyncio.sleep(1.0)
    scene.end(scene.begin(process, "timer0", uid=get_uid(body)))
    scene.world.request("DELETE", "one")


async def renew(scene: Scene) -> None:
    """Take a lease, and write it once more after a while."""
    await asyncio.sleep(0.5)
    process = scene.add_replica()
    spec = {"holderIdentity": "one", "leaseTransitions": 1}
    head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    body = {**head, "metadata": {"name": "operator"}, "spec": spec}
    scene.write(process, "POST", LEASES, body)
    await asyncio.sleep(9.0)
    changed = {"spec": {"holderIdentity": "one", "leaseTransitions": 2}}
    scene.write(process, "PATCH", f"{LEASES}/operator", changed)


async def act_after_takeover(
    scene: Scene,
    *,
    what: str = "end",
    handler: str = "create0",
    outcome: str = "ok",
) -> None:
    """Begin a call or end it, or go on with a daemon, after somebody has taken the Lease."""
    one = scene.add_replica()
    await asyncio.sleep(1.0)
    call = scene.begin(one, handler) if what == "end" else None
    body: Json = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    body |= {"metadata": {"name": "operator"}, "spec": {"holderIdentity": "replica-0-2"}}
    scene.write(one, "POST", LEASES, body)
    if what == "daemon":
        one.judge_step(("daemon0", "u1"))
    else:
        scene.end(call or scene.begin(one, handler), outcome)


async def share(
    scene: Scene, *, owned: str = "32-63", believed: str = "", is_stranger: bool = False
) -> None:
    """Let two replicas own shards, the first one half of them; it can call for another one's."""
    processes = scene.add_replica(0), scene.add_replica(1)
    claims = {"holder": "", "since": "now", "slot": ""}
    owners = []
    for process, shards in zip(processes, ("0-31", owned), strict=True):
        context, slot = process.operator.context, f"operator-member-0{process.number}"
        context.pausing.fence = Fence(scene.loop.time)
        context.pausing.fence.ends_at = math.inf
        context.ownership.is_divided = True
        context.ownership.owned = parse_shards(believed if process.number and believed else shards)
        owners.append({**claims, "holder": process.identity, "slot": slot, "shards": shards})
        spec = {"holderIdentity": process.identity, "acquireTime": "now"}
        body = {"kind": "Lease", "metadata": {"name": slot}, "spec": spec}
        scene.write(process, "POST", LEASES, {"apiVersion": "coordination.k8s.io/v1", **body})
    notes = {"webop.dev/shards": json.dumps(owners)}
    body = {"kind": "Lease", "metadata": {"name": "operator-shards", "annotations": notes}}
    scene.write(processes[0], "POST", LEASES, {"apiVersion": "coordination.k8s.io/v1", **body})
    if is_stranger:
        uid = next(uid for uid in map(str, range(SHARDS)) if find_shard(uid) in parse_shards(owned))
        scene.end(scene.begin(processes[0], uid=uid))


async def begin_beside_rival(scene: Scene, *, what: str = "call", is_daemon: bool = False) -> None:
    """Begin a call or a daemon while a peer has its record, or does the same."""
    await asyncio.sleep(0.5)
    process, rival = scene.add_replica(), scene.add_replica(1)
    uid = get_uid(scene.create())
    call = scene.begin(rival, uid="u2") if what == "call" else None
    if what == "daemon":
        rival.daemons["daemon0", "u2"] = 1
        rival.started_daemons["daemon0", "u2"] = scene.loop.time()
    elif what == "record":
        path = f"/apis/kopf.dev/v1/namespaces/{NAMESPACE}/kopfpeerings/default"
        scene.write(rival, "PATCH", path, {"status": {rival.identity: {"priority": 1}}})
    await asyncio.sleep(1.0)
    if is_daemon:
        process.judge_daemon(scene.plans["daemon0"], uid)
    else:
        scene.end(scene.begin(process, uid=uid))
    rival.daemons.clear()
    if call is not None:
        scene.end(call)
    scene.world.request("DELETE", "one")


async def watch_object(
    scene: Scene, *, reasons: Iterable[str] = ("ADDED",), again: str = ""
) -> None:
    """Delete an object, and call an event handler for it, or at last for another one."""
    process, uid = scene.add_replica(), get_uid(scene.create())
    scene.world.request("DELETE", "one")
    for reason in reasons:
        scene.end(scene.begin(process, "event0", uid=uid, reason=reason))
    if again:
        scene.end(scene.begin(process, "event0", uid=again, reason="DELETED"))


async def count(scene: Scene) -> None:
    """Write two values of a timer, the older one last."""
    scene.create(finalizers=[FINALIZER])
    process = scene.add_replica()
    for value in (4, 3):
        scene.write(process, "PATCH", f"{OBJECTS}/one", {"status": {"count-timer0": value}})


async def make_value(scene: Scene, *, pause: float, is_lost: bool = False) -> None:
    """Have a timer make a value, write an older one some time after it has begun, then this one."""
    body, process = scene.create(finalizers=[FINALIZER]), scene.add_replica()
    scene.run(process, "timer0", body)
    await asyncio.sleep(pause)
    scene.write(process, "PATCH", f"{OBJECTS}/one", {"status": {"count-timer0": 0}})
    await asyncio.sleep(5.0)
    if not is_lost:
        scene.write(process, "PATCH", f"{OBJECTS}/one", {"status": {"count-timer0": 1}})


async def end_operator(
    scene: Scene, *, seconds: float = 20.0, error: BaseException | None = None
) -> None:
    """End an operator by itself, while there is another task of it."""
    process = scene.add_replica()
    process.is_stopping = True
    scene.loop.create_task(asyncio.sleep(seconds), context=process.context.copy())
    await asyncio.sleep(1.0)
    if error is None:
        process.operator.ending.set_result(None)
    else:
        process.operator.ending.set_exception(error)


async def stop_in_vain(scene: Scene) -> None:
    """Have an operator in the end that does not stop."""
    scene.add_replica().operator.is_stubborn = True


async def keep_parts(scene: Scene, *, value: int = 1, lost: str = "", **metadata: Any) -> None:
    """Let an object have the parts that it wants, unless its value or a part is another one."""
    scene.add_replica()
    body = scene.create(**metadata)
    names = {"webop.dev/owner": get_uid(body), "webop.dev/reconciler": "keeper"}
    for name in list_parts("one", 1):
        head = {"apiVersion": f"{GROUP}/v1", "kind": "Part"}
        owner = {"apiVersion": f"{GROUP}/v1", "kind": "Thing", "name": "one", "uid": get_uid(body)}
        meta = {"name": name, "labels": names, "ownerReferences": [owner]}
        scene.world.ask("POST", PARTS_PATH, {**head, "metadata": meta, "spec": {"value": value}})
    if lost:
        scene.world.ask("DELETE", f"{PARTS_PATH}/{lost}")


async def keep_object(
    scene: Scene,
    *,
    handled: Json | bool | None = True,
    called: Iterable[str] = ("create0",),
    outcome: str = "ok",
    values: Iterable[int] = (1,),
    is_deleted: bool = False,
    is_dead: bool = False,
    is_stopped: bool = False,
    is_other: bool = False,
    successors: int = 0,
    notes: Iterable[str] = (),
    pause: float = 0.0,
    duration: float = 0.0,
    **metadata: Any,
) -> Replica:
    """Handle an object that stays: what is called for it, and what it is like in the end.

    The handlers are called for each of the values. Another process than the one that calls can note
    what is handled, and is returned.
    """
    process = scene.add_replica()
    caller = scene.add_replica() if is_other else process
    for _ in range(successors):
        scene.add_replica()
    await asyncio.sleep(pause)
    body = scene.create(**metadata)
    for value, handler in itertools.product(values, called):
        wish, essence = Wish(value, False, 0), json.dumps({"value": value})
        call = scene.begin(caller, handler, uid=get_uid(body), wish=wish, essence=essence)
        await asyncio.sleep(duration)
        scene.end(call, outcome)
    if handled:
        state = {"spec": {"value": 1}} if handled is True else handled
        last_handled = {"metadata": {"annotations": {DIFFBASE: json.dumps(state)}}}
        scene.write(process, "PATCH", f"{OBJECTS}/one", last_handled)
    for note in notes:
        value_of_note = {"uid": get_uid(body)} if note == "create0" else get_uid(body)
        scene.write(process, "PATCH", f"{OBJECTS}/one", {"status": {note: value_of_note}})
    if is_dead:
        scene.world.kill(process)
    if is_stopped:
        await asyncio.sleep(1.0)
        await process.stop()
    if is_deleted:
        scene.world.request("DELETE", "one")
    return process


async def leave_selector(scene: Scene) -> None:
    """Let an object with a finalizer leave the selector long after the start."""
    scene.add_replica()
    scene.create(labels={LABEL: "yes"}, finalizers=[FINALIZER])
    await asyncio.sleep(60.0)
    scene.world.request("PATCH", "one", {"metadata": {"labels": {LABEL: None}}})


async def leave_record(scene: Scene) -> None:
    """Handle an object; a request that was slow writes a record after that."""
    process = await keep_object(scene)
    await asyncio.sleep(1.0)
    record = {"metadata": {"annotations": {"kopf.zalando.org/create0": "{}"}}}
    scene.write(process, "PATCH", f"{OBJECTS}/one", record)


async def change_back(scene: Scene, *, pause: float = 1.0, is_seen: bool = False) -> None:
    """Change an object as its creation ends, and back as its operator does.

    Args:
        pause: seconds between the change back and the end of the operator.
        is_seen: whether the next process has begun with the change before.
    """
    process = await keep_object(scene, values=[2])
    uid = get_uid(scene.world.list_objects()["one"])
    await asyncio.sleep(1.0)
    scene.world.request("PATCH", "one", {"spec": {"value": 2}})
    if is_seen:
        wish = Wish(2, False, 0)
        scene.end(scene.begin(scene.add_replica(), "update0", uid=uid, wish=wish))
    await asyncio.sleep(1.0)
    scene.world.request("PATCH", "one", {"spec": {"value": 1}})
    await asyncio.sleep(pause)
    await process.stop()


async def resume_nothing(scene: Scene) -> None:
    """Start a replica a second after an object was handled, which calls no handlers for it."""
    await keep_object(scene, called=())
    await asyncio.sleep(1.0)
    scene.add_replica()


async def resume_younger(scene: Scene) -> None:
    """Create an object some time after a replica has started, and resume it."""
    process = scene.add_replica()
    await asyncio.sleep(11.0)
    uid = get_uid(scene.create())
    scene.end(scene.begin(process, "resume0", uid=uid))
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


async def delete_object(scene: Scene, *, outcome: str = "", has_daemon: bool = False) -> None:
    """Delete an object, call its handler, and release it, while its daemon runs."""
    process, body = scene.add_replica(), scene.create(finalizers=[FINALIZER])
    scene.world.request("DELETE", "one")
    if outcome:
        call = scene.begin(process, "delete0", uid=get_uid(body), reason="delete")
        scene.end(call, outcome)
    key = "daemon0", get_uid(body)
    process.daemons[key] = int(has_daemon)
    scene.write(process, "PATCH", f"{OBJECTS}/one", {"metadata": {"finalizers": []}})
    process.daemons[key] = 0


async def call_in_the_calm(scene: Scene, *, at: float = 1.0, seconds: float = 1.0) -> None:
    await asyncio.sleep(at)
    call = scene.begin(scene.add_replica())
    await asyncio.sleep(seconds)
    scene.end(call)


async def write_in_the_calm(scene: Scene) -> None:
    process, _ = scene.add_replica(), scene.create()
    await asyncio.sleep(QUIET)
    scene.annotate(process)


async def run_daemons(
    scene: Scene,
    *,
    counts: Iterable[int] = (1,),
    labels: Json | None = None,
    has_ended: bool = False,
    lost_at: float | None = None,
    starts: bool = False,
) -> None:
    """Run daemons for an object, as many in each replica; start one more in the last one."""
    is_guarded = labels is None and not has_ended
    await asyncio.sleep(1.0)
    body = scene.create(finalizers=[FINALIZER] if is_guarded else [], labels=labels or {})
    key = "daemon0", get_uid(body)
    for number in counts:
        process = scene.add_replica()
        process.daemons[key] = number
        if has_ended:
            process.ended_daemons.add(key)
    if starts:
        process.judge_daemon(scene.plans["daemon0"], key[1])
    if lost_at is not None:
        await asyncio.sleep(lost_at)
        process.daemons[key] = 0


async def fill_index(
    scene: Scene, *, values: Iterable[int], keys: Iterable[str] = ("one", "one has 1")
) -> None:
    process, body = scene.add_replica(), scene.create()
    seen = [(get_uid(body), value) for value in values]
    process.operator.context.indices["index0"] = dict.fromkeys(keys, seen) if seen else {}


async def start_tasks(scene: Scene, *, number: int) -> None:
    scene.add_replica()
    for _ in range(number):
        scene.loop.create_task(asyncio.sleep(QUIET + 60.0))


async def ask_impatiently(
    scene: Scene,
    *,
    method: str = "PATCH",
    first: Any = FIRST_PATCH,
    second: Any = FIRST_PATCH,
    at: float = 6.0,
    is_stopping: bool = False,
    times: int = 1,
    path: str = f"{OBJECTS}/one",
    done_at: float = 1.0,
    is_busy: bool = False,
) -> None:
    """Ask for something again, after a refusal in second 5 that has told to wait until 10.

    A handler is done before, and another one goes on, maybe. It can be done several times.
    """
    process = scene.add_replica()
    scene.create()
    await asyncio.sleep(done_at)
    scene.end(scene.begin(process, "create0"))
    busy = scene.begin(process, "create1") if is_busy else None
    await asyncio.sleep(5.0 - done_at)
    fault = Fault("status", status=429, seconds=5.0)
    scene.world.network.begin(fault)
    scene.submit(process, method, path, first)
    scene.world.network.end(fault)
    await asyncio.sleep(at - 5.0)
    process.is_stopping = is_stopping
    for _ in range(times):
        scene.submit(process, method, path, second)
        await asyncio.sleep(1.0)
    if busy is not None:
        scene.end(busy)
    scene.world.request("DELETE", "one")


async def overwrite(scene: Scene) -> None:
    """Write a value, let a user replace it, and write it again."""
    uid, process = get_uid(scene.create()), scene.add_replica()
    path, value = f"{OBJECTS}/one", {"status": {"of-create0": f"{uid}#1"}}
    scene.write(process, "PATCH", path, value)
    scene.world.request("PATCH", "one", {"status": {"of-create0": "user#2"}})
    scene.annotate(process)
    scene.write(process, "PATCH", path, value)


async def change_finalizers(scene: Scene, before: Iterable[str], after: Iterable[str]) -> None:
    """Replace the finalizers of an object by a replica; then delete the object."""
    process, _ = scene.add_replica(), scene.create(finalizers=[*before])
    scene.write(process, "PATCH", f"{OBJECTS}/one", {"metadata": {"finalizers": [*after]}})
    scene.world.request("DELETE", "one")
    scene.world.request("PATCH", "one", {"metadata": {"finalizers": None}})


async def go_on(scene: Scene, *, retry: int = 2, pause: float = 9.0) -> None:
    """Have a process call a handler of which there is a record from before it."""
    uid, before = get_uid(scene.create()), scene.add_replica()
    until = (EPOCH + dt.timedelta(seconds=5.0)).isoformat()
    record = {"purpose": "create", "retries": 2, "delayed": until}
    notes = {"kopf.zalando.org/create0": json.dumps(record)}
    scene.write(before, "PATCH", f"{OBJECTS}/one", {"metadata": {"annotations": notes}})
    await asyncio.sleep(1.0)
    process = scene.add_replica()
    await asyncio.sleep(pause - 1.0)
    scene.end(scene.begin(process, uid=uid, retry=retry))
    done = {"kopf.zalando.org/create0": None}
    scene.write(process, "PATCH", f"{OBJECTS}/one", {"metadata": {"annotations": done}})
    scene.world.request("DELETE", "one")


async def call_beside_peer(scene: Scene, *, priority: int = 1) -> None:
    """Call a handler while an operator of others is there."""
    process = scene.add_replica()
    scene.world.peers.join(priority, 10.0, is_lost=False)
    await asyncio.sleep(5.0)
    scene.end(scene.begin(process))


async def look_into_index(scene: Scene) -> None:
    """Call a handler that sees an index without an object that is there."""
    process, uid = scene.add_replica(), get_uid(scene.create())
    await asyncio.sleep(5.0)
    process.operator.context.indices["index0"] = {"two": []}
    scene.world.judge.background.judge_sight(process, "event0")
    process.operator.context.indices["index0"] = {key: [(uid, 1)] for key in list_keys("one", 1)}


async def call_in_background(
    scene: Scene,
    *,
    handler: str = "timer0",
    outcome: str = "ok",
    delay: float = 0.0,
    age: float = 4.0,
    pause: float | None = 7.0,
    retry: int = 0,
    is_new: bool = False,
    first_retry: int = 0,
    started: dt.datetime | None = None,
) -> None:
    """Call a timer or daemon some time after its object was created, and again after a pause.

    It is called again in the same run, or in a new one.
    """
    process, uid = scene.add_replica(), get_uid(scene.create())
    await asyncio.sleep(age)
    run = AsyncDaemonStopped(Stopper())
    first = scene.begin(process, handler, uid=uid, reason="", run=run, retry=first_retry)
    if pause is not None:
        await asyncio.sleep(0.5)
        scene.end(first, outcome, delay)
        await asyncio.sleep(pause)
    run = AsyncDaemonStopped(Stopper()) if is_new else run
    details = {"uid": uid, "reason": "", "run": run, "retry": retry, "started": started}
    second = scene.begin(process, handler, **details)
    scene.end(first)
    scene.end(second)
    scene.world.request("DELETE", "one")


async def keep_timer(
    scene: Scene,
    *,
    calls_at: float | None = None,
    is_changed: bool = False,
    **metadata: Any,
) -> None:
    """Have a timer called for an object at a moment, or never; change the object meanwhile."""
    process, uid = scene.add_replica(), get_uid(scene.create(finalizers=[FINALIZER], **metadata))
    if calls_at is not None:
        await asyncio.sleep(calls_at)
        call = scene.begin(process, "timer0", uid=uid, reason="")
        if is_changed:
            scene.world.request("PATCH", "one", {"spec": {"value": 2}})
        scene.end(call)
