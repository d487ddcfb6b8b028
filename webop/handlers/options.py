"""The options of decorators: types, checks and meanings, in one place.

Type checkers and editors read the TypedDicts, :mod:`webop.objects.typed_values` checks the values
at import, and ``docs/reference/api/handlers.md`` is generated from the texts. Mistakes raise
``TypeError`` and ``ValueError``, as in any wrong call; the messages name the option and the remedy.
The defaults are in :mod:`webop.handlers.model`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypedDict,
    TypeVar,
    get_type_hints,
)

from webop.handlers.model import ErrorsMode, MetaFilterToken
from webop.handlers.registry import OperatorRegistry
from webop.handlers.retries import Backoff
from webop.handlers.validation import is_handler
from webop.handlers.webhook_options import (
    MatchConditions,
    Name,
    NamespaceSelector,
    check_label,
)
from webop.models.definitions import build_selector, find_class, select_kind
from webop.objects.fields import FieldSpec, parse_field
from webop.objects.names import SUBDOMAIN
from webop.objects.resources import Marker, Selector, SelectorNames, parse_selector
from webop.objects.typed_values import UnfitValueError, convert, is_number, must_be, number

if TYPE_CHECKING:
    from pydantic import BaseModel

F = TypeVar("F", bound=Callable[..., Any])

SELECTOR_KEYS = tuple(SelectorNames.__annotations__)
ResourcePart: TypeAlias = "str | Marker | type[BaseModel] | Callable[..., bool] | None"

_EXCLUSIVE = (("value", "old"), ("value", "new"), ("operation", "operations"))


def _is_sync(value: object) -> bool:
    """Return whether a value is a sync function: webop does not await filters."""
    return callable(value) and not inspect.iscoroutinefunction(value)


def _is_pause(value: object) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(is_number(item) and item >= 0 for item in value)
    return isinstance(value, Backoff) or _is_positive(value)


def _is_positive(value: Any) -> bool:
    return is_number(value) and value >= 0


def _is_delay(value: object) -> bool:
    return callable(value) or _is_positive(value)


def _check_fields(value: Any) -> tuple[Any, ...]:
    return tuple(map(parse_field, convert(Collection[Any], value)))


def _select_kind(kind: Any) -> Selector:
    if isinstance(kind, str | type):
        return select_kind(kind)
    raise TypeError(f"A kind must be a name such as 'deployments.apps', or a model, got {kind!r}.")


def _check_operations(value: Any) -> frozenset[str]:
    return frozenset(convert(Collection[Operation], value))


Id = Annotated[str, must_be("a string that is not empty", str, bool)]
Flag = Annotated[bool, must_be("True or False", bool)]
Number = Annotated[int | float, number(0)]
Pause = Annotated[
    int | float | Sequence[float] | Backoff,
    must_be("a number from 0 on, a list of them, or a webop.Backoff", where=_is_pause),
]
Count = Annotated[int, number(0, is_whole=True)]
Delay = Annotated[
    int | float | Callable[..., float],
    must_be("a number from 0 on, or a function", where=_is_delay),
]
Subresource = Annotated[
    str, must_be("a name such as 'status', or '*'", str, re.compile(r"[-a-z0-9]+|\*").fullmatch)
]
Function = Annotated[Callable[..., bool], must_be("a sync function", where=_is_sync)]
_check_criterion = must_be(
    "a string, a sync function, webop.PRESENT or webop.ABSENT",
    where=lambda value: isinstance(value, str | MetaFilterToken) or _is_sync(value),
)
Criterion = Annotated[str | MetaFilterToken | Callable[..., bool], _check_criterion]
Labels = Mapping[Name, Annotated[Criterion, check_label]]
Expression = Annotated[str, must_be("a CEL expression that is not empty", str, str.strip)]
RuleId = Annotated[
    str,
    must_be(
        "a DNS name such as 'engine-is-fixed', 128 characters at most",
        str,
        lambda value: len(value) <= 128 and SUBDOMAIN.fullmatch(value),
    ),
]
FieldPath = Annotated[FieldSpec, parse_field]
Kind = Annotated[Any, _select_kind]
Kinds = Annotated[
    list[Any] | tuple[Any, ...],
    must_be("a list of kinds, such as ['deployments.apps']", list | tuple),
    lambda kinds: tuple(map(_select_kind, kinds)),
]
Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]
# Names for the types, since help() shows them.
Errors = Annotated[ErrorsMode, must_be("one of webop.ErrorsMode", ErrorsMode)]
Fields = Annotated[Collection[FieldSpec], _check_fields]
Operations = Annotated[Collection[Operation], _check_operations]
Timeout = Annotated[int, number(1, 30, is_whole=True)]


class CommonOptions(TypedDict, total=False):
    """Options of all handlers."""

    id: Id | None
    """Id of the handler in the log and in the state on objects; by default the function's name"""
    param: Any
    """Any value; the handler gets it as ``param``"""
    registry: OperatorRegistry | None
    """The registry of the handler; by default ``webop.get_default_registry()``"""


