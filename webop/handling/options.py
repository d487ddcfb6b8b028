"""The options of decorators: for each, its type, what it must be, and what it means, in one place.

Type checkers and editors read the TypedDicts, pydantic checks the values at import, and the page
``docs/options.md`` is made of the texts. Mistakes raise ``TypeError`` and ``ValueError``, as in any
wrong call of a function; the messages name the option and the remedy. The defaults are those of
:mod:`webop.handling.handlers`. Used by :mod:`webop.on`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_type_hints

from pydantic import AfterValidator, BaseModel, Field, PlainValidator, ValidationError, create_model
from pydantic_core import ErrorDetails

from webop.handling.handlers import ErrorsMode, MetaFilterToken
from webop.handling.registry import OperatorRegistry
from webop.handling.webhook_options import (
    STRICT,
    MatchConditions,
    Name,
    NamespaceSelector,
    check_label,
    checked_as,
    must_be,
)
from webop.objects.fields import FieldSpec, parse_field
from webop.objects.resources import Marker, SelectorNames
from webop.settings.sections import LONGEST, describe_mismatch

F = TypeVar("F", bound=Callable[..., Any])

SELECTOR_KEYS = tuple(SelectorNames.__annotations__)
ResourcePart = str | Marker | Callable[..., bool] | None

_EXCLUSIVE = (("value", "old"), ("value", "new"), ("operation", "operations"))


def _check_sync(value: Callable[..., bool]) -> Callable[..., bool]:
    """Refuse async functions: nobody awaits them, so whatever they return would be true."""
    if inspect.iscoroutinefunction(value):
        raise ValueError("async")
    return value


Id = Annotated[str, Field(min_length=1), must_be("a string that is not empty")]
Flag = Annotated[bool, must_be("True or False")]
Number = Annotated[int | float, must_be("a number"), Field(ge=0)]
Count = Annotated[int, must_be("a whole number"), Field(ge=0)]
Delay = Annotated[Number | Callable[..., float], must_be("a number from 0 on, or a function")]
Subresource = Annotated[
    str, Field(pattern=r"^([-a-z0-9]+|\*)$"), must_be("a name such as 'status', or '*'")
]
Function = Annotated[Callable[..., bool], AfterValidator(_check_sync), must_be("a sync function")]
Criterion = Annotated[
    str | MetaFilterToken | Function,
    must_be("a string, a sync function, webop.PRESENT or webop.ABSENT"),
]
Labels = Mapping[Name, Annotated[Criterion, AfterValidator(check_label)]]
FieldPath = Annotated[FieldSpec, PlainValidator(parse_field)]
Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


class CommonOptions(TypedDict, total=False):
    """What every handler can be given."""

    id: Id | None
    """The name of the handler in the state on objects and in the log; by default the function's"""
    param: Any
    """Anything: the handler gets it as ``param``"""
    registry: OperatorRegistry | None
    """Where the handler is registered; by default ``webop.get_default_registry()``"""


class RetryOptions(TypedDict, total=False):
    """How failures are treated (chapter "Error handling")."""

    errors: Annotated[ErrorsMode, must_be("one of webop.ErrorsMode")] | None
    """What exceptions mean that are neither temporary nor permanent errors"""
    timeout: Number | None
    """The seconds after which a handler that has not succeeded is not called again"""
    retries: Count | None
    """The number of attempts after which it is not called again"""
    backoff: Number | None
    """The seconds until the next attempt"""


class MetaOptions(TypedDict, total=False):
    """Filters by metadata and by a callback (chapter "Filtering")."""

    labels: Labels | None
    """Labels of the object: values, functions, ``webop.PRESENT`` or ``webop.ABSENT``"""
    annotations: Mapping[Name, Criterion] | None
    """The same for annotations"""
    when: Function | None
    """A function of the handler's arguments that returns whether to call it"""


class FieldOptions(TypedDict, total=False):
    """Filters by one field."""

    field: FieldPath
    """A field, such as ``"spec.size"``: the handler is called if it is there"""
    value: Any
    """The value of the field: any value, a function, ``webop.PRESENT`` or ``webop.ABSENT``"""


class TransitionOptions(TypedDict, total=False):
    """Filters by the change of one field."""

    old: Any
    """As ``value``, before the change"""
    new: Any
    """As ``value``, after the change"""


class ActivityOptions(CommonOptions, RetryOptions, total=False):
    """Options of the operator's own handlers."""


class EventOptions(CommonOptions, MetaOptions, FieldOptions, SelectorNames, total=False):
    """Options of ``@on.event``."""


class ChangeOptions(EventOptions, RetryOptions, total=False):
    """Options of ``@on.create`` and ``@webop.index``."""


class ResumeOptions(ChangeOptions, total=False):
    """Options of ``@on.resume``."""

    deleted: Flag | None
    """Whether to call it for objects that are being deleted, too"""


class DeleteOptions(ChangeOptions, total=False):
    """Options of ``@on.delete``."""

    optional: Flag | None
    """Whether objects can go without the handler having been called: there is no finalizer"""


class UpdateOptions(ChangeOptions, TransitionOptions, total=False):
    """Options of ``@on.update`` and ``@on.field``."""


class DaemonOptions(ChangeOptions, total=False):
    """Options of ``@webop.daemon``."""

    initial_delay: Delay | None
    """The seconds until it is started, or a function that returns them"""
    cancellation_backoff: Number | None
    """The seconds between telling a daemon to stop and cancelling its task"""
    cancellation_timeout: Number | None
    """The seconds after which a cancelled daemon is abandoned"""
    cancellation_polling: Number | None
    """The seconds between two looks at a daemon that has neither of both"""


