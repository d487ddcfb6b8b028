"""Handlers: frozen records of functions and of when to call them.

:mod:`webop.on` builds them, :mod:`webop.calls.execution` calls them.
"""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from webop.errors import ConfigurationError
from webop.handlers.retries import Backoff, Pauses
from webop.objects.fields import FieldPath
from webop.objects.resources import Selector

if TYPE_CHECKING:
    from pydantic import BaseModel

    from webop.models.arguments import Argument


class MetaFilterToken(enum.Enum):
    """Filter values that stand for any value and for no value."""

    PRESENT = enum.auto()
    ABSENT = enum.auto()


PRESENT = MetaFilterToken.PRESENT
"""Filter value: the label, annotation or field exists, even if it is empty."""
ABSENT = MetaFilterToken.ABSENT
"""Filter value: the label, annotation or field does not exist."""

Predicate = Callable[..., bool]
MetaCriterion = str | MetaFilterToken | Predicate
ValueCriterion = Any  # a value, a token, a predicate; None is no criterion
HandlerId = str
"""The id of a handler: ``id=`` or the name of its function, and its field: "resize/spec.size"."""
HandlerFn = Callable[..., Any]
InitialDelay = float | Callable[..., float] | None


class ErrorsMode(enum.Enum):
    """How to treat exceptions other than TemporaryError and PermanentError: ``errors=``.

    See docs/howto/errors.md.
    """

    IGNORED = enum.auto()
    """Log the exception; the handler has finished."""
    TEMPORARY = enum.auto()
    """Retry the handler after ``backoff=``; the default of most handlers."""
    PERMANENT = enum.auto()
    """The handler has failed for good."""


class Activity(enum.Enum):
    """The events in the life of an operator that have handlers."""

    STARTUP = "startup"
    CLEANUP = "cleanup"
    AUTHENTICATION = "authentication"
    PROBE = "probe"

    @property
    def title(self) -> str:
        """The name in messages: that of the decorator."""
        return "login" if self is Activity.AUTHENTICATION else self.value


class Reason(enum.StrEnum):
    """Why a handler is called: its argument ``reason``. See docs/concepts/causes.md."""

    CREATE = "create"
    """The object was never handled."""
    UPDATE = "update"
    """The object differs from its last handled state."""
    DELETE = "delete"
    """The object is being deleted."""
    RESUME = "resume"
    """The object is older than the operator, and has not changed."""
    NOOP = "noop"
    """Nothing that matters has changed."""
    FREE = "free"
    """The object is being deleted, and nothing of this operator delays that."""
    GONE = "gone"
    """The object does not exist any more."""


