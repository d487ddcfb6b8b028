"""What the checks find: one line of what is so, and one of what to do, if anything."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class Level(enum.StrEnum):
    """How bad it is; a note is neither good nor bad, or could not be checked."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        level: how bad it is.
        subject: what it is about, in a word or two.
        text: what is so.
        remedy: what to do about it; always there for warnings and failures.
    """

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
