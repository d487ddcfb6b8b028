"""What must hold in the calm: everything has converged, and nothing goes on for ever."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tools.simulation.network import HANGING
from tools.simulation.patience import AFTERMATH, LAG, LATENESS, SILENCE
from tools.simulation.plans import Step
from tools.simulation.replicas import (
    DIFFBASE,
    FINAL,
    FINALIZER,
    FOREIGN,
    PLURAL,
    PREFIX,
    Call,
    get_essence,
    get_wish,
    list_parts,
)
from tools.simulation.themes import BACKGROUND_KINDS, STATE_KINDS

if TYPE_CHECKING:
    from tools.simulation.invariants import Judge
    from tools.simulation.world import World

Json = dict[str, Any]

_DENIALS = {400, 403, 405, 413, 415, 422}  # of patches, for good
_PATIENCE = 30.0  # seconds; missing permissions (403) must not lose anything before
_ENDING = 20.0  # seconds; for daemons that end, with their attempts
_QUIET = 40.0  # seconds at the end of the calm in which nothing is to be written


@dataclass(frozen=True)
class Cycle:
    """A handling cycle of an object that has ended.

    Attributes:
        before: what was handled before it.
        handled: what it has handled.
        user: the process that has ended it.
        end: when that was.
        begin: when the one before it has ended; 0 if it was the first one.
    """

    before: Json | None = None
    handled: Json = field(default_factory=dict)
    user: str = ""
    end: float = 0.0
    begin: float = 0.0


class CalmJudge:
    """Looks whether a world has converged."""

    def __init__(self, world: World, judge: Judge) -> None:
        self._world = world
        self._judge = judge

    def list_unfinished(self) -> list[str]:
        """Say what has not converged yet."""
        running = [call for calls in self._judge.active.values() for call in calls]
        problems = [f"endless: {call}" for call in running if call.plan.kind in STATE_KINDS]
        objects = self._world.list_objects()
        for name, body in objects.items():
            if "deletionTimestamp" in body["metadata"]:
                finalizers = body["metadata"].get("finalizers")
                problems.append(f"deletion: {name} is still there: {finalizers}")
            else:
                problems += self._list_unhandled(name, body)
        problems += self._judge.background.list_daemons(objects)
        problems += self._judge.background.list_indexes(objects)
        problems += self._list_unseen_deletions() + self._list_unresumed(objects)
        problems += self._list_wrong_parts(objects)
        problems += self._judge.leadership.shards.list_unfair()
        return problems + self._list_lost_effects(objects)

    def _list_wrong_parts(self, objects: Json) -> list[str]:
        """Each object has its parts as it wants them, and nothing of others is gone."""
        world = self._world
        if not any(plan.kind == "reconcile" for plan in world.handlers):
            return []
        found = world.list_parts()
        problems = [f"parts: {name} is gone" for name in FOREIGN if name not in found]
        wanted: dict[str, tuple[int, str, int]] = {}
        is_mutual = any(plan.is_mutual for plan in world.handlers)
        for name, body in objects.items():
            value, uid = body["spec"].get("value", 0), body["metadata"]["uid"]
            if not any(
                p.kind == "reconcile" and self._judge.wants(p, body) for p in world.handlers
            ):
                return []  # it has left the sight of the operator
            beside = world.look_beside(name) if is_mutual else 0
            parts = list_parts(name, value).items()
            wanted |= {part: (value, uid, beside) for part, value in parts}
        present: dict[str, tuple[int, str, int]] = {}
        for name, body in found.items():
            meta = body["metadata"]
            owner = (meta.get("labels") or {}).get("webop.dev/owner")
            if owner and meta.get("ownerReferences"):
                beside = body["spec"].get("beside", 0) if is_mutual else 0
                present[name] = body["spec"].get("value"), owner, beside
            elif name in wanted and not (owner or meta.get("ownerReferences")):
                return problems  # it has become somebody else's: its siblings wait for it, too
        present = {name: part for name, part in present.items() if name not in FOREIGN}
        if present != wanted:
            problems.append(f"parts: there are {present}, not {wanted}")
        return problems

    async def judge(self) -> None:
        """Complain about what has not converged, and about what goes on for ever."""
        for problem in self.list_unfinished():
            self._judge.complain(problem)
        if self._judge.violations:
            return
        await asyncio.sleep(_ENDING)  # what has just ended may still write
        self._judge.writes = Counter()
        calls = len(self._world.calls)
        await asyncio.sleep(_QUIET)
        if self._judge.writes:
            self._judge.complain(f"unrest: writes in the calm: {dict(self._judge.writes)}")
        for call in self._world.calls[calls:]:
            if call.plan.kind in STATE_KINDS:
                self._judge.complain(f"unrest: {call} in the calm")
        for problem in self.list_unfinished():
            self._judge.complain(f"{problem} (any more)")
        quiet_since = self._world.loop.time() - _QUIET
        objects = self._world.list_objects()
        for problem in self._judge.background.list_silent_timers(objects, quiet_since):
            self._judge.complain(problem)

    def _list_unhandled(self, name: str, body: Json) -> list[str]:
        """Every handler has handled the last state of an object, or failed with it for good."""
        meta, uid = body["metadata"], body["metadata"]["uid"]
        annotations = meta.get("annotations", {})
        plans = [plan for plan in self._world.handlers if self._judge.wants(plan, body)]
        problems = []
        calls = (c for c in self._world.calls if c.uid == uid and c.plan.kind in STATE_KINDS)
        # Denied records are written with the next change only.
        is_denied = self.can_be_denied(max((call.begin for call in calls), default=0.0))
        is_overwritten = is_denied or self._judge.is_overwritten(uid)
        if any(plan.kind in STATE_KINDS for plan in plans) and not is_overwritten:
            problems += self._list_missed(name, body)
        known = {plan.id for plan in self._world.handlers}  # the records of others are not ours
        progress = [
            key
            for key in annotations
            if key.startswith(PREFIX)
            and key != DIFFBASE
            and key.partition("/")[2].partition(".")[0] in known
        ]
        progress += ["status"] if "kopf" in body.get("status", {}) else []
        # No turn can know of what matches no more, nor a peer of what others began.
        is_known = any(plan.kind in STATE_KINDS for plan in plans)
        is_known = is_known and self._world.plan.mode != "peering"
        if progress and is_known and not is_overwritten:
            problems.append(f"progress: {name} has some left over: {progress}")
        running = (process for process in self._world.processes if process.is_running)
        ended = {key for process in running for key in process.ended_daemons}
        is_guarded = any(
            plan.kind == "delete" or (plan.kind in BACKGROUND_KINDS and (plan.id, uid) not in ended)
            for plan in plans
        )
        is_right = is_guarded == (FINALIZER in meta.get("finalizers", []))
        if not is_right:
            problems.append(f"finalizer: of {name} ({uid}), wanted: {is_guarded}")
        return problems

    def may_be_lost(self, call: Call) -> bool:
        """Tell whether an outcome may not be known to the last process.

        The one that called the handler may not have been able to write it before its end, or the
        API server has denied the record; or it has lost its credentials and, with a Lease, others
        could go on.
        """
        if self._judge.is_left(call) or self.can_be_denied(call.begin):
            return True
        world, ended_at = self._world, call.process.ended_at
        if ended_at is None and call.process.is_stopping:
            ended_at = world.loop.time()
        last = math.inf if ended_at is None else ended_at - 2 * LAG
        if ended_at is not None and call.end is not None:
            before = ended_at - 0.001  # its own end is no disturbance
            was_away = world.was_disturbed(call.end, before, PLURAL) or any(
                # Until it knows that, it cannot write what belongs to the status.
                step.kind == "alter"
                and step.at < last
                and (
                    call.end - LATENESS < step.at or self._judge.is_noticed_after(step.at, call.end)
                )
                for step in world.plan.steps
            )
            # The write of an outcome waits for those of the object that hang.
            timeout = world.plan.settings.get("networking", {}).get("request_timeout", 0.0)
            was_away |= any(
                step.fault is not None
                and step.fault.kind in HANGING
                and step.at < call.end
                and ended_at < step.at + step.seconds + timeout
                for step in world.plan.steps
            )
            if call.end > last or was_away or self._judge.were_credentials_lost(call):
                return True
        until = min((call.end or 0) + LATENESS, last)
        return world.plan.has_leases and self._can_have_lost_lease(call, until)

    def _can_have_lost_lease(self, call: Call, until: float) -> bool:
        """Tell whether a process could lose its Lease after a call, until some time."""
        world, end = self._world, call.end or 0
        return world.was_disturbed(end, until, "leases") or any(
            (
                step.fault is not None
                and step.fault.status == 401
                and step.at >= call.begin
                and (step.at <= until or world.was_disturbed(end, step.at, PLURAL))
            )
            or (step.kind == "pause" and call.begin <= step.at <= end + 2 * LAG)
            or self._has_lost_owners(step, call.begin, end)
            for step in world.plan.steps
        )

    def _has_lost_owners(self, step: Step, begin: float, end: float) -> bool:
        """Tell whether users delete the Lease with the owners of shards: all lose their shards."""
        world = self._world
        is_deletion = step.kind in {"unlock", "lease deleted"} and world.plan.mode == "shards"
        is_deaf = is_deletion and world.was_disturbed(step.at - SILENCE, end, "watches")
        return is_deletion and begin - (SILENCE if is_deaf else LAG) <= step.at <= end + 2 * LAG

    def _list_missed(self, name: str, body: Json) -> list[str]:
        """Handlers of updates and fields see the last state, if it is another than at first (D-67).

        Handlers of creations are called once, for whatever the state is then. What matters are the
        handlers of the version that has ended the last cycle.
        """
        uid, essence, wish = body["metadata"]["uid"], get_essence(body), get_wish(body)
        cycle = self._judge.cycles.get(uid, Cycle())
        before, handled = cycle.before, cycle.handled
        if get_essence(handled) != essence:
            return [f"unhandled: {name} ({uid}): {essence}, but {get_essence(handled)}"]
        calls = [
            call
            for call in self._world.calls
            if call.uid == uid and call.plan.kind in STATE_KINDS and call.outcome in FINAL
        ]
        # What the last process can know: not by the records of handlers that match no more.
        user = next(p for p in self._world.processes if p.identity == cycle.user)
        plans = [plan for plan in user.handlers if self._judge.wants(plan, body)]
        ids = {plan.id for plan in plans if not plan.is_choosy}
        last_creations = {call.handler: call for call in calls if call.reason == "create"}
        known = (
            call.wish
            for call in calls
            # Else it was lost, and called again.
            if call.reason != "create" or last_creations[call.handler] is call
            if not call.process.is_dead and not call.plan.is_choosy and call.plan.id in ids
            if call.begin <= cycle.end  # later ones were for changes that were undone
            and not self.may_be_lost(call)
            # Peers can act beside each other for a moment, and know nothing of each other then.
            and (self._world.plan.mode != "peering" or call.process.identity == cycle.user)
        )
        # So is what another one has handled meanwhile.
        is_theirs = self._world.plan.mode == "peering" and any(
            other.uid == uid and other.process.identity != cycle.user and other.begin < call.end
            for call in calls
            if call.process.identity == cycle.user and call.end is not None
            if call.end > cycle.begin
            for other in self._world.calls
            if other.end is None or other.end > call.begin
        )
        # Nobody can know that handlers have seen what was undone as no operator worked on it.
        undone = self._judge.get_last_change(uid)
        is_forgotten = cycle.end < undone and not any(
            call.process is not user and cycle.end < call.begin < undone for call in calls
        )
        is_forgotten &= user.ended_at is not None and user.ended_at < undone + LATENESS
        first = wish if is_forgotten else min(known, default=wish)
        first = get_wish(before) if before and not is_theirs else first
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
        since = self._judge.changed.get(uid, 0.0)
        until = since + LATENESS
        deaf = {  # it knows another state, which was taken back
            plan.id
            for plan in plans
            if plan.kind == "update" and not plan.is_choosy and (call := last.get(plan.id))
            if call.wish != wish and (call.process.ended_at or until) >= until
        }
        if self._world.was_disturbed(since, until):
            deaf.clear()
        missed = wanted - done | deaf
        return [f"missed: {name} ({uid}): {essence}, by {sorted(missed)}"] if missed else []

    def _list_lost_effects(self, objects: Json) -> list[str]:
        """What handlers want is on the objects; peers do not know of each other's calls."""
        if self._world.plan.mode == "peering":
            return []
        bodies = {body["metadata"]["uid"]: body for body in objects.values()}
        return [
            f"loss: the effect of {call}"
            for call in self._world.calls
            if call.uid in bodies and not self.may_be_lost(self._wait_for_event(call))
            if self.is_lost(call, bodies[call.uid])
        ] + self._list_lost_values(bodies)

    def _wait_for_event(self, call: Call) -> Call:
        """Let a call end with the last one for the same event: they share a patch."""
        order = iter([plan.id for plan in call.process.handlers if plan.kind == "event"])
        if call.handler not in order:
            return call
        last, calls = call, self._world.calls
        for other in calls[calls.index(call) + 1 :]:
            if other.plan.kind != "event" or other.uid != call.uid:
                continue
            if other.process is not call.process or other.wish != call.wish:
                break
            if other.handler not in order:  # it is called for the next event
                break
            last = other
        return replace(call, end=last.end)

    def is_lost(self, call: Call, body: Json) -> bool:
        """Tell whether an object lacks what a handler wants, and the API server has not denied."""
        plan = call.plan
        if plan.effect == "result":
            key = f"{plan.id}/spec.value" if plan.kind == "field" else call.handler
        elif plan.effect in {"status", "label", "fn"} and call.handler == plan.id:
            key = f"of-{plan.id}"
        else:
            return False
        notes = {**body.get("status", {}), **body["metadata"].get("labels", {})}
        is_done = plan.kind not in BACKGROUND_KINDS and call.outcome == "ok"
        is_done &= call.reason != "DELETED"  # of events: their patches are dropped
        return is_done and key not in notes and not self.can_be_denied(call.begin)

    def _list_lost_values(self, bodies: Json) -> list[str]:
        """The values of timers and daemons are on the objects, or newer ones."""
        if self._world.plan.mode != "alone":
            return []
        running = {process.identity for process in self._world.processes if process.is_running}
        problems = []
        for (identity, uid, key), known in self._judge.values.items():
            before = self._world.loop.time() - LATENESS
            at, value = max((pair for pair in known if pair[0] < before), default=(0.0, 0))
            is_ours = identity in running and uid in bodies and not self.can_be_denied(at)
            is_ours = is_ours and not self._waits_for_next_call(identity, key, bodies[uid])
            if is_ours and bodies[uid].get("status", {}).get(key, 0) < value:
                problems.append(f"loss: {key} of {uid}, {value} since {at:.3f}")
        return problems

    def _waits_for_next_call(self, identity: str, key: str, body: Json) -> bool:
        """Tell whether a function that was not written waits for a call that may never come."""
        calls = (c for c in reversed(self._world.calls) if f"count-{c.plan.id}" == key)
        uid = body["metadata"]["uid"]
        last = next((c for c in calls if c.uid == uid and c.process.identity == identity), None)
        if last is None or last.plan.effect != "count-fn":
            return False
        is_stopped = last.outcome not in FINAL or not self._judge.wants(last.plan, body)
        return is_stopped or last.plan.idle is not None

    def can_be_denied(self, since: float) -> bool:
        """Tell whether the API server can have dropped a patch since some time."""
        return any(
            (step.kind == "alter" and self._judge.is_noticed_after(step.at, since))
            or (
                step.fault is not None
                and step.fault.status in _DENIALS
                and step.fault.kind == "status"
                and step.fault.path in PLURAL
                and (not step.fault.methods or "PATCH" in step.fault.methods)
                and (step.fault.status != 403 or step.kind == "policy" or step.seconds > _PATIENCE)
                and (
                    step.kind == "policy" or step.at - AFTERMATH <= since <= step.at + step.seconds
                )
            )
            for step in self._world.plan.steps
        )

    def _list_unresumed(self, objects: Json) -> list[str]:
        """An operator without others resumes the objects that are older than its process."""
        process = self._world.processes[-1] if self._world.processes else None
        if self._world.plan.mode != "alone" or process is None:
            return []
        since = process.started_at
        steps = self._world.plan.steps
        defined_at = next((step.at for step in steps if step.kind == "define"), 0.0)
        if since - LAG < defined_at + self._world.plan.discovery_lag:
            return []  # the kind is new to it, and so are its objects
        # What another process has resumed can be on record, until other handlers are done.
        done = {(c.handler, c.uid) for c in self._world.calls if c.outcome in FINAL}
        return [
            f"missed: {name} ({uid}), by {plan.id} in {process}"
            for plan in process.handlers
            if plan.kind == "resume" and not plan.is_general
            for name, body in objects.items()
            if self._judge.wants(plan, body)
            for uid in (body["metadata"]["uid"],)
            if not plan.is_choosy or self._judge.get_last_change(uid) < since
            if self._judge.born[uid] < since > self._world.lagging[1]
            if (plan.id, uid) not in done
        ]

    def _list_unseen_deletions(self) -> list[str]:
        """Event handlers get the deletions of all objects that their process has seen."""
        running = [process for process in self._world.processes if process.is_running]
        if self._world.plan.mode != "alone" and len(running) > 1:
            return []
        last = {
            (call.handler, call.uid): call
            for call in self._world.calls
            if call.plan.kind == "event" and not call.plan.is_choosy and call.process.is_running
        }
        return [
            f"missed: the deletion after {call}"
            for call in last.values()
            if call.uid in self._judge.gone and call.reason != "DELETED"
        ]
