"""The options of admission handlers that are for the API server, checked at import.

Otherwise, mistakes would be found only when the configurations are applied, and the API server
would refuse these completely. Used by :mod:`webop.on`. The rules are those of the Kubernetes
API, admissionregistration.k8s.io/v1 and meta/v1 LabelSelector.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, Required, TypedDict

from webop.handling.handlers import ABSENT, PRESENT, MatchCondition, WebhookType

MAX_CONDITIONS = 64  # of one webhook

_CHOICES = {
    "match_policy": ("Exact", "Equivalent"),
    "reinvocation_policy": ("Never", "IfNeeded"),
    "failure_policy": ("Fail", "Ignore"),
    "scope": ("*", "Namespaced", "Cluster"),
}
_MAX_TIMEOUT = 30  # seconds
_WITH_VALUES = ("In", "NotIn")
_WITHOUT_VALUES = ("Exists", "DoesNotExist")

_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_PREFIX = 253


class LabelRequirement(TypedDict, total=False):
    """One of the ``matchExpressions`` (Kubernetes API, meta/v1 LabelSelectorRequirement)."""

    key: Required[str]
    operator: Required[Literal["In", "NotIn", "Exists", "DoesNotExist"]]
    values: Collection[str]


class LabelSelector(TypedDict, total=False):
    """Labels as the Kubernetes API has them (meta/v1 LabelSelector)."""

    matchLabels: Mapping[str, str]
    matchExpressions: Sequence[LabelRequirement]


class NamedExpression(TypedDict):
    """A condition as the Kubernetes API has it (admissionregistration.k8s.io/v1)."""

    name: str
    expression: str


def parse_webhook_options(reason: WebhookType, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return these options, as far as they are given, as attributes of a handler.

    Raises:
        TypeError: an option is of a wrong type, or two exclude each other.
        ValueError: an option has a value that the API server would not take.
    """
    parsed: dict[str, Any] = {}
    for name, known in _CHOICES.items():
        value = options.get(name)
        if value is not None and value not in known:
            problem = ValueError if isinstance(value, str) else TypeError
            raise problem(f"{name}= is to be {_join(known)}, not {value!r}.")
        if value is not None:
            parsed[name] = value
    if "reinvocation_policy" in parsed and reason is not WebhookType.MUTATING:
        raise TypeError("reinvocation_policy= is for @on.mutate only: nothing else is reinvoked.")
    if parsed.get("failure_policy") == "Fail" and options.get("ignore_failures"):
        raise TypeError("ignore_failures=True and failure_policy='Fail' exclude each other.")
    for name, parse in _PARSERS.items():
        if options.get(name) is not None:
            parsed[name] = parse(options[name])
    labels = options.get("labels")
    for key, criterion in labels.items() if isinstance(labels, Mapping) else ():
        if isinstance(criterion, str) or criterion is PRESENT or criterion is ABSENT:
            _check_label("labels", key, criterion)  # others are not sent to the API server
    return parsed


