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
    fields = [_parse_field_term(term, kind) for term in terms]
    if not labels and not fields:
        return None

    def is_selected(raw: Json) -> bool:
        found = raw["metadata"].get("labels") or {}
        return matches_labels(labels, found) and all(test(raw) for test in fields)

    return is_selected


def requires_name(query: dict[str, str]) -> bool:
    """Tell whether only one name is selected."""
    terms = _split(query.get("fieldSelector", ""))
    return any(re.match("metadata.name==?[^=]", term) for term in terms)


def _split(text: str) -> list[str]:
    return [term.strip() for term in text.split(",")] if text.strip() else []


def _parse_field_term(term: str, kind: Kind) -> Predicate:
    match = re.fullmatch(r"([^=!]*)(!=|==?)(.*)", term)
    if match is None:
        raise refuse_body(f"invalid selector: '{term}'; can't understand '{term}'")
    name, sign, value = match.groups()
    known = {"metadata.name", *(("metadata.namespace",) if kind.namespaced else ())}
    if name not in known | kind.selectable.keys():
        raise refuse_body(f"field label not supported: {name}")
    is_wanted, path = sign != "!=", tuple(_ALIASES.get(name, name).split("."))

    def is_selected(raw: Json) -> bool:
        found = resolve(raw, path)
        if found is None:
            found = kind.selectable.get(name, "")
        text = str(found).lower() if isinstance(found, bool) else str(found)
        return (text == value) is is_wanted

    return is_selected
