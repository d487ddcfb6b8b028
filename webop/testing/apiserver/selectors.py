"""Label and field selectors. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from webop.objects.fields import resolve
from webop.objects.label_selectors import matches_labels, parse_label_selector

from .kinds import Kind
from .messages import Json, refuse_body

_ALIASES = {"status.successful": "status.succeeded"}
Predicate = Callable[[Json], bool]


def build_predicate(kind: Kind, query: dict[str, str]) -> Predicate | None:
    """Return what tells whether an object is selected by the parameters; None if all are.

    Raises:
        Refusal: a selector cannot be understood.
    """
    selector = query.get("labelSelector", "")
    labels = parse_label_selector(selector)
    if labels is None:
        raise refuse_body(f"unable to parse requirement: {selector!r}")
    terms = _split(query.get("fieldSelector", ""))
    fields = [_parse_field_term(term, kind.selectable) for term in terms]
    if not labels and not fields:
        return None

    def is_selected(raw: Json) -> bool:
        found = raw["metadata"].get("labels") or {}
        return matches_labels(labels, found) and all(test(raw) for test in fields)

    return is_selected


def check_fields(kind: Kind, query: dict[str, str]) -> None:
    """Refuse selectors of fields that objects cannot be selected by.

    Raises:
        Refusal: there is such a selector.
    """
    known = {
        "metadata.name",
        *kind.selectable,
        *(("metadata.namespace",) if kind.namespaced else ()),
    }
    for term in _split(query.get("fieldSelector", "")):
        if (name := re.split("[=!]", term)[0]) not in known:
            raise refuse_body(f"field label not supported: {name}")


def requires_name(query: dict[str, str]) -> bool:
    """Tell whether only one name is selected."""
    terms = _split(query.get("fieldSelector", ""))
    return any(re.match("metadata.name==?[^=]", term) for term in terms)


def _split(text: str) -> list[str]:
    return [term.strip() for term in text.split(",")] if text.strip() else []


def _parse_field_term(term: str, defaults: dict[str, str]) -> Predicate:
    match = re.fullmatch(r"([^=!]*)(!=|==?)(.*)", term)
    if match is None:
        raise refuse_body(f"invalid selector: '{term}'; can't understand '{term}'")
    name, sign, value = match.groups()
    is_wanted, path = sign != "!=", tuple(_ALIASES.get(name, name).split("."))

    def is_selected(raw: Json) -> bool:
        found = resolve(raw, path)
        if found is None:
            found = defaults.get(name, "")
        text = str(found).lower() if isinstance(found, bool) else str(found)
        return (text == value) is is_wanted

    return is_selected
