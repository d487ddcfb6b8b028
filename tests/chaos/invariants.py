"""What must hold of every run, whatever has gone wrong in it; judged from outside, by evidence.

There are two kinds of evidence: the lines that handlers have written (:class:`Call`), and what the
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
_TOLERANCE = 0.02  # seconds; clocks are read a moment apart
_GROWTH, _SAME = 0.05, 1.01
_FLOORS = {"rss": 2e6, "blocks": 20_000, "descriptors": 4, "tasks": 4}  # growth by less is noise
_WARM_UP = 300.0  # seconds; until then, objects are created, and code is imported
_WINDOWS, _SAMPLES = 10, 8  # that a life is cut into, and in each; one is taken every five seconds


@dataclass
class Process:
    """A process of a replica; all times are those of the clock of the machine.

    Attributes:
        died: when; infinite if it has not.
        terms: when it has begun to lead, as it says itself.
        pauses: from SIGSTOP to SIGCONT.
        samples: the moment, and what was measured in it.
    """

    who: str
    born: float = 0.0
    died: float = math.inf
    terms: list[float] = field(default_factory=list)
    pauses: list[tuple[float, float]] = field(default_factory=list)
    samples: list[tuple[float, dict[str, float]]] = field(default_factory=list)


@dataclass
class Call:
    """A call of a handler.

    Attributes:
        term: how often the process had begun to lead.
        version: of the object, as it has changed: 1, 2, …
        rv: the resource version that the handler was shown.
        wall: when it began, by the clock on the wall.
        last: its last step.
        end: infinite if it was never told.
        outcome: "done", "later", "failed", "cancelled"; empty if there was no end.
        delay: in seconds, until it may be called again; 0 if it is not called again for this.
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
        """Who has called it: a process, in one of the terms in which it leads."""
        return self.who, self.term

    @property
    def is_final(self) -> bool:
        """Whether it is not to be called again for the same."""
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
    """An object, from its creation to its end, as the API server has shown it.

    Attributes:
        version: the last one.
        marked: when the deletion was asked for; None if it never was.
        gone: when it had gone.
        had_finalizer: whether a replica has ever held it.
        recorded: when it was seen first that the outcome of a handler for a version is stored; of
            "all" handlers; of a deletion for the version 0.
        delays: from when on a handler may be called again by what is stored (clock on the wall), by
            resource versions and handlers.
        oddities: what should not be in it, in words.
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
    """All that is known of a run at its end.

    Attributes:
        has_lease: whether one of the replicas acts, and no other.
    """

    calls: list[Call]
    lives: dict[str, Life]
    processes: dict[str, Process]
    has_lease: bool = True


@dataclass(frozen=True)
class Violation:
    """Something that must not be.

    Attributes:
        rule: which rule.
        text: what has happened.
        uid: of the object, if it is about one.
        at: when, by the clock of the machine.
    """

    rule: str
    text: str
    uid: str = ""
    at: float = 0.0


def read_lines(process: Process, lines: Iterable[str]) -> list[Call]:
    """Return the calls that a process has written down; put its samples into it."""
    calls: dict[int, Call] = {}
    pauses = sorted(process.pauses)
    for line in lines:
        what, moment, fields = json.loads(line)
        if pauses and moment >= pauses[0][1]:
            stopped, _ = pauses.pop(0)
            # A step in the middle of which the process was stopped ends late, whatever one does.
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
            # To be cancelled is no step of its own.
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
    if evidence.has_lease:
        found += find_two_leaders(evidence.calls)
    for process in evidence.processes.values():
        found += find_growth(process)
    return sorted(found, key=lambda violation: violation.at)


def find_overlaps(calls: list[Call], rule: str) -> Iterator[Violation]:
    """Find calls that begin before the one before has ended, in one process or in two."""
    for index, call in enumerate(calls):
        for other in calls[index + 1 :]:
            # Of another process, only what it was seen to do counts: it can have been killed.
            end = call.end if call.who == other.who else call.last
            if other.begin < end:
                yield Violation(rule, f"{call}\n{other}", call.uid, other.begin)
                break


def find_two_leaders(calls: list[Call]) -> Iterator[Violation]:
    """Find steps of one process while another one is in the middle of a call."""
    latest: Call | None = None
    # Daemons take no steps while they wait: what counts is that they end before others begin.
    for call in sorted(calls, key=lambda call: call.begin):
        if latest is not None and call.who != latest.who and call.begin < latest.last:
            text = f"{latest} ({latest.uid})\n{call} ({call.uid})"
            yield Violation("two replicas act at once", text, call.uid, call.begin)
        if latest is None or call.last > latest.last:
            latest = call


def find_repetitions(calls: list[Call], life: Life | None) -> Iterator[Violation]:
    """Find calls after one that needs none after it.

    Another process may repeat what is not stored: "Handlers may be called twice for the same change
    if the process dies between the work and the note of it" (page "Watching"). The same is true of
    one that loses the lease: "a new leader is like a restart" (page "Leadership").
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
    """Return when it was seen that the outcome is stored: its own, or that all are done with."""
    if call.handler in DELETION:
        return life.recorded.get((call.handler, 0), math.inf)
    own, all_ = (life.recorded.get((who, call.version), math.inf) for who in (call.handler, "all"))
    return min(own, all_)


