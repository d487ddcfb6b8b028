"""Label and field selectors. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .messages import Json, refuse_body

Predicate = Callable[[Json], bool]
_Test = Callable[[dict[str, str]], bool]

_KEY = r"(?:[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_EXISTENCE = re.compile(rf"(!?)\s*(?P<key>{_KEY})")
_EQUALITY = re.compile(rf"(?P<key>{_KEY})\s*(?P<sign>!=|==?)\s*(?P<value>[-A-Za-z0-9_.]*)")
_MEMBERSHIP = re.compile(rf"(?P<key>{_KEY})\s+(?P<sign>in|notin)\s*\((?P<values>[^()]*)\)")
_COMMAS = re.compile(r",(?![^(]*\))")


def build_predicate(query: dict[str, str]) -> Predicate | None:
    """Return what tells whether an object is selected by the parameters; None if all are.

    Raises:
        Refusal: a selector cannot be understood.
    """
    labels = [_parse_label_term(term) for term in _split(query.get("labelSelector", ""))]
    fields = [_parse_field_term(term) for term in _split(query.get("fieldSelector", ""))]
    if not labels and not fields:
        return None

    def is_selected(raw: Json) -> bool:
        metadata = raw["metadata"]
        found = metadata.get("labels") or {}
        return all(test(found) for test in labels) and all(test(metadata) for test in fields)

    return is_selected


def check_fields(query: dict[str, str], *, namespaced: bool) -> None:
    """Refuse selectors of fields that objects cannot be selected by.

    Raises:
        Refusal: there is such a selector.
    """
    for term in _split(query.get("fieldSelector", "")):
        name = re.split("[=!]", term)[0]
        if name != "metadata.name" and not (namespaced and name == "metadata.namespace"):
            raise refuse_body(f"field label not supported: {name}")


def requires_name(query: dict[str, str]) -> bool:
    """Tell whether only one name is selected."""
    terms = _split(query.get("fieldSelector", ""))
    return any(re.match("metadata.name==?[^=]", term) for term in terms)


def _split(text: str) -> list[str]:
    return [term.strip() for term in _COMMAS.split(text)] if text.strip() else []


def _parse_label_term(term: str) -> _Test:
    if match := _EXISTENCE.fullmatch(term):
        key, is_wanted = match["key"], not match[1]
        return lambda labels: (key in labels) is is_wanted
    if match := _EQUALITY.fullmatch(term):
        key, value, is_wanted = match["key"], match["value"], match["sign"] != "!="
        return lambda labels: (labels.get(key) == value) is is_wanted
    if match := _MEMBERSHIP.fullmatch(term):
        key, is_wanted = match["key"], match["sign"] == "in"
        values = {value.strip() for value in match["values"].split(",")}
        return lambda labels: (labels.get(key) in values) is is_wanted
    raise refuse_body(f"unable to parse requirement: {term!r}")


def _parse_field_term(term: str) -> Callable[[dict[str, Any]], bool]:
    match = re.fullmatch(r"([^=!]*)(!=|==?)(.*)", term)
    if match is None:
        raise refuse_body(f"invalid selector: '{term}'; can't understand '{term}'")
    name, sign, value = match.groups()
    field, is_wanted = name.removeprefix("metadata."), sign != "!="
    return lambda metadata: (metadata.get(field, "") == value) is is_wanted
