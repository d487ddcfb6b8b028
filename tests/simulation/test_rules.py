"""Each rule of the simulation complains of what it is for, and of nothing beside it.

That no rule complains of what is right, or excused, is shown by the histories themselves.
"""

from __future__ import annotations

from typing import Any

import pytest

from tools.simulation.plans import Step
from tools.simulation.replicas import FINALIZER, GUARD, LABEL, PLURAL
from tools.simulation.scenes import CONFIGURATIONS, QUIET, Case, disturb, make, tell
from tools.simulation.stories import (
    act_after_takeover,
    ask_impatiently,
    attempt,
    begin_beside_rival,
    call_after_write,
    call_as_state_returns,
    call_beside_each_other,
    call_beside_peer,
    call_for_the_past,
    call_in_background,
    call_in_the_calm,
    call_timer,
    call_twice,
    change_back,
    change_finalizers,
    count,
    delete_object,
    end_operator,
    fill_index,
    go_on,
    go_on_after_deletion,
    keep_object,
    keep_parts,
    keep_timer,
    leave_record,
    leave_selector,
    look_into_index,
    make_value,
    overwrite,
    renew,
    resume_nothing,
    resume_younger,
    run_daemons,
    share,
    start_tasks,
    stop_in_vain,
    update_object,
    watch_object,
    write_in_the_calm,
)
from tools.simulation.virtual import EPOCH
from tools.simulation.webhook_stories import WEBHOOK_CALLS
from tools.simulation.world import OBJECTS
from webop.testing.apiserver import Json

MUTATING = CONFIGURATIONS.format("mutating")

HANDLERS = make("create0", "event0", "create1")
ALONE: Json = {"handlers": HANDLERS}
LABELLED: Json = {"spec": {"value": 1}, "metadata": {"labels": {"of-create0": "u0"}}}
CREATIONS: Json = {"handlers": make("create0")}
EVENTS: Json = {"handlers": make("event0")}
MARKED_EVENT: Json = {"handlers": (*make("create0"), *make("event0", effect="status"))}
MARKED_EVENTS: Json = {"handlers": make("event0", "event1", effect="status")}
LEASE: Json = {**ALONE, "mode": "lease"}
SHARDS: Json = {**ALONE, "mode": "shards"}
PEERING: Json = {**ALONE, "mode": "peering"}
ROUGH = disturb("slow")
ROUGH_OBJECTS = disturb("slow", path=PLURAL)
DEAF = disturb("mute")
LOCKED_OUT = disturb("status", at=0.5, status=401)
HANGING_PATCHES: Json = {
    "settings": {"networking": {"request_timeout": 10.0}},
    **disturb("hung", methods=("PATCH",)),
}
UNLOCKED: Json = {"steps": (Step(0.5, "unlock"),)}
PATCHING: Json = {"handlers": make("create0", "create1")}
ALTERED: Json = {"steps": (Step(0.5, "alter"),)}
STATUSES: Json = {"handlers": make("create0", effect="status")}
TIMERS: Json = {"handlers": make("timer0", idle=3.0)}
COUNTERS: Json = {"handlers": make("timer0", effect="count", idle=3.0)}
SLOW_COUNTERS: Json = {
    "handlers": make("timer0", effect="count", idle=3.0, seconds=3.0, is_sync=True)
}
TICKING: Json = {"handlers": make("timer0")}
SHARP: Json = {"handlers": make("timer0", is_sharp=True)}
LATE_TIMERS: Json = {"handlers": make("timer0", initial_delay=3.0)}
RESULTS: Json = {"handlers": make("create0", effect="result")}
RESUMING: Json = {"handlers": make("resume0")}
DELETES: Json = {"handlers": make("delete0")}
MARKED_DELETES: Json = {"handlers": make("delete0", effect="status")}
DAEMONS: Json = {"handlers": make("daemon0")}
CHOSEN: Json = {"handlers": make("daemon0", is_choosy=True)}
SELECTING: Json = {**CHOSEN, "settings": {"watching": {"label_selectors": {PLURAL: LABEL}}}}
KEEPING: Json = {"handlers": make("reconcile0")}
INDEX: Json = {"handlers": make("index0")}
UPDATES: Json = {"handlers": make("create0", "update0")}
FIELDS: Json = {"handlers": make("create0", "field0")}