class RetryOptions(TypedDict, total=False):
    """Options for errors and retries (chapter "Error handling")."""

    errors: Errors | None
    """How to treat exceptions other than temporary and permanent errors"""
    timeout: Number | None
    """Seconds since the first attempt after which the handler fails for good"""
    retries: Count | None
    """Number of attempts after which the handler fails for good"""
    backoff: Pause | None
    """Seconds until the next attempt: a number, several of which the last one repeats, or a
    ``webop.Backoff``"""


class MetaOptions(TypedDict, total=False):
    """Filters by metadata and by a callback (chapter "Filtering")."""

    labels: Labels | None
    """Required labels: values, functions, ``webop.PRESENT`` or ``webop.ABSENT``"""
    annotations: Mapping[Name, Criterion] | None
    """Required annotations, in the same form"""
    when: Function | None
    """A function of the handler's arguments that returns whether to call the handler"""


class FieldOptions(TypedDict, total=False):
    """Filters by one field."""

    field: FieldPath
    """A field, such as ``"spec.size"``, that must exist"""
    value: Any
    """Required value of the field: a value, a function, ``webop.PRESENT`` or ``webop.ABSENT``"""


class TransitionOptions(TypedDict, total=False):
    """Filters by the change of one field."""

    old: Any
    """Like ``value``, for the state before the change"""
    new: Any
    """Like ``value``, for the state after the change"""


class ActivityOptions(CommonOptions, RetryOptions, total=False):
    """Options of startup, cleanup, login and probe handlers."""


class BodyOptions(TypedDict, total=False):
    """Options for what the handler gets of the objects (page "Selectors")."""

    metadata_only: Flag | None
    """If True, the handler needs only the metadata. If all handlers of the kind have this option,
    webop requests nothing else"""


class KindOptions(TypedDict, total=False):
    """Options about the kind of the objects."""

    when_kind_exists: Flag | None
    """If True, webop waits without a warning for a kind that the cluster does not have"""


class ObjectOptions(
    CommonOptions, MetaOptions, FieldOptions, KindOptions, SelectorNames, total=False
):
    """Options of all handlers of objects."""


class EventOptions(ObjectOptions, BodyOptions, total=False):
    """Options of ``@on.event``."""


class ChangeOptions(EventOptions, RetryOptions, total=False):
    """Options of ``@on.create`` and ``@webop.index``."""


class ResumeOptions(ChangeOptions, total=False):
    """Options of ``@on.resume``."""

    deleted: Flag | None
    """If True, webop calls the handler also for objects that are being deleted"""


class DeleteOptions(ChangeOptions, total=False):
    """Options of ``@on.delete``."""

    optional: Flag | None
    """If True, webop adds no finalizer. The object can then disappear before the handler is
    called"""


class UpdateOptions(ChangeOptions, TransitionOptions, total=False):
    """Options of ``@on.update`` and ``@on.field``."""


class DaemonOptions(ChangeOptions, total=False):
    """Options of ``@webop.daemon``."""

    initial_delay: Delay | None
    """Seconds before the daemon starts, or a function that returns them"""
    cancellation_backoff: Number | None
    """Seconds for the daemon to return after ``stopped`` was set"""
    cancellation_timeout: Number | None
    """If set, webop cancels an async daemon after that, and abandons it after so many more
    seconds"""
    cancellation_polling: Number | None
    """Seconds between log messages about a daemon that does not stop; without
    ``cancellation_timeout`` only"""


