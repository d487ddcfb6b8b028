"""What must hold in every history, whatever goes wrong: checked all the time, and in the calm.

A complaint begins with the name of its rule. Faults excuse what the documentation says that they
can cause, and nothing else: that a process was killed or lost its lease excuses that the next one
repeats what was not written down yet; that the network was bad excuses nothing in one process.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.simulation.plans import HandlerPlan
from tests.simulation.replicas import (
    GROUP,
    LABEL,
    PLURAL,
    Call,
    ReplicaProcess,
    get_essence,
    get_wish,
)
from tests.simulation.virtual import EPOCH

if TYPE_CHECKING:
    from tests.simulation import cluster as servers
    from tests.simulation.world import World

Json = dict[str, Any]

_PREFIX = "kopf.zalando.org"
_DIFFBASE = f"{_PREFIX}/last-handled-configuration"
_FINALIZER = f"{_PREFIX}/KopfFinalizerMarker"
_CYCLE_KINDS = {"create", "update", "delete", "resume", "field"}
_REPLACING = {"alter", "regroup"}  # steps: the watch of the kind is replaced
_FAILED = {"temporary", "error"}
_FINAL = {"ok", "permanent"}
_MAX_TASKS = 400  # of one history: some objects, some replicas
_SETTLING = 100.0  # seconds in which dead peers are forgotten, and silent watches given up
_LAG = 0.2  # seconds until an event has come
_QUIET = 60.0  # seconds at the end of the calm in which nothing is to be written
_LATENESS = 10.0  # seconds, for other handlers of the object, and its patches
_RENEWAL = 8.0  # seconds; two seconds are between two attempts, after ten all is lost
_NOTICE = 3.0  # seconds until an operator has noticed another one
_EXIT = 2.0  # seconds for calls whose watch is replaced (settings.batching.exit_timeout)
_SILENCE = 75.0  # seconds, about, until a watch that is mute is given up
_AFTERMATH_OF_PEERS = 150.0  # seconds: a watch can be silent for 70, a record last for 60
_AFTERMATH = 40.0  # seconds after a disturbance in which a process may still suffer from it


def list_notes(status: Json) -> list[str]:
    """Return what handlers have written into a status but for counts: the keys."""
    return [key for key in status if key != "kopf" and not key.startswith("count-")]


@dataclass(frozen=True)
class _Cycle:
    """A handling cycle of an object that has ended.

    Attributes:
        before: what was handled before it.
        handled: what it has handled.
        user: the process that has ended it.
    """

    before: Json | None = None
    handled: Json = field(default_factory=dict)
    user: str = ""
    end: float = 0.0


class Judge:
    """Watches a world.

    Attributes:
        violations: what was wrong.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.violations: list[str] = []
        plans = (*world.plan.handlers, *world.plan.upgraded)
        self._kinds = {plan.kind for plan in plans}
        self._is_counting = any(plan.effect == "count" for plan in plans)
        self._active: dict[str, list[Call]] = defaultdict(list)
        self._last: dict[tuple[str, str, str], Call] = {}
        self._finals: dict[str, set[str]] = defaultdict(set)  # handlers, by uid
        self._cycles: dict[str, _Cycle] = {}  # the last one, by uid
        self._records: dict[tuple[str, str], tuple[float, Json]] = {}  # by uid and handler
        self._former: dict[tuple[str, str], list[Any]] = defaultdict(list)  # values, by uid and key
        self._reshaped: dict[str, list[float]] = defaultdict(list)  # when essences have changed
        self._guarded: set[str] = set()  # deleted with our finalizer
        self._gone: set[str] = set()
        self._created: dict[str, float] = {}  # by name
        self._counts: dict[tuple[str, str, str], int] = {}  # of timers, by process and object
        self._values: dict[tuple[str, str, str], list[tuple[float, int]]] = defaultdict(list)
        self._touched: dict[str, float] = {}  # when anybody has written an object
        self._renewed: tuple[float, str | None] = 0.0, None
        self._changed: dict[str, float] = {}  # when a user has changed an object
        self._writes: Counter[str] | None = None

    def complain(self, problem: str) -> None:
        """Note what is wrong."""
        if problem not in self.violations:
            self.world.tell(f"VIOLATION: {problem}")
            self.violations.append(problem)

    # All the time.

    def judge_impatience(self, identity: str, path: str, since: float, until: float) -> None:
        """What was refused with Retry-After comes no earlier, unless there is more to write."""
        if "webhookconfigurations" in path and any(
            process.identity == identity and process.is_stopping for process in self.world.processes
        ):
            return  # it has but some seconds to hand over, and to withdraw
        if self._created.get(path.rpartition("/")[2], 0.0) >= since - _LAG:  # it is another object
            return
        has_ended = any(
            call.process.identity == identity and path.endswith(f"/{call.name}")
            for call in self.world.calls
            if call.end is not None and call.end >= since
        )
        if not has_ended and not self._kinds & {"daemon", "timer"}:
            self.complain(f"impatience: {identity} patches {path} before {until:.3f}")

    def judge_begin(self, call: Call) -> None:
        """Overlaps, repetitions, and the order of attempts."""
        if call.plan.kind == "timer":
            self.judge_timer(call)
        if call.plan.kind not in _CYCLE_KINDS | {"event"}:
            return
        if call.handler != call.plan.id:
            self._judge_repetition(call)
            return
        self._judge_record(call)
        self._judge_peers(call)
        self._judge_overlaps(call)
        self._active[call.uid].append(call)
        self._judge_limit(call)
        if call.plan.kind == "event":
            return
        if call.reason == "resume" and self.world.plan.mode == "alone":
            self._judge_resumption(call)
        self._judge_repetition(call)

    def _judge_repetition(self, call: Call) -> None:
        """What is done is not done again; attempts are counted, and come when they are wanted."""
        key = call.handler, call.uid, call.reason
        last, self._last[key] = self._last.get(key), call
        if last is None or last.end is None or last.essence != call.essence:
            return
        if call.uid in self._gone:  # a process can learn late that nothing is to be done any more
            return
        if sum(at > last.begin for at in self._reshaped[call.uid]) > 1:
            return  # it was changed, and changed back
        # Nobody waits for a thread so long.
        is_long = last.plan.is_sync and last.end - last.begin > _EXIT
        if is_long and self._has_kind_changed(last):
            return
        # One process is excused only if it can have lost its right to act.
        is_same, mode = last.process is call.process, self.world.plan.mode
        path = "leases" if is_same and mode == "lease" else ""
        is_disturbed = self.world.was_disturbed(last.begin - _AFTERMATH, call.begin, path)
        if not is_disturbed or (is_same and mode == "alone"):
            if last.outcome in _FINAL and call.reason != "resume":
                self.complain(f"repetition: {call} after {last}")
            if last.outcome in _FAILED and call.retry != last.retry + 1:
                self.complain(f"count of attempts: {call} after {last}")
        if last.outcome in _FAILED and call.retry == last.retry + 1:
            self._judge_delay(call, last, call.begin - last.end)

    def _has_kind_changed(self, call: Call) -> bool:
        """Tell whether the kind has changed since some time before a call."""
        now = self.world.loop.time()
        return any(
            step.kind in _REPLACING and call.begin - _AFTERMATH < step.at < now
            for step in self.world.plan.steps
        )

    def _judge_record(self, call: Call) -> None:
        """A process goes on with the attempts that are recorded on the object since before it."""
        written, record = self._records.get((call.uid, call.handler), (0.0, {}))
        is_known = written < call.process.started_at and record.get("purpose") == call.reason
        if not record or not is_known or self.world.plan.mode == "peering":
            return
        if record.get("success") or record.get("failure"):
            return
        if call.retry < record.get("retries", 0):
            self.complain(f"count of attempts: {call}, but {record}")
        is_skewed = any(process.skew for process in self.world.processes)
        delayed = record.get("delayed")
        if delayed and not is_skewed:
            until = (dt.datetime.fromisoformat(delayed) - EPOCH).total_seconds()
            if call.begin < until - 0.01:
                self.complain(f"too early: {call}, but {record}")

    def _judge_peers(self, call: Call) -> None:
        """Nothing is done while an operator of others is there that goes first."""
        rival = self.world.peers.find_rival(call.process.number, _NOTICE)
        since = call.begin - _SETTLING
        if rival is not None and not self.world.was_disturbed(since, call.begin):
            self.complain(f"peering: {call} while {rival} is there")

    def _judge_overlaps(self, call: Call) -> None:
        is_event, active = call.plan.kind == "event", self._active[call.uid]
        # Event handlers do not wait for the others.
        for other in (other for other in active if (other.plan.kind == "event") == is_event):
            age = call.begin - other.begin
            if other.process is call.process or self._must_wait(call.process, other.process, age):
                self.complain(f"overlap: {call} while {other}")

    def _must_wait(self, process: ReplicaProcess, other: ReplicaProcess, age: float) -> bool:
        """Tell whether a process must begin nothing while another one is at work, for some seconds.

        In a peering, the one of the higher priority waits for nobody, records take their time, and
        those whose watches are mute cannot know that others have come.
        """
        mode, now = self.world.plan.mode, self.world.loop.time()
        if mode == "lease" or other.is_paused:
            return not other.is_paused
        if age < _LAG:
            return False
        since, was_disturbed = now - _AFTERMATH_OF_PEERS, self.world.was_disturbed
        is_deaf = was_disturbed(other.started_at - _SILENCE, other.started_at + _LAG, "watches")
        is_excused = is_deaf or was_disturbed(since, now, "kopfpeering")
        return mode == "peering" and process.number < other.number and not is_excused

    def _judge_resumption(self, call: Call) -> None:
        """A process that was never paused resumes objects once, and none that it saw created."""
        for other in self.world.calls:
            if other.process is call.process and other.uid == call.uid:
                is_done = other.handler == call.handler and other.outcome in _FINAL
                if other.reason == "create" or (other.reason == "resume" and is_done):
                    self.complain(f"repetition: {call} after {other}")
                    return

    def judge_daemon(self, process: ReplicaProcess, plan: HandlerPlan, uid: str) -> None:
        """A daemon runs once, and not again after it has ended by itself."""
        key = plan.id, uid
        for other in self.world.processes:
            is_there = other.daemons.get(key) and not other.is_dead and other is not process
            age = self.world.loop.time() - other.started_daemons.get(key, 0.0)
            is_peer = self.world.plan.mode == "peering"
            if is_there and is_peer and self._must_wait(process, other, age):
                self.complain(f"overlap: {key} is started in {process} beside {other}")
        if process.daemons.get(key):
            self.complain(f"daemon: {key} is started in {process} while it runs")
        is_left_alone = self.world.plan.mode == "alone" and not plan.is_choosy
        if key in process.ended_daemons and is_left_alone:
            self.complain(f"daemon: {key} is started in {process} after it has ended by itself")

    def judge_daemon_step(self, process: ReplicaProcess, handler: str, uid: str) -> None:
        """A daemon takes no step when another process has started it."""
        others = (other for other in self.world.processes if other is not process)
        for other in others if self.world.plan.mode == "lease" else ():
            if other.daemons.get((handler, uid)) and not other.is_dead and not other.is_paused:
                self.complain(f"overlap: {handler} of {uid} goes on in {process} beside {other}")

    def _judge_limit(self, call: Call) -> None:
        """No more objects are worked on at once than is allowed."""
        limit = self.world.plan.settings.get("batching", {}).get("worker_limit")
        own = [
            one
            for calls in self._active.values()
            for one in calls
            if one.process is call.process and one.plan.kind in _CYCLE_KINDS
            if not (one.plan.is_sync and self._has_kind_changed(one))  # nobody waits for it
        ]
        if limit is not None and len(own) > limit:
            self.complain(f"limit: {len(own)} calls at once, {limit} allowed: {call}")

    def judge_sight(self, process: ReplicaProcess, handler: str) -> None:
        """Handlers see indexes that are complete, or have nothing of the kind yet."""
        if process.is_dead or self.world.plan.mode == "peering":
            return
        now = self.world.loop.time()
        if self._had_faults(now):
            return
        known = {
            body["metadata"]["name"]
            for body in self.world.cluster.get_objects(f"{PLURAL}.{GROUP}").values()
            if self._touched[body["metadata"]["uid"]] < now - _NOTICE
        }
        for plan in process.handlers:
            if plan.kind == "index" and not plan.is_choosy:
                seen = {*process.operator.context.indices[plan.id]}
                if seen and (missed := known - seen):
                    self.complain(f"index: {handler} of {process} misses {missed} in {plan.id}")

    def _had_faults(self, now: float) -> bool:
        return any(
            step.kind in {"fault", "lag"} and step.at <= now <= step.at + step.seconds + _AFTERMATH
            for step in self.world.plan.steps
        )

    def judge_timer(self, call: Call) -> None:
        """A timer waits until the object has not changed for a while."""
        times = call.begin - _AFTERMATH, call.begin
        is_deaf = any(self.world.was_disturbed(*times, what) for what in (PLURAL, "watches"))
        if call.plan.idle is None or is_deaf or self.world.cluster.lag:
            return
        age = call.begin - self._changed.get(call.uid, 0.0)
        if 0.2 < age < call.plan.idle - 0.2:
            self.complain(f"idle: {call} {age:.3f} s after a change")

    def _judge_delay(self, call: Call, last: Call, pause: float) -> None:
        """Attempts come when the last one wanted it; they are told by the clock on the wall."""
        if any(process.skew for process in self.world.processes):
            return
        if pause < last.delay - 0.01:
            self.complain(f"too early: {call} after {last}, which wanted {last.delay:g} s")
        is_crowded = self.world.plan.settings.get("batching", {}).get("worker_limit") is not None
        is_disturbed = self.world.was_disturbed(last.begin - _AFTERMATH, call.begin)
        is_excused = is_crowded or is_disturbed or self.world.peers.is_anybody_known
        if pause > last.delay + _LATENESS and not is_excused:
            self.complain(f"too late: {call} after {last}, which wanted {last.delay:g} s")

    def _judge_lease(self, change: servers.Change) -> None:
        """A holder renews in time, whatever its objects do to it."""
        now = self.world.loop.time()
        holder = (change.new or {}).get("spec", {}).get("holderIdentity")
        since, self._renewed = self._renewed, (now, holder)
        is_disturbed = self.world.was_disturbed(since[0] - _AFTERMATH, now, "leases")
        if holder and since[1] == holder and now - since[0] > _RENEWAL and not is_disturbed:
            self.complain(f"renewal: {holder} has renewed its lease after {now - since[0]:.1f} s")

    def judge_end(self, call: Call) -> None:
        """Take note of what is done."""
        if call in self._active[call.uid]:
            self._active[call.uid].remove(call)
        if call.outcome in _FAILED | _FINAL and not call.plan.is_sync:
            self._judge_end_of_right(call)
        if call.outcome in _FINAL:
            self._finals[call.uid].add(call.handler)

    def _judge_end_of_right(self, call: Call) -> None:
        """No call goes on when another process works on its object; threads end their process."""
        if self.world.plan.mode != "lease" or call.plan.kind not in _CYCLE_KINDS:
            return
        for other in reversed(self.world.calls):
            if other.begin <= call.begin:
                return
            is_elsewhere = other.process is not call.process and other.uid == call.uid
            if is_elsewhere and other.plan.kind in _CYCLE_KINDS:
                self.complain(f"overlap: {call} goes on after {other} has begun")

    def judge_change(self, change: servers.Change) -> None:
        """What is written, and to whom; what is gone."""
        if change.resource.startswith("leases."):
            self._judge_lease(change)
        if change.resource != f"{PLURAL}.{GROUP}":
            return
        old, new = change.old, change.new
        if new is None:
            if old is not None:
                self._judge_deletion(old)
            return
        self._judge_owner(new)
        self._judge_order(change)
        self._judge_values(change, new)
        if old is not None and get_essence(old) != get_essence(new):
            self._reshaped[new["metadata"]["uid"]].append(self.world.loop.time())
        # A timer that counts writes for ever.
        if self._writes is not None and change.request is not None and not self._is_counting:
            self._writes[change.request.user] += 1
        self._touched[new["metadata"]["uid"]] = self.world.loop.time()
        if change.request is not None and change.request.user == "user":
            self._changed[new["metadata"]["uid"]] = self.world.loop.time()
        meta, before = new["metadata"], (old or {}).get("metadata", {})
        if old is None:
            self._created[meta["name"]] = self.world.loop.time()
        if "deletionTimestamp" in meta and _FINALIZER in before.get("finalizers", ()):
            self._guarded.add(meta["uid"])
        handled, last = (m.get("annotations", {}).get(_DIFFBASE) for m in (meta, before))
        if handled and handled != last:
            before = json.loads(last) if last else None
            user = change.request.user if change.request is not None else ""
            now = self.world.loop.time()
            self._cycles[meta["uid"]] = _Cycle(before, json.loads(handled), user, now)
        self._note_records(old or {}, new)

    def _note_records(self, old: Json, new: Json) -> None:
        before, now = (body.get("metadata", {}).get("annotations", {}) for body in (old, new))
        for key in before.keys() | now.keys():
            if key.startswith(_PREFIX) and key != _DIFFBASE and now.get(key) != before.get(key):
                record = json.loads(now.get(key, "{}"))
                place = new["metadata"]["uid"], key.partition("/")[2]
                self._records[place] = self.world.loop.time(), record

    def _judge_values(self, change: servers.Change, body: Json) -> None:
        """What a call has written is not written again over what others have written since."""
        user = change.request.user if change.request is not None else ""
        now, uid = self.world.loop.time(), body["metadata"]["uid"]
        old, new = (change.old or {}).get("status", {}), body.get("status", {})
        for key in list_notes(new):
            former = self._former[uid, key]
            is_again = new[key] != old.get(key) and new[key] in former
            if is_again and not self._had_faults(now):  # which hide answers
                self.complain(
                    f"written twice: {user} writes {key} of {change.key}: {new[key]} again"
                )
            former.append(old.get(key))

    def _judge_order(self, change: servers.Change) -> None:
        """A process never replaces its own newer value by an older one."""
        user = change.request.user if change.request is not None else ""
        body = change.new or {}
        for key, count in body.get("status", {}).items():
            if key.startswith("count-") and count != (change.old or {}).get("status", {}).get(key):
                last = self._counts.get((user, body["metadata"]["uid"], key), 0)
                made = self._find_value(user, body["metadata"]["uid"], key)
                if count < max(last, made):
                    self.complain(
                        f"order: {user} writes {key} of {change.key}: {count} after {last}, "
                        f"and {made} was there to be written"
                    )
                self._counts[user, body["metadata"]["uid"], key] = count

    def note_value(self, process: ReplicaProcess, uid: str, key: str, value: int) -> None:
        """Note what a timer wants to be written."""
        self._values[process.identity, uid, key].append((self.world.loop.time(), value))

    def _find_value(self, identity: str, uid: str, key: str) -> int:
        """Return the value that a process has had for a while, so that it writes no older one."""
        if any(step.fault and step.fault.kind == "slow" for step in self.world.plan.steps):
            return 0  # older ones can still be on their way
        known = self._values[identity, uid, key]
        before = self.world.loop.time() - _LAG
        return max((value for since, value in known if since < before), default=0)

    def judge_leftovers(self, process: ReplicaProcess) -> None:
        """Nothing of an operator goes on after it has ended."""
        for task in asyncio.all_tasks(self.world.loop):
            if getattr(task, "process", None) is process:
                self.complain(f"leftover: {task.get_coro()} of {process} after its end")

    # In the calm.

    def list_unfinished(self) -> list[str]:
        """Say what has not converged yet."""
        running = [call for calls in self._active.values() for call in calls]
        problems = [f"endless: {call}" for call in running if call.plan.kind in _CYCLE_KINDS]
        objects = self.world.list_objects()
        for name, body in objects.items():
            if "deletionTimestamp" in body["metadata"]:
                finalizers = body["metadata"].get("finalizers")
                problems.append(f"deletion: {name} is still there: {finalizers}")
            else:
                problems += self._list_unhandled(name, body)
        problems += self._judge_daemons(objects)
        problems += self._judge_indexes(objects)
        return problems + self._list_unseen_deletions() + self._list_lost_effects(objects)

    async def judge_calm(self) -> None:
        """Complain about what has not converged, and about what goes on for ever."""
        for problem in self.list_unfinished():
            self.complain(problem)
        if self.violations:
            return
        await asyncio.sleep(max(0.0, self.world.plan.calm_at + _SETTLING - self.world.loop.time()))
        self._writes = Counter()
        calls = len(self.world.calls)
        await asyncio.sleep(_QUIET)
        if self._writes:
            self.complain(f"unrest: writes in the calm: {dict(self._writes)}")
        for call in self.world.calls[calls:]:
            if call.plan.kind in _CYCLE_KINDS:
                self.complain(f"unrest: {call} in the calm")
        for problem in self.list_unfinished():
            self.complain(f"{problem} (any more)")
        tasks = len(asyncio.all_tasks(self.world.loop))
        if tasks > _MAX_TASKS:
            self.complain(f"growth: {tasks} tasks")

    def _list_unhandled(self, name: str, body: Json) -> list[str]:
        """Every handler has handled the last state of an object, or failed with it for good."""
        meta, uid = body["metadata"], body["metadata"]["uid"]
        annotations = meta.get("annotations", {})
        plans = [plan for plan in self.world.handlers if self._wants(plan, body)]
        problems = []
        if any(plan.kind in _CYCLE_KINDS for plan in plans):
            problems += self._list_missed(name, body)
        known = {plan.id for plan in self.world.handlers}  # the records of others are not ours
        progress = [
            key
            for key in annotations
            if key.startswith(_PREFIX)
            and key != _DIFFBASE
            and key.partition("/")[2].partition(".")[0] in known
        ]
        progress += ["status"] if "kopf" in body.get("status", {}) else []
        # The next process cannot know of what matches no more, nor a peer of what others began.
        is_known = any(plan.kind in _CYCLE_KINDS for plan in plans)
        is_known = is_known and self.world.plan.mode != "peering"
        if progress and (is_known or len(self.world.processes) == 1):
            problems.append(f"progress: {name} has some left over: {progress}")
        ended = {key for process in self.world.processes for key in process.ended_daemons}
        is_guarded = any(
            plan.kind in {"delete", "timer"}
            or (plan.kind == "daemon" and (plan.id, uid) not in ended)
            for plan in plans
        )
        if is_guarded != (_FINALIZER in meta.get("finalizers", [])):
            problems.append(f"finalizer: of {name} ({uid}), wanted: {is_guarded}")
        return problems

    def _list_missed(self, name: str, body: Json) -> list[str]:
        """Handlers of updates and fields see the last state, if it is another than at first (D-67).

        Handlers of creations are called once, for whatever the state is then. What matters are the
        handlers of the version that has ended the last cycle.
        """
        uid, essence, wish = body["metadata"]["uid"], get_essence(body), get_wish(body)
        cycle = self._cycles.get(uid, _Cycle())
        before, handled = cycle.before, cycle.handled
        if get_essence(handled) != essence:
            return [f"unhandled: {name} ({uid}): {essence}, but {get_essence(handled)}"]
        calls = [
            call
            for call in self.world.calls
            if call.uid == uid and call.plan.kind in _CYCLE_KINDS and call.outcome in _FINAL
        ]
        # What the last process can know: not by the records of handlers that match no more.
        handlers = next(p.handlers for p in self.world.processes if p.identity == cycle.user)
        plans = [plan for plan in handlers if self._wants(plan, body)]
        ids = {plan.id for plan in plans if not plan.is_choosy}
        known = (
            call.wish
            for call in calls
            if not call.process.is_dead and not call.plan.is_choosy and call.plan.id in ids
            if call.begin <= cycle.end  # later ones were for changes that were undone
            and call.plan.kind != "resume"  # lost credentials end that without a trace
        )
        first = get_wish(before) if before else min(known, default=wish)
        wanted = {plan.id for plan in plans if plan.kind == "update" and first != wish}
        wanted |= {plan.id for plan in plans if plan.kind == "field" and first.value != wish.value}
        done = {
            call.handler
            for call in calls
            if call.wish.value == wish.value
            and (call.plan.kind != "update" or call.wish.note == wish.note)
        }
        if before is None:
            wanted |= {plan.id for plan in plans if plan.kind == "create" and not plan.is_choosy}
            done |= {call.handler for call in calls if call.plan.kind == "create"}
        last = {call.handler: call for call in calls if call.reason == "update"}
        since = self._changed.get(uid, 0.0)
        until = since + _LATENESS
        deaf = {  # it knows another state, which was taken back
            plan.id
            for plan in plans
            if plan.kind == "update" and not plan.is_choosy and (call := last.get(plan.id))
            if call.wish != wish and (call.process.ended_at or until) >= until
        }
        if self.world.was_disturbed(since, until):
            deaf.clear()
        missed = wanted - done | deaf
        return [f"missed: {name} ({uid}): {essence}, by {sorted(missed)}"] if missed else []

    def _judge_daemons(self, objects: Json) -> list[str]:
        """Daemons run for the objects that match, once, and for no others."""
        running: Counter[tuple[str, str]] = Counter()
        for process in self.world.processes:
            if process.is_running:
                running.update({key: count for key, count in process.daemons.items() if count})
        wanted = {
            (plan.id, body["metadata"]["uid"])
            for plan in self.world.handlers
            if plan.kind == "daemon"
            for body in objects.values()
            if self._wants(plan, body)
        }
        ended = {key for process in self.world.processes for key in process.ended_daemons}
        # One that is ending is started again with the next event after its end (DMN-30).
        ended |= {
            key
            for process in self.world.processes
            for key, at in process.stopped_daemons.items()
            if at >= self._touched.get(key[1], 0.0) - _LAG
        }
        wanted = {key for key in wanted if key not in ended or running[key]}
        problems = [f"daemon: {key} does not run" for key in sorted(wanted - running.keys())]
        return problems + [
            f"daemon: {key} runs {count} times, {int(key in wanted)} wanted"
            for key, count in sorted(running.items())
            if count != (key in wanted)
        ]

    def _list_lost_effects(self, objects: Json) -> list[str]:
        """What handlers want is on the objects, unless the API server has denied it."""
        faults = [step.fault for step in self.world.plan.steps if step.fault]
        can_be_denied = any(fault.kind == "status" and 400 < fault.status < 500 for fault in faults)
        is_replaced = any(step.kind == "alter" for step in self.world.plan.steps)
        if self.world.plan.mode != "alone" or can_be_denied or is_replaced:
            return []
        bodies = {body["metadata"]["uid"]: body for body in objects.values()}
        problems = []
        for call in self.world.calls:
            is_ours = call.handler == call.plan.id and call.process.is_running
            is_done = call.outcome == "ok" and call.uid in bodies
            if is_ours and is_done and call.plan.effect in {"status", "label", "fn"}:
                body, key = bodies[call.uid], f"of-{call.plan.id}"
                if key not in {**body.get("status", {}), **body["metadata"].get("labels", {})}:
                    problems.append(f"loss: {key} of {call}")
        return problems

    def _list_unseen_deletions(self) -> list[str]:
        """Event handlers get the deletions of all objects that their process has seen.

        Unless it pauses, or the stream is replaced by another one after the deletion.
        """
        steps = self.world.plan.steps
        is_replaced = any(
            s.kind in _REPLACING or (s.fault and s.fault.status == 401) for s in steps
        )
        if self.world.plan.mode != "alone" or is_replaced:
            return []
        last = {
            (call.handler, call.uid): call
            for call in self.world.calls
            if call.plan.kind == "event" and not call.plan.is_choosy and call.process.is_running
        }
        return [
            f"missed: the deletion after {call}"
            for call in last.values()
            if call.uid in self._gone and call.reason != "DELETED"
        ]

    def _judge_indexes(self, objects: Json) -> list[str]:
        """The indexes of all processes equal the cluster."""
        problems = []
        for process in self.world.processes:
            for plan in process.handlers if process.is_running else ():
                if plan.kind != "index":
                    continue
                index = process.operator.context.indices[plan.id]
                seen = {name: list(store) for name, store in index.items()}
                wanted = {
                    name: [(body["metadata"]["uid"], body["spec"]["value"])]
                    for name, body in objects.items()
                    if self._wants(plan, body)
                }
                if seen != wanted:
                    problems.append(f"index: {plan.id} of {process}: {seen}, not {wanted}")
        return problems

    def _wants(self, plan: HandlerPlan, body: Json) -> bool:
        if plan.is_general and not self.world.is_grouped:
            return False
        return not plan.is_choosy or body["metadata"].get("labels", {}).get(LABEL) == "yes"

    def _judge_owner(self, body: Json) -> None:
        """What handlers write for one object is not written to another one of the same name."""
        uid = body["metadata"]["uid"]
        notes = {**body.get("status", {}), **body["metadata"].get("labels", {})}
        for key, note in notes.items():
            is_result = isinstance(note, dict) and "uid" in note
            owner = note["uid"] if is_result else str(note).partition("#")[0]
            if owner not in {uid, "user"} and (is_result or key.startswith("of-")):
                self.complain(f"wrong object: {key} of {owner} is in {uid}")

    def _judge_deletion(self, body: Json) -> None:
        """An object goes only after its deletion was handled, if it was guarded."""
        uid = body["metadata"]["uid"]
        self._gone.add(uid)
        if uid not in self._guarded:
            return
        for process in self.world.processes if self.world.plan.mode == "alone" else ():
            running = [key for key, count in process.daemons.items() if count and key[1] == uid]
            if running and not process.is_dead:
                self.complain(f"deletion: {uid} is gone, but {running} still run")
        done = self._finals[uid]
        versions = self.world.plan.handlers, self.world.plan.upgraded or self.world.plan.handlers
        wanted = set.intersection(
            *({p.id for p in plans if p.kind == "delete" and not p.is_choosy} for plans in versions)
        )
        if wanted - done:
            self.complain(f"deletion: {uid} is gone, not handled by {wanted - done}")
