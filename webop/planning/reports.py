"""A plan as text for people, as Markdown for a pull request, and as JSON for programs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

import orjson

from webop.logs.sanitizing import escape
from webop.objects.names import join_names
from webop.planning.items import Certainty, Item, Plan, Section

_LONGEST: Final = 60  # characters of a value
_FIELDS: Final = 12  # in the text of one item


def build_json(plan: Plan) -> str:
    """Return the plan as a JSON document."""
    document = {"changes": plan.has_changes, "startup": plan.startup, "sections": plan.sections}
    text = json.dumps(
        document,
        default=lambda one: {field.name: getattr(one, field.name) for field in fields(one)},
        ensure_ascii=False, indent=2,
    )  # fmt: skip
    return text.encode(errors="replace").decode()  # JSON has no lone surrogates


def build_text(plan: Plan) -> str:
    """Return the plan as text."""
    parts = ["\n".join((_describe(one), *_list_lines(one))) for one in plan.sections]
    return "\n\n".join([*parts, *_conclude(plan)])


def build_markdown(plan: Plan) -> str:
    """Return the plan as Markdown, such as for a comment in a pull request."""
    parts = []
    for section in plan.sections:
        text = "\n".join(_list_lines(section)).replace("```", "'''")  # else it ends the block
        summary = f"<details><summary>{_describe(section)}</summary>"
        parts.append(f"{summary}\n\n```text\n{text}\n```\n\n</details>")
    head, *rest = _conclude(plan)
    return "\n\n".join([f"### {head}", *rest, *parts])


def _describe(section: Section) -> str:
    counts = f": objects: {section.count}, with changes: {section.changed}"
    return f"{section.title}{counts if section.count else ''}"


def _conclude(plan: Plan) -> list[str]:
    notes = [one for section in plan.sections for one in section.notes if one.is_change]
    unknown = sum(one.certainty is Certainty.UNKNOWN for one in notes)
    counts = {
        "Objects that would change": sum(one.changed for one in plan.sections),
        "Other changes": len(notes) - unknown,
        "Unknown": unknown,
    }
    head = " ".join(f"{text}: {count}." for text, count in counts.items() if count)
    head = head or "Nothing would be written, and no handler be called for a change."
    called = f"Startup handlers that were called: {join_names(plan.startup, 20)}."
    return [head, called] if plan.startup else [head]


def _list_lines(section: Section) -> Iterator[str]:
    for note in section.notes:
        yield from _list_item(note, "  ")
    for place, items in section.objects.items():
        yield f"  {escape(place)}"
        for item in items:
            yield from _list_item(item, "    ")
    for text, number in section.at_each_start.items():
        yield f"  at each start: {escape(text)} (objects: {number})"
    if section.left_out:
        yield f"  left out by --limit: {section.left_out} more objects"


def _list_item(item: Item, indent: str) -> Iterator[str]:
    head = f"{item.certainty}: {item.action} {item.target}"
    yield indent + escape(f"{head}: {item.reason}" if item.reason else head)
    for change in item.fields[:_FIELDS]:
        text = f"{change.field}: {_show(change.old)} -> {_show(change.new)}"
        yield f"{indent}  {escape(text)}"
    if (more := len(item.fields) - _FIELDS) > 0:
        yield f"{indent}  and {more} more fields: see -o json"


def _show(value: Any) -> str:
    text = "nothing" if value is None else orjson.dumps(value).decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
