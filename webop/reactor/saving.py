"""Writing down what a handling cycle has come to, whatever the API server says to it."""

from __future__ import annotations

import logging

from webop.errors import APIError, LoginError
from webop.handling.causes import ChangeCause
from webop.objects.body import Body
from webop.objects.patch import Patch, merge_patches
from webop.reactor.application import REFUSALS, apply_finalizers, save_patch
from webop.reactor.planning import ResourceContext
from webop.reactor.tracking import Tracked

logger = logging.getLogger(__name__)


async def save_changes(ctx: ResourceContext, obj: Tracked, cause: ChangeCause) -> None:
    """Write what the handlers want changed and what the framework keeps, in one patch.

    If it is refused, what the handlers want is told about and left out: they have run, and would
    want the same again.

    Raises:
        APIError: it is not written; see :func:`_write`.
        LoginError: there are no credentials.
    """
    if not cause.patch:
        await _write(ctx, obj, cause.own)
        return
    try:
        await _write(ctx, obj, Patch(merge_patches(cause.patch, cause.own), fns=cause.patch.fns))
    except APIError as exc:
        if not is_refused(exc) or not cause.own:
            raise
        cause.logger.error("The patch of the handlers is refused, and is left out: %s", exc)  # noqa: TRY400
        await _write(ctx, obj, cause.own)


async def catch_up(ctx: ResourceContext, obj: Tracked) -> None:
    """Write what could not be written the last time, as the API server was away."""
    if obj.unsaved is not None and obj.event_type != "DELETED":
        await _write(ctx, obj, obj.unsaved)


def is_refused(exc: Exception) -> bool:
    """Tell whether a request would be refused again if it were repeated."""
    return getattr(exc, "status", 0) in REFUSALS


async def release(ctx: ResourceContext, obj: Tracked) -> None:
    """Let a deleted object go, whatever else is changed in it at the same time.

    The deletion handlers have run and are not to run again, so a conflict is resolved here.
    """
    persistence = ctx.operator.settings.persistence
    if obj.has_background:
        return  # the object is looked at again when the last of them has ended
    while obj.raw is not None and obj.event_type != "DELETED":
        body = Body(obj.raw)
        left = [name for name in body.meta.finalizers if name != persistence.finalizer]
        if len(left) == len(body.meta.finalizers):
            return
        if await apply_finalizers(ctx, obj, body, left):
            return
        if not await obj.wait_for_news(persistence.consistency_timeout):
            return


async def _write(ctx: ResourceContext, obj: Tracked, patch: Patch) -> None:
    """Write a patch now, or, if the API server is away, before anything else next time.

    So handlers are not called again for what is only not written down yet.
    """
    if not patch:
        return
    obj.unsaved = None
    storage = ctx.operator.settings.persistence.progress_storage
    storage.fit(body=Body(obj.get_freshest() or {}), patch=patch)
    try:
        await save_patch(ctx, obj, patch)
    except (APIError, LoginError) as exc:
        if not is_refused(exc):
            obj.unsaved = patch
        raise