def find_early_retries(calls: list[Call], life: Life | None) -> Iterator[Violation]:
    """Find early retries: by the delay of the last call in the process, and by the record."""
    told: dict[tuple[Any, ...], Call] = {}
    for call in calls:
        key = (call.actor, call.handler, call.version)
        before = told.get(key)
        if before is not None and call.begin < before.end + before.delay - _TOLERANCE:
            text = f"{before}\n{call}"
            yield Violation("called again earlier than told", text, call.uid, call.begin)
        if call.outcome == "later":
            told[key] = call
        due = 0.0 if life is None else life.delays.get(call.rv, {}).get(call.handler, 0.0)
        if call.wall < due - _TOLERANCE:
            text = f"{call}\n{due - call.wall:.3f} s too early, by the record that it was shown"
            yield Violation("called again earlier than stored", text, call.uid, call.begin)


def find_unhandled(life: Life, calls: list[Call]) -> Iterator[Violation]:
    """Find what is left undone of an object, and what was done to it that must not be."""
    for text in life.oddities:
        yield Violation("something strange is stored", text, life.uid)
    done = {(call.handler, call.version) for call in calls if call.is_final}
    if life.gone is not None:
        was_deleted = any(handler in DELETION for handler, _ in done)
        if life.had_finalizer and not was_deleted:
            yield Violation("gone, and its deletion was not handled", life.name, life.uid)
        return
    if life.marked is not None:
        yield Violation("its deletion does not end", life.name, life.uid, life.marked)
    elif not any(
        all((handler, life.version) in done for handler in handlers)
        for handlers in (CREATION, UPDATE)
    ):
        text = f"{life.name} has version {life.version}"
        yield Violation("its last state is not handled", text, life.uid)
    elif ("all", life.version) not in life.recorded:
        text = f"{life.name} has version {life.version}"
        yield Violation("its last state is not stored as handled", text, life.uid)


@dataclass(frozen=True)
class Trend:
    """How something has changed over the life of a process, in its busiest role.

    Attributes:
        first: the median of the first window.
        last: that of the last one.
        growth: from the first to the last, by the median slope of all pairs of windows: what comes
            and goes does not count, however high it was.
        is_steady: whether windows are above the ones before them, much more often than below.
    """

    role: str
    first: float
    last: float
    growth: float
    is_steady: bool

    def __str__(self) -> str:
        rise = self.last / self.first - 1 if self.first else 0.0
        steady = "steady" if self.is_steady else "not steady"
        return (
            f"{self.first:g} -> {self.last:g} ({rise:+.1%}; trend {self.growth:+g}, {steady}), "
            f"when it {self.role}"
        )


def find_growth(process: Process) -> Iterator[Violation]:
    """Find what has grown all the time, from the end of the warm-up to the end of a long life."""
    for name, trend in measure_growth(process).items():
        if trend.is_steady and trend.growth > max(_GROWTH * trend.first, _FLOORS[name]):
            yield Violation("it grows", f"{name} of {process.who}: {trend}")


def measure_growth(process: Process) -> dict[str, Trend]:
    """Return what has become of memory, descriptors and tasks; nothing of a short life.

    A replica that leads has more to keep than one that stands by, and its memory stays when it
    leads no more: like is compared with like.
    """
    samples = [fields for at, fields in process.samples if at >= process.born + _WARM_UP]
    leads = [bool(fields["daemons"]) for fields in samples]
    later = samples[leads.index(True) :] if True in leads else samples
    for role, is_leader in (("leads", True), ("stands by", False)):
        chosen = [fields for fields in later if bool(fields["daemons"]) == is_leader]
        if len(chosen) >= _WINDOWS * _SAMPLES:
            return {name: _find_trend(role, [f[name] for f in chosen]) for name in _FLOORS}
    return {}


def _find_trend(role: str, values: list[float]) -> Trend:
    size = len(values) / _WINDOWS
    medians = [
        statistics.median(values[round(number * size) : round((number + 1) * size)])
        for number in range(_WINDOWS)
    ]
    pairs = list(itertools.combinations(range(_WINDOWS), 2))
    growth = statistics.median((medians[j] - medians[i]) / (j - i) for i, j in pairs)
    rises = sum(
        (medians[j] > medians[i] * _SAME) - (medians[i] > medians[j] * _SAME) for i, j in pairs
    )
    return Trend(role, medians[0], medians[-1], growth * (_WINDOWS - 1), rises >= len(pairs) / 2)


def count_repetitions(calls: list[Call]) -> int:
    """Return how many calls have followed one that has finished, excused or not."""
    finished: set[tuple[Any, ...]] = set()
    count = 0
    for call in sorted(calls, key=lambda call: call.begin):
        if call.handler in CHANGES:
            key = (call.uid, call.handler, call.version if call.handler in UPDATE else 0)
            count += key in finished
            if call.is_final:
                finished.add(key)
    return count


def list_leaders(calls: list[Call]) -> list[str]:
    """Return who has acted, one after another."""
    ordered = sorted(calls, key=lambda call: call.begin)
    return [who for who, _ in itertools.groupby(call.who for call in ordered)]