LIMITED: Json = {"handlers": make("create0", retries=2)}
TIMED: Json = {"handlers": make("create0", timeout=3.0)}
TIMED_THREADS: Json = {"handlers": make("create0", timeout=3.0, is_sync=True)}


def _limit(number: int | None, **plan: Any) -> Json:
    return {**ALONE, "settings": {"batching": {"worker_limit": number}}, **plan}


CALLS = (
    tell("overlap", "two calls at once", call_twice, pause=None, essence="new", plan=ALONE),
    tell("overlap", "of two handlers", call_twice, pause=None, again="create1", plan=ALONE),
    tell("overlap", "under a Lease", call_twice, pause=None, essence="new", is_other=True,
         plan=LEASE),
    tell("overlap", "in a bad network", call_twice, pause=None, essence="new",
         plan={**LEASE, **ROUGH}),
    tell("overlap", "of events", call_twice, pause=None, first="event0", again="event0",
         plan=ALONE),
    tell("overlap", "begins after a takeover", act_after_takeover, what="begin", plan=LEASE),
    tell("overlap", "ends after a takeover", act_after_takeover, plan=LEASE),
    tell("overlap", "fails after a takeover", act_after_takeover, outcome="error", plan=LEASE),
    tell("overlap", "a timer after a takeover", act_after_takeover, what="begin",
         handler="timer0", plan={**TICKING, "mode": "lease"}),
    tell("overlap", "a daemon after a takeover", act_after_takeover, what="daemon", plan=LEASE),
    tell("overlap", "after a Lease was deleted, and taken", act_after_takeover,
         plan={**LEASE, **UNLOCKED}),
    tell("overlap", "for an object of another one's shard", share, is_stranger=True, plan=SHARDS),
    tell("shards", "two act on one", share, believed="31-63", plan=SHARDS),
    tell("shards", "one does not act on its own", share, believed="32-62", plan=SHARDS),
    tell("shards", "nobody owns one", share, owned="32-62", plan=SHARDS),
    tell("shards", "one has too few", share, owned="32-60", plan=SHARDS),
    tell("overlap", "beside a rival's call", begin_beside_rival, plan=PEERING),
    tell("overlap", "beside a rival's daemon", begin_beside_rival, what="daemon", plan=PEERING),
    tell("overlap", "beside a rival's record", begin_beside_rival, what="record", plan=PEERING),
    tell("overlap", "a daemon beside a rival", begin_beside_rival, is_daemon=True,
         plan={"handlers": make("create0", "daemon0"), "mode": "peering"}),
    tell("overlap", "in a network that is bad for objects only, beside a rival",
         begin_beside_rival, plan={**PEERING, **ROUGH_OBJECTS}),
    tell("repetition", "of a success", call_twice, plan=ALONE),
    tell("repetition", "of a failure for good", call_twice, outcome="permanent", plan=ALONE),
    tell("repetition", "by another replica", call_twice, is_other=True, plan=LEASE),
    tell("repetition", "alone in a bad network", call_twice, plan={**ALONE, **ROUGH}),
    tell("repetition", "of a holder, in a network that is bad for objects only", call_twice,
         plan={**LEASE, **ROUGH_OBJECTS}),
    tell("repetition", "after a write of another process", call_after_write,
         plan=ALONE),
    tell("repetition", "resumed twice", call_twice, cause="resume", plan=ALONE),
    tell("repetition", "resumed in another state", call_twice, cause="resume", essence="new",
         plan=ALONE),
    tell("repetition", "resumed after its creation", call_twice, reason="resume", plan=ALONE),
    tell("repetition", "of a state that stays", call_as_state_returns, moments=[],
         plan=UPDATES),
    tell("repetition", "of a state that has just come back", call_as_state_returns,
         moments=[0.3, 0.7], plan=UPDATES),
    tell("repetition", "by the next process", call_twice, is_other=True, fate="stopped",
         plan=ALONE),
    tell("repetition", "half a second before a kill", call_twice, is_other=True,
         fate="killed later", pause=0.45, plan=ALONE),
    tell("repetition", "again and again after the deletion", go_on_after_deletion, times=4,
         plan=ALONE),
    tell("repetition", "in vain again and again after the deletion", go_on_after_deletion, times=4,
         outcome="temporary", plan=ALONE),
    tell("stale", "a change", call_for_the_past, plan=ALONE),
    tell("stale", "a deletion", call_for_the_past, is_deleted=True, plan=ALONE),
    tell("attempts", "one too many", attempt, retry=2, plan=LIMITED),
    tell("attempts", "begins too late", attempt, age=5.0, plan=TIMED),
    tell("attempts", "ends too late", attempt, seconds=5.0, plan=TIMED),
    tell("attempts", "a thread begins too late", attempt, age=5.0, plan=TIMED_THREADS),
    tell("count of attempts", "begun anew", call_twice, outcome="error", plan=ALONE),
    tell("count of attempts", "one left out", call_twice, outcome="error", retry=2, plan=ALONE),
    tell("count of attempts", "another start", call_twice, outcome="error", retry=1,
         started=EPOCH, plan=ALONE),
    tell("count of attempts", "another start, by another replica", call_twice, outcome="error",
         retry=1, started=EPOCH, is_other=True, plan=LEASE),
    tell("count of attempts", "a resumption by another replica from the start", call_twice,
         outcome="error", first="resume0", again="resume0", cause="resume", is_other=True,
         plan={**LEASE, "handlers": make("resume0", timeout=3.0)}),
    tell("limit", "two at once, one allowed", call_twice, pause=None, uid="u2", plan=_limit(1)),
    tell("limit", "a thread whose kind has changed", call_twice, pause=None, uid="u2",
         plan=_limit(1, handlers=make("create0", is_sync=True), steps=(Step(0.4, "alter"),))),
    tell("too early", "1 of 5 s", call_twice, outcome="temporary", delay=5.0, retry=1, plan=ALONE),
    tell("too early", "in a bad network", call_twice, outcome="temporary", delay=5.0, retry=1,
         plan={**ALONE, **ROUGH}),
    tell("too early", "by the next peer", call_twice, outcome="temporary", delay=5.0, retry=1,
         is_other=True, plan=PEERING),
    tell("too early", "by a deaf peer itself", call_twice, outcome="temporary", delay=5.0, retry=1,
         plan={**PEERING, **DEAF}),
    tell("too early", "by one of two peers", call_beside_each_other, plan=PEERING),
    tell("too late", "5 s", call_twice, outcome="error", delay=1.0, pause=5.0, retry=1,
         plan=ALONE),
    tell("repetition", "of a sub-handler", call_twice, first="create0/sub", again="create0/sub",
         plan=ALONE),
    tell("repetition", "of a thread whose kind has changed", call_twice, duration=3.0,
         plan={"handlers": make("create0", is_sync=True), "steps": (Step(1.0, "alter"),)}),
    tell("count of attempts", "not as recorded", go_on, retry=1, plan=CREATIONS),
    tell("too early", "not as recorded", go_on, pause=4.0, plan=CREATIONS),
    tell("peering", "with a higher priority", call_beside_peer, plan=CREATIONS),
    tell("peering", "with the same priority", call_beside_peer, priority=0, plan=CREATIONS),
    tell("too early", "5 of 7 s", call_in_background, pause=5.0, plan=TICKING),
    tell("too early", "6 of 7 s since the begin", call_in_background, pause=5.5, plan=SHARP),
    tell("too early", "before the initial delay", call_in_background, age=2.0, plan=LATE_TIMERS),
    tell("too early", "1 of 5 s, of a timer", call_in_background, outcome="temporary", delay=5.0,
         pause=1.0, retry=1, plan=TICKING),
    tell("too early", "in a bad network, of a timer", call_in_background, pause=5.0,
         plan={**TICKING, **ROUGH}),
    tell("too late", "11 of 7 s", call_in_background, pause=11.0, plan=TICKING),
    tell("too late", "beside the multiples", call_in_background, pause=8.0, plan=SHARP),
    tell("too late", "5 of 1 s, of a timer", call_in_background, outcome="error", delay=1.0,
         pause=5.0, retry=1, plan=TICKING),
    tell("count of attempts", "of a timer, another start", call_in_background, outcome="error",
         retry=1, pause=1.0, started=EPOCH, plan=TICKING),
    tell("count of attempts", "of a timer after a success", call_in_background, retry=1,
         plan=TICKING),
    tell("count of attempts", "of a timer after a failure", call_in_background, outcome="error",
         pause=1.0, plan=TICKING),
    tell("count of attempts", "of the first call of a timer", call_in_background, first_retry=1,
         plan=TICKING),
    tell("overlap", "of one timer", call_in_background, pause=None, plan=TICKING),
    tell("daemon", "a timer after a failure for good", call_in_background, outcome="permanent",
         plan=TICKING),
    tell("daemon", "after its end", call_in_background, handler="daemon0", plan=DAEMONS),
    tell("daemon", "a timer that is started again", call_in_background, is_new=True,
         plan=TICKING),
    tell("timer", "never", keep_timer, plan=TICKING),
    tell("timer", "never, with limits", keep_timer,
         plan={"handlers": make("timer0", retries=1)}),
    tell("timer", "not any more", keep_timer, calls_at=1.0, plan=TICKING),
    tell("timer", "not any more, as it matches", keep_timer, calls_at=1.0, labels={LABEL: "yes"},
         plan={"handlers": make("timer0", is_choosy=True)}),
    tell("timer", "not any more, after a moment without a match", keep_timer, calls_at=1.0,
         is_changed=True, labels={LABEL: "yes"},
         plan={"handlers": make("timer0", is_choosy=True)}),
    tell("idle", "1 of 3 s", call_timer, plan=TIMERS),
)  # fmt: skip

