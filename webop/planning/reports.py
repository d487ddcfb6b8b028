"""A plan as text for people, as Markdown for a pull request, and as JSON for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson

from webop.logs.sanitizing import escape
from webop.objects.names import join_names
from webop.planning.items import Item, Plan, Section

_LONGEST: Final = 60  # characters of a value
_FIELDS: Final = 12  # in the text of one item
_UNCHANGED: Final = "Nothing would be written, and no handler called for a change."
_LEFT_OUT: Final = "{} more objects with changes or doubts are left out (--limit)."


def build_json(plan: Plan) -> str:
    """Return the plan as a JSON document."""
    sections = [
        {
            "title": one.title,
            "objects": one.count,
            "changed": one.changed,
            "left_out": one.left_out,
            "notes": one.notes,
            "at_each_start": [
                {"action": action, "target": target, "objects": number}
                for (action, target), number in one.routine.items()
            ],
            "items": [
                {"object": place, **_to_dict(item)}
                for place, items in one.objects.items()
                for item in items
            ],
        }
        for one in plan.sections
    ]
    document = {"changes": plan.has_changes, "startup": plan.startup, "sections": sections}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2, default=_to_dict).decode()


def _to_dict(item: Item) -> dict[str, Any]:
    fields = [change._asdict() for change in item.fields]
    return {**{name: getattr(item, name) for name in Item.__slots__}, "fields": fields}


def build_text(plan: Plan) -> str:
    """Return the plan as text."""
    lines = []
    if plan.startup:
        lines += [f"Startup handlers that were called: {join_names(plan.startup, 20)}", ""]
    for section in plan.sections:
        lines.append(_describe(section))
        lines += [f"  {_state(note)}" for note in section.notes]
        for place, items in section.objects.items():
            lines.append(f"  {place}")
            for item in items:
                lines.append(f"    {_state(item)}")
                lines += [f"      {text}" for text in _list_fields(item)]
        lines += [f"  {text}" for text in _list_rest(section)]
        lines.append("")
    return "\n".join(map(escape, [*lines, _conclude(plan)]))


def build_markdown(plan: Plan) -> str:
    """Return the plan as Markdown: a comment in a pull request."""
    lines = [f"### {_conclude(plan)}", ""]
    if plan.startup:
        lines += [f"Startup handlers that were called: {join_names(plan.startup, 20)}", ""]
    for section in plan.sections:
        lines += [f"#### {_describe(section)}", ""]
        lines += [f"- {_quote(_state(note))}" for note in section.notes]
        for place, items in section.objects.items():
            lines += ["<details>", f"<summary>{_quote(place)}</summary>", "", "```diff"]
            for item in items:
                lines.append(f"# {_fence(_state(item))}")
                lines += [
                    f"{sign} {_fence(change.field)}: {_fence(_show(value))}"
                    for change in item.fields
                    for sign, value in (("-", change.old), ("+", change.new))
                    if value is not None
                ]
            lines += ["```", "", "</details>"]
        lines += [f"- {_quote(text)}" for text in _list_rest(section)]
        lines.append("")
    return "\n".join(map(escape, lines))


def _describe(section: Section) -> str:
    return f"{section.title}: objects: {section.count}, with changes: {section.changed}"


def _conclude(plan: Plan) -> str:
    if not plan.has_changes:
        return _UNCHANGED
    number = sum(section.changed for section in plan.sections)
    return f"Objects with changes: {number}."


def _state(item: Item) -> str:
    """Return an item as one line."""
    head = f"{item.certainty}: {item.action} {item.target}"
    return f"{head}: {item.reason}" if item.reason else head


def _list_fields(item: Item) -> Iterator[str]:
    for change in item.fields[:_FIELDS]:
        yield f"{change.field}: {_show(change.old)} -> {_show(change.new)}"
    if len(item.fields) > _FIELDS:
        yield f"… and {len(item.fields) - _FIELDS} more fields (-o json)"


def _list_rest(section: Section) -> Iterator[str]:
    for (action, target), number in section.routine.items():
        yield f"at each start: {action} {target} (objects: {number})"
    if section.left_out:
        yield _LEFT_OUT.format(section.left_out)


def _show(value: Any) -> str:
    if value is None:
        return "nothing"
    text = orjson.dumps(value).decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _quote(text: str) -> str:
    """Return a text without the syntax of Markdown and HTML."""
    return "".join(f"&#{ord(sign)};" if sign in "&<>`*_[]|@#" else sign for sign in text)


def _fence(text: str) -> str:
    """Return a text that does not end a block of code."""
    return text.replace("```", "'''")
