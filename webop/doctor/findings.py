"""What the checks find, and the report of it: text for people, JSON for programs. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import orjson

from webop.escaping import escape


class Level(enum.StrEnum):
    """How bad it is; a note is neither good nor bad, or could not be checked."""

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


@dataclass(frozen=True, slots=True)
class Section:
    """The findings about one thing."""

    title: str
    findings: Sequence[Finding]


def approve(subject: str, text: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(Level.OK, subject, text)


def note(subject: str, text: str, remedy: str = "") -> Finding:
    """Return a finding that is good to know."""
    return Finding(Level.NOTE, subject, text, remedy)


def warn(subject: str, text: str, remedy: str) -> Finding:
    """Return a finding of what may become a failure, or may be one."""
    return Finding(Level.WARNING, subject, text, remedy)


def fail(subject: str, text: str, remedy: str) -> Finding:
    """Return a finding of what does not work."""
    return Finding(Level.FAILURE, subject, text, remedy)


def soften(finding: Finding, *, is_required: bool) -> Finding:
    """Return a failure as a warning if nobody depends on what does not work."""
    is_soft = finding.level is Level.FAILURE and not is_required
    return replace(finding, level=Level.WARNING) if is_soft else finding


def count_levels(sections: Iterable[Section]) -> dict[Level, int]:
    """Return how many findings there are of each level."""
    levels = [finding.level for section in sections for finding in section.findings]
    return {level: levels.count(level) for level in Level}


def build_text(sections: Sequence[Section], paint: Callable[[str, Level], str]) -> str:
    """Return the report in lines, grouped and aligned."""
    subjects = (finding.subject for section in sections for finding in section.findings)
    width, size = max(map(len, subjects), default=0), max(map(len, Level))
    lines = []
    for section in sections:
        lines.append(section.title)
        for finding in section.findings:
            level = paint(f"{finding.level:<{size}}", finding.level)
            what = f"{finding.subject:<{width}}  {finding.text}"
            lines.append(f"  {level}  {escape(what)}".rstrip())
            if finding.remedy:
                lines.append(f"  {'':<{size}}  {'':<{width}}  -> {escape(finding.remedy)}")
        lines.append("")
    counts = {level: count for level, count in count_levels(sections).items() if count}
    parts = [
        f"{count} {level}{'' if count == 1 or level is Level.OK else 's'}"
        for level, count in reversed(counts.items())
    ]
    summary = f"{', '.join(parts)}."
    worst = list(counts)[-1:]
    return "\n".join([*lines, paint(summary, worst[0]) if worst else summary])


def build_json(sections: Sequence[Section]) -> str:
    """Return the report as a JSON document."""
    counts = {level.value: count for level, count in count_levels(sections).items()}
    document = {
        "healthy": not counts[Level.FAILURE],
        "counts": counts,
        "sections": [asdict(section) for section in sections],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def describe_names(names: Iterable[str], limit: int = 5) -> str:
    """Return names in a row; of very many, the first ones and the number of the others."""
    listed = list(dict.fromkeys(names))
    more = len(listed) - limit
    return ", ".join(listed[:limit]) + (f" and {more} more" if more > 0 else "")


def describe_seconds(seconds: float) -> str:
    """Return a time span in the largest unit that makes sense."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
