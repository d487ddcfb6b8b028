"""Stories of handlers, objects and replicas: told by ``test_rules.py``."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import json
from collections.abc import Iterable
from typing import Any

from tests.simulation.network import Fault
from tests.simulation.replicas import (
    DIFFBASE,
    FAILED,
    FINALIZER,
    GROUP,
    GUARD,
    LABEL,
    NAMESPACE,
    Wish,
    list_keys,
    list_parts,
)
from tests.simulation.scenes import QUIET, Replica, Scene, get_uid
from tests.simulation.virtual import EPOCH
from tests.simulation.world import OBJECTS, PARTS_PATH
from webop.handlers.stopping import AsyncDaemonStopped, DaemonStoppingReason, Stopper
from webop.testing.apiserver import Json

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
    between: str = "",
    **details: Any,
) -> None:
    """Call a handler, and once more after a pause, or at once while the first call goes on.

    Another handler is called in between, if any, for 5 seconds.
    """
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
        if between:
            other = scene.begin(one, between, uid=uid, reason=cause)
            await asyncio.sleep(5)
            scene.end(other)
        await asyncio.sleep(pause)
    if fate == "killed later":
        scene.world.kill(one)
    if fate == "stopped":
        await one.stop()
    one.is_paused = fate == "paused"
    one.skew = 3.0 if fate == "skewed" else 0.0
    after = scene.begin(two, again, **{"uid": uid, "reason": cause, **details})
    one.is_paused = False
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


async def call_for_the_past(
    scene: Scene,
    *,
    handler: str = "create0",
    reason: str = "update",
    pause: float = 3.0,
    is_deleted: bool = False,
    is_told: bool = False,
) -> None:
    """Call a handler for a state that is outdated since a time, or for what is gone.

    Its process can have been told so, in answer to a patch.
    """
    process = scene.add_replica()
    uid = get_uid(scene.create())
    await asyncio.sleep(0.5)
    if is_deleted:
        scene.world.request("DELETE", "one")
    else:
        scene.world.request("PATCH", "one", {"spec": {"value": 2}})
    if is_told:
        scene.submit(process, "PATCH", f"{OBJECTS}/one", {"metadata": {"uid": uid}})
    await asyncio.sleep(pause)
    scene.end(scene.begin(process, handler, uid=uid, reason=reason))
    scene.world.request("DELETE", "one")


async def call_after_write(
    scene: Scene, *, is_dead: bool = False, is_given_up: bool = False
) -> None:
    """Call a handler, and once more after another process has written.

    It can be dead, or have given up the request.
    """
    process, other = scene.add_replica(), scene.add_replica()
    uid = get_uid(scene.create())
    if is_dead:
        scene.world.kill(other)
    await asyncio.sleep(0.5)
    for _ in range(2):
        call = scene.begin(process, uid=uid)
        await asyncio.sleep(0.1)
        scene.end(call)
        await asyncio.sleep(1.0)
        scene.world.network.is_given_up = is_given_up
        scene.write(other, "PATCH", f"{OBJECTS}/one", {"metadata": {"annotations": {"a": "1"}}})
        scene.world.network.is_given_up = False
    scene.world.request("DELETE", "one")


async def attempt(
    scene: Scene, *, age: float = 0.0, seconds: float = 0.1, skew: float = 0.0, **details: Any
) -> None:
    """Call a handler some time after its first attempt."""
    await asyncio.sleep(0.5)
    process = scene.add_replica()
    process.skew = skew
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


async def call_beside_each_other(scene: Scene, *, pause: float = 0.9) -> None:
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
    await asyncio.sleep(pause)
    scene.end(scene.begin(one, retry=1))


async def call_timer(scene: Scene, *, age: float = 1.0, written: float = 0.0) -> None:
    """Change an object, let the replica write to it after a while, then call a timer for it."""
    await asyncio.sleep(0.5)
    process, body = scene.add_replica(), scene.create()
    await asyncio.sleep(written)
    scene.annotate(process)
    await asyncio.sleep(age - written)
    scene.end(scene.begin(process, "timer0", uid=get_uid(body)))
    scene.world.request("DELETE", "one")


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


async def act_after_takeover(
    scene: Scene,
    *,
    what: str = "end",
    handler: str = "create0",
    outcome: str = "ok",
    holder: str = "replica-0-2",
    is_late: bool = False,
) -> None:
    """Begin a call or end it, or go on with a daemon, after somebody has taken the Lease.

    A late replica starts after a Lease before that was deleted.
    """
    known = None if is_late else scene.add_replica()
    await asyncio.sleep(1.0)
    one = known or scene.add_replica()
    call = scene.begin(one, handler) if what == "end" else None
    body: Json = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    body |= {"metadata": {"name": "operator"}, "spec": {"holderIdentity": holder}}
    scene.write(one, "POST", LEASES, body)
    if what == "daemon":
        one.judge_step("daemon0")
    else:
        scene.end(call or scene.begin(one, handler), outcome)


async def begin_beside_rival(
    scene: Scene,
    *,
    what: str = "call",
    number: int = 1,
    pause: float = 1.0,
    fate: str = "",
    is_daemon: bool = False,
) -> None:
    """Begin a call or a daemon while a peer has its record, or does the same."""
    await asyncio.sleep(0.5)
    process, rival = scene.add_replica(), scene.add_replica(number)
    uid = get_uid(scene.create())
    call = scene.begin(rival, uid="u2") if what == "call" else None
    if what == "daemon":
        rival.daemons["daemon0", "u2"] = 1
        rival.started_daemons["daemon0", "u2"] = scene.loop.time()
    elif what == "record":
        path = f"/apis/kopf.dev/v1/namespaces/{NAMESPACE}/kopfpeerings/default"
        scene.write(rival, "PATCH", path, {"status": {rival.identity: {"priority": number}}})
    await asyncio.sleep(pause)
    rival.is_paused = fate == "paused"
    if fate == "killed":
        scene.world.kill(rival)
    if call is not None and fate == "done":
        scene.end(call)
    if is_daemon:
        process.judge_daemon(scene.plans["daemon0"], uid)
    else:
        scene.end(scene.begin(process, uid=uid))
    rival.is_paused = False
    rival.daemons.clear()
    if call is not None:
        scene.end(call)
    scene.world.request("DELETE", "one")


async def watch_object(
    scene: Scene,
    *,
    reasons: Iterable[str] = ("ADDED",),
    again: str = "",
    is_dead: bool = False,
    replicas: int = 1,
) -> None:
    """Delete an object, and call an event handler for it, or at last for another one."""
    for _ in range(replicas):
        process = scene.add_replica()
    uid = get_uid(scene.create())
    scene.world.request("DELETE", "one")
    for reason in reasons:
        scene.end(scene.begin(process, "event0", uid=uid, reason=reason))
    if again:
        scene.end(scene.begin(process, "event0", uid=again, reason="DELETED"))
    if is_dead:
        scene.world.kill(process)


async def count(scene: Scene, *, second: int = 3, is_other: bool = False) -> None:
    """Write two values of a timer, one after another."""
    scene.create(finalizers=[FINALIZER])
    one = scene.add_replica()
    two = scene.add_replica() if is_other else one
    for process, value in ((one, 4), (two, second)):
        scene.write(process, "PATCH", f"{OBJECTS}/one", {"status": {"count-timer0": value}})
    scene.annotate(one)


async def make_value(
    scene: Scene, *, pause: float, is_lost: bool = False, is_dead: bool = False
) -> None:
    """Have a timer make a value, write an older one some time after it has begun, then this one."""
    body, process = scene.create(finalizers=[FINALIZER]), scene.add_replica()
    scene.run(process, "timer0", body)
    await asyncio.sleep(pause)
    scene.write(process, "PATCH", f"{OBJECTS}/one", {"status": {"count-timer0": 0}})
    await asyncio.sleep(5.0)
    if not is_lost:
        scene.write(process, "PATCH", f"{OBJECTS}/one", {"status": {"count-timer0": 1}})
    if is_dead:
        scene.world.kill(process)


async def end_operator(
    scene: Scene, *, owner: int = 0, seconds: float = 20.0, error: BaseException | None = None
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
    """Have an operator in the end that is asked to stop."""
    scene.add_replica().operator.is_stubborn = is_stubborn


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
    process: Replica | None = None,
    **metadata: Any,
) -> None:
    """Handle an object that stays: what is called for it, and what it is like in the end.

    The handlers are called for each of the values. Another process than the one that calls can note
    what is handled.
    """
    process = process or scene.add_replica()
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


async def leave_selector(scene: Scene, *, pause: float) -> None:
    """Let an object with a finalizer leave the selector some time after the start."""
    scene.add_replica()
    scene.create(labels={LABEL: "yes"}, finalizers=[FINALIZER])
    await asyncio.sleep(pause)
    scene.world.request("PATCH", "one", {"metadata": {"labels": {LABEL: None}}})


async def leave_record(scene: Scene, *, is_given_up: bool) -> None:
    """Handle an object; a request that was slow writes a record after that."""
    process = scene.add_replica()
    await keep_object(scene, process=process)
    await asyncio.sleep(1.0)
    scene.world.network.is_given_up = is_given_up
    record = {"metadata": {"annotations": {"kopf.zalando.org/create0": "{}"}}}
    scene.write(process, "PATCH", f"{OBJECTS}/one", record)
    scene.world.network.is_given_up = False


async def change_back(scene: Scene, *, pause: float = 1.0, is_seen: bool = False) -> None:
    """Change an object as its creation ends, and back as its operator does.

    Args:
        pause: seconds between the change back and the end of the operator.
        is_seen: whether the next process has begun with the change before.
    """
    process = scene.add_replica()
    await keep_object(scene, values=[2], process=process)
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


async def resume_object(scene: Scene, *, called: Iterable[str] = ()) -> None:
    """Start a replica a second after an object was handled, and call handlers for it."""
    await keep_object(scene, called=())
    await asyncio.sleep(1.0)
    process, uid = scene.add_replica(), get_uid(scene.world.list_objects()["one"])
    for handler in called:
        scene.end(scene.begin(process, handler, uid=uid, reason="resume"))


async def resume_younger(scene: Scene, *, handler: str = "resume0", pause: float = 11.0) -> None:
    """Create an object some time after a replica has started, and call a handler for it."""
    process = scene.add_replica()
    await asyncio.sleep(pause)
    uid = get_uid(scene.create())
    scene.end(scene.begin(process, handler, uid=uid))
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
    daemon: str = "",
    is_dead: bool = False,
) -> None:
    """Delete an object, call its handler, and release it, while a daemon of an object runs."""
    others = [GUARD] if is_released else [name for name in finalizers if name != FINALIZER]
    release = {"metadata": {"finalizers": others}}
    process, body = (
        scene.add_replica(),
        scene.create(finalizers=[*dict.fromkeys([*finalizers, *others])]),
    )
    if is_released:
        scene.write(process, "PATCH", f"{OBJECTS}/one", release)
    scene.world.request("DELETE", "one")
    if outcome:
        call = scene.begin(process, "delete0", uid=get_uid(body), reason="delete")
        scene.end(call, outcome)
    key = "daemon0", get_uid(body) if daemon == "own" else daemon
    process.daemons[key] = int(bool(daemon))
    if is_dead:
        scene.world.kill(process)
    if FINALIZER in finalizers and not is_released:
        scene.write(process, "PATCH", f"{OBJECTS}/one", release)
    if others:
        scene.world.request("PATCH", "one", {"metadata": {"finalizers": None}})
    process.daemons[key] = 0


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
    dies: bool = False,
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
    if dies:
        scene.world.kill(scene.world.processes[-1])
    if lost_at is not None:
        await asyncio.sleep(lost_at)
        process.daemons[key] = 0


async def fill_index(
    scene: Scene,
    *,
    values: Iterable[int],
    keys: Iterable[str] = ("one", "one has 1"),
    labels: Json | None = None,
    dies: bool = False,
) -> None:
    process, body = scene.add_replica(), scene.create(labels=labels or {})
    seen = [(get_uid(body), value) for value in values]
    process.operator.context.indices["index0"] = dict.fromkeys(keys, seen) if seen else {}
    if dies:
        scene.world.kill(process)


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
    is_new: bool = False,
    is_other: bool = False,
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
    if is_new:
        scene.world.request("DELETE", "one")
        scene.create()
    process.is_stopping = is_stopping
    for _ in range(times):
        scene.submit(scene.add_replica() if is_other else process, method, path, second)
        await asyncio.sleep(1.0)
    if busy is not None:
        scene.end(busy)
    scene.world.request("DELETE", "one")


async def overwrite(
    scene: Scene, *, count: int = 1, is_other: bool = True, key: str = "of-create0"
) -> None:
    """Write a value, let a user replace it, and write one more."""
    uid, process = get_uid(scene.create()), scene.add_replica()
    path = f"{OBJECTS}/one"
    scene.write(process, "PATCH", path, {"status": {key: f"{uid}#1"}})
    if is_other:
        scene.world.request("PATCH", "one", {"status": {key: "user#2"}})
    scene.annotate(process)
    scene.write(process, "PATCH", path, {"status": {key: f"{uid}#{count}"}})


async def change_finalizers(
    scene: Scene, before: Iterable[str], after: Iterable[str], *, is_user: bool = False
) -> None:
    """Replace the finalizers of an object by a replica, or by a user; then delete the object."""
    process, _ = scene.add_replica(), scene.create(finalizers=[*before])
    changed = {"metadata": {"finalizers": [*after]}}
    if is_user:
        scene.world.request("PATCH", "one", changed)
    else:
        scene.write(process, "PATCH", f"{OBJECTS}/one", changed)
    scene.world.request("DELETE", "one")
    scene.world.request("PATCH", "one", {"metadata": {"finalizers": None}})


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
    duration: float = 0.5,
    retry: int = 0,
    again: str = "same",
    is_other: bool = False,
    first_retry: int = 0,
    started: dt.datetime | None = None,
) -> None:
    """Call a timer or daemon some time after its object was created, and again after a pause.

    It is called again in the same run, in a new one, or in a new one after a stop of the former.
    """
    process, uid = scene.add_replica(), get_uid(scene.create())
    await asyncio.sleep(age)
    stopper = Stopper()
    run = AsyncDaemonStopped(stopper)
    first = scene.begin(process, handler, uid=uid, reason="", run=run, retry=first_retry)
    if pause is not None:
        await asyncio.sleep(duration)
        scene.end(first, outcome, delay)
        await asyncio.sleep(pause)
    if again == "stopped":
        stopper.set(DaemonStoppingReason.FILTERS_MISMATCH)
    next_run = run if again == "same" else AsyncDaemonStopped(Stopper())
    caller = scene.add_replica() if is_other else process
    details = {"uid": uid, "reason": "", "run": next_run, "retry": retry, "started": started}
    second = scene.begin(caller, handler, **details)
    scene.end(first)
    scene.end(second)
    scene.world.request("DELETE", "one")


async def keep_timer(
    scene: Scene,
    *,
    calls_at: float | None = QUIET,
    finalizers: Iterable[str] = (FINALIZER,),
    is_changed: bool = False,
    **metadata: Any,
) -> None:
    """Have a timer called for an object at a moment, or never; change the object meanwhile."""
    process, uid = scene.add_replica(), get_uid(scene.create(finalizers=[*finalizers], **metadata))
    if calls_at is not None:
        await asyncio.sleep(calls_at)
        call = scene.begin(process, "timer0", uid=uid, reason="")
        if is_changed:
            scene.world.request("PATCH", "one", {"spec": {"value": 2}})
        scene.end(call)