WRITES = (
    tell("renewal", "after 9 s", renew),
    tell("renewal", "in a network that is bad for objects only", renew, plan=ROUGH_OBJECTS),
    tell("order", "3 after 4", count, plan=COUNTERS),
    tell("order", "0 after 1 was made", make_value, pause=1.0, plan=COUNTERS),
    tell("order", "0 after a thread has made 1", make_value, pause=4.0, plan=SLOW_COUNTERS),
    tell("order", "0 long after lost credentials", make_value, pause=40.0,
         plan={**COUNTERS, **LOCKED_OUT}),
    tell("loss", "1 of a timer", make_value, pause=0.1, is_lost=True, plan=COUNTERS),
    tell("loss", "1 of a timer, refused for a while", make_value, pause=0.1, is_lost=True,
         plan={**COUNTERS, **disturb("status", status=429)}),
    tell("wrong object", "an effect", keep_object, status={"of-create0": "u0"}, plan=CREATIONS),
    tell("wrong object", "a result", keep_object, status={"create0": {"uid": "u0"}},
         plan=CREATIONS),
    tell("wrong object", "a label", keep_object, labels={"of-create0": "u0"}, handled=LABELLED,
         plan=CREATIONS),
    tell("written twice", "over a user", overwrite),
    tell("written twice", "in a network that is bad for Leases", overwrite,
         plan=disturb("slow", path="leases")),
    tell("deletion", "not handled", delete_object, plan=DELETES),
    tell("deletion", "failed for now", delete_object, outcome="temporary", plan=DELETES),
    tell("loss", "at the end of an object", delete_object, outcome="ok", plan=MARKED_DELETES),
    tell("deletion", "while its daemon runs", delete_object, has_daemon=True, plan=DAEMONS),
    tell("leftover", "a task", end_operator),
    tell("failure", "of an operator", end_operator, seconds=0.5, error=ValueError("a bug")),
    tell("exit", "never", stop_in_vain),
    tell("impatience", "second 6 of 5 to 10", ask_impatiently, plan=PATCHING),
    tell("impatience", "for a newer version", ask_impatiently, plan=PATCHING,
         second={"metadata": {"annotations": {"a": "1"}, "resourceVersion": "2"}}),
    tell("impatience", "functions, for a newer version", ask_impatiently, plan=PATCHING,
         first=[{"op": "test", "path": "/a", "value": 1}, {"op": "remove", "path": "/a"}],
         second=[{"op": "test", "path": "/a", "value": 2}, {"op": "remove", "path": "/a"}]),
    tell("impatience", "less to write", ask_impatiently, second={"metadata": {}}, plan=PATCHING),
    tell("impatience", "twice as it stops", ask_impatiently, is_stopping=True, times=2,
         plan=PATCHING),
    tell("impatience", "webhooks", ask_impatiently, path=MUTATING, plan=PATCHING),
    tell("impatience", "a list", ask_impatiently, method="GET", path=OBJECTS, plan=PATCHING),
    tell("impatience", "as one of two handlers was done before", ask_impatiently, at=5.2,
         done_at=4.5, is_busy=True, plan=PATCHING),
    tell("impatience", "as a handler was just done", ask_impatiently, at=5.2, done_at=4.9,
         plan=PATCHING),
    tell("impatience", "as a slow handler goes on", ask_impatiently, is_busy=True,
         plan={"handlers": make("create0", "create1", seconds=4.5)}),
    tell("impatience", "as sub-handlers go on", ask_impatiently, is_busy=True,
         plan={"handlers": make("create0", "create1", seconds=3.5, subs=2)}),
    tell("impatience", "as the kind changes", ask_impatiently,
         plan={**PATCHING, "steps": (Step(5.5, "alter"),)}),
)  # fmt: skip

