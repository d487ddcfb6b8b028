"""The rules that every run must keep in spite of all faults, checked against evidence from outside.

The evidence is the lines that handlers have written (:class:`Call`), and the states that the
API server has stored (:class:`Life`). This module only compares them: it does no I/O.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

CREATION, UPDATE, DELETION = ("created", "settled"), ("updated", "adjusted"), ("deleted",)
CHANGES = (*CREATION, *UPDATE, *DELETION)
_TOLERANCE = 0.02  # seconds; the clocks are not read at the same time
_GROWTH, _SAME = 0.05, 1.01
_FLOORS = {"rss": 2e6, "blocks": 20_000, "descriptors": 4, "tasks": 4}  # growth by less is noise
_WARM_UP = 300.0  # seconds; until then, objects are created, and code is imported
_WINDOWS, _SAMPLES = 10, 8  # windows per life, samples per window; a sample every five seconds


@dataclass
class Process:
    """A process of a replica; all times are by the monotonic clock of the machine.

    Attributes:
        died: the time of its end; infinite if it still runs.
        terms: the times when it began to lead, as it reports them.
        pauses: the times of SIGSTOP and SIGCONT.
        samples: the time and the values of each measurement.
    """

    who: str
    born: float = 0.0
    died: float = math.inf
    terms: list[float] = field(default_factory=list)
    pauses: list[tuple[float, float]] = field(default_factory=list)
    samples: list[tuple[float, dict[str, Any]]] = field(default_factory=list)


@dataclass
class Call:
    """A call of a handler.

    Attributes:
        term: how often the process had begun to lead.
        version: the version of the object, counted in its spec: 1, 2, …
        rv: the resource version that the handler got.
        wall: the begin, by the wall clock.
        last: the time of its last step.
        end: the time of its end; infinite if none was recorded.
        outcome: "done", "later", "failed", "cancelled"; empty without an end.
        delay: the seconds until the retry; 0 if there is none.
    """

    who: str
    handler: str
    uid: str
    version: int
    begin: float
    retry: int = 0
    rv: int = 0
    wall: float = 0.0
    last: float = 0.0
    end: float = math.inf
    outcome: str = ""
    delay: float = 0.0
    term: int = 0

    @property
    def actor(self) -> tuple[str, int]:
        """The caller: a process in one of its terms as the leader."""
        return self.who, self.term

    @property
    def is_final(self) -> bool:
        """Whether it must not be called again for the same version."""
        return self.outcome in ("done", "failed")

    def __str__(self) -> str:
        end = f"{self.end:.3f}" if self.end < math.inf else f"no end, last step {self.last:.3f}"
        outcome = self.outcome + (f" in {self.delay:g} s" if self.delay else "")
        return (
            f"{self.begin:.3f} … {end}: {self.who} calls {self.handler} for version "
            f"{self.version} (rv {self.rv}, retry {self.retry}): {outcome or 'interrupted'}"
        )


@dataclass
class Life:
    """An object, from its creation to its end, as the API server has stored it.

    Attributes:
        version: the last version.
        marked: the time of the deletion request; None without one.
        gone: the time when it was gone.
        had_finalizer: whether a replica ever added a finalizer.
        recorded: the time when the stored outcome was first seen, by handler (or "all") and
            version; deletions have the version 0.
        delays: the earliest time of a retry (wall clock), as stored, by resource version and
            handler.
        oddities: descriptions of unexpected content.
    """

    uid: str
    name: str
    version: int = 1
    marked: float | None = None
    gone: float | None = None
    had_finalizer: bool = False
    is_followed: bool = False
    recorded: dict[tuple[str, int], float] = field(default_factory=dict)
    delays: dict[int, dict[str, float]] = field(default_factory=dict)
    oddities: list[str] = field(default_factory=list)
    history: list[str] = field(default_factory=list)


@dataclass
class Evidence:
    """The evidence of a run.

    Attributes:
        has_lease: whether only the leader handles objects; otherwise each of several replicas can
            have some.
    """

    calls: list[Call]
    lives: dict[str, Life]
    processes: dict[str, Process]
    has_lease: bool = True


@dataclass(frozen=True)
class Violation:
    """A broken rule.

    Attributes:
        rule: the rule.
        text: the details.
        uid: the uid of the object, if any.
        at: the time, by the monotonic clock of the machine; 0 if it has none.
    """

    rule: str
    text: str
    uid: str = ""
    at: float = 0.0


def read_lines(process: Process, lines: Iterable[str]) -> list[Call]:
    """Return the calls that a process has recorded; add its samples to it."""
    calls: dict[int, Call] = {}
    pauses = sorted(process.pauses)
    for line in lines:
        what, moment, fields = json.loads(line)
        if pauses and moment >= pauses[0][1]:
            stopped, _ = pauses.pop(0)
            # A process that is stopped inside a step ends the step late.
            moment = moment if what == "begin" else stopped
        if what == "sample":
            process.samples.append((moment, fields))
            continue
        number = fields.pop("call")
        if what == "begin":
            term = bisect.bisect(process.terms, moment)
            calls[number] = Call(process.who, begin=moment, last=moment, term=term, **fields)
            continue
        call = calls[number]
        if what == "end":
            call.outcome, call.delay = fields["outcome"], fields["delay"] or 0.0
            # A cancellation is not a separate step.
            call.end = call.last if call.outcome == "cancelled" else moment
        call.last = call.end if what == "end" else moment
    return list(calls.values())


def judge(evidence: Evidence) -> list[Violation]:
    """Return all violations, in order of time."""
    by_uid: dict[str, list[Call]] = defaultdict(list)
    for call in sorted(evidence.calls, key=lambda call: call.begin):
        by_uid[call.uid].append(call)
    found: list[Violation] = []
    for uid, calls in by_uid.items():
        changes = [call for call in calls if call.handler in CHANGES]
        life = evidence.lives.get(uid)
        found += find_overlaps(changes, "two calls at once for one object")
        for handler in ("tick", "follow"):
            own = [call for call in calls if call.handler == handler]
            found += find_overlaps(own, "a timer or daemon twice at once for one object")
        found += find_repetitions(changes, life)
        found += find_early_retries(changes, life)
    for life in evidence.lives.values():
        found += find_unhandled(life, by_uid.get(life.uid, []))
    for calls in [evidence.calls] if evidence.has_lease else by_uid.values():
        found += find_two_replicas(calls)
    for process in evidence.processes.values():
        found += find_growth(process)
    return sorted(found, key=lambda violation: violation.at)


def find_overlaps(calls: list[Call], rule: str) -> Iterator[Violation]:
    """Find calls that begin before the previous one has ended, in one process or in two."""
    for index, call in enumerate(calls):
        for other in calls[index + 1 :]:
            # The other process can have been killed: only its recorded steps count.
            end = call.end if call.who == other.who else call.last
            if other.begin < end:
                yield Violation(rule, f"{call}\n{other}", call.uid, other.begin)
                break


def find_two_replicas(calls: list[Call]) -> Iterator[Violation]:
    """Find steps of one process while another one is inside a call."""
    latest: Call | None = None
    for call in sorted(calls, key=lambda call: call.begin):
        if latest is not None and call.who != latest.who and call.begin < latest.last:
            text = f"{latest} ({latest.uid})\n{call} ({call.uid})"
            yield Violation("two replicas act at once", text, call.uid, call.begin)
        if latest is None or call.last > latest.last:
            latest = call


def find_repetitions(calls: list[Call], life: Life | None) -> Iterator[Violation]:
    """Find calls after a final one.

    Another process can repeat a call whose outcome is not stored, as documented on the pages
    "Watching" (a process dies before it has stored the outcome) and "Leadership" (a new leader is
    like a restart).
    """
    groups: dict[tuple[str, int], list[Call]] = defaultdict(list)
    for call in calls:
        groups[call.handler, call.version if call.handler in UPDATE else 0].append(call)
    for group in groups.values():
        for index, call in enumerate(group):
            finals = [before for before in group[:index] if before.is_final]
            if not finals:
                continue
            last = finals[-1]
            recorded = math.inf if life is None else _find_record(life, last)
            if last.actor != call.actor and call.begin <= recorded:
                continue
            note = "never stored" if recorded == math.inf else f"stored by {recorded:.3f}"
            text = f"{last}; {note}\n{call}"
            yield Violation("called again after it has finished", text, call.uid, call.begin)


def _find_record(life: Life, call: Call) -> float:
    """Return when the stored outcome was first seen: of this handler, or of all handlers."""
    if call.handler in DELETION:
        return life.recorded.get((call.handler, 0), math.inf)
    own, all_ = (life.recorded.get((who, call.version), math.inf) for who in (call.handler, "all"))
    return min(own, all_)


def find_early_retries(calls: list[Call], life: Life | None) -> Iterator[Violation]:
    """Find early retries, by the delay of the last call in the process and by the record."""
    told: dict[tuple[Any, ...], Call] = {}
    for call in calls:
        key = (call.actor, call.handler, call.version)
        before = told.get(key)
        if before is not None and call.begin < before.end + before.delay - _TOLERANCE:
            text = f"{before}\n{call}"
            yield Violation("called again earlier than requested", text, call.uid, call.begin)
        if call.outcome == "later":
            told[key] = call
        due = 0.0 if life is None else life.delays.get(call.rv, {}).get(call.handler, 0.0)
        if call.wall < due - _TOLERANCE:
            text = f"{call}\n{due - call.wall:.3f} s too early, by the record that it was shown"
            yield Violation("called again earlier than its record says", text, call.uid, call.begin)


def find_unhandled(life: Life, calls: list[Call]) -> Iterator[Violation]:
    """Find unfinished work on an object, and unexpected content of it."""
    for text in life.oddities:
        yield Violation("unexpected content is stored", text, life.uid)
    done = {(call.handler, call.version) for call in calls if call.is_final}
    if life.gone is not None:
        was_deleted = any(handler in DELETION for handler, _ in done)
        waited = life.had_finalizer and life.marked is not None  # the finalizer can be too late
        if waited and not was_deleted:
            yield Violation("its deletion was not handled", life.name, life.uid)
        return
    if life.marked is not None:
        yield Violation("its deletion is not complete", life.name, life.uid, life.marked)
    elif not any(
        all((handler, life.version) in done for handler in handlers)
        for handlers in (CREATION, UPDATE)
    ):
        text = f"{life.name} has version {life.version}"
        yield Violation("its last state is not handled", text, life.uid)
    elif ("all", life.version) not in life.recorded:
        text = f"{life.name} has version {life.version}"
        yield Violation("its last state is not stored as handled", text, life.uid)


def find_idle_daemons(evidence: Evidence) -> list[Violation]:
    """Find objects without their daemon, and daemons without a matching object, at the end."""
    dead = {who for who, process in evidence.processes.items() if process.died < math.inf}
    running = {
        call.uid
        for call in evidence.calls
        if call.handler == "follow" and not call.outcome and call.who not in dead
    }
    lives = evidence.lives.values()
    wanted = {life.uid for life in lives if life.gone is None and life.is_followed}
    return [
        Violation(
            "daemons do not match objects", f"{'none' if uid in wanted else 'one too many'}", uid
        )
        for uid in wanted ^ running
    ]


def find_growth(process: Process) -> Iterator[Violation]:
    """Find values that grew all the time, from the end of the warm-up to the end of a long life.

    Of resident memory, a peak stays: it counts only what goes on growing in the second half. What
    Python has allocated does not stay.
    """
    for name, medians in measure(process).items():
        growth = _find_slope(medians) * (_WINDOWS - 1)
        if name == "rss":
            growth = min(growth, _find_slope(medians[_WINDOWS // 2 :]) * (_WINDOWS - 1))
        pairs = list(itertools.combinations(medians, 2))
        rises = sum((later > first * _SAME) - (first > later * _SAME) for first, later in pairs)
        is_steady = rises >= len(pairs) / 2  # much more often up than down
        if is_steady and growth > max(_GROWTH * medians[0], _FLOORS[name]):
            text = f"{name} of {process.who}: {growth:+g} in {medians}"
            yield Violation("a process grows", text)


def measure(process: Process) -> dict[str, list[float]]:
    """Return the medians of windows of a life for each value; nothing for a short life.

    A leader needs more memory than a standby and keeps it when it leads no more, so each role is
    compared only with itself.
    """
    samples = [fields for at, fields in process.samples if at >= process.born + _WARM_UP]
    leads = [bool(fields["daemons"]) for fields in samples]
    later = samples[leads.index(True) :] if True in leads else samples
    for is_leader in (True, False):
        chosen = [fields for fields in later if bool(fields["daemons"]) == is_leader]
        if len(chosen) >= _WINDOWS * _SAMPLES:
            ends = [round(number * len(chosen) / _WINDOWS) for number in range(_WINDOWS + 1)]
            windows = [chosen[begin:end] for begin, end in itertools.pairwise(ends)]
            return {
                name: [statistics.median(fields[name] for fields in window) for window in windows]
                for name in _FLOORS
            }
    return {}


def _find_slope(medians: list[float]) -> float:
    """Return the median slope of all pairs of windows: fluctuations do not count."""
    pairs = itertools.combinations(enumerate(medians), 2)
    return statistics.median((later - first) / (j - i) for (i, first), (j, later) in pairs)