class TimerOptions(ChangeOptions, total=False):
    """Options of ``@webop.timer``."""

    interval: Number | None
    """Seconds between the end of a call and the beginning of the next"""
    initial_delay: Delay | None
    """Seconds before the first call, or a function that returns them"""
    sharp: Flag | None
    """If True, calls begin at multiples of the interval"""
    idle: Number | None
    """Seconds for which the object must be unchanged before a call"""


class ReconcileOptions(CommonOptions, MetaOptions, KindOptions, SelectorNames, total=False):
    """Options of ``@webop.reconcile``."""

    timeout: Number | None
    """Seconds after which a call of an async function fails"""
    backoff: Pause | None
    """Seconds until the next call after a failure: a number, several of which the last one repeats,
    or a ``webop.Backoff``; by default 1, 2, 4, … up to 300"""
    fields: Fields | None
    """webop calls the reconciler when one of these fields changes, such as ``["spec",
    "metadata.labels"]``; by default all but the metadata and the status"""
    owns: Kinds | None
    """The kinds of its children: names as in decorators, such as ``"deployments.apps"``, or
    models"""
    reads: Kinds | None
    """Those of ``owns`` whose whole objects are watched, for ``children.get()`` and the like"""
    accumulates: Kinds | None
    """Those of ``owns`` that ``children.prune()`` leaves, such as Jobs: the reconciler deletes them
    by ``children.delete()``"""
    formerly_owns: Kinds | None
    """Kinds that were in ``owns`` before: ``prune()`` and ``delete_all()`` delete what is left"""
    watches: Mapping[Kind, Callable[..., Any]] | None
    """Functions by other kinds, named as in ``owns``. Each gets the arguments of an event handler,
    and returns the names of the objects to reconcile; ``(namespace, name)`` for another
    namespace"""
    own_writes: Flag | None
    """If True, webop calls the reconciler again after each call that has changed something by its
    ``patch``, its status or its ``children``; ``min_interval`` is 1 then if it is not set"""
    min_interval: Number | None
    """Seconds between two calls for the same object, at least"""
    across_namespaces: Flag | None
    """If True, children can be in another namespace than the object. Users of that namespace can
    then forge them"""
    plannable: Flag | None
    """If True, ``webop plan`` calls the reconciler, with a client that only does dry runs, also
    without ``--call``"""


class WebhookOptions(ObjectOptions, total=False):
    """Options of ``@on.validate`` and ``@on.mutate``.

    Those after ``ignore_failures`` are fields of the webhook configuration for the API server
    (Kubernetes, "Dynamic Admission Control").
    """

    operation: Operation | None
    """``CREATE``, ``UPDATE``, ``DELETE`` or ``CONNECT``: the only operation of the handler"""
    operations: Operations | None
    """Several operations; by default all"""
    subresource: Subresource | None
    """A subresource, such as ``"status"``; ``"*"`` for the object itself and all subresources"""
    persistent: Flag | None
    """Whether the webhook stays in the cluster after the last replica has stopped; by default, it
    stays in a pod; elsewhere, it is removed"""
    side_effects: Flag | None
    """Whether the handler has side effects; it must have none in a dry run"""
    ignore_failures: Flag | None
    """Whether to allow all requests, even if the handler denies them or fails"""
    failure_policy: Literal["Fail", "Ignore"] | None
    """``"Ignore"``: allow requests while the API server cannot call the handler"""
    timeout_seconds: Timeout | None
    """Seconds that the API server waits for the response, 1 to 30"""
    namespace_selector: NamespaceSelector | None
    """Labels of namespaces, as in ``labels=``, or a Kubernetes LabelSelector; ``{}`` for all. By
    default all; for pods and everything, all but ``kube-system`` and the namespace of the
    webhooks' Service"""
    match_conditions: MatchConditions | None
    """CEL expressions by name: the API server calls the webhook only if all are true"""
    match_policy: Literal["Exact", "Equivalent"] | None
    """``"Exact"``: ignore requests in another version of the API"""
    reinvocation_policy: Literal["Never", "IfNeeded"] | None
    """``"IfNeeded"``: call again if later webhooks change the object; ``on.mutate`` only"""
    scope: Literal["*", "Namespaced", "Cluster"] | None
    """``"Namespaced"`` or ``"Cluster"``: only objects of this scope"""


