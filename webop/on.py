"""The decorators that register handlers.

A decorator takes the kind first, as a name or as a model, then its options by name::

    @webop.on.create("databases.example.com", labels={"tier": "gold"}, retries=5)
    async def provision(name, spec, **_): ...

For all options, None means the default. A misspelt option is an error for type checkers, and a
``TypeError`` at import. The function is returned unchanged. See docs/howto/handlers.md;
docs/howto/resources.md for kinds, docs/reference/api/handlers.md for options, and
docs/reference/arguments.md for what functions get.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Never, TypeVar, Unpack

from webop.calls.current_call import get_invocation
from webop.calls.subhandlers import build_subhandler
from webop.handlers.model import (
    Activity,
    ActivityHandler,
    ChangeHandler,
    ChildHandler,
    ConversionHandler,
    DaemonHandler,
    EventHandler,
    Handler,
    IndexHandler,
    MappingHandler,
    Reason,
    ReconcileHandler,
    ResourceHandler,
    TimerHandler,
    WebhookHandler,
    WebhookType,
    build_id,
)
from webop.handlers.options import (
    ActivityOptions,
    ChangeOptions,
    DaemonOptions,
    DeleteOptions,
    EventOptions,
    ReconcileOptions,
    RegisterOptions,
    ResourcePart,
    ResumeOptions,
    SubhandlerOptions,
    TimerOptions,
    UpdateOptions,
    WebhookOptions,
    check_names,
    parse_kind,
    parse_options,
    spell_out,
)
from webop.handlers.registry import OperatorRegistry, get_default_registry
from webop.handlers.validation import (
    check_converter,
    check_metadata_only,
    check_signature,
)
from webop.models.definitions import find_arguments

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = [
    "cleanup",
    "convert",
    "create",
    "daemon",
    "delete",
    "event",
    "field",
    "index",
    "login",
    "mutate",
    "probe",
    "reconcile",
    "register",
    "resume",
    "startup",
    "subhandler",
    "timer",
    "update",
    "validate",
]

_OWN_INTERVAL = 1.0  # seconds between calls that a reconciler leads to by its own writes
F = TypeVar("F", bound=Callable[..., Any])


def __dir__() -> list[str]:
    """Offer only the decorators to ``dir()`` and to the completion of shells (PEP 562)."""
    return __all__


@spell_out()
def startup(*bare: Never, **options: Unpack[ActivityOptions]) -> Callable[[F], F]:
    """Call the function once, before any request to the cluster and before the first review.

    Change settings here, and create what the event loop owns::

        @webop.on.startup()
        async def prepare(settings: webop.OperatorSettings, memo: webop.Memo, **_):
            settings.admission.server = webop.WebhookServiceServer()
            memo.limit = asyncio.Semaphore(10)

    If it fails for good, the operator does not start. See
    docs/howto/handlers.md#startup-and-cleanup.
    """
    return _register_activity(Activity.STARTUP, bare, options)


@spell_out()
def cleanup(*bare: Never, **options: Unpack[ActivityOptions]) -> Callable[[F], F]:
    """Call the function when the operator stops, after all daemons have stopped.

    It is not called after a failed startup, nor on SIGKILL::

        @webop.on.cleanup()
        async def close(memo: webop.Memo, **_):
            await memo.connection.close()

    See docs/howto/handlers.md#startup-and-cleanup.
    """
    return _register_activity(Activity.CLEANUP, bare, options)


@spell_out()
def login(*bare: Never, **options: Unpack[ActivityOptions]) -> Callable[[F], F]:
    """Call the function for credentials of the API server; it replaces webop's own ways to log in.

    It returns a :class:`webop.ConnectionInfo`, or None if it has no credentials::

        @webop.on.login(retries=3)
        async def log_in(**_):
            token = await fetch_token()
            return webop.ConnectionInfo(server="https://10.0.0.1:6443", token=token)

    See docs/howto/authentication.md.
    """
    return _register_activity(Activity.AUTHENTICATION, bare, options)


@spell_out()
def probe(*bare: Never, **options: Unpack[ActivityOptions]) -> Callable[[F], F]:
    """Call the function for health reports; its result is a value in the report.

    The id is the key. If the function fails, the report is an error (500)::

        @webop.on.probe(id="queue")
        def measure_queue(memo: webop.Memo, **_):
            return memo.queue.qsize()

    See docs/howto/probes.md#your-own-checks.
    """
    return _register_activity(Activity.PROBE, bare, options)


@spell_out()
def validate(*resource: ResourcePart, **options: Unpack[WebhookOptions]) -> Callable[[F], F]:
    """Call the function before the API server stores an object, to allow or deny the request.

    A function that returns allows it, whatever it returns; one that raises denies it::

        @webop.on.validate("databases.example.com", operation="UPDATE")
        def keep_engine(old, new, **_):
            if old["spec"]["engine"] != new["spec"]["engine"]:
                raise webop.AdmissionError("The engine cannot be changed.", code=422)

    Requires ``settings.admission.server``. See docs/concepts/admission.md.
    """
    return _register_webhook(WebhookType.VALIDATING, resource, options)


@spell_out()
def mutate(*resource: ResourcePart, **options: Unpack[WebhookOptions]) -> Callable[[F], F]:
    """Call the function before the API server stores an object, to change it.

    The changes are what it puts into ``patch``; one that raises denies the request::

        @webop.on.mutate("databases.example.com")
        def set_engine(spec, patch, **_):
            if "engine" not in spec:
                patch.spec["engine"] = "postgres"

    Requires ``settings.admission.server``. See docs/concepts/admission.md.
    """
    return _register_webhook(WebhookType.MUTATING, resource, options)


def convert(
    source: type[BaseModel],
    /,
    *,
    to: type[BaseModel],
    registry: OperatorRegistry | None = None,
) -> Callable[[F], F]:
    """Call the function to return an object of one version of a kind in another version.

    It gets an instance of the one class, and returns one of the other. It must depend on nothing
    else, since API servers call it in reads and writes of any object::

        @webop.on.convert(DatabaseV1, to=DatabaseV2)
        def upgrade(old: DatabaseV1) -> DatabaseV2:
            return DatabaseV2(metadata=old.metadata, spec=SpecV2(storage=old.spec.size))

    See docs/howto/versions.md.

    Args:
        source: a class with ``@webop.models.resource``.
        to: that of another version of the same kind.
        registry: by default, ``webop.get_default_registry()``.

    Raises:
        ConfigurationError: these are not two versions of one kind.
        TypeError: the function does not take one argument.
    """
    from webop.models.versions import check_pair, get_definition  # noqa: PLC0415 - few need it

    check_pair(source, to)
    before, after = get_definition(source), get_definition(to)

    def decorator(fn: F) -> F:
        check_converter(fn)
        full_id = f"{before.name}/{before.version}-{after.version}"
        _append(ConversionHandler(id=full_id, fn=fn, source=source, target=to), registry)
        return fn

    return decorator


@spell_out()
def event(*resource: ResourcePart, **options: Unpack[EventOptions]) -> Callable[[F], F]:
    """Call the function for each event of a watch: for work that need not be reliable.

    Errors are logged; there are no retries, and nothing is stored on the object::

        @webop.on.event("pods", labels={"app": webop.PRESENT})
        def trace(event: webop.RawEvent, name, **_):
            print(event["type"], name)

    ``event["type"]`` is None for objects of the first list, then ``ADDED``, ``MODIFIED`` or
    ``DELETED``. See docs/howto/handlers.md.
    """
    return _register(EventHandler, EventOptions, resource, options)


@spell_out()
def create(*resource: ResourcePart, **options: Unpack[ChangeOptions]) -> Callable[[F], F]:
    """Call the function for objects that were never handled, until it succeeds.

    ::

        @webop.on.create("databases.example.com", retries=5, backoff=10)
        async def provision(name, spec, **_):
            host = await make_database(name, spec["size"])
            return {"host": host}  # stored in status.provision

    This includes objects that are older than the operator. See docs/howto/handlers.md.
    """
    return _register(ChangeHandler, ChangeOptions, resource, options, reason=Reason.CREATE)


@spell_out()
def update(*resource: ResourcePart, **options: Unpack[UpdateOptions]) -> Callable[[F], F]:
    """Call the function when an object differs from its last handled state, until it succeeds.

    With ``field``, only changes of this field count::

        @webop.on.update("databases.example.com", field="spec.size")
        async def resize(name, old, new, **_):
            await resize_database(name, old, new)

    Changes of the status do not count. See docs/concepts/causes.md.
    """
    fixed: dict[str, Any] = {"reason": Reason.UPDATE, "needs_change": True}
    return _register(ChangeHandler, UpdateOptions, resource, options, **fixed)


@spell_out()
def delete(*resource: ResourcePart, **options: Unpack[DeleteOptions]) -> Callable[[F], F]:
    """Call the function when an object is being deleted; Kubernetes waits for it.

    webop puts a finalizer on the objects for that, except with ``optional=True``::

        @webop.on.delete("databases.example.com", timeout=600)
        async def drop(name, **_):
            await drop_database(name)

    See docs/howto/deletion.md.
    """
    return _register(ChangeHandler, DeleteOptions, resource, options, reason=Reason.DELETE)


@spell_out()
def resume(*resource: ResourcePart, **options: Unpack[ResumeOptions]) -> Callable[[F], F]:
    """Call the function once per process for each object that is older than the operator.

    Often together with ``create``, to build again what was only in memory::

        @webop.on.resume("databases.example.com")
        @webop.on.create("databases.example.com")
        async def connect(name, memo: webop.Memo, **_):
            memo.connection = await open_connection(name)

    See docs/howto/handlers.md.
    """
    return _register(ChangeHandler, ResumeOptions, resource, options, initial=True)


@spell_out("field")
def field(*resource: ResourcePart, **options: Unpack[UpdateOptions]) -> Callable[[F], F]:
    """Call the function when one field changes, appears or disappears, until it succeeds.

    ``field`` is required. ``old``, ``new`` and ``diff`` are those of the field; ``old`` is None if
    the object is new::

        @webop.on.field("databases.example.com", field="spec.users")
        async def sync_users(old, new, **_):
            await set_users(new or [])

    See docs/howto/handlers.md.
    """
    if not options.get("field"):
        raise TypeError("@webop.on.field requires field=, such as field='spec.size'.")
    return _register(ChangeHandler, UpdateOptions, resource, options, needs_change=True)


@spell_out()
def index(*resource: ResourcePart, **options: Unpack[ChangeOptions]) -> Callable[[F], F]:
    """Call the function for each object, to fill an index that all handlers get as an argument.

    The index has the name of the function. A returned dict adds its values under its keys; another
    value is added under the key None::

        @webop.index("pods", labels={"app": webop.PRESENT})
        def pods_by_app(labels, name, **_):
            return {labels["app"]: name}

        @webop.timer("services", interval=60)
        def report(pods_by_app: webop.Index, spec, **_):
            print(list(pods_by_app.get(spec["selector"]["app"], [])))

    See docs/howto/indexes.md.
    """
    return _register(IndexHandler, ChangeOptions, resource, options)


@spell_out()
def daemon(*resource: ResourcePart, **options: Unpack[DaemonOptions]) -> Callable[[F], F]:
    """Run the function in the background as long as an object exists.

    Async functions run as tasks, sync ones in threads. Wait with ``stopped.wait()``::

        @webop.daemon("databases.example.com", cancellation_timeout=10)
        async def follow(name, stopped: webop.DaemonStopped, **_):
            while not stopped:
                await copy_log(name)
                await stopped.wait(60)

    It adds a finalizer: before an object is deleted, its daemons stop. See docs/howto/daemons.md.
    """
    return _register(DaemonHandler, DaemonOptions, resource, options)


@spell_out()
def timer(*resource: ResourcePart, **options: Unpack[TimerOptions]) -> Callable[[F], F]:
    """Call the function at intervals as long as an object exists.

    ::

        @webop.timer("databases.example.com", interval=60, idle=10)
        async def check(name, patch, **_):
            patch.status["alive"] = await ping(name)

    ``interval`` counts from the end of a call. With ``idle``, calls wait until the object was
    unchanged for so long. It adds a finalizer, as daemons do. See docs/howto/timers.md.
    """
    return _register(TimerHandler, TimerOptions, resource, options)


@spell_out()
def reconcile(*resource: ResourcePart, **options: Unpack[ReconcileOptions]) -> Callable[[F], F]:
    """Call the function whenever the state of an object, or of its children, can be wrong.

    It gets the newest state, and makes the cluster agree with it::

        @webop.reconcile(Website, owns=["deployments.apps", "services"])
        async def build(spec: WebsiteSpec, children: webop.Children, **_):
            await children.apply(deployment(spec))
            await children.apply(service(spec))
            await children.prune()

    Each call is for all changes since the last one; the argument ``because`` names them. webop
    stores nothing on the object. With ``watches=``, other kinds call it, too::

        def users(namespace, name, by_secret, **_):  # by_secret is an index
            return list(by_secret.get((namespace, name), []))

        @webop.reconcile(Website, watches={"secrets": users})

    See docs/concepts/desired_state.md.

    Raises:
        TypeError: an option is unknown or wrong.
    """
    parsed = parse_options("reconcilers", options, ReconcileOptions)
    if parsed.get("own_writes"):
        parsed.setdefault("min_interval", _OWN_INTERVAL)
    name, registry = parsed.pop("id", None), parsed.pop("registry", None)
    selector, model = parse_kind("webop.reconcile", resource, options)
    watches, owns = parsed.pop("watches", {}), parsed.get("owns", ())
    reads, former = parsed.get("reads", ()), parsed.get("formerly_owns", ())
    for option in ("reads", "accumulates"):
        if others := [str(one) for one in parsed.get(option, ()) if one not in owns]:
            raise TypeError(f"{option}= has {others[0]}, which is not in owns=.")
    if others := [str(one) for one in former if one in owns]:
        raise TypeError(f"formerly_owns= has {others[0]}, which is in owns=.")
    for one in (*owns, *former, *watches):
        if not one.is_specific:
            raise TypeError(f"owns=, formerly_owns= and watches= take single kinds, got {one}.")

    def decorator(fn: F) -> F:
        check_signature(fn, ReconcileHandler)
        full_id = build_id(fn, id=name)
        typed: dict[str, Any] = {"model": model, "arguments": find_arguments(fn, model)}
        mine = ReconcileHandler(id=full_id, fn=fn, selector=selector, **typed, **parsed)
        _append(mine, registry)
        for kind in (*owns, *former):
            key = f"{full_id}/{kind}"
            rest: dict[str, Any] = {"metadata_only": kind not in reads, "was_owned": kind in former}
            _append(ChildHandler(id=key, fn=fn, selector=kind, parent=full_id, **rest), registry)
        for kind, mapping in watches.items():
            check_signature(mapping, MappingHandler)
            key = f"{full_id}/{kind}"
            _append(MappingHandler(id=key, fn=mapping, selector=kind, parent=full_id), registry)
        return fn

    return decorator


@spell_out()
def subhandler(**options: Unpack[SubhandlerOptions]) -> Callable[[F], F]:
    """Register a sub-handler of the running handler: a step with its own progress and retries.

    ::

        @webop.on.create("databases.example.com")
        async def provision(spec, **_):
            @webop.subhandler(id="volume", retries=3)
            async def make_volume(**_):
                await create_volume(spec["size"])

    Sub-handlers run when the handler returns, or in ``await webop.execute()``. See
    docs/howto/handlers.md#sub-handlers.

    Raises:
        LookupError: the caller is not inside of a handler.
    """
    parsed = {"id": None, **parse_options("sub-handlers", options, SubhandlerOptions)}

    def decorator(fn: F) -> F:
        invocation = get_invocation("Registering sub-handlers")
        invocation.subhandlers.append(build_subhandler(fn, **parsed))
        return fn

    return decorator


@spell_out()
def register(fn: F, **options: Unpack[RegisterOptions]) -> F:
    """Register a sub-handler of the running handler, like :func:`subhandler`, by a call.

    ::

        @webop.on.delete("databases.example.com")
        async def drop(spec, **_):
            for user in spec.get("users", []):
                webop.register(functools.partial(drop_user, user), id=user)

    See docs/howto/handlers.md#sub-handlers.

    Raises:
        LookupError: the caller is not inside of a handler.
    """
    check_names("webop.register()", options, RegisterOptions)
    return subhandler(**options)(fn)


def _register_activity(
    activity: Activity, bare: tuple[Never, ...], options: ActivityOptions
) -> Callable[[F], F]:
    if bare:
        raise TypeError(
            f"@webop.on.{activity.title} needs parentheses, and takes options by name only: "
            f"@webop.on.{activity.title}()."
        )
    parsed = parse_options(f"{activity.title} handlers", options, ActivityOptions)
    name, registry = parsed.pop("id", None), parsed.pop("registry", None)

    def decorator(fn: F) -> F:
        check_signature(fn, ActivityHandler)
        handler = ActivityHandler(id=build_id(fn, id=name), fn=fn, activity=activity, **parsed)
        _append(handler, registry)
        return fn

    return decorator


def _register_webhook(
    reason: WebhookType, resource: tuple[ResourcePart, ...], options: WebhookOptions
) -> Callable[[F], F]:
    if options.get("reinvocation_policy") and reason is not WebhookType.MUTATING:
        raise TypeError("reinvocation_policy= is for @webop.on.mutate only.")
    if options.get("failure_policy") == "Fail" and options.get("ignore_failures"):
        raise TypeError("ignore_failures=True and failure_policy='Fail' exclude each other.")
    return _register(WebhookHandler, WebhookOptions, resource, options, reason=reason)


def _register(
    family: type[Handler],
    known: Any,
    resource: tuple[ResourcePart, ...],
    options: Mapping[str, Any],
    **fixed: Any,
) -> Callable[[F], F]:
    """Check the options now; build the handler when the decorator gets the function."""
    label = fixed.get("reason") or family.__name__.removesuffix("Handler").lower()
    if label == "change":
        label = "resume" if "initial" in fixed else "field"
    parsed = {**parse_options(f"{label} handlers", options, known), **fixed}
    module = "webop" if label in ("index", "daemon", "timer") else "webop.on"
    selector, model = parse_kind(f"{module}.{label!s}", resource, options)
    name, registry = parsed.pop("id", None), parsed.pop("registry", None)
    if operation := parsed.pop("operation", None):
        parsed["operations"] = frozenset({operation})

    def decorator(fn: F) -> F:
        check_signature(fn, family)
        typed: dict[str, Any] = {
            "model": model,
            "arguments": find_arguments(fn, model, has_field="field" in parsed),
        }
        full_id = build_id(fn, id=name, suffix=parsed.get("field", ()))
        handler = family(id=full_id, fn=fn, selector=selector, **typed, **parsed)  # type: ignore[call-arg]
        if isinstance(handler, ResourceHandler) and handler.metadata_only:
            check_metadata_only(handler)
        _append(handler, registry)
        return fn

    return decorator


def _append(handler: Handler, registry: OperatorRegistry | None) -> None:
    (get_default_registry() if registry is None else registry).append(handler)
