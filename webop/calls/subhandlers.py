"""Sub-handlers: parts of a handler with their own progress.

Users call these functions inside of handlers (chapter "Sub-handlers").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from webop.calls.current_call import get_invocation
from webop.calls.execution import execute_children
from webop.handlers.causes import Cause, ChangeCause
from webop.handlers.model import ChangeHandler, HandlerFn, build_id
from webop.handlers.registry import OperatorRegistry, ResourceHandlers
from webop.lifecycles import LifeCycleFn
from webop.models.definitions import find_arguments


def build_subhandler(fn: HandlerFn, *, id: str | None, **options: Any) -> ChangeHandler:  # noqa: A002
    """Return a sub-handler of the current handler, with the id ``parent/child``.

    Its field is checked like the parent's: for changes in update and field handlers, for its value
    in others. ``old`` and ``new`` always mean a change. Without a field, it gets
    the same ``old``, ``new`` and ``diff`` as the parent.
    """
    parent = get_invocation("Registering sub-handlers").handler
    model = getattr(parent, "model", None)
    inherited = getattr(parent, "field", ()) or getattr(parent, "inherited_field", ())
    child = build_id(fn, id=id, suffix=options.get("field", ()))
    is_about_change = getattr(parent, "needs_change", False) or {"old", "new"} & options.keys()
    return ChangeHandler(
        id=f"{parent.id}/{child}",
        fn=fn,
        selector=None,
        initial=getattr(parent, "initial", False),
        needs_change=bool(options.get("field") and is_about_change),
        model=model,
        arguments=find_arguments(fn, model, has_field=bool(options.get("field") or inherited)),
        inherited_field=inherited,
        **options,
    )


async def execute(
    *,
    fns: Mapping[str, HandlerFn] | Iterable[HandlerFn] | None = None,
    handlers: Iterable[ChangeHandler] | None = None,
    registry: OperatorRegistry | None = None,
    lifecycle: LifeCycleFn | None = None,
    cause: Cause | None = None,
) -> None:
    """Call sub-handlers inside of a handler, and return when all of them have finished.

    ::

        @webop.on.create("databases.example.com")
        async def provision(spec, **_):
            await webop.execute(fns={"volume": make_volume, "users": make_users})

    Without arguments, call those that ``@webop.subhandler`` and ``webop.register`` have registered
    so far. If some have not finished, raise a retry error, which the handler must not catch. See
    docs/howto/handlers.md#sub-handlers.

    Args:
        fns: functions by id, or only functions, whose names are the ids.
        handlers: ready-made handlers.
        registry: a registry whose handlers of changes are called.
        lifecycle: the order of calls; by default that of the operator.
        cause: the cause of the calls; by default that of the current handler.

    Raises:
        LookupError: the caller is not inside of a handler.
        TypeError: more than one source is given.
    """
    invocation = get_invocation("webop.execute()")
    sources: Collection[Any] = [s for s in (fns, handlers, registry) if s is not None]
    if len(sources) > 1:
        raise TypeError("webop.execute() takes only one of fns=, handlers=, registry=.")
    if isinstance(fns, Mapping):
        children = [build_subhandler(fn, id=key) for key, fn in fns.items()]
    elif fns is not None:
        children = [build_subhandler(fn, id=None) for fn in fns]
    elif handlers is not None:
        children = list(handlers)
    elif registry is not None:
        occasion = invocation.cause if cause is None else cause
        known = ResourceHandlers(registry.select_resource_handlers())
        children = known.select_changes(occasion) if isinstance(occasion, ChangeCause) else []
    else:
        children = [*invocation.subhandlers]
        invocation.subhandlers.clear()
    await execute_children(invocation, children, lifecycle=lifecycle, cause=cause)