class WebhookType(enum.StrEnum):
    """The two kinds of admission webhooks of Kubernetes."""

    VALIDATING = "validate"
    MUTATING = "mutate"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handler:
    """A function with an id and options for its errors.

    ``timeout`` and ``backoff`` are in seconds, ``retries`` in attempts; None is the default.
    ``arguments`` are those that the function gets as models. ``is_async`` looks through decorators.
    """

    title: ClassVar[str] = "Handler"
    family: ClassVar[str] = "handler"  # "change" for a ChangeHandler, and so on
    queue: ClassVar[str] = "handlers"  # of their requests: no sort of handlers blocks another one
    after_ignored: ClassVar[str] = "Ignored: there is no retry."  # said of an error
    default_errors: ClassVar[ErrorsMode] = ErrorsMode.TEMPORARY

    id: str
    fn: HandlerFn
    is_async: bool = field(init=False, repr=False)
    param: Any = None
    errors: ErrorsMode | None = None
    timeout: float | None = None
    retries: int | None = None
    backoff: Pauses | None = None
    arguments: tuple[Argument, ...] = ()

    def __init_subclass__(cls) -> None:
        cls.family = cls.__name__.removesuffix("Handler").lower()

    def __post_init__(self) -> None:
        """Find out how the function must be called."""
        layers = list_layers(self.fn)
        own_call = getattr(type(layers[-1]), "__call__", None)  # noqa: B004
        is_async = any(map(inspect.iscoroutinefunction, [*layers, own_call]))
        object.__setattr__(self, "is_async", is_async)

    def __str__(self) -> str:
        return f"{self.title} {self.id!r}"

    @property
    def key(self) -> tuple[Any, str]:
        """The function and the id: all declarations of one handler have them in common."""
        try:
            hash(self.fn)
        except TypeError:  # such as an instance of a dataclass
            return id(self.fn), self.id
        return self.fn, self.id


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActivityHandler(Handler):
    """A handler of an activity: startup, cleanup, login, probe."""

    queue = "activities"

    activity: Activity
    is_fallback: bool = False

    def __str__(self) -> str:
        return f"{self.activity.title.capitalize()} handler {self.id!r}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResourceHandler(Handler):
    """A handler of objects: of which kind, with which filters (chapter "Filtering")."""

    selector: Selector | None
    model: type[BaseModel] | None = None
    labels: Mapping[str, MetaCriterion] | None = None
    annotations: Mapping[str, MetaCriterion] | None = None
    when: Callable[..., bool] | None = None
    field: FieldPath = ()
    value: ValueCriterion = None
    metadata_only: bool = False
    when_kind_exists: bool = False

    @property
    def needs_finalizer(self) -> bool:
        """Whether objects must have the finalizer because of this handler."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventHandler(ResourceHandler):
    """``@on.event``: called for raw events of a watch; stores no state."""

    default_errors = ErrorsMode.IGNORED


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChangeHandler(ResourceHandler):
    """``@on.create``, ``update``, ``delete``, ``resume``, ``field`` and sub-handlers.

    ``reason`` None means any reason: for resume handlers (``initial``), which are called in cycles
    of other reasons too, for field handlers (``needs_change``), and for sub-handlers. Sub-handlers
    without ``field`` get the changes of their parent's field, the ``inherited_field``.
    """

    reason: Reason | None = None
    initial: bool = False
    deleted: bool = False
    optional: bool = False
    needs_change: bool = False
    old: ValueCriterion = None
    new: ValueCriterion = None
    inherited_field: FieldPath = ()

    @property
    def needs_finalizer(self) -> bool:
        """Whether objects must have the finalizer because of this handler."""
        return self.reason is Reason.DELETE and not self.optional


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IndexHandler(ResourceHandler):
    """``@webop.index``: fills an in-memory index named by the id."""

    title = "Indexer"
    default_errors = ErrorsMode.IGNORED


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BackgroundHandler(ResourceHandler):
    """The common base of daemons and timers: one task per object, stopped before deletion."""

    queue = "daemons"

    initial_delay: InitialDelay = None

    @property
    def needs_finalizer(self) -> bool:
        """Whether objects must have the finalizer because of this handler."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DaemonHandler(BackgroundHandler):
    """``@webop.daemon``; all times in seconds."""

    title = "Daemon"

    cancellation_backoff: float | None = None
    cancellation_timeout: float | None = None
    cancellation_polling: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimerHandler(BackgroundHandler):
    """``@webop.timer``; all times in seconds."""

    title = "Timer"

    interval: float | None = None
    sharp: bool = False
    idle: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReconcileHandler(ResourceHandler):
    """``@webop.reconcile``: called with the newest state of an object, for whatever has changed.

    ``fields`` are those whose changes count, by default all but the metadata and the status.
    ``owns`` are the kinds of its children, ``reads`` those of them whose bodies it reads, and
    ``accumulates`` those that it does not prune; ``formerly_owns`` are the kinds of children that
    it only deletes. ``own_writes`` is whether what it writes itself calls it again.
    ``min_interval`` are the seconds between the beginnings of two calls for an object;
    ``across_namespaces`` is whether children can be in another namespace than the object;
    ``plannable`` is whether each plan calls it.
    """

    title = "Reconciler"

    backoff: Pauses | None = Backoff()  # noqa: RUF009  it is frozen
    fields: tuple[FieldPath, ...] = ()
    owns: tuple[Selector, ...] = ()
    reads: tuple[Selector, ...] = ()
    accumulates: tuple[Selector, ...] = ()
    formerly_owns: tuple[Selector, ...] = ()
    own_writes: bool = False
    min_interval: float = 0.0
    across_namespaces: bool = False
    plannable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChildHandler(ResourceHandler):
    """A kind in ``owns=`` of a reconciler: its objects are watched, but the function is not called.

    ``parent`` is the id of the reconciler; ``was_owned`` is whether it is in ``formerly_owns=``.
    """

    title = "Children of"

    parent: str
    was_owned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MappingHandler(EventHandler):
    """A kind in ``watches=`` of a reconciler, whose id is ``parent``.

    The function returns the names of the objects that the reconciler must be called for.
    """

    title = "Mapping"
    after_ignored = "The reconciler is called for all of its objects."

    parent: str


