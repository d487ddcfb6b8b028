"""Label selectors and CEL conditions of webhooks, as types that are checked at import.

Otherwise, users would see mistakes only when API servers refuse the whole webhook configurations.
The rules are those of admissionregistration.k8s.io/v1 and meta/v1 LabelSelector.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from webop.handlers.model import ABSENT, PRESENT, MatchCondition, MetaFilterToken
from webop.objects.names import is_label_key, is_label_value
from webop.objects.typed_values import UnfitValueError, convert, must_be

MAX_CONDITIONS = 64  # of one webhook


check_label = must_be(
    "up to 63 letters and digits, with '-', '_' or '.' only inside",
    where=lambda value: not isinstance(value, str) or is_label_value(value),
    kind=ValueError,
)
_NAME = "a name like 'app' or 'example.com/app', up to 63 characters long"
_EXPRESSION = "a CEL expression, such as \"request.name != 'x'\""
Name = Annotated[str, must_be(_NAME, str, is_label_key, ValueError)]
Label = Annotated[str, must_be("a string", str), check_label]


def _check_requirement(item: Any) -> dict[str, Any]:
    found = convert(LabelRequirement, item)
    operator, needs_values = found["operator"], found["operator"] in ("In", "NotIn")
    if bool(found.get("values")) is not needs_values:
        words = f"must have {'a list of' if needs_values else 'no'} values for {operator}"
        raise UnfitValueError(words, item, ValueError)
    return {key: part for key, part in found.items() if part}


class _Requirement(TypedDict):
    key: Name
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]


class LabelRequirement(_Requirement, total=False):
    """One of the ``matchExpressions`` (Kubernetes API, meta/v1 LabelSelectorRequirement)."""

    values: Collection[Label]


class LabelSelector(TypedDict, total=False):
    """A label selector of the Kubernetes API (meta/v1 LabelSelector)."""

    matchLabels: Mapping[Name, Label]
    matchExpressions: Sequence[Annotated[LabelRequirement, _check_requirement]]


class NamedExpression(TypedDict):
    """A match condition of the Kubernetes API (admissionregistration.k8s.io/v1)."""

    name: Name
    expression: Annotated[str, must_be(_EXPRESSION, str, str.strip, ValueError)]


def _check_selector(value: Any) -> dict[str, Any]:
    """Return a LabelSelector, also for filters as in ``labels=``."""
    if not isinstance(value, Mapping):
        raise UnfitValueError("must be a mapping of labels, or a LabelSelector", value)
    if not value.keys() & LabelSelector.__annotations__.keys():
        for key, criterion in value.items():
            if not isinstance(criterion, (str, MetaFilterToken)):
                words = (
                    "must be a string, PRESENT or ABSENT: the API server checks these labels, and "
                    "cannot call functions"
                )
                raise UnfitValueError(words, criterion, path=f"[{key!r}]")
        value = {"matchExpressions": build_expressions(value)}
    return {key: part for key, part in convert(LabelSelector, value).items() if part}


def _check_conditions(value: Any) -> tuple[MatchCondition, ...]:
    if isinstance(value, Mapping):
        value = [{"name": name, "expression": text} for name, text in value.items()]
    elif isinstance(value, str) or not isinstance(value, Iterable):
        words = "must be a mapping of names to CEL expressions, or a list of items with 'name' and "
        raise UnfitValueError(f"{words}'expression'", value)
    items = convert(list[NamedExpression], [*value])
    if len(items) > MAX_CONDITIONS:
        raise UnfitValueError(f"must be at most {MAX_CONDITIONS} conditions", value, ValueError)
    if len({item["name"] for item in items}) < len(items):
        raise UnfitValueError("must have a different name for each condition", value, ValueError)
    return tuple(MatchCondition(**item) for item in items)


NamespaceSelector = Annotated[LabelSelector | Mapping[str, str | MetaFilterToken], _check_selector]
MatchConditions = Annotated[Mapping[str, str] | Collection[NamedExpression], _check_conditions]


def build_expressions(labels: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Convert label filters for the API server, without functions."""
    expressions: list[dict[str, Any]] = []
    for key, criterion in (labels or {}).items():
        if criterion is PRESENT:
            expressions.append({"key": key, "operator": "Exists"})
        elif criterion is ABSENT:
            expressions.append({"key": key, "operator": "DoesNotExist"})
        elif isinstance(criterion, str):
            expressions.append({"key": key, "operator": "In", "values": [criterion]})
    return expressions
