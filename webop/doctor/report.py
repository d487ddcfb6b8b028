"""The findings as a text for people, or as JSON for programs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import orjson

from webop.doctor.findings import Finding, Level, Section, count_levels, has_failed

Paint = Callable[[str, Level], str]

_PLURALS = {Level.OK: "ok", Level.NOTE: "notes", Level.WARNING: "warnings"}


def build_text(sections: Sequence[Section], paint: Paint) -> str:
    """Return the report in lines, grouped and aligned.

    Args:
        sections: all findings.
        paint: puts a text into the colour of a level, or leaves it as it is.
    """
    everything = [finding for section in sections for finding in section.findings]
    width = max((len(finding.subject) for finding in everything), default=0)
    lines = [line for section in sections for line in _list_lines(section, width, paint)]
    return "\n".join([*lines, _summarize(sections, paint)])


def build_json(sections: Sequence[Section]) -> str:
    """Return the report as a JSON document."""
    document = {
        "healthy": not has_failed(sections),
        "counts": {level.value: count for level, count in count_levels(sections).items()},
        "sections": [
            {"title": section.title, "findings": [_build_item(item) for item in section.findings]}
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


def _list_lines(section: Section, width: int, paint: Paint) -> Iterator[str]:
    yield section.title
    size = max(map(len, Level))
    for finding in section.findings:
        level = paint(f"{finding.level:<{size}}", finding.level)
        yield f"  {level}  {finding.subject:<{width}}  {finding.text}".rstrip()
        if finding.remedy:
            yield f"  {'':<{size}}  {'':<{width}}  -> {finding.remedy}"
    yield ""


def _build_item(finding: Finding) -> dict[str, str]:
    item = {"level": finding.level, "subject": finding.subject, "text": finding.text}
    return item | ({"remedy": finding.remedy} if finding.remedy else {})


def _summarize(sections: Iterable[Section], paint: Paint) -> str:
    counts = count_levels(sections)
    worst = [level for level in Level if counts[level]]
    parts = [
        f"{counts[level]} {_name(level, counts[level])}"
        for level in reversed(Level)
        if counts[level]
    ]
    text = f"{', '.join(parts)}."
    return paint(text, worst[-1]) if worst else text


def _name(level: Level, count: int) -> str:
    return str(level) if count == 1 else _PLURALS.get(level, f"{level}s")