class MatchCondition(NamedTuple):
    """A CEL expression that a request must match before the API server calls the webhook."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WebhookHandler(ResourceHandler):
    """``@on.validate``, ``@on.mutate``: one webhook each (chapter "Admission control").

    Empty ``operations`` means all of them. ``subresource`` None means the object itself only, "*"
    the object itself and any subresource. The attributes after ``ignore_failures`` are for the API
    server (Kubernetes API, admissionregistration.k8s.io/v1 ValidatingWebhook, MutatingWebhook);
    ``namespace_selector`` is a LabelSelector; {} is all namespaces; None, for pods and everything,
    all but ``kube-system`` and that of the webhooks' Service, otherwise all. ``persistent`` None
    means True in a pod, False elsewhere.
    """

    title = "Webhook"
    default_errors = ErrorsMode.PERMANENT
    queue = "reviews"  # the API server can need them before it responds to other handlers

    reason: WebhookType
    operations: frozenset[str] = frozenset()
    subresource: str | None = None
    persistent: bool | None = None
    side_effects: bool = False
    ignore_failures: bool = False
    failure_policy: str | None = None
    timeout_seconds: int = 10
    namespace_selector: Mapping[str, Any] | None = None
    match_conditions: tuple[MatchCondition, ...] = ()
    match_policy: str = "Equivalent"
    reinvocation_policy: str | None = None
    scope: str = "*"

    @property
    def is_optional(self) -> bool:
        """Whether the API server allows requests if it gets no response."""
        return self.ignore_failures or self.failure_policy == "Ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``webop.rule``: what API servers check, or change, without calling this operator.

    It becomes an admission policy (Kubernetes API, admissionregistration.k8s.io/v1
    ValidatingAdmissionPolicy, MutatingAdmissionPolicy). Exactly one of ``cel``, ``apply`` and
    ``json_patch`` is set; the other attributes are as in :class:`WebhookHandler`.
    ``object_selector`` is a LabelSelector.
    """

    id: str
    selector: Selector
    model: type[BaseModel] | None = None
    cel: str = ""
    apply: str = ""
    json_patch: str = ""
    message: str = ""
    operations: frozenset[str]
    subresource: str | None = None
    object_selector: Mapping[str, Any] | None = None
    namespace_selector: Mapping[str, Any] | None = None
    match_conditions: tuple[MatchCondition, ...] = ()
    action: str = "Deny"

    def __str__(self) -> str:
        return f"Rule {self.id!r}"

    @property
    def is_mutating(self) -> bool:
        """Whether it changes objects."""
        return not self.cel


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConversionHandler(Handler):
    """``@on.convert``: returns an object of one version as one of another version."""

    title = "Converter"

    source: type[BaseModel]
    target: type[BaseModel]

    def __str__(self) -> str:
        return f"{self.title} {detect_name(self.fn)}()"


def build_id(fn: HandlerFn, *, id: str | None, suffix: FieldPath = ()) -> str:  # noqa: A002
    """Return the id of a handler: the given one or the function's name, with the field appended.

    The state on objects is stored under ids: keep them stable.
    """
    stem = id if id is not None else detect_name(fn)
    return f"{stem}/{'.'.join(suffix)}" if suffix else stem


def detect_name(fn: HandlerFn) -> str:
    """Return a name of a callable that is the same in each run of the program.

    Raises:
        ConfigurationError: the callable has no such name.
    """
    fn = list_layers(fn)[-1]
    if isinstance(fn, FunctionType) and fn.__name__ == "<lambda>":
        return f"lambda:{fn.__code__.co_filename}:{fn.__code__.co_firstlineno}"
    if isinstance(fn, (FunctionType, MethodType)):
        return fn.__qualname__
    raise ConfigurationError(
        f"This handler is a {type(fn).__name__} without a function name. Add id='…' to its "
        "decorator; the id must be the same after each restart."
    )


def list_layers(fn: HandlerFn) -> list[HandlerFn]:
    """Return a function with those behind its decorators and partials, the innermost one last."""
    layers = [fn]
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        else:
            return layers
        layers.append(fn)


def name_decorator(handler: Handler) -> str:
    """Return the name of the decorator that registers this kind of handler."""
    if isinstance(handler, ActivityHandler):
        return handler.activity.title
    if isinstance(handler, WebhookHandler):
        return handler.reason.value
    if isinstance(handler, ConversionHandler):
        return "convert"
    if isinstance(handler, ChildHandler):
        return "reconcile, owns"
    if isinstance(handler, MappingHandler):
        return "reconcile, watches"
    if isinstance(handler, ChangeHandler):
        reason = handler.reason.value if handler.reason is not None else "field"
        return "resume" if handler.initial else reason
    return handler.family


def name_kind(handler: ResourceHandler) -> str:
    """Return the kind or the kinds of a handler, as its decorator names them."""
    selector = handler.selector
    if selector is None or selector.fn:
        return "chosen by a function"
    return str(selector)