class TimerOptions(ChangeOptions, total=False):
    """Options of ``@webop.timer``."""

    interval: Number | None
    """The seconds between the end of a call and the beginning of the next one"""
    initial_delay: Delay | None
    """The seconds until the first call, or a function that returns them"""
    sharp: Flag | None
    """Whether the interval is between the beginnings of calls"""
    idle: Number | None
    """The seconds that an object must be unchanged before it is called"""


class WebhookOptions(EventOptions, total=False):
    """Options of ``@on.validate`` and ``@on.mutate``.

    Those after ``ignore_failures`` are for the API server, as fields of its webhooks
    (Kubernetes, "Dynamic Admission Control").
    """

    operation: Operation | None
    """One of ``CREATE``, ``UPDATE``, ``DELETE``, ``CONNECT``: the handler is called for it only"""
    operations: Annotated[Collection[Operation], checked_as(frozenset[Operation])] | None
    """The same for several operations; by default all of them"""
    subresource: Subresource | None
    """Which subresource, such as ``"status"``; ``"*"`` for the object itself and all of them"""
    persistent: Flag | None
    """Whether the webhook stays in the cluster when the last replica has ended"""
    side_effects: Flag | None
    """Whether the handler has side effects, but none in a dry run"""
    ignore_failures: Flag | None
    """Whether nothing that the handler says or fails to say stops a request"""
    failure_policy: Literal["Fail", "Ignore"] | None
    """``"Ignore"``: requests pass while the handler cannot be called"""
    timeout_seconds: Annotated[Count, Field(ge=1, le=30)] | None
    """How long the API server waits, 1 to 30"""
    namespace_selector: NamespaceSelector | None
    """Labels of namespaces, as in ``labels=``, or a Kubernetes LabelSelector; by default all"""
    match_conditions: MatchConditions | None
    """CEL expressions by names: the API server calls the webhook only if all are true"""
    match_policy: Literal["Exact", "Equivalent"] | None
    """``"Exact"``: not if the object is sent in another version of its API"""
    reinvocation_policy: Literal["Never", "IfNeeded"] | None
    """``"IfNeeded"``: call again if later webhooks change the object; for ``on.mutate`` only"""
    scope: Literal["*", "Namespaced", "Cluster"] | None
    """``"Namespaced"`` or ``"Cluster"``: only for such objects"""


class RegisterOptions(RetryOptions, MetaOptions, total=False):
    """Options of ``webop.register``."""

    id: Id | None
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
        spelt = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if name in required else defaults.get(name),
                annotation=getattr(annotation, "__forward_arg__", annotation),
            )
            for name, annotation in fn.__globals__[found[1]].__annotations__.items()
        ]
        fn.__signature__ = signature.replace(parameters=[*others, *spelt])  # type: ignore[attr-defined]
        return fn

    return decorator


def parse_options(owner: str, options: Mapping[str, Any], known: Any) -> dict[str, Any]:
    """Return the options as attributes of a handler; None means the default everywhere.

    The owner, such as "create handlers", is for the messages.

    Raises:
        TypeError: there is no such option, it is of a wrong type, or two exclude or need another.
        ValueError: an option has a value that it cannot have.
    """
    check_names(owner, options, known)
    given = {k: v for k, v in options.items() if k not in SELECTOR_KEYS and v is not None}
    try:
        model = _build_model(known)(**given)
    except ValidationError as exc:
        details = exc.errors(include_url=False)
        kind = TypeError if any(map(_is_of_wrong_type, details)) else ValueError
        raise kind(" ".join(dict.fromkeys(map(_describe, details)))) from None
    for one, other in _EXCLUSIVE:
        if one in given and other in given:
            raise TypeError(f"{one}= and {other}= exclude each other.")
    for name in ("old", "new", "value"):
        if name in given and "field" not in given:
            raise TypeError(f"{name}= requires field=, such as field='spec.size'.")
    return {name: getattr(model, name) for name in given}


@functools.cache
def _build_model(known: Any) -> type[BaseModel]:
    hints = get_type_hints(known, include_extras=True)
    fields: dict[str, Any] = {name: (hint, None) for name, hint in hints.items()}
    model: type[BaseModel] = create_model(known.__name__, __config__=STRICT, **fields)
    return model


def _is_of_wrong_type(error: ErrorDetails) -> bool:
    """Tell whether this is a mistake in the type, not in the value; None is unclear, not wrong."""
    kind, value = error["type"], error["input"]
    if kind == "literal_error":
        return not isinstance(value, str)
    others = ("missing", "extra_forbidden", "is_instance_of")
    return value is not None and (kind.endswith("_type") or kind in others)


def _describe(error: ErrorDetails) -> str:
    """Return an error of pydantic in words, such as "labels['a'] must be a string, got 5."."""
    name, *path = (part for part in error["loc"] if part != "[key]")
    place = str(name) + ("".join(f"[{part!r}]" for part in path) or "=")
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "missing":
        return f"{place} is missing."
    if error["type"] == "extra_forbidden":
        return f"{place} is unknown: remove it."
    words = describe_mismatch(error, place).rstrip(".")
    words = words if words.startswith(place) else f"{place} {words}"
    return f"{words}, got {repr(error['input'])[:LONGEST]}."


def check_names(owner: str, options: Iterable[str], known: Any) -> None:
    """Check that all options are known, as in :func:`parse_options`.

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