def build_expressions(labels: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return label criteria as the API server has them; callbacks are left out (ADM-19, 21)."""
    expressions: list[dict[str, Any]] = []
    for key, criterion in (labels or {}).items():
        if criterion is PRESENT:
            expressions.append({"key": key, "operator": "Exists"})
        elif criterion is ABSENT:
            expressions.append({"key": key, "operator": "DoesNotExist"})
        elif isinstance(criterion, str):
            expressions.append({"key": key, "operator": "In", "values": [criterion]})
    return expressions


def _parse_timeout(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"timeout_seconds= is to be a whole number of seconds, not {value!r}.")
    if not 1 <= value <= _MAX_TIMEOUT:
        raise ValueError(f"timeout_seconds= is to be from 1 to {_MAX_TIMEOUT}, not {value!r}.")
    return value


def _parse_conditions(value: object) -> tuple[MatchCondition, ...]:
    if isinstance(value, Mapping):
        items = [{"name": name, "expression": text} for name, text in value.items()]
    elif isinstance(value, Iterable) and not isinstance(value, str):
        items = list(value)
    else:
        raise TypeError(
            "match_conditions= is to be a mapping of names to CEL expressions, or a list of "
            f"{{'name': …, 'expression': …}}, not {value!r}."
        )
    if len(items) > MAX_CONDITIONS:
        raise ValueError(f"match_conditions= has {len(items)} of at most {MAX_CONDITIONS}.")
    conditions: dict[str, MatchCondition] = {}
    for condition in map(_parse_condition, items):
        if condition.name in conditions:
            raise ValueError(f"match_conditions= has two of the name {condition.name!r}.")
        conditions[condition.name] = condition
    return tuple(conditions.values())


def _parse_condition(item: Any) -> MatchCondition:
    if not isinstance(item, Mapping) or set(item) != {"name", "expression"}:
        raise TypeError(
            f"match_conditions= is to have items of 'name' and 'expression', not {item!r}."
        )
    name, expression = item["name"], item["expression"]
    if not isinstance(expression, str):
        raise TypeError(
            f"match_conditions= is to have a CEL expression for {name!r}, such as "
            f"\"request.name != 'x'\", not {expression!r}."
        )
    if not expression.strip():
        raise ValueError(f"match_conditions= has an empty expression for {name!r}.")
    if not _is_qualified_name(name):
        raise ValueError(f"match_conditions= has {name!r}, which is no name: {_NAMES}.")
    return MatchCondition(name, expression)


def _parse_namespace_selector(value: object) -> dict[str, Any] | None:
    """Return a LabelSelector of one, or of criteria as in ``labels=``; None if it is empty."""
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{_SELECTOR}= is to be a mapping of labels to what they are to be, or a "
            f"Kubernetes LabelSelector, not {value!r}."
        )
    if not value.keys() & {"matchLabels", "matchExpressions"}:
        for key, criterion in value.items():
            if not isinstance(criterion, str) and criterion not in (PRESENT, ABSENT):
                raise TypeError(
                    f"{_SELECTOR}={{{key!r}: {criterion!r}}}: only the API server knows "
                    "the labels of namespaces, so it can be a string, PRESENT or ABSENT."
                )
            _check_label(_SELECTOR, key, criterion)
        expressions = build_expressions(value)
        return {"matchExpressions": expressions} if expressions else None
    if foreign := sorted(map(str, value.keys() - {"matchLabels", "matchExpressions"})):
        raise ValueError(f"{_SELECTOR}= has {foreign[0]!r} beside those of a LabelSelector.")
    return _parse_label_selector(value) or None


def _parse_label_selector(value: Mapping[str, Any]) -> dict[str, Any]:
    labels, expressions = value.get("matchLabels"), value.get("matchExpressions")
    selector: dict[str, Any] = {}
    if labels is not None and not isinstance(labels, Mapping):
        raise TypeError(f"{_SELECTOR}= has matchLabels {labels!r}, which is no mapping.")
    if expressions is not None and not isinstance(expressions, (list, tuple)):
        raise TypeError(f"{_SELECTOR}= has matchExpressions {expressions!r}, no list.")
    for key, label in (labels or {}).items():
        if not isinstance(label, str):
            raise TypeError(f"{_SELECTOR}= has matchLabels {key!r}: {label!r}, no string.")
        _check_label(_SELECTOR, key, label)
    if labels:
        selector["matchLabels"] = dict(labels)
    if expressions:
        selector["matchExpressions"] = [_parse_expression(item) for item in expressions]
    return selector


def _parse_expression(item: object) -> dict[str, Any]:
    """Check one of ``matchExpressions`` (Kubernetes API, meta/v1 LabelSelectorRequirement)."""
    if not isinstance(item, Mapping) or not {"key", "operator"} <= set(item):
        raise TypeError(
            f"{_SELECTOR}= is to have matchExpressions of 'key', 'operator' and maybe "
            f"'values', not {item!r}."
        )
    key, operator, values = item["key"], item["operator"], item.get("values")
    if foreign := sorted(map(str, item.keys() - {"key", "operator", "values"})):
        raise ValueError(f"{_SELECTOR}= has {foreign[0]!r} in the expression of {key!r}.")
    _check_label(_SELECTOR, key, PRESENT)
    if operator in _WITH_VALUES:
        if isinstance(values, str) or not isinstance(values, Iterable):
            values = ()
        if not (found := list(values)):
            raise ValueError(f"{_SELECTOR}= needs a list of values for {operator} of {key!r}.")
        for value in found:
            if not isinstance(value, str):
                raise TypeError(f"{_SELECTOR}= has the value {value!r} for {key!r}, no string.")
            _check_label(_SELECTOR, key, value)
        return {"key": key, "operator": operator, "values": found}
    if operator not in _WITHOUT_VALUES:
        known = _join((*_WITH_VALUES, *_WITHOUT_VALUES))
        raise ValueError(f"{_SELECTOR}= has the operator {operator!r}, not {known}.")
    if values:
        raise ValueError(f"{_SELECTOR}= has values for {operator} of {key!r}: drop them.")
    return {"key": key, "operator": operator}


def _check_label(option: str, key: object, value: object) -> None:
    if not _is_qualified_name(key):
        raise ValueError(f"{option}= has {key!r}, which is no name of a label: {_NAMES}.")
    if isinstance(value, str) and value and not _PART.fullmatch(value):
        raise ValueError(f"{option}= has {value!r}, which no label can be: {_VALUES}.")


def _is_qualified_name(text: object) -> bool:
    """Tell whether this is a name such as "app" or "example.com/app"."""
    if not isinstance(text, str):
        return False
    prefix, slash, name = text.rpartition("/")
    has_prefix = len(prefix) <= _MAX_PREFIX and _PREFIX.fullmatch(prefix) is not None
    return _PART.fullmatch(name) is not None and (has_prefix if slash else True)


def _join(known: tuple[str, ...]) -> str:
    return " or ".join(map(repr, known))


_SELECTOR = "namespace_selector"
_NAMES = "they are like 'app' or 'example.com/app', with 63 characters after the slash"
_VALUES = "up to 63 letters, digits, and '-', '_', '.' inside"
_PARSERS = {
    "timeout_seconds": _parse_timeout,
    "match_conditions": _parse_conditions,
    "namespace_selector": _parse_namespace_selector,
}