class RuleOptions(SelectorNames, total=False):
    """Options of ``webop.rule``: those of the API server's admission policies."""

    id: RuleId
    """A DNS name for the name of the policy; required"""
    cel: Expression | None
    """A CEL expression that must be true"""
    message: Annotated[str, must_be("a text", str, bool)] | None
    """What users see if it is false; required with ``cel``"""
    apply: Expression | None
    """In place of ``cel``: an expression of the fields to set, such as
    ``Object{spec: Object.spec{size: 1}}``"""
    json_patch: Expression | None
    """In place of ``cel``: an expression of a list of ``JSONPatch{op: …, path: …, value: …}``"""
    operations: Operations | None
    """By default ``CREATE`` and ``UPDATE``; with ``oldObject``, only ``UPDATE``"""
    subresource: Subresource | None
    """As in ``@on.validate``"""
    labels: NamespaceSelector | None
    """Required labels of objects, in the form of ``namespace_selector``"""
    namespace_selector: NamespaceSelector | None
    """As in ``@on.validate``; by default all namespaces"""
    match_conditions: MatchConditions | None
    """CEL expressions by name: the rule holds only if all are true"""
    action: Literal["Deny", "Warn", "Audit"] | None
    """``"Warn"`` or ``"Audit"``: allow the request, and warn the user, or write to the audit log"""
    registry: OperatorRegistry | None
    """The registry of the rule; by default ``webop.get_default_registry()``"""


class RegisterOptions(RetryOptions, MetaOptions, total=False):
    """Options of ``webop.register``."""

    id: Id | None
    param: Any


class SubhandlerOptions(RegisterOptions, FieldOptions, TransitionOptions, total=False):
    """Options of ``@webop.subhandler``."""


def spell_out(*required: str, **defaults: Any) -> Callable[[F], F]:
    """Make ``inspect.signature`` and ``help()`` show the options of ``**options: Unpack[…]``.

    Args:
        required: options without a default.
        defaults: options whose default is not None.
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


def parse_kind(
    decorator: str, parts: tuple[ResourcePart, ...], options: Mapping[str, Any]
) -> tuple[Selector, type[BaseModel] | None]:
    """Return the kind that a decorator names, and its class if it names one.

    Raises:
        TypeError: this is no kind.
        ConfigurationError: the class does not say of which kind it is.
    """
    if parts and is_handler(parts[0]):
        raise TypeError(
            f"@{decorator} needs a kind in parentheses, such as "
            f"@{decorator}('databases.example.com')."
        )
    keywords: Any = {key: options.get(key) for key in SELECTOR_KEYS}
    model = find_class(parts, keywords)
    selector = parse_selector(*parts, **keywords) if model is None else build_selector(model)
    return selector, model


def parse_options(owner: str, options: Mapping[str, Any], known: Any) -> dict[str, Any]:
    """Return the options as attributes of a handler; None means the default.

    Raises:
        TypeError: an option is unknown or of a wrong type, or two of them conflict.
        ValueError: an option has an invalid value.
    """
    check_names(owner, options, known)
    given = {k: v for k, v in options.items() if k not in SELECTOR_KEYS and v is not None}
    hints = _find_hints(known)
    parsed = {name: _convert(name, hints[name], value) for name, value in given.items()}
    for one, other in _EXCLUSIVE:
        if one in given and other in given:
            raise TypeError(f"{one}= and {other}= exclude each other.")
    for name in ("old", "new", "value"):
        if name in given and "field" not in given:
            raise TypeError(f"{name}= requires field=, such as field='spec.size'.")
    return parsed


def _convert(name: str, hint: Any, value: Any) -> Any:
    try:
        return convert(hint, value)
    except UnfitValueError as exc:
        raise exc.build(name) from None


@functools.cache
def _find_hints(known: Any) -> dict[str, Any]:
    return get_type_hints(known, include_extras=True)


def check_names(owner: str, options: Iterable[str], known: Any) -> None:
    """Check that all options are known; the message about others suggests similar names."""
    names = known.__annotations__
    problems = []
    for option in options:
        if option not in names:
            close = difflib.get_close_matches(option, names)
            # By its letters alone, "retry" is more similar to "registry" than to "retries".
            nearest = max(close, key=lambda name: name.startswith(option[:3]), default="")
            advice = f"did you mean {nearest!r}?" if nearest else f"known: {', '.join(names)}."
            problems.append(f"There is no option {option!r} of {owner}: {advice}")
    if problems:
        raise TypeError(" ".join(problems))
