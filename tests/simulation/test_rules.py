"""Each rule of the simulation complains of what it is for, and of nothing beside it.

Each story of :mod:`tests.simulation.stories` is told with its fault, and then with neighbours of
the fault that are right, or that the documentation excuses.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.cluster import Json
from tests.simulation.plans import Attempt, Step
from tests.simulation.replicas import FINALIZER, LABEL, PLURAL
from tests.simulation.scenes import CALM, CONFIGURATIONS, QUIET, Case, disturb, make, tell
from tests.simulation.stories import (
    act_after_takeover,
    ask_impatiently,
    attempt,
    begin_beside_rival,
    call_as_state_returns,
    call_beside_each_other,
    call_beside_peer,
    call_in_background,
    call_in_the_calm,
    call_timer,
    call_twice,
    count,
    delete_object,
    end_operator,
    fill_index,
    go_on,
    keep_object,
    keep_timer,
    look_into_index,
    make_value,
    overwrite,
    renew,
    resume_object,
    run_daemons,
    start_tasks,
    stop_at_the_end,
    update_object,
    watch_object,
    write_in_the_calm,
)
from tests.simulation.virtual import EPOCH
from tests.simulation.webhook_stories import WEBHOOK_CALLS
from tests.simulation.world import OBJECTS
from webop.errors import WebopError

MUTATING = CONFIGURATIONS.format("mutating")
HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs" / "simulation.md"

HANDLERS = make("create0", "event0", "create1")
ALONE: Json = {"handlers": HANDLERS}
LABELLED: Json = {"spec": {"value": 1}, "metadata": {"labels": {"of-create0": "u0"}}}
CREATIONS: Json = {"handlers": make("create0")}
EVENTS: Json = {"handlers": make("event0")}
LEASE: Json = {**ALONE, "mode": "lease"}
PEERING: Json = {**ALONE, "mode": "peering"}
ROUGH = disturb("slow")
ROUGH_OBJECTS = disturb("slow", path=PLURAL)
ROUGH_PEERINGS = disturb("slow", path="kopfpeering")
DEAF = disturb("mute")
LOCKED_OUT = disturb("status", at=0.5, status=401)
DENYING = disturb("status", status=403)
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
    tell("", "one after another", call_twice, essence="new", plan=ALONE),
    tell("", "for two objects", call_twice, pause=None, uid="u2", plan=ALONE),
    tell("", "an event beside", call_twice, pause=None, again="event0", plan=ALONE),
    tell("", "of a sub-handler", call_twice, pause=None, again="create0/sub", plan=ALONE),
    tell("", "of two peers", call_twice, pause=None, essence="new", is_other=True, plan=PEERING),
    tell("", "paused", call_twice, pause=None, essence="new", is_other=True, fate="paused",
         plan=LEASE),
    tell("", "killed", call_twice, pause=None, is_other=True, fate="killed", plan=LEASE),
    tell("overlap", "begins after a takeover", act_after_takeover, what="begin", plan=LEASE),
    tell("overlap", "ends after a takeover", act_after_takeover, plan=LEASE),
    tell("overlap", "fails after a takeover", act_after_takeover, outcome="error", plan=LEASE),
    tell("overlap", "a timer after a takeover", act_after_takeover, what="begin",
         handler="timer0", plan={**TICKING, "mode": "lease"}),
    tell("overlap", "a daemon after a takeover", act_after_takeover, what="daemon", plan=LEASE),
    tell("overlap", "after a Lease was deleted, and taken", act_after_takeover,
         plan={**LEASE, **UNLOCKED}),
    tell("", "of a replica that is later than a deleted Lease", act_after_takeover, is_late=True,
         plan={**LEASE, **UNLOCKED}),
    tell("", "of the holder", act_after_takeover, holder="replica-0-1", plan=LEASE),
    tell("", "of nobody's Lease", act_after_takeover, holder="", plan=LEASE),
    tell("", "timed out after a takeover", act_after_takeover, outcome="timeout", plan=LEASE),
    tell("", "cancelled after a takeover", act_after_takeover, outcome="cancelled", plan=LEASE),
    tell("", "of a thread after a takeover", act_after_takeover,
         plan={"handlers": make("create0", is_sync=True), "mode": "lease"}),
    tell("", "without a Lease", act_after_takeover, plan=ALONE),
    tell("overlap", "beside a rival's call", begin_beside_rival, plan=PEERING),
    tell("overlap", "beside a rival's daemon", begin_beside_rival, what="daemon", plan=PEERING),
    tell("overlap", "beside a rival's record", begin_beside_rival, what="record", plan=PEERING),
    tell("overlap", "a daemon beside a rival", begin_beside_rival, is_daemon=True,
         plan={"handlers": make("create0", "daemon0"), "mode": "peering"}),
    tell("overlap", "in a network that is bad for objects only, beside a rival",
         begin_beside_rival, plan={**PEERING, **ROUGH_OBJECTS}),
    tell("", "beside a lesser peer", begin_beside_rival, number=-1, plan=PEERING),
    tell("", "beside a rival that is idle", begin_beside_rival, what="", plan=PEERING),
    tell("", "beside a rival that has done its work", begin_beside_rival, fate="done",
         plan=PEERING),
    tell("", "beside a rival that has just begun", begin_beside_rival, pause=0.1, plan=PEERING),
    tell("", "beside a rival that is paused", begin_beside_rival, fate="paused", plan=PEERING),
    tell("", "beside a rival that was killed", begin_beside_rival, fate="killed", plan=PEERING),
    tell("", "alone beside a rival", begin_beside_rival, plan=ALONE),
    tell("", "deaf beside a rival", begin_beside_rival, plan={**PEERING, **DEAF}),
    tell("", "beside a rival in a bad network", begin_beside_rival,
         plan={**PEERING, **ROUGH_PEERINGS}),
    tell("repetition", "of a success", call_twice, plan=ALONE),
    tell("repetition", "of a failure for good", call_twice, outcome="permanent", plan=ALONE),
    tell("repetition", "by another replica", call_twice, is_other=True, plan=LEASE),
    tell("repetition", "alone in a bad network", call_twice, plan={**ALONE, **ROUGH}),
    tell("repetition", "of a holder, in a network that is bad for objects only", call_twice,
         plan={**LEASE, **ROUGH_OBJECTS}),
    tell("", "of a holder in a bad network", call_twice, plan={**LEASE, **ROUGH}),
    tell("", "of a peer in a bad network", call_twice, plan={**PEERING, **ROUGH_OBJECTS}),
    tell("", "another state", call_twice, essence="new", plan=ALONE),
    tell("", "another object", call_twice, uid="u2", plan=ALONE),
    tell("", "another cause", call_twice, reason="update", plan=ALONE),
    tell("", "another handler", call_twice, again="create1", plan=ALONE),
    tell("repetition", "resumed twice", call_twice, cause="resume", plan=ALONE),
    tell("repetition", "resumed in another state", call_twice, cause="resume", essence="new",
         plan=ALONE),
    tell("repetition", "resumed after its creation", call_twice, reason="resume", plan=ALONE),
    tell("", "resumed by the next process", call_twice, cause="resume", is_other=True,
         plan=ALONE),
    tell("", "resumed after a failure for now", call_twice, cause="resume", outcome="error",
         retry=1, plan=ALONE),
    tell("", "resumed by two handlers", call_twice, cause="resume", again="create1", plan=ALONE),
    tell("", "resumed by a new leader", call_twice, cause="resume", plan=LEASE),
    tell("repetition", "of a state that stays", call_as_state_returns, moments=[],
         plan=UPDATES),
    tell("repetition", "of a state that has just come back", call_as_state_returns,
         moments=[0.3, 0.7], plan=UPDATES),
    tell("", "of a state that comes back", call_as_state_returns, moments=[1.5, 2.0], plan=UPDATES),
    tell("", "of a state that has gone before the call", call_as_state_returns,
         moments=[0.7, 2.0], plan=UPDATES),
    tell("", "of a state that has gone and come back just before the call",
         call_as_state_returns, moments=[0.85, 0.9], plan=UPDATES),
    tell("", "an event", call_twice, first="event0", again="event0", plan=ALONE),
    tell("repetition", "by the next process", call_twice, is_other=True, fate="stopped",
         plan=ALONE),
    tell("", "by the next process, as the status has moved", call_twice, is_other=True,
         fate="stopped", plan={**ALONE, **ALTERED}),
    tell("", "by the next process, at once", call_twice, is_other=True, fate="stopped", pause=0.1,
         plan=ALONE),
    tell("", "by the next process, in a bad network", call_twice, is_other=True, fate="stopped",
         plan={**ALONE, **ROUGH}),
    tell("", "alone after a restart", call_twice, is_other=True, plan={**ALONE, **ROUGH}),
    tell("", "after the deletion", call_twice, fate="deleted", plan=ALONE),
    tell("", "after a kill", call_twice, is_other=True, fate="killed", plan=LEASE),
    tell("attempts", "one too many", attempt, retry=2, plan=LIMITED),
    tell("attempts", "begins too late", attempt, age=5.0, plan=TIMED),
    tell("attempts", "ends too late", attempt, seconds=5.0, plan=TIMED),
    tell("attempts", "a thread begins too late", attempt, age=5.0, plan=TIMED_THREADS),
    tell("", "the last one", attempt, retry=1, plan=LIMITED),
    tell("", "in time", attempt, age=2.9, plan=TIMED),
    tell("", "a thread ends too late", attempt, seconds=5.0, plan=TIMED_THREADS),
    tell("", "of a process that was paused", attempt, seconds=5.0,
         plan={**TIMED, "steps": (Step(1.0, "pause", 0, 2.0),)}),
    tell("", "by a wrong clock", attempt, age=5.0, skew=-3.0, plan=TIMED),
    tell("", "of a sub-handler", attempt, handler="create0/sub0", retry=2, plan=LIMITED),
    tell("count of attempts", "begun anew", call_twice, outcome="error", plan=ALONE),
    tell("count of attempts", "one left out", call_twice, outcome="error", retry=2, plan=ALONE),
    tell("count of attempts", "another start", call_twice, outcome="error", retry=1,
         started=EPOCH, plan=ALONE),
    tell("", "counted on", call_twice, outcome="error", retry=1, plan=ALONE),
    tell("", "after a cancellation", call_twice, outcome="cancelled", plan=ALONE),
    tell("limit", "two at once, one allowed", call_twice, pause=None, uid="u2", plan=_limit(1)),
    tell("", "a thread whose kind has changed", call_twice, pause=None, uid="u2",
         plan=_limit(1, handlers=make("create0", is_sync=True), steps=(Step(0.4, "alter"),))),
    tell("", "two allowed", call_twice, pause=None, uid="u2", plan=_limit(2)),
    tell("", "one of events", call_twice, pause=None, uid="u2", again="event0", plan=_limit(1)),
    tell("", "two replicas", call_twice, pause=None, uid="u2", is_other=True, plan=_limit(1)),
    tell("too early", "1 of 5 s", call_twice, outcome="temporary", delay=5.0, retry=1, plan=ALONE),
    tell("too early", "in a bad network", call_twice, outcome="temporary", delay=5.0, retry=1,
         plan={**ALONE, **ROUGH}),
    tell("too early", "by the next peer", call_twice, outcome="temporary", delay=5.0, retry=1,
         is_other=True, plan=PEERING),
    tell("too early", "by a deaf peer itself", call_twice, outcome="temporary", delay=5.0, retry=1,
         plan={**PEERING, **DEAF}),
    tell("too early", "by one of two peers", call_beside_each_other, pause=0.5, plan=PEERING),
    tell("", "by one of two peers, as its own call wanted", call_beside_each_other, plan=PEERING),
    tell("", "by the next peer, deaf", call_twice, outcome="temporary", delay=5.0, retry=1,
         is_other=True, plan={**PEERING, **DEAF}),
    tell("", "5 s", call_twice, outcome="temporary", delay=5.0, pause=5.0, retry=1, plan=ALONE),
    tell("", "by a clock that is ahead", call_twice, outcome="temporary", delay=5.0, retry=1,
         fate="skewed", plan=ALONE),
    tell("", "1 of 5 s, begun anew", call_twice, outcome="error", delay=5.0, is_other=True,
         plan={**LEASE, **ROUGH}),
    tell("too late", "5 s", call_twice, outcome="error", delay=1.0, pause=5.0, retry=1,
         plan=ALONE),
    tell("", "3 s", call_twice, outcome="error", delay=1.0, pause=3.5, retry=1, plan=ALONE),
    tell("", "8 s, 5 of them for another handler", call_twice, outcome="error", delay=1.0,
         pause=3.5, between="create1", retry=1,
         plan={**ALONE, "handlers": make("create0", "create1")}),
    tell("", "in a crowd", call_twice, outcome="error", pause=15.0, retry=1, plan=_limit(1)),
    tell("", "15 s of a bad network", call_twice, outcome="error", pause=15.0, retry=1,
         plan={**ALONE, **ROUGH}),
    tell("repetition", "of a sub-handler", call_twice, first="create0/sub", again="create0/sub",
         plan=ALONE),
    tell("", "of a thread whose kind has changed", call_twice, duration=3.0,
         plan={"handlers": make("create0", is_sync=True), "steps": (Step(1.0, "alter"),)}),
    tell("repetition", "of a quick thread", call_twice,
         plan={"handlers": make("create0", is_sync=True), "steps": (Step(0.55, "alter"),)}),
    tell("count of attempts", "not as recorded", go_on, retry=1, plan=CREATIONS),
    tell("too early", "not as recorded", go_on, pause=4.0, plan=CREATIONS),
    tell("", "as recorded", go_on, plan=CREATIONS),
    tell("", "recorded for another cause", go_on, retry=0, pause=4.0, recorded="update",
         plan=CREATIONS),
    tell("", "recorded as done", go_on, retry=0, success=True, plan=CREATIONS),
    tell("", "recorded by a peer", go_on, retry=0, plan={**CREATIONS, "mode": "peering"}),
    tell("peering", "with a higher priority", call_beside_peer, plan=CREATIONS),
    tell("peering", "with the same priority", call_beside_peer, priority=0, plan=CREATIONS),
    tell("", "with a lower priority", call_beside_peer, priority=-1, plan=CREATIONS),
    tell("", "who has just come", call_beside_peer, pause=1.0, plan=CREATIONS),
    tell("", "who has left", call_beside_peer, pause=11.0, plan=CREATIONS),
    tell("", "in a bad network", call_beside_peer, plan={**CREATIONS, **ROUGH}),
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
    tell("daemon", "a timer that is started again", call_in_background, again="new",
         plan=TICKING),
    tell("", "7 s", call_in_background, plan=TICKING),
    tell("", "7 s since the begin", call_in_background, pause=6.5, plan=SHARP),
    tell("", "14 s since the begin", call_in_background, pause=6.5, duration=7.5, plan=SHARP),
    tell("", "after the initial delay", call_in_background, plan=LATE_TIMERS),
    tell("", "11 s in a bad network", call_in_background, pause=11.0, plan={**TICKING, **ROUGH}),
    tell("", "5 s, of a daemon", call_in_background, handler="daemon0", outcome="temporary",
         delay=5.0, pause=5.0, retry=1, plan=DAEMONS),
    tell("", "a timer that was stopped", call_in_background, again="stopped", pause=1.0,
         plan=TICKING),
    tell("", "of two replicas", call_in_background, again="new", pause=1.0, is_other=True,
         plan=TICKING),
    tell("", "a new leader's timer", call_in_background, again="new", pause=1.0,
         plan={**TICKING, "mode": "lease"}),
    tell("timer", "never", keep_timer, calls_at=None, plan=TICKING),
    tell("", "never, as it may have failed for good", keep_timer, calls_at=None,
         plan={"handlers": make("timer0", retries=1, attempts=(Attempt("error"),))}),
    tell("timer", "never, with limits", keep_timer, calls_at=None,
         plan={"handlers": make("timer0", retries=1)}),
    tell("timer", "not any more", keep_timer, calls_at=1.0, plan=TICKING),
    tell("timer", "not any more, as it matches", keep_timer, calls_at=1.0, labels={LABEL: "yes"},
         plan={"handlers": make("timer0", is_choosy=True)}),
    tell("", "not any more, as the object did not match for a moment", keep_timer, calls_at=1.0,
         is_changed=True, labels={LABEL: "yes"},
         plan={"handlers": make("timer0", is_choosy=True)}),
    tell("", "in the calm", keep_timer, plan=TICKING),
    tell("", "that waits for idle", keep_timer, calls_at=None, plan=TIMERS),
    tell("", "of what does not match", keep_timer, calls_at=None, finalizers=(),
         plan={"handlers": make("timer0", is_choosy=True)}),
    tell("idle", "1 of 3 s", call_timer, plan=TIMERS),
    tell("", "3 s", call_timer, age=3.0, plan=TIMERS),
    tell("", "a write of the replica", call_timer, age=4.0, written=3.0, plan=TIMERS),
    tell("", "a change that has not come yet", call_timer, age=0.1, plan=TIMERS),
    tell("", "without idle", call_timer, plan=TICKING),
    tell("", "1 s in a bad network", call_timer, plan={**TIMERS, **ROUGH}),
)  # fmt: skip

WRITES = (
    tell("renewal", "after 9 s", renew),
    tell("renewal", "in a network that is bad for objects only", renew, plan=ROUGH_OBJECTS),
    tell("", "after 7 s", renew, pause=7.0),
    tell("", "by the next holder", renew, then="two"),
    tell("", "in a bad network", renew, plan=ROUGH),
    tell("", "released", renew, first="", then=""),
    tell("order", "3 after 4", count, plan=COUNTERS),
    tell("", "5 after 4", count, second=5, plan=COUNTERS),
    tell("", "by another replica", count, is_other=True, plan=COUNTERS),
    tell("order", "0 after 1 was made", make_value, pause=1.0, plan=COUNTERS),
    tell("order", "0 after a thread has made 1", make_value, pause=4.0, plan=SLOW_COUNTERS),
    tell("loss", "1 of a timer", make_value, pause=0.1, is_lost=True, plan=COUNTERS),
    tell("loss", "1 of a timer, refused for a while", make_value, pause=0.1, is_lost=True,
         plan={**COUNTERS, **disturb("status", status=429)}),
    tell("", "1 of a timer that is denied", make_value, pause=0.1, is_lost=True,
         plan={**COUNTERS, **DENYING}),
    tell("", "1 of a timer of a killed replica", make_value, pause=0.1, is_lost=True,
         is_dead=True, plan=COUNTERS),
    tell("", "0 just when 1 is made", make_value, pause=0.1, plan=COUNTERS),
    tell("", "0 while a thread makes 1", make_value, pause=1.0, plan=SLOW_COUNTERS),
    tell("wrong object", "an effect", keep_object, status={"of-create0": "u0"}, plan=CREATIONS),
    tell("wrong object", "a result", keep_object, status={"create0": {"uid": "u0"}},
         plan=CREATIONS),
    tell("wrong object", "a label", keep_object, labels={"of-create0": "u0"}, handled=LABELLED,
         plan=CREATIONS),
    tell("", "of its own", keep_object, notes=["of-create0", "create0"], plan=CREATIONS),
    tell("", "a word of somebody else", keep_object, status={"note": "u0"}, plan=CREATIONS),
    tell("written twice", "over a user", overwrite),
    tell("", "by an event handler", overwrite, key="of-event0", plan=EVENTS),
    tell("written twice", "in a network that is bad for Leases", overwrite,
         plan=disturb("slow", path="leases")),
    tell("", "another value", overwrite, count=3),
    tell("", "with nobody between", overwrite, is_other=False),
    tell("", "in a bad network", overwrite, plan=ROUGH),
    tell("", "after a pause", overwrite, plan={"steps": (Step(0.0, "pause", 0, 1.0),)}),
    tell("deletion", "not handled", delete_object, plan=DELETES),
    tell("deletion", "failed for now", delete_object, outcome="temporary", plan=DELETES),
    tell("", "failed for now, maybe without another attempt", delete_object, outcome="temporary",
         plan={"handlers": make("delete0", timeout=3.0)}),
    tell("", "handled", delete_object, outcome="ok", plan=DELETES),
    tell("", "failed for good", delete_object, outcome="permanent", plan=DELETES),
    tell("loss", "at the end of an object", delete_object, outcome="ok", plan=MARKED_DELETES),
    tell("", "at the end of an object, of a failure", delete_object, outcome="permanent",
         plan=MARKED_DELETES),
    tell("", "at the end of an object, denied", delete_object, outcome="ok",
         plan={**MARKED_DELETES, **DENYING}),
    tell("", "not guarded", delete_object, finalizers=(), plan=DELETES),
    tell("", "released before", delete_object, is_released=True, plan=DELETES),
    tell("", "not created", delete_object, outcome="ok",
         plan={"handlers": make("delete0", "create0")}),
    tell("", "guarded by others", delete_object, finalizers=("a.b/c",), plan=DELETES),
    tell("", "of no handler", delete_object, plan={"handlers": make("delete0", is_choosy=True)}),
    tell("deletion", "while its daemon runs", delete_object, daemon="own", plan=DAEMONS),
    tell("", "after its daemon", delete_object, plan=DAEMONS),
    tell("", "while another's daemon runs", delete_object, daemon="u2", plan=DAEMONS),
    tell("", "with a daemon that was killed", delete_object, daemon="own", is_dead=True,
         plan=DAEMONS),
    tell("", "with a daemon, not guarded", delete_object, daemon="own", finalizers=(),
         plan=DAEMONS),
    tell("", "with a daemon of two replicas", delete_object, daemon="own",
         plan={**DAEMONS, "mode": "lease"}),
    tell("leftover", "a task", end_operator),
    tell("", "of another operator", end_operator, owner=1),
    tell("", "a task that has ended", end_operator, seconds=0.5),
    tell("failure", "of an operator", end_operator, seconds=0.5, error=ValueError("a bug")),
    tell("", "of a kind that is known", end_operator, seconds=0.5, error=WebopError("no access")),
    tell("exit", "never", stop_at_the_end, is_stubborn=True),
    tell("", "at once", stop_at_the_end, is_stubborn=False),
    tell("impatience", "second 6 of 5 to 10", ask_impatiently, plan=PATCHING),
    tell("impatience", "for a newer version", ask_impatiently, plan=PATCHING,
         second={"metadata": {"annotations": {"a": "1"}, "resourceVersion": "2"}}),
    tell("impatience", "functions, for a newer version", ask_impatiently, plan=PATCHING,
         first=[{"op": "test", "path": "/a", "value": 1}, {"op": "remove", "path": "/a"}],
         second=[{"op": "test", "path": "/a", "value": 2}, {"op": "remove", "path": "/a"}]),
    tell("impatience", "less to write", ask_impatiently, second={"metadata": {}}, plan=PATCHING),
    tell("impatience", "stopping", ask_impatiently, is_stopping=True, plan=PATCHING),
    tell("impatience", "webhooks", ask_impatiently, path=MUTATING, plan=PATCHING),
    tell("impatience", "a list", ask_impatiently, method="GET", path=OBJECTS, plan=PATCHING),
    tell("impatience", "as one of two handlers was done before", ask_impatiently, at=5.2,
         done_at=4.5, is_busy=True, plan=PATCHING),
    tell("impatience", "as a handler was just done", ask_impatiently, at=5.2, done_at=4.9,
         plan=PATCHING),
    tell("", "as one of two handlers was just done", ask_impatiently, at=5.2, done_at=4.9,
         is_busy=True, plan=PATCHING),
    tell("", "another kind's list", ask_impatiently, method="GET",
         path=OBJECTS.replace("things", "others"), plan=PATCHING),
    tell("", "a list while the kind changes", ask_impatiently, method="GET", path=OBJECTS,
         plan={**PATCHING, "steps": (Step(5.5, "alter"),)}),
    tell("", "a list of a new leader", ask_impatiently, method="GET", path=OBJECTS,
         plan={**PATCHING, "mode": "lease"}),
    tell("", "in second 11", ask_impatiently, at=11.0, plan=PATCHING),
    tell("", "more to write", ask_impatiently, second={"status": {"a": 1}}, plan=PATCHING),
    tell("", "another value", ask_impatiently,
         second={"metadata": {"annotations": {"a": "2"}}}, plan=PATCHING),
    tell("", "by another replica", ask_impatiently, is_other=True, plan=PATCHING),
    tell("", "another object of the name", ask_impatiently, is_new=True, plan=PATCHING),
    tell("", "by the next watch of the kind", ask_impatiently,
         plan={**PATCHING, "steps": (Step(5.5, "alter"),)}),
    tell("", "webhooks at the end", ask_impatiently, path=MUTATING, is_stopping=True,
         plan=PATCHING),
)  # fmt: skip

STATES = (
    tell("endless", "a call", call_in_the_calm, seconds=800.0, plan=ALONE),
    tell("", "a call that ends", call_in_the_calm, plan=ALONE),
    tell("", "an event's", call_in_the_calm, handler="event0", seconds=800.0, plan=ALONE),
    tell("deletion", "held", keep_object, is_deleted=True, finalizers=["a.b/c"], plan=ALONE),
    tell("", "done", keep_object, is_deleted=True, plan=ALONE),
    tell("unhandled", "never", keep_object, handled=None, called=(), plan=ALONE),
    tell("unhandled", "another state", keep_object, handled={"spec": {"value": 0}}, plan=ALONE),
    tell("", "handled", keep_object, called=("create0", "create1"), plan=ALONE),
    tell("", "by no handler", keep_object, handled=None, called=(), plan=EVENTS),
    tell("missed", "by one of two", keep_object, plan=ALONE),
    tell("missed", "failed for now", keep_object, called=("create0", "create1"), outcome="error",
         plan=ALONE),
    tell("missed", "an update", update_object, called=(), plan=UPDATES),
    tell("", "an update, maybe without an attempt in time", update_object, called=(),
         plan={"handlers": (*make("create0"), *make("update0", timeout=3.0))}),
    tell("missed", "a field", update_object, called=(), plan=FIELDS),
    tell("missed", "an update, of the last state", update_object, value=1, plan=UPDATES),
    tell("missed", "an update, of this object", update_object, uid="u2", plan=UPDATES),
    tell("missed", "an update after a restart", update_object, called=(), created=(),
         plan={"handlers": make("update0")}),
    tell("", "an update that was handled", update_object, plan=UPDATES),
    tell("", "a field that was handled", update_object, called=("field0",), plan=FIELDS),
    tell("", "failed for good", keep_object, called=("create0", "create1"), outcome="permanent",
         plan=ALONE),
    tell("", "no update at first", keep_object, plan=UPDATES),
    tell("", "no field at first", keep_object, plan=FIELDS),
    tell("", "an older event", keep_object, called=["event0"], values=[0],
         plan={"handlers": make("event0", "update0")}),
    tell("", "an older call, killed", keep_object, values=[0], is_dead=True, successors=1,
         plan=UPDATES),
    tell("", "an older call, not chosen any more", keep_object, values=[0],
         plan={"handlers": (*make("create0", is_choosy=True), *make("update0"))}),
    tell("missed", "created before", keep_object, values=[0], plan=UPDATES),
    tell("", "created before and, as its outcome was lost, again", keep_object, values=[0, 1],
         plan=UPDATES),
    tell("", "created before with a field", keep_object, called=["create0", "field0"],
         values=[0, 1], plan=FIELDS),
    tell("missed", "created before by another process", keep_object, values=[0], is_other=True,
         plan=UPDATES),
    tell("missed", "created before by a peer", keep_object, values=[0],
         plan={**UPDATES, "mode": "peering"}),
    tell("missed", "created before under a Lease", keep_object, values=[0],
         plan={**UPDATES, "mode": "lease"}),
    tell("", "created before by another peer", keep_object, values=[0], is_other=True,
         plan={**UPDATES, "mode": "peering"}),
    tell("missed", "created long before the Lease holder has lost its credentials", keep_object,
         values=[0], plan={**UPDATES, "mode": "lease", **disturb("status", at=15.0, status=401)}),
    tell("", "created before the Lease holder has lost its credentials", keep_object, values=[0],
         plan={**UPDATES, "mode": "lease", **LOCKED_OUT}),
    tell("", "chosen later", keep_object, called=(), labels={LABEL: "yes"},
         handled={"spec": {"value": 1}, "metadata": {"labels": {LABEL: "yes"}}},
         plan={"handlers": make("create0", is_choosy=True)}),
    tell("", "created as it was before", keep_object, values=[0], plan=CREATIONS),
    tell("missed", "a deletion", watch_object, plan=EVENTS),
    tell("missed", "a deletion, after an event", watch_object, reasons=("DELETED", "MODIFIED"),
         plan=EVENTS),
    tell("missed", "a deletion, not that of another", watch_object, again="u2", plan=EVENTS),
    tell("missed", "a deletion in a bad network", watch_object, plan={**EVENTS, **ROUGH}),
    tell("", "a deletion that was seen", watch_object, reasons=("ADDED", "DELETED"), plan=EVENTS),
    tell("repetition", "a deletion", watch_object, reasons=("DELETED", "DELETED"), plan=EVENTS),
    tell("", "the deletions of two", watch_object, reasons=("DELETED",), again="u2", plan=EVENTS),
    tell("", "a deletion of what was never seen", watch_object, reasons=(), plan=EVENTS),
    tell("", "a deletion of what matched once", watch_object,
         plan={"handlers": make("event0", is_choosy=True)}),
    tell("", "a deletion after a kill", watch_object, is_dead=True, plan=EVENTS),
    tell("", "a deletion for a standby", watch_object, plan={**EVENTS, "mode": "lease"}),
    tell("", "a deletion while the kind changes", watch_object,
         plan={**EVENTS, **ALTERED}),
    tell("", "a deletion without credentials", watch_object,
         plan={**EVENTS, **LOCKED_OUT}),
    tell("loss", "an effect", keep_object, plan=STATUSES),
    tell("loss", "an effect of an event", keep_object, called=("create0", "event0"),
         plan={"handlers": (*make("create0"), *make("event0", effect="status"))}),
    tell("loss", "an effect in a bad network", keep_object, plan={**STATUSES, **ROUGH}),
    tell("loss", "a label", keep_object, plan={"handlers": make("create0", effect="label")}),
    tell("loss", "a result", keep_object, plan=RESULTS),
    tell("loss", "a result of a sub-handler", keep_object, called=("create0", "create0/sub0"),
         notes=["create0"], plan=RESULTS),
    tell("", "a result that is there", keep_object, notes=["create0"], plan=RESULTS),
    tell("loss", "an effect that is refused for a while", keep_object,
         plan={**STATUSES, **disturb("status", status=429)}),
    tell("loss", "an effect when Leases are denied", keep_object,
         plan={**STATUSES, **disturb("status", status=403, path="leases")}),
    tell("loss", "an effect under a Lease", keep_object, plan={**STATUSES, "mode": "lease"}),
    tell("", "an effect under a Lease that cannot be renewed", keep_object,
         plan={**STATUSES, "mode": "lease", **disturb("slow", path="leases")}),
    tell("", "an effect in a peering", keep_object, plan={**STATUSES, "mode": "peering"}),
    tell("missed", "a resumption", resume_object, plan=RESUMING),
    tell("", "a resumption, maybe without an attempt in time", resume_object,
         plan={"handlers": make("resume0", timeout=3.0)}),
    tell("", "a resumption that was done", resume_object, called=("resume0",), plan=RESUMING),
    tell("", "no resumption of what is no older", keep_object, called=(), plan=RESUMING),
    tell("", "no resumption of a kind that is discovered later", resume_object,
         plan={**RESUMING, "discovery_lag": 3.0}),
    tell("", "no resumption for a peer", resume_object, plan={**RESUMING, "mode": "peering"}),
    tell("", "an effect that is there", keep_object, notes=["of-create0"], plan=STATUSES),
    tell("", "the effect of a failure", keep_object, outcome="permanent", plan=STATUSES),
    tell("", "the effect of a killed replica", keep_object, is_dead=True, plan=STATUSES),
    tell("", "the effect on what is gone", keep_object, is_deleted=True, plan=STATUSES),
    tell("", "an effect that is denied", keep_object, plan={**STATUSES, **DENYING}),
    tell("", "an effect while the kind changes", keep_object,
         plan={**STATUSES, **ALTERED}),
    tell("loss", "an effect long after the kind has changed", keep_object, pause=45.0,
         plan={**STATUSES, **ALTERED}),
    tell("", "an effect after watches were broken as the kind changed", keep_object, pause=45.0,
         plan={**STATUSES, "steps": (*ALTERED["steps"], *disturb("mute", at=1.0)["steps"])}),
    tell("progress", "an annotation", keep_object, annotations={"kopf.zalando.org/create0": "{}"},
         plan=UPDATES),
    tell("progress", "a status", keep_object, status={"kopf": {}}, plan=UPDATES),
    tell("progress", "after a restart", keep_object, status={"kopf": {}}, successors=1,
         plan=UPDATES),
    tell("", "of somebody else", keep_object, annotations={"a.b/create0": "{}"}, plan=UPDATES),
    tell("progress", "that matches no more", keep_object, called=(), status={"kopf": {}},
         plan=EVENTS),
    tell("", "that matches no more, after a restart", keep_object, called=(), status={"kopf": {}},
         successors=1, plan=EVENTS),
    tell("", "of a peer", keep_object, status={"kopf": {}}, successors=1,
         plan={**UPDATES, "mode": "peering"}),
    tell("finalizer", "missing", keep_object, plan={"handlers": make("create0", "delete0")}),
    tell("finalizer", "for nothing", keep_object, finalizers=[FINALIZER], plan=UPDATES),
    tell("", "wanted", keep_object, finalizers=[FINALIZER],
         plan={"handlers": make("create0", "delete0")}),
    tell("", "of somebody else", keep_object, finalizers=["a.b/c"], plan=UPDATES),
    tell("daemon", "does not run", run_daemons, counts=(0,), plan=DAEMONS),
    tell("daemon", "runs twice", run_daemons, counts=(2,), plan=DAEMONS),
    tell("daemon", "in two replicas", run_daemons, counts=(1, 1), plan=DAEMONS),
    tell("daemon", "not chosen", run_daemons, labels={"a": "b"}, plan=CHOSEN),
    tell("daemon", "stopped before a change", run_daemons, counts=(0,), stopped_at=0.5,
         plan=DAEMONS),
    tell("daemon", "started while it runs", run_daemons, starts=True, plan=DAEMONS),
    tell("daemon", "started after it has ended by itself", run_daemons, counts=(0,),
         has_ended=True, starts=True, plan=DAEMONS),
    tell("", "started in a second replica", run_daemons, counts=(1, 0), starts=True,
         plan=DAEMONS),
    tell("", "started after it was stopped", run_daemons, counts=(0,), stopped_at=2.0,
         starts=True, plan=DAEMONS),
    tell("", "started after it has ended, chosen again", run_daemons, counts=(0,),
         has_ended=True, labels={LABEL: "yes"}, starts=True, plan=CHOSEN),
    tell("", "started after it has ended, by a new leader", run_daemons, counts=(0,),
         has_ended=True, starts=True, plan={**DAEMONS, "mode": "lease"}),
    tell("", "runs once", run_daemons, plan=DAEMONS),
    tell("", "not chosen, not run", run_daemons, counts=(0,), labels={"a": "b"}, plan=CHOSEN),
    tell("", "ended by itself", run_daemons, counts=(0,), has_ended=True, plan=DAEMONS),
    tell("", "ended, and runs again", run_daemons, has_ended=True, plan=DAEMONS),
    tell("", "stopped after the last change", run_daemons, counts=(0,), stopped_at=2.0,
         plan=DAEMONS),
    tell("", "ran in a replica that was killed", run_daemons, counts=(1, 1), dies=True,
         plan=DAEMONS),
    tell("index", "empty", fill_index, values=(), plan=INDEX),
    tell("index", "an older value", fill_index, values=(0,), plan=INDEX),
    tell("index", "a value too many", fill_index, values=(1, 1), plan=INDEX),
    tell("index", "under a former key", fill_index, values=(1,),
         keys=("one", "one has 0", "one has 1"), plan=INDEX),
    tell("index", "not chosen", fill_index, values=(1,),
         plan={"handlers": make("index0", is_choosy=True)}),
    tell("", "equal", fill_index, values=(1,), plan=INDEX),
    tell("", "chosen", fill_index, values=(1,), labels={LABEL: "yes"},
         plan={"handlers": make("index0", is_choosy=True)}),
    tell("", "of a replica that was killed", fill_index, values=(), dies=True, plan=INDEX),
    tell("index", "seen in parts", look_into_index, plan=INDEX),
    tell("", "seen before all", look_into_index, names=(), plan=INDEX),
    tell("", "seen as a whole", look_into_index, names=("one", "two"), plan=INDEX),
    tell("", "seen without what is new", look_into_index, pause=1.0, plan=INDEX),
    tell("index", "seen in parts after the kind has changed", look_into_index,
         plan={**INDEX, **ALTERED}),
    tell("", "seen in parts after the kind has changed twice", look_into_index,
         plan={**INDEX, "steps": (*ALTERED["steps"], Step(1.0, "alter"))}),
    tell("", "seen in a bad network", look_into_index, plan={**INDEX, **ROUGH}),
    tell("unrest", "a write", write_in_the_calm),
    tell("unrest", "a call", call_in_the_calm, at=QUIET, plan=ALONE),
    tell("", "a write before", write_in_the_calm, at=CALM + 50.0),
    tell("", "a timer that counts", write_in_the_calm, plan=COUNTERS),
    tell("", "a write of something else", write_in_the_calm, name="default"),
    tell("", "an event", call_in_the_calm, at=QUIET, handler="event0", plan=ALONE),
    tell("daemon", "lost at last", run_daemons, lost_at=QUIET, plan=DAEMONS),
    tell("growth", "401 tasks", start_tasks, number=401),
    tell("", "350 tasks", start_tasks, number=350),
)  # fmt: skip

CASES = (*CALLS, *WRITES, *STATES, *WEBHOOK_CALLS)


@pytest.fixture(scope="module")
def complaints() -> dict[Case, list[str]]:
    return {}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule or 'innocent'}: {case.what}")
def test_a_rule_is_broken_by_its_fault_and_not_by_what_is_beside_it(
    case: Case, complaints: dict[Case, list[str]]
) -> None:
    complaints[case] = case.judge()
    broken = {complaint.partition(":")[0] for complaint in complaints[case]}
    assert broken == ({case.rule} if case.rule else set()), complaints[case]


def list_templates() -> Iterator[str]:
    """Find the complaints in the source: patterns of their texts."""
    rules = [path for path in HERE.glob("*_rules.py") if path != Path(__file__)]
    for path in (*rules, HERE / "invariants.py", HERE / "world.py"):
        tree = ast.parse(path.read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        given = {
            id(arg) for call in calls if "complain" in ast.dump(call.func) for arg in call.args
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) in given:
                yield re.escape(str(node.value))
            elif isinstance(node, ast.JoinedStr):
                words = [
                    part.value if isinstance(part, ast.Constant) else "" for part in node.values
                ]
                is_named = path.stem != "world" and re.match(r"[a-z][a-z ]+: ", str(words[0]))
                if id(node) in given or is_named:
                    yield "".join(re.escape(str(word)) if word else ".+" for word in words)


def test_all_complaints_of_the_source_are_in_the_table_and_their_rules_in_the_docs(
    complaints: dict[Case, list[str]],
) -> None:
    guilty = [case for case in CASES if case.rule]
    texts = [text for case in guilty for text in complaints.get(case) or case.judge()]
    templates = list(list_templates())
    unproven = [it for it in templates if not any(re.fullmatch(it, text) for text in texts)]
    assert not unproven, f"No story brings these about; add one to CASES: {unproven}"
    told = re.findall(r"^\| ([a-z, -]+) \|", DOCS.read_text().split("\n## ")[1], re.MULTILINE)
    in_docs = {name for names in told for name in names.split(", ")}
    assert in_docs == {case.rule for case in guilty}, f"Mend the table of rules in {DOCS.name}"
