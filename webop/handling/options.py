"""The options of decorators, as editors and type checkers know them, and the checks at import.

Mistakes raise ``TypeError`` and ``ValueError`` where they are made, as in any wrong call of a
function. The messages name the option and the remedy. Used by
:mod:`webop.on` and :mod:`webop.embedding`.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from types import FunctionType
from typing import Any, Literal, TypedDict, TypeGuard, TypeVar

from webop.handling.handlers import (
    ErrorsMode,
    InitialDelay,
    MetaCriterion,
    MetaFilterToken,
    ValueCriterion,
)
from webop.handling.registry import OperatorRegistry
from webop.handling.webhook_options import LabelSelector, NamedExpression
from webop.objects.fields import FieldSpec, parse_field
from webop.objects.resources import Marker, SelectorNames

F = TypeVar("F", bound=Callable[..., Any])

SELECTOR_KEYS = tuple(SelectorNames.__annotations__)

_OPERATIONS = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})
_KWARGS = frozenset(
    {
        *("body", "spec", "meta", "status", "name", "namespace", "uid", "labels", "annotations"),
        *("logger", "patch", "memo", "param", "retry", "started", "runtime", "event", "type"),
        *("old", "new", "diff", "reason", "stopped", "warnings", "dryrun", "userinfo"),
    }
)
_NUMBERS = (
    "timeout",
    "backoff",
    "retries",
    "interval",
    "idle",
    "cancellation_backoff",
    "cancellation_timeout",
    "cancellation_polling",
)
_TYPES: dict[str, tuple[type, str]] = {
    "id": (str, "a string"),
    "errors": (ErrorsMode, "one of webop.ErrorsMode"),
    "labels": (Mapping, "a mapping of labels to what they must be"),
    "annotations": (Mapping, "a mapping of annotations to what they must be"),
}


ResourcePart = str | Marker | Callable[..., bool] | None


class CommonOptions(TypedDict, total=False):
    """What every handler can be given."""

    id: str | None
    param: Any
    registry: OperatorRegistry | None


class RetryOptions(TypedDict, total=False):
    """How failures are treated; times in seconds (chapter "Error handling")."""

    errors: ErrorsMode | None
    timeout: float | None
    retries: int | None
    backoff: float | None


class MetaOptions(TypedDict, total=False):
    """Filters by metadata and by a callback (chapter "Filtering")."""

    labels: Mapping[str, MetaCriterion] | None
    annotations: Mapping[str, MetaCriterion] | None
    when: Callable[..., bool] | None


class FieldOptions(TypedDict, total=False):
    """Filters by one field."""

    field: FieldSpec
    value: ValueCriterion


class TransitionOptions(TypedDict, total=False):
    """Filters by the change of one field."""

    old: ValueCriterion
    new: ValueCriterion


class ActivityOptions(CommonOptions, RetryOptions, total=False):
    """Options of the operator's own handlers."""


class EventOptions(CommonOptions, MetaOptions, FieldOptions, SelectorNames, total=False):
    """Options of ``@on.event``."""


class ChangeOptions(EventOptions, RetryOptions, total=False):
    """Options of ``@on.create`` and ``@webop.index``."""


class ResumeOptions(ChangeOptions, total=False):
    """Options of ``@on.resume``."""

    deleted: bool | None


class DeleteOptions(ChangeOptions, total=False):
    """Options of ``@on.delete``."""

    optional: bool | None


class UpdateOptions(ChangeOptions, TransitionOptions, total=False):
    """Options of ``@on.update`` and ``@on.field``."""


class DaemonOptions(ChangeOptions, total=False):
    """Options of ``@webop.daemon``."""

    initial_delay: InitialDelay
    cancellation_backoff: float | None
    cancellation_timeout: float | None
    cancellation_polling: float | None


class TimerOptions(ChangeOptions, total=False):
    """Options of ``@webop.timer``."""

    interval: float | None
    initial_delay: InitialDelay
    sharp: bool | None
    idle: float | None


class WebhookOptions(EventOptions, total=False):
    """Options of ``@on.validate`` and ``@on.mutate``.

    Those after ``ignore_failures`` are for the API server, as fields of its webhooks
    (Kubernetes, "Dynamic Admission Control"). ``failure_policy="Ignore"`` lets requests pass while
    the operator cannot be reached, ``ignore_failures=True`` also what its handler refuses.
    """

    operation: str | None
    operations: Collection[str] | None
    subresource: str | None
    persistent: bool | None
    side_effects: bool | None
    ignore_failures: bool | None
    failure_policy: Literal["Fail", "Ignore"] | None
    timeout_seconds: int | None
    namespace_selector: LabelSelector | Mapping[str, str | MetaFilterToken] | None
    match_conditions: Mapping[str, str] | Collection[NamedExpression] | None
    match_policy: Literal["Exact", "Equivalent"] | None
    reinvocation_policy: Literal["Never", "IfNeeded"] | None
    scope: Literal["*", "Namespaced", "Cluster"] | None


