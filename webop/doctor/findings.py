"""What the checks find, and the report of it: text for people, JSON for programs. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import orjson


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


def complain(subject: str, text: str, remedy: str, *, is_failure: bool) -> Finding:
    """Return a failure or a warning: the same trouble can be worse for some than for others."""
    return Finding(Level.FAILURE if is_failure else Level.WARNING, subject, text, remedy)


def count_levels(sections: Iterable[Section]) -> dict[Level, int]:
    """Return how many findings there are of each level."""
    levels = [finding.level for section in sections for finding in section.findings]
    return {level: levels.count(level) for level in Level}


def has_failed(sections: Iterable[Section]) -> bool:
    """Tell whether anything does not work."""
    return count_levels(sections)[Level.FAILURE] > 0


Paint = Callable[[str, Level], str]

_PLURALS = {
    Level.OK: "ok",
    Level.NOTE: "notes",
    Level.WARNING: "warnings",
    Level.FAILURE: "failures",
}


def build_text(sections: Sequence[Section], paint: Paint) -> str:
    """Return the report in lines, grouped and aligned."""
    everything = [finding for section in sections for finding in section.findings]
    width = max((len(finding.subject) for finding in everything), default=0)
    size = max(map(len, Level))
    lines = []
    for section in sections:
        lines.append(section.title)
        for finding in section.findings:
            level = paint(f"{finding.level:<{size}}", finding.level)
            lines.append(f"  {level}  {finding.subject:<{width}}  {finding.text}".rstrip())
            if finding.remedy:
                lines.append(f"  {'':<{size}}  {'':<{width}}  -> {finding.remedy}")
        lines.append("")
    counts = {level: count for level, count in count_levels(sections).items() if count}
    parts = [
        f"{count} {level if count == 1 else _PLURALS[level]}"
        for level, count in reversed(counts.items())
    ]
    summary = f"{', '.join(parts)}."
    worst = list(counts)[-1:]
    return "\n".join([*lines, paint(summary, worst[0]) if worst else summary])


def build_json(sections: Sequence[Section]) -> str:
    """Return the report as a JSON document."""
    document = {
        "healthy": not has_failed(sections),
        "counts": {level.value: count for level, count in count_levels(sections).items()},
        "sections": [
            {
                "title": section.title,
                "findings": [
                    {key: value for key, value in asdict(item).items() if value or key != "remedy"}
                    for item in section.findings
                ],
            }
            for section in sections
        ],
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
