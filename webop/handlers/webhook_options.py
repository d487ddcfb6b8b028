"""Label selectors and CEL conditions of webhooks, as types that pydantic checks at import.

Otherwise, users would see mistakes only when webop writes the webhook configurations, which the API
server would refuse as a whole. Used by :mod:`webop.handlers.options`. The rules are those of the
Kubernetes API, admissionregistration.k8s.io/v1 and meta/v1 LabelSelector.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Required

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    GetPydanticSchema,
    Strict,
    ValidationError,
    WrapValidator,
    with_config,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from webop.handlers.model import ABSENT, PRESENT, MatchCondition, MetaFilterToken
from webop.objects.names import is_label_key, is_label_value

MAX_CONDITIONS = 64  # of one webhook
STRICT = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)


def must_be(words: str) -> WrapValidator:
    """Replace pydantic's errors by one that says what the value must be."""

    def check(value: Any, parse: Callable[[Any], Any]) -> Any:
        try:
            return parse(value)
        except ValidationError:
            raise PydanticCustomError("kind_type", f"must be {words}") from None

    return WrapValidator(check)


def checked_as(kind: Any) -> GetPydanticSchema:
    """Accept any collection that the annotation allows, and convert it to this type."""
    return GetPydanticSchema(lambda _, build: build(Annotated[kind, Strict(strict=False)]))


def _refuse(message: str) -> PydanticCustomError:
    return PydanticCustomError("value", message)


def _check_name(text: str) -> str:
    if not is_label_key(text):
        raise _refuse("must be a name like 'app' or 'example.com/app', up to 63 characters long")
    return text


def check_label(text: Any) -> Any:
    """Check a value of a label, if it is a string."""
    if isinstance(text, str) and not is_label_value(text):
        raise _refuse("must be up to 63 letters and digits, with '-', '_' or '.' only inside")
    return text


def _check_expression(text: str) -> str:
    if not text.strip():
        raise _refuse("must be a CEL expression, such as \"request.name != 'x'\"")
    return text


Name = Annotated[str, must_be("a string"), AfterValidator(_check_name)]
Label = Annotated[str, must_be("a string"), AfterValidator(check_label)]


@with_config(STRICT)
class LabelRequirement(TypedDict, total=False):
    """One of the ``matchExpressions`` (Kubernetes API, meta/v1 LabelSelectorRequirement)."""

    key: Required[Name]
    operator: Required[Literal["In", "NotIn", "Exists", "DoesNotExist"]]
    values: Annotated[Collection[str], checked_as(list[Label])]


def _check_values(item: LabelRequirement) -> LabelRequirement:
    operator, needs_values = item["operator"], item["operator"] in ("In", "NotIn")
    if needs_values and not item.get("values"):
        raise _refuse(f"must have a list of values for {operator}")
    if not needs_values and item.pop("values", ()):
        raise _refuse(f"must have no values for {operator}")
    return item


@with_config(STRICT)
class LabelSelector(TypedDict, total=False):
    """A label selector of the Kubernetes API (meta/v1 LabelSelector)."""

    matchLabels: Mapping[Name, Label]
    matchExpressions: Annotated[
        Sequence[LabelRequirement],
        checked_as(list[Annotated[LabelRequirement, AfterValidator(_check_values)]]),
    ]


@with_config(STRICT)
class NamedExpression(TypedDict):
    """A match condition of the Kubernetes API (admissionregistration.k8s.io/v1)."""

    name: Name
    expression: Annotated[str, must_be("a string"), AfterValidator(_check_expression)]


def _spell_selector(value: Any) -> Any:
    """Convert filters as in ``labels=`` to a LabelSelector; return a LabelSelector unchanged."""
    if not isinstance(value, Mapping):
        raise PydanticCustomError("kind_type", "must be a mapping of labels, or a LabelSelector")
    if value.keys() & LabelSelector.__annotations__.keys():
        return value
    for key, criterion in value.items():
        if not isinstance(criterion, (str, MetaFilterToken)):
            raise PydanticCustomError(
                "kind_type",
                "must have a string, PRESENT or ABSENT for {key}: the API server checks these "
                "labels, and cannot call functions",
                {"key": repr(key)},
            )
    return {"matchExpressions": build_expressions(value)}


def _drop_empty(selector: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in selector.items() if value}


def _list_conditions(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [{"name": name, "expression": text} for name, text in value.items()]
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise PydanticCustomError(
            "kind_type",
            "must be a mapping of names to CEL expressions, or a list of items with 'name' and "
            "'expression'",
        )
    return value


def _name_conditions(items: list[NamedExpression]) -> tuple[MatchCondition, ...]:
    if len(items) > MAX_CONDITIONS:
        raise _refuse(f"must be at most {MAX_CONDITIONS} conditions")
    if len({item["name"] for item in items}) < len(items):
        raise _refuse("must have a different name for each condition")
    return tuple(MatchCondition(**item) for item in items)


NamespaceSelector = Annotated[
    LabelSelector | Mapping[str, str | MetaFilterToken],
    checked_as(LabelSelector),
    BeforeValidator(_spell_selector),
    AfterValidator(_drop_empty),
]
MatchConditions = Annotated[
    Mapping[str, str] | Collection[NamedExpression],
    checked_as(list[NamedExpression]),
    BeforeValidator(_list_conditions),
    AfterValidator(_name_conditions),
]


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
