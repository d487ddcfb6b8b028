"""Label selectors: as queries, and as labels."""

from __future__ import annotations

from typing import Any

import pytest

from webop.doctor.probing import build_labels, build_query

Json = dict[str, Any]

CASES: list[tuple[Json | None, str, Json]] = [
    (None, "", {}),
    ({}, "", {}),
    ({"matchLabels": {"a": "1"}}, "a in (1)", {"a": "1"}),
    (
        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]},
        "a in (1,2)",
        {"a": "1"},
    ),
    (
        {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]},
        "a notin (1)",
        {},
    ),
    ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, "a", {"a": ""}),
    ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, "!a", {}),
    (
        {"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]},
        "a in (1),b",
        {"a": "1", "b": ""},
    ),
]


@pytest.mark.parametrize(("selector", "query", "labels"), CASES)
def test_a_selector_gives_a_query_and_labels_that_it_selects(
    selector: Json | None, query: str, labels: Json
) -> None:
    assert build_query(selector) == query
    assert build_labels(selector) == labels
