"""Label selectors of Kubernetes: as a query, as labels that fit, and applied to labels. Pure.

Kubernetes API, meta/v1 LabelSelector. None and an empty one select everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Json = dict[str, Any]
LabelSelector = Mapping[str, Any] | None


def build_query(selector: LabelSelector) -> str:
    """Return a selector as the ``labelSelector`` of a query."""
    forms = {"In": "{} in ({})", "NotIn": "{} notin ({})", "Exists": "{}", "DoesNotExist": "!{}"}
    return ",".join(
        forms[operator].format(key, ",".join(values))
        for key, operator, values in _list_requirements(selector)
    )


def build_labels(selector: LabelSelector) -> dict[str, str]:
    """Return labels that a selector selects; for one that contradicts itself, just any."""
    wanted = {}
    for key, operator, values in _list_requirements(selector):
        if operator == "In":
            wanted[key] = values[0]
        elif operator == "Exists":
            wanted.setdefault(key, "")
    return wanted


def matches_labels(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Tell whether labels are selected."""
    return all(
        _fulfils(labels.get(key), operator, values)
        for key, operator, values in _list_requirements(selector)
    )


def _fulfils(value: str | None, operator: str, values: list[str]) -> bool:
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
    return value is None


def _list_requirements(selector: LabelSelector) -> Iterator[tuple[str, str, list[str]]]:
    for key, value in ((selector or {}).get("matchLabels") or {}).items():
        yield key, "In", [value]
    for item in (selector or {}).get("matchExpressions") or ():
        yield item["key"], item["operator"], list(item.get("values") or ())
