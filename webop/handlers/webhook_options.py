"""Label selectors and CEL conditions of webhooks, as types that are checked at import.

Otherwise, users would see mistakes only when webop writes the webhook configurations, which the API
server would refuse as a whole. Used by :mod:`webop.handlers.options`. The rules are those of the
Kubernetes API, admissionregistration.k8s.io/v1 and meta/v1 LabelSelector.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from webop.handlers.model import ABSENT, PRESENT, MatchCondition, MetaFilterToken
from webop.handlers.option_values import build_error, convert, must_be
from webop.objects.names import is_label_key, is_label_value

MAX_CONDITIONS = 64  # of one webhook


def _check_name(text: str, place: str) -> str:
    if not is_label_key(text):
        words = "must be a name like 'app' or 'example.com/app', up to 63 characters long"
        raise build_error(place, words, text, ValueError)
    return text


def check_label(text: Any, place: str) -> Any:
    """Check a value of a label, if it is a string."""
    if isinstance(text, str) and not is_label_value(text):
        words = "must be up to 63 letters and digits, with '-', '_' or '.' only inside"
        raise build_error(place, words, text, ValueError)
    return text


def _check_expression(text: str, place: str) -> str:
    if not text.strip():
        words = "must be a CEL expression, such as \"request.name != 'x'\""
        raise build_error(place, words, text, ValueError)
    return text


Name = Annotated[str, must_be("a string", str), _check_name]
Label = Annotated[str, must_be("a string", str), check_label]


class _Requirement(TypedDict):
    key: Name
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]


class LabelRequirement(_Requirement, total=False):
    """One of the ``matchExpressions`` (Kubernetes API, meta/v1 LabelSelectorRequirement)."""

    values: Collection[Label]


class LabelSelector(TypedDict, total=False):
    """A label selector of the Kubernetes API (meta/v1 LabelSelector)."""

    matchLabels: Mapping[Name, Label]
    matchExpressions: Sequence[LabelRequirement]


class NamedExpression(TypedDict):
    """A match condition of the Kubernetes API (admissionregistration.k8s.io/v1)."""

    name: Name
    expression: Annotated[str, must_be("a string", str), _check_expression]


def _check_selector(value: Any, place: str) -> dict[str, Any]:
    """Return a LabelSelector, also for filters as in ``labels=``."""
    if not isinstance(value, Mapping):
        raise build_error(place, "must be a mapping of labels, or a LabelSelector", value)
    if not value.keys() & LabelSelector.__annotations__.keys():
        for key, criterion in value.items():
            if not isinstance(criterion, (str, MetaFilterToken)):
                raise TypeError(
                    f"{place}= must have a string, PRESENT or ABSENT for {key!r}: the API server "
                    f"checks these labels, and cannot call functions, got {value!r}."
                )
        value = {"matchExpressions": build_expressions(value)}
    selector = convert(LabelSelector, value, place)
    for i, item in enumerate(selector.get("matchExpressions", ())):
        operator, needs_values = item["operator"], item["operator"] in ("In", "NotIn")
        if bool(item.get("values")) is not needs_values:
            words = f"must have {'a list of' if needs_values else 'no'} values for {operator}"
            raise build_error(f"{place}['matchExpressions'][{i}]", words, item, ValueError)
        if not needs_values:
            item.pop("values", None)
    return {key: part for key, part in selector.items() if part}


def _check_conditions(value: Any, place: str) -> tuple[MatchCondition, ...]:
    if isinstance(value, Mapping):
        value = [{"name": name, "expression": text} for name, text in value.items()]
    elif isinstance(value, str) or not isinstance(value, Iterable):
        words = "must be a mapping of names to CEL expressions, or a list of items with 'name' and "
        raise build_error(place, f"{words}'expression'", value)
    items = convert(list[NamedExpression], [*value], place)
    if len(items) > MAX_CONDITIONS:
        raise build_error(place, f"must be at most {MAX_CONDITIONS} conditions", value, ValueError)
    if len({item["name"] for item in items}) < len(items):
        raise build_error(place, "must have a different name for each condition", value, ValueError)
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
