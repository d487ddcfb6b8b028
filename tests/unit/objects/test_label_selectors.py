"""Label selectors as texts mean what they mean to API servers."""

from __future__ import annotations

import pytest

from tests.kit.rows import rows
from webop.objects.label_selectors import matches_labels, parse_label_selector

LABELS = {"app": "x", "example.com/tier": "front", "empty": ""}


@pytest.mark.feature("REF-50")
@rows(
    ("text", "expected"),
    [
        ("app=x", True),
        ("app == x", True),
        ("app!=x", False),
        ("absent!=x", True),
        ("app", True),
        ("!absent", True),
        ("! app", False),
        ("empty=", True),
        ("app in (x, y)", True),
        ("app in (y)", False),
        ("app notin (y,z)", True),
        ("absent notin (y)", True),
        ("example.com/tier in (front),app=x", True),
        ("", True),
    ],
)
def test_a_selector_matches(text: str, *, expected: bool) -> None:
    requirements = parse_label_selector(text)
    assert requirements is not None
    assert matches_labels(requirements, LABELS) is expected


@pytest.mark.feature("REF-50")
@rows("text", ["weight>1", "app in x", "a b", "app=x,weight<5", "app=x,", "-app", "a/b/c"])
def test_another_selector_is_not_guessed(text: str) -> None:
    assert parse_label_selector(text) is None