STATES = (
    tell("endless", "a call", call_in_the_calm, seconds=800.0, plan=ALONE),
    tell("deletion", "held", keep_object, is_deleted=True, finalizers=["a.b/c"], plan=ALONE),
    tell("unhandled", "never", keep_object, handled=None, called=(), plan=ALONE),
    tell("unhandled", "another state", keep_object, handled={"spec": {"value": 0}}, plan=ALONE),
    tell("missed", "by one of two", keep_object, plan=ALONE),
    tell("missed", "failed for now", keep_object, called=("create0", "create1"), outcome="error",
         plan=ALONE),
    tell("missed", "an update", update_object, called=(), plan=UPDATES),
    tell("missed", "a field", update_object, called=(), plan=FIELDS),
    tell("missed", "an update, of the last state", update_object, value=1, plan=UPDATES),
    tell("missed", "an update, of this object", update_object, uid="u2", plan=UPDATES),
    tell("missed", "an update after a restart", update_object, called=(), created=(),
         plan={"handlers": make("update0")}),
    tell("missed", "created before", keep_object, values=[0], plan=UPDATES),
    tell("missed", "created before by another process", keep_object, values=[0], is_other=True,
         plan=UPDATES),
    tell("missed", "created before by a peer", keep_object, values=[0],
         plan={**UPDATES, "mode": "peering"}),
    tell("missed", "created before under a Lease", keep_object, values=[0],
         plan={**UPDATES, "mode": "lease"}),
    tell("missed", "created long before the Lease holder has lost its credentials", keep_object,
         values=[0], plan={**UPDATES, "mode": "lease", **disturb("status", at=15.0, status=401)}),
    tell("missed", "changed back, and seen by the next process", change_back, is_seen=True,
         plan=UPDATES),
    tell("missed", "changed back long before the end", change_back, pause=11.0, plan=UPDATES),
    tell("missed", "a deletion", watch_object, plan=EVENTS),
    tell("missed", "a deletion, after an event", watch_object, reasons=("DELETED", "MODIFIED"),
         plan=EVENTS),
    tell("missed", "a deletion, not that of another", watch_object, again="u2", plan=EVENTS),
    tell("missed", "a deletion in a bad network", watch_object, plan={**EVENTS, **ROUGH}),
    tell("repetition", "a deletion", watch_object, reasons=("DELETED", "DELETED"), plan=EVENTS),
    tell("missed", "a deletion under a Lease, alone", watch_object,
         plan={**EVENTS, "mode": "lease"}),
    tell("missed", "a deletion while the kind changes", watch_object,
         plan={**EVENTS, **ALTERED}),
    tell("missed", "a deletion without credentials", watch_object,
         plan={**EVENTS, **LOCKED_OUT}),
    tell("loss", "an effect", keep_object, plan=STATUSES),
    tell("loss", "an effect of an event", keep_object, called=("create0", "event0"),
         plan=MARKED_EVENT),
    tell("loss", "an effect in a bad network", keep_object, plan={**STATUSES, **ROUGH}),
    tell("loss", "a label", keep_object, plan={"handlers": make("create0", effect="label")}),
    tell("loss", "a result", keep_object, plan=RESULTS),
    tell("loss", "a result of a sub-handler", keep_object, called=("create0", "create0/sub0"),
         notes=["create0"], plan=RESULTS),
    tell("loss", "an effect that is refused for a while", keep_object,
         plan={**STATUSES, **disturb("status", status=429)}),
    tell("loss", "an effect when Leases are denied", keep_object,
         plan={**STATUSES, **disturb("status", status=403, path="leases")}),
    tell("loss", "an effect under a Lease", keep_object, plan={**STATUSES, "mode": "lease"}),
    tell("loss", "an effect under a Lease of a replica that was stopped later", keep_object,
         is_stopped=True, plan={**STATUSES, "mode": "lease"}),
    tell("loss", "an effect of a replica that was stopped long after a patch hung", keep_object,
         is_stopped=True, pause=12.0, plan={**STATUSES, **HANGING_PATCHES}),
    tell("repetition", "a resumption in a creation", resume_younger, plan=RESUMING),
    tell("repetition", "a resumption in a creation after a lockout", resume_younger,
         plan={**RESUMING, **disturb("status", at=10.5, status=401)}),
    tell("missed", "a resumption", resume_nothing, plan=RESUMING),
    tell("loss", "an effect of an event before a handler of a change was killed", keep_object,
         duration=3.0, called=("event0", "create0"), is_dead=True, plan=MARKED_EVENT),
    tell("loss", "an effect of the event before the one whose handler was killed", keep_object,
         duration=3.0, called=("event1", "event0"), is_dead=True, plan=MARKED_EVENTS),
    tell("loss", "an effect long after the kind has changed", keep_object, pause=45.0,
         plan={**STATUSES, **ALTERED}),
    tell("loss", "an effect after watches have hung", keep_object, pause=90.0,
         plan={**STATUSES, "steps": (*disturb("lost")["steps"], Step(2.0, "alter"))}),
    tell("progress", "an annotation", keep_object, annotations={"kopf.zalando.org/create0": "{}"},
         plan=UPDATES),
    tell("progress", "a status", keep_object, status={"kopf": {}}, plan=UPDATES),
    tell("progress", "after a restart", keep_object, status={"kopf": {}}, successors=1,
         plan=UPDATES),
    tell("progress", "of a late request", leave_record, plan=UPDATES),
    tell("finalizer", "of others, removed", change_finalizers, before=[GUARD, FINALIZER], after=[],
         plan=ALONE),
    tell("finalizer", "of others, added", change_finalizers, before=[], after=[GUARD, FINALIZER],
         plan=ALONE),
    tell("finalizer", "missing", keep_object, plan={"handlers": make("create0", "delete0")}),
    tell("finalizer", "for nothing", keep_object, finalizers=[FINALIZER], plan=UPDATES),
    tell("finalizer", "of what has left the selector", leave_selector, plan=SELECTING),
    tell("daemon", "does not run", run_daemons, counts=(0,), plan=DAEMONS),
    tell("daemon", "runs twice", run_daemons, counts=(2,), plan=DAEMONS),
    tell("daemon", "in two replicas", run_daemons, counts=(1, 1), plan=DAEMONS),
    tell("daemon", "not chosen", run_daemons, labels={"a": "b"}, plan=CHOSEN),
    tell("daemon", "started while it runs", run_daemons, starts=True, plan=DAEMONS),
    tell("daemon", "started after it has ended by itself", run_daemons, counts=(0,),
         has_ended=True, starts=True, plan=DAEMONS),
    tell("index", "empty", fill_index, values=(), plan=INDEX),
    tell("index", "an older value", fill_index, values=(0,), plan=INDEX),
    tell("index", "a value too many", fill_index, values=(1, 1), plan=INDEX),
    tell("index", "under a former key", fill_index, values=(1,),
         keys=("one", "one has 0", "one has 1"), plan=INDEX),
    tell("index", "not chosen", fill_index, values=(1,),
         plan={"handlers": make("index0", is_choosy=True)}),
    tell("index", "seen in parts", look_into_index, plan=INDEX),
    tell("index", "seen in parts after the kind has changed", look_into_index,
         plan={**INDEX, **ALTERED}),
    tell("parts", "with another value", keep_parts, value=2, plan=KEEPING),
    tell("parts", "one is lost", keep_parts, lost="one-b", plan=KEEPING),
    tell("parts", "one of others is lost", keep_parts, lost="foreign", plan=KEEPING),
    tell("unrest", "a write", write_in_the_calm),
    tell("unrest", "a call", call_in_the_calm, at=QUIET, plan=ALONE),
    tell("daemon", "lost at last", run_daemons, lost_at=QUIET, plan=DAEMONS),
    tell("growth", "401 tasks", start_tasks, number=401),
)  # fmt: skip

CASES = (*CALLS, *WRITES, *STATES, *WEBHOOK_CALLS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}: {case.what}")
def test_a_rule_is_broken_by_its_fault(case: Case) -> None:
    complaints = case.judge()
    assert {complaint.partition(":")[0] for complaint in complaints} == {case.rule}, complaints
