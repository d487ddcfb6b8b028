"""What must hold in every history, whatever goes wrong: in calls of handlers, and in writes.

A complaint begins with the name of its rule. Faults excuse what the documentation says that they
can cause, and nothing else: that a process was killed or lost its lease excuses that the next one
repeats what was not written down yet; that the network was bad excuses nothing in one process.
Other rules have modules of their own: leadership, background, calm, admission (``*_rules.py``).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from tools.simulation.background_rules import BackgroundJudge
from tools.simulation.calm_rules import CalmJudge, Cycle
from tools.simulation.leadership_rules import LeadershipJudge
from tools.simulation.network import HANGING
from tools.simulation.patience import (
    AFTERMATH,
    LAG,
    LATENESS,
    PROMPTNESS,
    RECOVERY,
    SILENCE,
)
from tools.simulation.plans import HandlerPlan, Step
from tools.simulation.replicas import (
    COUNTING,
    DIFFBASE,
    FAILED,
    FINAL,
    FINALIZER,
    GROUP,
    LABEL,
    PARTS,
    PLURAL,
    PREFIX,
    Call,
    ReplicaProcess,
    get_essence,
)
from tools.simulation.themes import BACKGROUND_KINDS, STATE_KINDS

if TYPE_CHECKING:
    from tools.simulation.world import World
    from webop.testing import apiserver as servers

Json = dict[str, Any]

_DELAYING = {"slow", "late", "hung", "silent"}  # faults of requests
_EXIT = 2.0  # seconds for calls of a process that stops (settings.batching.exit_timeout)
_BELATED_CALLS = 2  # a retry before any write fails, and one as an older event comes after that


def _get_aftermath(step: Step) -> float:
    """Return the seconds in which watches suffer after a step."""
    if step.fault is None:
        return LATENESS
    return SILENCE + LATENESS if step.fault.kind in HANGING else AFTERMATH + RECOVERY


def list_notes(status: Json) -> list[str]:
    """Return what handlers have written into a status but for counts: the keys."""
    return [key for key in status if key != "kopf" and not key.startswith("count-")]


class Judge:
    """Watches a world.

    Attributes:
        violations: what was wrong.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.violations: list[str] = []
        self.leadership = LeadershipJudge(world, self)
        self.background = BackgroundJudge(world, self)
        self.calm = CalmJudge(world, self)
        plans = (*world.plan.handlers, *world.plan.upgraded)
        self._is_counting = any(p.kind == "timer" and p.effect in COUNTING for p in plans)
        self._rewritten = {f"of-{p.id}" for p in plans if p.kind == "event"}  # with each event
        self.active: dict[str, list[Call]] = defaultdict(list)
        self._last: dict[tuple[str, str, str], Call] = {}
        self._finals: dict[str, set[str]] = defaultdict(set)  # handlers, by uid
        self.cycles: dict[str, Cycle] = {}  # the last one, by uid
        self._recorded: set[tuple[str, str]] = set()  # uids and handlers that succeeded
        self._former: dict[tuple[str, str], list[Any]] = defaultdict(list)  # values, by uid and key
        self._reshaped: dict[str, list[tuple[float, str]]] = defaultdict(list)  # when, to which
        self._guarded: set[str] = set()  # deleted with our finalizer
        self.gone: set[str] = set()
        self._belated_calls: Counter[tuple[str, ...]] = Counter()  # of what is gone
        self.born: dict[str, float] = {}  # when objects were created, by uid
        self._counts: dict[tuple[str, str, str], int] = {}  # of timers, by process and object
        self.values: dict[tuple[str, str, str], list[tuple[float, int]]] = defaultdict(list)
        self._told: set[tuple[str, str, str]] = set()  # of deletions: processes, by handler and uid
        self.touched: dict[str, float] = {}  # when anybody has written an object
        self._belated: dict[str, float] = {}  # when one that is gone has written it
        self.changed: dict[str, float] = {}  # when a user has changed an object
        self.writes: Counter[str] | None = None

    def complain(self, problem: str) -> None:
        if problem not in self.violations:
            self.world.tell(f"VIOLATION: {problem}")
            self.violations.append(problem)

    def judge_begin(self, call: Call) -> None:
        """Overlaps, repetitions, and the order of attempts."""
        self.leadership.judge_step(call.process, call)
        if call.plan.kind in BACKGROUND_KINDS:
            self.background.judge_call(call)
        if call.plan.kind not in {*STATE_KINDS, "event"}:
            return
        if call.handler != call.plan.id:
            self._judge_repetition(call)
            return
        self.leadership.judge_peers(call)
        self._judge_overlaps(call)
        self.leadership.judge_rivals(call.process, call)
        self.active[call.uid].append(call)
        if call.plan.kind == "event":
            self._judge_deletion_event(call)
            return
        if self.world.plan.mode == "alone":
            self._judge_resumption(call)
        self._judge_repetition(call)

    def _judge_deletion_event(self, call: Call) -> None:
        """An event handler gets the deletion of an object once."""
        key = call.process.identity, call.handler, call.uid
        if call.reason == "DELETED" and key in self._told:
            self.complain(f"repetition: {call}, which knows of the deletion")
        if call.reason == "DELETED":
            self._told.add(key)

    def _judge_repetition(self, call: Call) -> None:
        """What is done is not done again; attempts are counted, and come when they are wanted."""
        key = call.handler, call.uid, call.reason
        last, self._last[key] = self._last.get(key), call
        if last is None or last.end is None or last.essence != call.essence:
            return
        if call.uid in self.gone:
            self._judge_belated(call, last)
            return
        is_same, plan = last.process is call.process, self.world.plan
        if (
            self._has_come_back(last)
            or self._belated.get(call.uid, -math.inf) > last.begin
            or (not is_same and self.is_left(last))
            or (plan.mode == "peering" and self._is_shared(call))
        ):
            return
        # Leaders that do not know of each other act beside each other.
        knows_other = not plan.has_leases or is_same or self.leadership.is_exclusive
        is_forgotten = not knows_other or self._may_be_forgotten(last, call.begin, is_same=is_same)
        if not is_forgotten or (is_same and plan.mode == "alone"):
            if last.outcome in FINAL and call.reason != "resume":
                self.complain(f"repetition: {call} after {last}")
            if last.outcome in FAILED and call.retry != last.retry + 1:
                self.complain(f"count of attempts: {call} after {last}")
        if last.outcome in FAILED and call.retry == last.retry + 1:
            if call.started != last.started and knows_other:  # the timeout counts from there
                self.complain(f"count of attempts: {call} after {last}, from another start")
            self._judge_delay(call, last, call.begin - last.end)

    def _may_be_forgotten(self, last: Call, now: float, *, is_same: bool) -> bool:
        """Tell whether the outcome of a call may not be known to the one that is called next."""
        if not is_same:
            is_alone = self.world.plan.mode == "alone"
            is_beside = last.process.ended_at is None and (
                is_alone or self.world.was_disturbed(last.begin, now, PLURAL)
            )
            return is_beside or self.calm.may_be_lost(last)
        # One process is excused only if it can have lost its right to act, or a record was denied.
        path = "leases" if self.world.plan.has_leases else ""
        is_disturbed = self.world.was_disturbed(last.begin - RECOVERY, now, path)
        return is_disturbed or self.calm.can_be_denied(last.begin)

    def _is_shared(self, call: Call) -> bool:
        """Tell whether peers have called the handler, too: each writes the record for itself."""
        return any(
            other.process is not call.process
            for other in self.world.calls
            if (other.uid, other.handler) == (call.uid, call.handler)
        )

    def _judge_belated(self, call: Call, last: Call) -> None:
        """A process can learn late that an object is gone, but not later than by its own writes.

        Records that were denied are not sent again.
        """
        if last.process is not call.process or self.calm.can_be_denied(last.begin):
            return
        key = call.process.identity, call.handler, call.uid, call.essence
        self._belated_calls[key] += 1
        if self._belated_calls[key] > _BELATED_CALLS:
            self.complain(f"repetition: {call} after {last}, of what is gone")

    def is_left(self, call: Call) -> bool:
        """Tell whether nobody has waited for the end of a call in a thread."""
        since = call.process.stopping_since
        return call.plan.is_sync and since is not None and (call.end or 0.0) > since + _EXIT

    def _has_come_back(self, call: Call) -> bool:
        """Tell whether an object has got the state of a call again, after another one.

        The call can be late for its state: the object has another one already.
        """
        recent = [state for state in self._reshaped[call.uid] if state[0] > call.begin - LAG]
        times = [at for at, essence in recent if essence == call.essence]
        is_back = any(essence != call.essence and at < times[-1] for at, essence in recent if times)
        return bool(times) and (is_back or times[-1] > call.begin)

    def were_credentials_lost(self, call: Call) -> bool:
        """Tell whether requests could be answered with 401 during a call."""
        return any(
            step.fault is not None
            and step.fault.status == 401
            and step.at < (call.end or self.world.loop.time())
            and step.at + step.seconds > call.begin
            for step in self.world.plan.steps
        )

    def is_noticed_after(self, changed_at: float, moment: float) -> bool:
        """Tell whether an operator may notice a change of the kind after a moment.

        It can take longer if its watches are broken, or hang since before the change, or if the
        API server serves old states.
        """
        since = max(changed_at + LAG, moment - SILENCE)
        lag_begin, lag_end = self.world.lagging
        is_late = lag_begin <= changed_at + LAG and max(changed_at, moment - LAG) <= lag_end
        is_deaf = (
            is_late
            or self.world.was_disturbed(since, moment, "watches")
            or any(
                step.fault is not None
                and step.fault.kind in HANGING
                and step.at <= changed_at
                and moment <= step.at + step.seconds + SILENCE
                for step in self.world.plan.steps
            )
        )
        return changed_at > moment - AFTERMATH or is_deaf

    def _judge_overlaps(self, call: Call) -> None:
        is_event, active = call.plan.kind == "event", self.active[call.uid]
        # Event handlers do not wait for the others.
        for other in (other for other in active if (other.plan.kind == "event") == is_event):
            is_excused = other.process.is_paused or not self.leadership.is_exclusive
            if other.process is call.process or not is_excused:
                self.complain(f"overlap: {call} while {other}")

    def _judge_resumption(self, call: Call) -> None:
        """A process that was never paused resumes objects once, and none that it saw created."""
        if call.plan.kind == "resume":
            self._judge_age(call)
        if call.reason != "resume":
            return
        for other in self.world.calls:
            if other.process is call.process and other.uid == call.uid:
                is_done = other.handler == call.handler and other.outcome in FINAL
                if other.reason == "create" or (other.reason == "resume" and is_done):
                    self.complain(f"repetition: {call} after {other}")
                    return

    def _judge_age(self, call: Call) -> None:
        """No object is resumed that was created after the first list of all objects."""
        steps = self.world.plan.steps
        defined_at = next((step.at for step in steps if step.kind == "define"), 0.0)
        since = max(call.process.started_at, defined_at)
        is_slow = self.world.was_disturbed(since, since + LATENESS, ignored="start")
        if self.born.get(call.uid, 0.0) > since + LATENESS and not is_slow:
            self.complain(f"repetition: {call}, which is younger than its process")

    def _judge_delay(self, call: Call, last: Call, pause: float) -> None:
        """Attempts come when the last one wanted it."""
        if pause < last.delay - 0.01:
            self.complain(f"too early: {call} after {last}, which wanted {last.delay:g} s")
        is_crowded = self.world.plan.worker_limit is not None
        ignored = "start" if last.process is call.process else ""
        indexing = call.process.indexing
        # After an outage, there are many states to be indexed.
        since = last.begin - (AFTERMATH + RECOVERY if indexing else RECOVERY)
        is_disturbed = self.world.was_disturbed(since, call.begin, ignored=ignored)
        is_excused = is_crowded or is_disturbed or self.world.peers.is_anybody_known
        others = [  # handlers of the object, one after another
            other.end - other.begin
            for other in self.world.calls
            if other.uid == call.uid and other.plan.kind in {*STATE_KINDS, "event", "reconcile"}
            if other.handler == other.plan.id and other.begin >= (last.end or 0) and other.end
        ]
        # Before each, up to six states are indexed (three of them with a slot), some objects three
        # times as slowly as others.
        busy = sum(others) + indexing * max(18, 6 * (len(others) + 1))
        if pause > last.delay + busy + PROMPTNESS and not is_excused:
            self.complain(f"too late: {call} after {last}, which wanted {last.delay:g} s")

    def judge_end(self, call: Call) -> None:
        if call in self.active[call.uid]:
            self.active[call.uid].remove(call)
        is_step = call.outcome in FAILED | FINAL
        if is_step and not call.plan.is_sync:  # threads cannot be stopped
            self.leadership.judge_step(call.process, call)
        if call.outcome in FINAL:
            self._finals[call.uid].add(call.handler)

    def judge_change(self, change: servers.Change) -> None:
        """What is written, and to whom; what is gone."""
        if change.resource.startswith("leases."):
            self.leadership.judge_lease(change)
        if change.resource.startswith("kopfpeerings."):
            self.leadership.note_peers(change)
        if change.resource == f"{PARTS}.{GROUP}" and self.writes is not None:
            user = "" if change.request is None else change.request.user
            self.writes[user] += user != "user"
        if change.resource != f"{PLURAL}.{GROUP}":
            return
        old, new = change.old, change.new
        self._judge_finalizers(change)
        if new is None:
            if old is not None:
                self._judge_deletion(old)
            return
        self._judge_owner(new)
        self._judge_order(change)
        self._judge_values(change, new)
        if old is not None and get_essence(old) != get_essence(new):
            change_to = self.world.loop.time(), get_essence(new)
            self._reshaped[new["metadata"]["uid"]].append(change_to)
        meta, before = new["metadata"], (old or {}).get("metadata", {})
        self.touched[meta["uid"]] = self.world.loop.time()
        if change.request is not None:
            self._note_writer(change.request.user, meta["uid"])
        if old is None:
            self.born[meta["uid"]] = self.world.loop.time()
        if "deletionTimestamp" in meta and FINALIZER in before.get("finalizers", ()):
            self._guarded.add(meta["uid"])
        handled, last = (m.get("annotations", {}).get(DIFFBASE) for m in (meta, before))
        if handled and handled != last:
            before = json.loads(last) if last else None
            user = change.request.user if change.request is not None else ""
            now = self.world.loop.time()
            begin = self.cycles.get(meta["uid"], Cycle()).end
            self.cycles[meta["uid"]] = Cycle(before, json.loads(handled), user, now, begin)
        self._note_records(new)

    def get_last_change(self, uid: str) -> float:
        """Return when the essence of an object has changed last; 0 if it never has."""
        return max((moment for moment, _ in self._reshaped[uid]), default=0.0)

    def _note_writer(self, user: str, uid: str) -> None:
        # A timer that counts writes for ever.
        if self.writes is not None and not self._is_counting:
            self.writes[user] += 1
        writers = [process for process in self.world.processes if process.identity == user]
        is_given_up = self.world.network.is_given_up
        if is_given_up or any(process.ended_at is not None for process in writers):
            self._belated[uid] = self.world.loop.time()
        if not user.startswith("replica-"):
            self.changed[uid] = self.world.loop.time()

    def is_overwritten(self, uid: str) -> bool:
        """Tell whether a request that nobody waits for has written to an object after all calls."""
        ends = (c.end for c in self.world.calls if c.uid == uid and c.plan.kind in STATE_KINDS)
        return self._belated.get(uid, -math.inf) > max((end or math.inf for end in ends), default=0)

    def _judge_finalizers(self, change: servers.Change) -> None:
        """An operator adds and removes no finalizers but its own."""
        before, now = (
            {*(body or {}).get("metadata", {}).get("finalizers", ())}
            for body in (change.old, change.new)
        )
        changed = sorted((before ^ now) - {FINALIZER})
        user = change.request.user if change.request is not None else ""
        if changed and user.startswith("replica-"):
            self.complain(f"finalizer: {user} adds or removes {changed} of {change.key}")

    def _note_records(self, body: Json) -> None:
        for key, note in body["metadata"].get("annotations", {}).items():
            is_record = key.startswith(PREFIX) and key != DIFFBASE
            if is_record and json.loads(note).get("success"):
                self._recorded.add((body["metadata"]["uid"], key.partition("/")[2]))

    def _judge_values(self, change: servers.Change, body: Json) -> None:
        """What a call has written is not written again over what others have written since."""
        user = change.request.user if change.request is not None else ""
        uid = body["metadata"]["uid"]
        old, new = (change.old or {}).get("status", {}), body.get("status", {})
        for key in list_notes(new):
            former = self._former[uid, key]
            is_again = new[key] != old.get(key) and new[key] in former
            is_again = is_again and key not in self._rewritten
            if is_again and not self._were_writes_disturbed():  # which hides answers
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
        self.values[process.identity, uid, key].append((self.world.loop.time(), value))

    def _find_value(self, identity: str, uid: str, key: str) -> int:
        """Return the value that a process has had for a while, so that it writes no older one."""
        now, steps = self.world.loop.time(), self.world.plan.steps
        frozen = sum(step.seconds for step in steps if step.kind == "pause" and step.at < now)
        if any(
            step.fault is not None
            and step.at <= now <= step.at + step.seconds + AFTERMATH + frozen
            and (step.fault.kind in _DELAYING or step.fault.status == 401)
            for step in steps
        ):
            return 0  # older ones can still be on their way, or wait behind others that hang
        known = self.values[identity, uid, key]
        before = self.world.loop.time() - LAG
        return max((value for since, value in known if since < before), default=0)

    def judge_leftovers(self, process: ReplicaProcess) -> None:
        """Nothing of an operator goes on after it has ended."""
        for task in asyncio.all_tasks(self.world.loop):
            if getattr(task, "process", None) is process:
                self.complain(f"leftover: {task.get_coro()} of {process} after its end")

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
        self.gone.add(uid)
        if uid not in self._guarded:
            return
        for call in self.world.calls if self.world.plan.mode == "alone" else ():
            is_known = (uid, call.handler) in self._recorded or not self.calm.may_be_lost(call)
            is_ours = call.uid == uid and call.plan.kind == "delete" and is_known
            if is_ours and self.calm.is_lost(call, body):
                self.complain(f"loss: the effect of {call}, at the end of its object")
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

    def wants(self, plan: HandlerPlan, body: Json) -> bool:
        if plan.is_general and not self.world.is_grouped:
            return False
        return not plan.is_choosy or body["metadata"].get("labels", {}).get(LABEL) == "yes"

    def _were_writes_disturbed(self) -> bool:
        """Tell whether patches of objects, or the processes, suffer or have suffered."""
        now = self.world.loop.time()
        return any(
            step.at <= now <= step.at + step.seconds + AFTERMATH + RECOVERY
            for step in self.world.plan.steps
            if step.kind == "pause" or (step.fault is not None and step.fault.path in PLURAL)
        )

    def had_faults(self) -> bool:
        """Tell whether requests or the watch cache suffer, or have suffered."""
        now = self.world.loop.time()
        return any(
            step.kind in {"fault", "lag", "pause"}
            and step.at <= now <= step.at + step.seconds + _get_aftermath(step)
            for step in self.world.plan.steps
        )