class RegisterOptions(RetryOptions, MetaOptions, total=False):
    """Options of ``webop.register``."""

    id: str | None
    param: Any


class SubhandlerOptions(RegisterOptions, FieldOptions, TransitionOptions, total=False):
    """Options of ``@webop.subhandler``."""


def spell_out(*required: str, **defaults: Any) -> Callable[[F], F]:
    """Show ``inspect.signature`` and ``help()`` the options of ``**options: Unpack[…]``.

    Args:
        required: the options that have no default.
        defaults: those whose default is not None.
    """

    def decorator(fn: F) -> F:
        signature = inspect.signature(fn)
        *others, options = signature.parameters.values()
        found = re.fullmatch(r"Unpack\[(\w+)\]", str(options.annotation))
        if found is None:
            raise TypeError(f"{fn} takes no options by a TypedDict.")
        names = fn.__globals__[found[1]].__annotations__
        spelt = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if name in required else defaults.get(name),
                annotation=getattr(annotation, "__forward_arg__", annotation),
            )
            for name, annotation in names.items()
        ]
        fn.__signature__ = signature.replace(parameters=[*others, *spelt])  # type: ignore[attr-defined]
        return fn

    return decorator


def parse_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as attributes of a handler; None means the default everywhere.

    Raises:
        TypeError: options of wrong types, or options that exclude or need each other.
        ValueError: a label or an annotation is None (use ``webop.ABSENT``).
    """
    skipped = {"registry", *SELECTOR_KEYS}
    parsed = {k: v for k, v in options.items() if k not in skipped and v is not None}
    check_types(parsed)
    for family in ("labels", "annotations"):
        for key, criterion in parsed.get(family, {}).items():
            if criterion is None:
                raise ValueError(f"{family}={{{key!r}: None}} is unclear: PRESENT or ABSENT?")
    transition = [name for name in ("old", "new") if name in parsed]
    if transition and "value" in parsed:
        raise TypeError(f"value= and {transition[0]}= exclude each other.")
    if (transition or "value" in parsed) and "field" not in parsed:
        raise TypeError(f"{(*transition, 'value')[0]}= needs to know the field: field='spec.x'.")
    if "field" in parsed:
        parsed["field"] = parse_field(parsed["field"])
    return parsed


def parse_operations(operation: str | None, operations: Collection[str] | None) -> frozenset[str]:
    """Return the operations of a webhook, which can be given in two ways (D-17); none for all.

    Raises:
        TypeError: they are given in both ways.
        ValueError: there is no such operation.
    """
    if operation is not None and operations is not None:
        raise TypeError("operation= and operations= exclude each other.")
    chosen = {operation} if operation is not None else set(operations or ())
    unknown = sorted(chosen - _OPERATIONS)
    if unknown:
        raise ValueError(f"There is no operation {unknown[0]!r}: {', '.join(sorted(_OPERATIONS))}.")
    return frozenset(chosen)


def check_names(owner: str, options: Mapping[str, Any], known: Any) -> None:
    """Check that all options are known.

    Args:
        owner: what they are options of, for the message, such as "create handlers".
        options: what is given.
        known: the TypedDict of its options.

    Raises:
        TypeError: there are no such options; with those that were probably meant.
    """
    names = known.__annotations__
    problems = []
    for option in options:
        if option not in names:
            close = difflib.get_close_matches(option, names)
            # "retry" is nearer to "registry" than to "retries" by its letters alone.
            nearest = max(close, key=lambda name: name.startswith(option[:3]), default="")
            advice = f"did you mean {nearest!r}?" if nearest else f"known: {', '.join(names)}."
            problems.append(f"There is no option {option!r} of {owner}: {advice}")
    if problems:
        raise TypeError(" ".join(problems))


def is_handler(value: object) -> TypeGuard[FunctionType]:
    """Tell whether a value is a handler for sure: a function of what only handlers are given."""
    items = inspect.signature(value).parameters.values() if inspect.isfunction(value) else ()
    first = next(iter(items), None)
    return first is not None and (first.kind is first.VAR_KEYWORD or first.name in _KWARGS)


def check_types(options: Mapping[str, Any]) -> None:
    """Check the types of the options whose mistakes would otherwise be noticed much later.

    Raises:
        TypeError: an option is of a wrong type.
    """
    problems = []
    for name, value in options.items():
        if value is None:
            continue
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        kind, expected = _TYPES.get(name, (object, ""))
        is_fine = isinstance(value, kind)
        if name in _NUMBERS:
            is_fine, expected = is_number, "a number"
        elif name == "when":
            is_fine, expected = callable(value), "a function"
        elif name == "initial_delay":
            is_fine, expected = is_number or callable(value), "a number or a function"
        if not is_fine:
            problems.append(f"{name}= must be {expected}, not {value!r}.")
    if problems:
        raise TypeError(" ".join(problems))
