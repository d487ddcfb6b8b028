"""Label selectors as texts (Kubernetes documentation: "Labels and Selectors"). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_NAME: Final = "[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_KEY: Final = f"(?P<key>(?:{_NAME}/)?{_NAME})"
_COMMA: Final = re.compile(r",(?![^(]*\))")
_EXISTENCE: Final = re.compile(rf"(?P<sign>!?)\s*{_KEY}")
_EQUALITY: Final = re.compile(rf"{_KEY}\s*(?P<sign>!=|==?)\s*(?P<value>[-A-Za-z0-9_.]*)")
_MEMBERSHIP: Final = re.compile(rf"{_KEY}\s+(?P<sign>in|notin)\s*\((?P<values>[^()]*)\)")


class Requirement(NamedTuple):
    """One condition of a selector: a label has one of some values, or has none of them."""

    key: str
    values: frozenset[str] | None  # None for any value
    is_wanted: bool = True  # whether the label must have one of them

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet the condition."""
        value = labels.get(self.key)
        has = value is not None and (self.values is None or value in self.values)
        return has is self.is_wanted


def parse_label_selector(text: str) -> list[Requirement] | None:
    """Return the conditions of a selector; None if it has others than known here."""
    terms = _COMMA.split(text) if text.strip() else []
    found = [_parse(term.strip()) for term in terms]
    known = [requirement for requirement in found if requirement is not None]
    return known if len(known) == len(found) else None


def matches_labels(requirements: list[Requirement], labels: Mapping[str, str]) -> bool:
    """Return whether labels match a selector."""
    return all(requirement.holds(labels) for requirement in requirements)


def _parse(term: str) -> Requirement | None:
    if found := _EXISTENCE.fullmatch(term):
        return Requirement(found["key"], None, not found["sign"])
    if found := _EQUALITY.fullmatch(term):
        return Requirement(found["key"], frozenset({found["value"]}), found["sign"] != "!=")
    if found := _MEMBERSHIP.fullmatch(term):
        values = frozenset(value.strip() for value in found["values"].split(","))
        return Requirement(found["key"], values, found["sign"] == "in")
    return None
