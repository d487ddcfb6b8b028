"""What must hold for daemons, timers and indexes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import webop
from tools.simulation.network import HANGING
from tools.simulation.patience import AFTERMATH, NOTICE, PROMPTNESS, RECOVERY, SILENCE
from tools.simulation.plans import HandlerPlan
from tools.simulation.replicas import (
    FAILED,
    GROUP,
    PLURAL,
    Call,
    ReplicaProcess,
    list_keys,
)

if TYPE_CHECKING:
    from tools.simulation.invariants import Judge
    from tools.simulation.world import World

Json = dict[str, Any]
_QUICK = 0.1  # seconds; for one call of an indexer
_IDLE_AFTERMATH = 40.0  # seconds after a fault of patches, whose values count as changes
_GRAIN = 0.01  # seconds by which moments may differ


def _was_stopped(call: Call) -> bool:
    """Tell whether the run of a call was asked to stop, and has not just ended."""
    reason = call.run.reason if call.run is not None else None
    return reason not in {None, webop.DaemonStoppingReason.DONE}


class BackgroundJudge:
    """Watches what goes on beside the handlers for changes."""

    def __init__(self, world: World, judge: Judge) -> None:
        self._world = world
        self._judge = judge
        self._last: dict[tuple[ReplicaProcess, str, str], Call] = {}  # of timers and daemons

    def judge_daemon(self, process: ReplicaProcess, plan: HandlerPlan, uid: str) -> None:
        """A daemon runs once, and not again after it has ended by itself."""
        key = plan.id, uid
        self._judge.leadership.judge_rivals(process, key)
        if process.daemons.get(key):
            self._judge.complain(f"daemon: {key} is started in {process} while it runs")
        if key in process.ended_daemons and self._is_left_alone(plan):
            self._judge.complain(
                f"daemon: {key} is started in {process} after it has ended by itself"
            )

    def judge_call(self, call: Call) -> None:
        """Calls of a timer or daemon come one after another, when they are wanted."""
        key = call.process, call.handler, call.uid
        last, self._last[key] = self._last.get(key), call
        if call.plan.kind == "timer":
            self._judge_idle(call)
        if last is None:
            self._judge_first(call)
        elif call.run is last.run:
            self._judge_next(call, last)
        elif not _was_stopped(last) and self._is_left_alone(call.plan):
            self._judge.complain(f"daemon: {call} is started again after {last}")

    def _is_left_alone(self, plan: HandlerPlan) -> bool:
        return self._world.plan.mode == "alone" and not plan.is_choosy

    def _judge_first(self, call: Call) -> None:
        """The first call in a process comes after the initial delay."""
        since = max(call.process.started_at, self._judge.born.get(call.uid, 0.0))
        if call.begin < since + call.plan.initial_delay - _GRAIN:
            self._judge.complain(f"too early: {call}, {call.begin - since:.3f} s after the start")
        if call.retry:
            self._judge.complain(f"count of attempts: {call} is the first one")

    def _judge_next(self, call: Call, last: Call) -> None:
        """The next call in a run comes after the interval, or after the delay of a failure."""
        if last.end is None:
            self._judge.complain(f"overlap: {call} while {last}")
            return
        has_failed = last.outcome in FAILED
        if not has_failed and (call.plan.kind == "daemon" or last.outcome == "permanent"):
            self._judge.complain(f"daemon: {call} after {last}, which was the last one")
            return
        if call.retry != (last.retry + 1 if has_failed else 0):
            self._judge.complain(f"count of attempts: {call} after {last}")
        elif has_failed and call.started != last.started:
            self._judge.complain(f"count of attempts: {call} after {last}, from another start")
        pause = last.delay if has_failed else call.plan.interval
        since = last.begin if call.plan.is_sharp and not has_failed else last.end
        if call.begin < since + pause - _GRAIN:
            self._judge.complain(f"too early: {call} after {last}, {pause:g} s wanted")
            return
        self._judge_lateness(call, last, last.end + pause)

    def _judge_lateness(self, call: Call, last: Call, due: float) -> None:
        """They come in time; those with a sharp interval come at its multiples."""
        settings, steps = self._world.plan.settings, self._world.plan.steps
        is_hanging = any(step.fault is not None and step.fault.kind in HANGING for step in steps)
        # A write waits for the one before it, which can hang until its timeout.
        hung = settings.get("networking", {}).get("request_timeout", 0.0) if is_hanging else 0.0
        since = last.begin - max(RECOVERY, hung)
        is_disturbed = self._world.was_disturbed(since, call.begin, ignored="start")
        if is_disturbed or self._world.peers.is_anybody_known:
            return
        if call.plan.idle is not None and not call.retry:
            # What the timer itself has written is a change for it, the status of others is not.
            since = max(last.end or 0.0, self._find_last_change(call.uid))
            due = max(due, since + call.plan.idle)
        elif call.plan.is_sharp and not call.retry:
            shift = (call.begin - last.begin + _GRAIN) % call.plan.interval
            if shift > 2 * _GRAIN:
                self._judge.complain(f"too late: {call} after {last}, by {shift:.3f} s")
        if call.begin > due + PROMPTNESS:
            self._judge.complain(f"too late: {call} after {last}, due at {due:.3f}")

    def list_silent_timers(self, objects: Json, since: float) -> list[str]:
        """Timers without ``idle`` have been called for each object since some time ago."""
        last = {(c.handler, c.uid): c for c in self._world.calls if c.plan.kind == "timer"}
        called = {key for key, call in last.items() if call.end is None or call.end > since}
        return [
            f"timer: {plan.id} of {name} was not called for {self._world.loop.time() - since:g} s"
            for plan in self._world.handlers
            if plan.kind == "timer" and plan.idle is None and not plan.may_give_up
            for name, body in objects.items()
            if self._judge.wants(plan, body) and (plan.id, body["metadata"]["uid"]) not in called
        ]

    def _find_last_change(self, uid: str) -> float:
        return max(self._judge.born.get(uid, 0.0), self._judge.get_last_change(uid))

    def _judge_idle(self, call: Call) -> None:
        """A timer waits until the essence of the object has not changed for a while."""
        times = call.begin - SILENCE, call.begin
        is_deaf = self._world.was_disturbed(*times, "watches")
        is_deaf |= self._world.was_disturbed(call.begin - _IDLE_AFTERMATH, call.begin, PLURAL)
        if call.plan.idle is None or call.retry or is_deaf or self._world.cluster.store.lag:
            return
        age = call.begin - self._find_last_change(call.uid)
        if 0.2 < age < call.plan.idle - 0.2:
            self._judge.complain(f"idle: {call} {age:.3f} s after a change")

    def judge_sight(self, process: ReplicaProcess, handler: str) -> None:
        """Handlers see indexes that are complete, or have nothing of the kind yet.

        A running handler goes on, with its sub-handlers, while a new index is filled. So do timers,
        and the other handlers of the event that is being shown. What a new index gets of an object
        with a running handler comes at its next turn, soon after its end.
        With a ``worker_limit``, an object can wait for its turn, also to be indexed.
        """
        if process.is_dead or "/" in handler or self._world.plan.worker_limit is not None:
            return
        now = self._world.loop.time()
        steps = self._world.plan.steps
        recent = [step for step in steps if now - AFTERMATH < step.at < now]
        if handler.startswith(("timer", "event")) and any(
            step.kind == "regroup" for step in recent
        ):
            return
        changes = [step for step in recent if step.kind == "alter"]
        if self._judge.had_faults() or len(changes) > 1:  # they break its watch again and again
            return
        objects = self._world.cluster.get_objects(f"{PLURAL}.{GROUP}").values()
        calls = self._world.calls
        ended = now - NOTICE
        mine = (call for call in calls if call.process is process)
        running = {call.uid for call in mine if call.end is None or call.end > ended}
        # One state is indexed after the other, and handlers make some of each object.
        indexing = 4 * process.indexing
        known = {
            body["metadata"]["name"]
            for body in objects
            if body["metadata"]["uid"] not in running
            if self._judge.touched[body["metadata"]["uid"]] < now - NOTICE - indexing * len(objects)
        }
        for plan in process.handlers:
            if plan.kind == "index" and not plan.is_choosy:
                seen = {*process.operator.context.indices[plan.id]}
                if seen and (missed := known - seen):
                    self._judge.complain(
                        f"index: {handler} of {process} misses {missed} in {plan.id}"
                    )

    def list_daemons(self, objects: Json) -> list[str]:
        """Daemons run for the objects that match, once, and for no others."""
        running: Counter[tuple[str, str]] = Counter()
        for process in self._world.processes:
            if process.is_running:
                running.update({key: count for key, count in process.daemons.items() if count})
        wanted = {
            (plan.id, body["metadata"]["uid"])
            for plan in self._world.handlers
            if plan.kind == "daemon"
            for body in objects.values()
            if self._judge.wants(plan, body)
        }
        alive = [process for process in self._world.processes if process.is_running]
        ended = {key for process in alive for key in process.ended_daemons}
        wanted = {key for key in wanted if key not in ended or running[key]}
        problems = [f"daemon: {key} does not run" for key in sorted(wanted - running.keys())]
        return problems + [
            f"daemon: {key} runs {count} times, {int(key in wanted)} wanted"
            for key, count in sorted(running.items())
            if count != (key in wanted)
        ]

    def list_indexes(self, objects: Json) -> list[str]:
        """The indexes of all processes equal the cluster.

        Operators that do not act call indexers one after another: slow ones fall behind the writes
        of the one that acts.
        """
        problems = []
        is_alone = self._world.plan.mode == "alone"
        for process in self._world.processes:
            for plan in process.handlers if process.is_running else ():
                if plan.kind != "index" or (plan.seconds > _QUICK and not is_alone):
                    continue
                index = process.operator.context.indices[plan.id]
                seen = {name: list(store) for name, store in index.items()}
                wanted = {
                    key: [(body["metadata"]["uid"], body["spec"]["value"])]
                    for name, body in objects.items()
                    if self._judge.wants(plan, body)
                    for key in list_keys(name, body["spec"]["value"])
                }
                if seen != wanted:
                    problems.append(f"index: {plan.id} of {process}: {seen}, not {wanted}")
        return problems
