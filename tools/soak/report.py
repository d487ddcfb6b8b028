"""What a run prints about its violations, and what it finds in the logs of replicas."""

from __future__ import annotations

import datetime as dt
import re
import time
from itertools import groupby

from tools.long_runs import Say, read_clock
from tools.soak.evidence import Evidence, Violation

_CONTEXT = 30.0  # seconds before a violation whose faults are shown
_SHOWN = 3  # violations of a rule that are shown in full


def read_log(log: str, pattern: str) -> list[tuple[float, re.Match[str]]]:
    """Return what matches in the lines of a log, with their times by the clock of the evidence."""
    offset = time.time() - read_clock()
    return [
        (dt.datetime.fromisoformat(found[1]).astimezone().timestamp() - offset, match)
        for found in re.finditer(r"^\[(.*?)\] (.*)", log, re.MULTILINE)
        if (match := re.search(pattern, found[2]))
    ]


def show(
    violations: list[Violation],
    evidence: Evidence,
    told: list[tuple[float, str]],
    began: float,
    say: Say,
) -> None:
    """Print the violations by rule, each with the history of its object, and the faults told."""
    ordered = sorted(violations, key=lambda violation: violation.rule)
    for rule, found in groupby(ordered, key=lambda violation: violation.rule):
        several = list(found)
        for violation in several[:_SHOWN]:
            say("\n".join(_describe(violation, evidence, told, began)))
        say(f'Violations of "{rule}": {len(several)}')


def _describe(
    violation: Violation, evidence: Evidence, told: list[tuple[float, str]], began: float
) -> list[str]:
    """Return the history of the object of a violation, with the faults around it."""
    events = []
    if violation.uid:
        events = [(call.begin, str(call)) for call in evidence.calls if call.uid == violation.uid]
        history = evidence.lives[violation.uid].history if violation.uid in evidence.lives else []
        events += [(float(text.split()[0]), f"stored: {text}") for text in history]
    at = violation.at or (events[-1][0] if events else 0.0)
    events += [(moment, text) for moment, text in told if at - _CONTEXT < moment < at + 5]
    for process in evidence.processes.values():
        events += [(t, f"{process.who} begins") for t in [process.born] if abs(t - at) < _CONTEXT]
        events += [(t, f"{process.who} ends") for t in [process.died] if abs(t - at) < _CONTEXT]
    lines = [f"    {moment - began:9.3f}  {text}" for moment, text in sorted(events)]
    when = f" (at {at - began:.1f} s)" if at else ""
    return [
        f"VIOLATION: {violation.rule}{when}",
        *(f"  {line}" for line in violation.text.splitlines()),
        *lines,
    ]
