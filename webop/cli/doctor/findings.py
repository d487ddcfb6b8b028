"""The findings of the checks, and the report: text for people, JSON for programs. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import orjson

from webop.logs.sanitizing import escape


class Level(enum.StrEnum):
    """The severity; a note is neutral, or about something that could not be checked."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; warnings and failures always have a remedy."""

    level: Level
    subject: str
    text: str
    remedy: str = ""


approve, note = partial(Finding, Level.OK), partial(Finding, Level.NOTE)
warn, fail = partial(Finding, Level.WARNING), partial(Finding, Level.FAILURE)

Report = Mapping[str, Sequence[Finding]]  # by section title


def count_levels(report: Report) -> dict[Level, int]:
    """Return the number of findings of each level."""
    levels = [finding.level for findings in report.values() for finding in findings]
    return {level: levels.count(level) for level in Level}


def build_text(report: Report, paint: Callable[[str, Level], str]) -> str:
    """Return the report as text: findings by section, in aligned columns."""
    subjects = (finding.subject for findings in report.values() for finding in findings)
    width, size = max(map(len, subjects), default=0), max(map(len, Level))
    lines = []
    for title, findings in report.items():
        lines.append(title)
        for finding in findings:
            level = paint(f"{finding.level:<{size}}", finding.level)
            lines.append(f"  {level}  {escape(f'{finding.subject:<{width}}  {finding.text}')}")
            if finding.remedy:
                lines.append(f"{'':<{size + width + 6}}-> {escape(finding.remedy)}")
        lines.append("")
    counts = [(level, count) for level, count in count_levels(report).items() if count]
    parts = [
        f"{count} {level}{'' if count == 1 or level is Level.OK else 's'}"
        for level, count in reversed(counts)
    ]
    return "\n".join([*lines, paint(f"{', '.join(parts)}.", counts[-1][0])])


def build_json(report: Report) -> str:
    """Return the report as a JSON document."""
    counts = {level.value: count for level, count in count_levels(report).items()}
    sections = [{"title": title, "findings": found} for title, found in report.items()]
    document = {"healthy": not counts[Level.FAILURE], "counts": counts, "sections": sections}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def describe_seconds(seconds: float) -> str:
    """Return a time span in the largest unit of which it has at least two."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
