"""Write to objects: one policy for the changes of handlers and webop's own records.

Flow: handling cycles, events, daemons, timers, finalizers → :func:`save` or :func:`patch` → the
API server. :func:`classify` alone decides what a failed write means:

- The object is gone, or another one has its name now: nothing is written.
- The API server rejects the patch for good: the reason is logged, the changes of handlers are
  dropped, the records are written alone. If even these are rejected, handling continues as if they
  were written; they are written with the next change, or after a pause.
- The object has changed meanwhile: its newest state is read, and the patch is made for it.
- The API server is not available: the patch is kept, and written before anything else.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from itertools import chain
from typing import Any

from webop.backoff import Backoff
from webop.client.events import get_uid, parse_version
from webop.client.failures import choose_pause
from webop.client.requests import encode_body
from webop.errors import APIConflictError, APIError, APINotFoundError, APIStatusError
from webop.objects.body import Body
from webop.objects.patch import JSONPatchOp, Patch, PatchFn, merge_patches
from webop.reactor.functions import FunctionRun
from webop.reactor.resource_context import ResourceContext
from webop.reactor.tracking import NOTHING, Pending, Tracked

logger = logging.getLogger(__name__)

ATTEMPTS = 10  # to patch an object that keeps changing; then there is a pause
_TOO_LARGE = ("request is too large", "message larger than max", "ResourceExhausted")
_TRANSIENT = frozenset({408, 409, 425, 429})


class Failure(enum.Enum):
    """The meaning of a failed write."""

    GONE = enum.auto()
    DENIED = enum.auto()
    OUTDATED = enum.auto()
    AWAY = enum.auto()


def classify(exc: BaseException) -> Failure:
    """Return what a failed write means."""
    if not isinstance(exc, APIStatusError):
        return Failure.AWAY
    causes = exc.details.get("causes")
    fields = [cause.get("field") for cause in causes] if isinstance(causes, list) else []
    if exc.status == 404:  # what a webhook has looked for; or an absent subresource or kind
        return Failure.DENIED if exc.details.get("name") else Failure.AWAY
    if exc.status == 422 and "metadata.uid" in fields:
        return Failure.GONE
    if exc.status == 409:
        return Failure.OUTDATED
    if exc.status == 500 and any(words in str(exc) for words in _TOO_LARGE):
        return Failure.DENIED
    is_final = 400 <= exc.status < 500 and exc.status not in _TRANSIENT | {401}
    return Failure.DENIED if is_final else Failure.AWAY


async def save(
    ctx: ResourceContext,
    obj: Tracked,
    pending: Pending,
    *,
    choose_level: Callable[[str], int] = lambda _: logging.ERROR,
) -> None:
    """Write the changes of handlers and the records, in as few requests as possible.

    The worker, the daemons and the timers of an object write one after the other, so that an older
    value never replaces a newer one.

    ``choose_level`` returns the log level of a rejection for its reason, so that repeated calls do
    not log the same each time.

    Raises:
        APIError: it was not written, and is kept in ``obj.work.pending``.
        asyncio.CancelledError: the same, as the stream ends; the next one writes it.
    """
    work = obj.open_work()
    work.pending = pending if work.pending is None else work.pending.followed_by(pending)
    tries = work.tries
    async with work.writing:
        if not obj.has_pending:  # the former writer has written it, too
            return
        tried, failure = work.tries - tries, work.failure
        # Or others have tried it, too, or have just been told to wait.
        if failure is not None and (tried > 1 or (tried and _tells_to_wait(failure))):
            raise failure
        work.failure = None
        (wanted, own, _), work.pending = work.pending, None
        work.recording = own or None
        wanted, own = Patch(wanted), Patch(own)  # what is written is removed from these copies
        try:
            if wanted:
                await _save_wanted(ctx, obj, wanted, own, choose_level)
            if own:
                await patch(ctx, obj, own)
        except (APIError, asyncio.CancelledError) as exc:
            obj.keep_pending(Pending(wanted, own, classify(exc) is Failure.DENIED))
            work.failure = None if isinstance(exc, asyncio.CancelledError) else exc
            raise
        finally:
            work.recording = None
            work.tries += 1


def _tells_to_wait(exc: Exception) -> bool:
    return isinstance(exc, APIStatusError) and bool(exc.retry_after)


async def _save_wanted(
    ctx: ResourceContext,
    obj: Tracked,
    wanted: Patch,
    own: Patch,
    choose_level: Callable[[str], int],
) -> None:
    """Write the changes of handlers, if possible together with the records; log a rejection.

    Raises:
        APIError: they could not be written, but are not rejected.
    """
    try:
        # Functions take separate requests. Records come last: they say that it is done. With them
        # in it, the status must not go before the rest.
        precedes = ctx.has_status and "status" in own and bool(wanted.keys() - {"status"})
        if own and not wanted.fns and not precedes:
            merged = Patch(merge_patches(wanted, own))
            try:
                await patch(ctx, obj, merged)
            except APIError as exc:
                if classify(exc) is not Failure.DENIED:
                    raise  # else the records can be the reason
            finally:
                for part in (wanted, own):
                    for key in part.keys() - merged.keys():
                        del part[key]
        if wanted:
            await patch(ctx, obj, wanted)
    except APIError as exc:
        if classify(exc) is not Failure.DENIED:
            raise
        logger.log(
            choose_level(str(exc)),
            "The API server refused the changes of %s. They are lost, without a retry: %s",
            obj,
            exc,
            extra=ctx.refer_to(obj),
        )
        wanted.clear()


async def save_pending(ctx: ResourceContext, obj: Tracked) -> None:
    """Write pending patches, unless the object pauses; errors as in :func:`save`.

    A write in progress comes first; if it fails, the object can have to pause.
    """
    work = obj.work or NOTHING
    if obj.has_pending or work.recording:
        async with work.writing:
            pass
        if not obj.backoff_left():
            await save(ctx, obj, Pending(Patch(), Patch()))


async def patch(
    ctx: ResourceContext, obj: Tracked, changes: Patch, *, attempts: int = ATTEMPTS
) -> None:
    """Write a patch: the status where it has its own endpoint, then the rest, then functions.

    The status goes first, because the rest records that the change was handled. Values that JSON
    cannot represent are dropped with a warning.

    If the object changes meanwhile, functions are applied again, up to the number of attempts. The
    changes lose what is written, so that after an error only the rest is left. A part that the API
    server rejects does not hold up the next ones.

    Raises:
        APIConflictError: the object has changed at each of the attempts.
        APIError: it was not written, or not all of it.
    """
    left = Patch(changes)
    if "metadata" in left:
        storage = ctx.operator.settings.persistence.progress_storage
        storage.fit(body=Body(obj.get_freshest() or {}), patch=left)
    try:
        try:
            await _patch(ctx, obj, left, attempts)
        except (TypeError, ValueError):
            dropped: list[str] = []
            left = Patch(_prune(left, "", dropped), fns=left.fns)
            what, extra = "; ".join(dropped), ctx.refer_to(obj)
            logger.warning(
                "Dropped values from the patch of %s that JSON cannot represent: %s",
                obj,
                what,
                extra=extra,
            )
            await _patch(ctx, obj, left, attempts)
    finally:
        for key in changes.keys() - left.keys():
            del changes[key]
        changes.fns[:] = left.fns
    changes.clear()


async def _patch(ctx: ResourceContext, obj: Tracked, left: Patch, attempts: int) -> None:
    """Write the parts of a patch, and remove what is written from it."""
    has_endpoint = ctx.has_status
    writers: list[partial[Coroutine[Any, Any, bool]]] = []
    if has_endpoint and "status" in left:
        writers.append(partial(_write_status, ctx, obj, left))
    if rest := left.keys() - ({"status"} if has_endpoint else set()):
        writers.append(partial(_write_rest, ctx, obj, left, rest))
    if left.fns:  # to the status last: it can say what is done
        apply = partial(_apply_functions, ctx, obj, left.fns, attempts)
        writers += [partial(apply, part) for part in (("", "status") if has_endpoint else (None,))]
    rejection: APIError | None = None
    for write in writers:
        try:
            if not await write():
                return  # the object is gone
        except APIError as exc:
            if classify(exc) is not Failure.DENIED:
                raise
            if rejection is not None:
                exc.args = (f"{rejection}; {exc}",)
            rejection = exc
    if rejection is not None:
        raise rejection


async def _write_status(ctx: ResourceContext, obj: Tracked, left: Patch) -> bool:
    status = left["status"]
    # This endpoint checks the resource version, but not the uid.
    is_there = await _send(ctx, obj, lambda _: _build_status(obj, status), "status")
    del left["status"]
    return is_there


async def _write_rest(ctx: ResourceContext, obj: Tracked, left: Patch, keys: set[str]) -> bool:
    merged, metadata = {key: left[key] for key in left if key in keys}, left.get("metadata") or {}
    # Some aggregated APIs have no uids. The API server denies what is not a mapping.
    if "/" not in obj.uid and isinstance(metadata, Mapping):
        merged["metadata"] = {**metadata, "uid": obj.uid}
    is_there = await _send(ctx, obj, lambda _: merged)
    for key in keys:
        del left[key]
    return is_there


async def _apply_functions(
    ctx: ResourceContext, obj: Tracked, fns: list[PatchFn], attempts: int, part: str | None
) -> bool:
    run = FunctionRun(fns, part)

    def build(raw: dict[str, Any]) -> list[JSONPatchOp]:
        return run.build_operations(raw, str(obj), ctx.refer_to(obj))

    if not await _send(ctx, obj, build, part or None, attempts=attempts, needs_state=True):
        return False
    fns[:] = run.list_left()
    return True


async def put_finalizers(
    ctx: ResourceContext, obj: Tracked, body: Body, finalizers: list[str]
) -> None:
    """Replace the finalizers of an object, unless it has changed since the given state.

    If it has, its newest state is read, for a new plan.

    Raises:
        APIError: they were not replaced.
    """
    metadata = {"finalizers": finalizers, "resourceVersion": body.meta.resource_version}
    try:
        response = await _request(ctx, obj, {"metadata": metadata}, None)
    except APIStatusError as exc:
        failure = classify(exc)
        if failure not in (Failure.OUTDATED, Failure.GONE):
            raise
        response = await read(ctx, obj) if failure is Failure.OUTDATED else None
        if (
            response is not None
            and Body(response).meta.resource_version == body.meta.resource_version
        ):
            raise  # the conflict has another reason than a newer object
    if response is None:
        obj.suspected_deleted = True
    else:
        obj.accept_own(response)


async def release(ctx: ResourceContext, obj: Tracked) -> None:
    """Remove the finalizer from a deleted object, even if others change it meanwhile.

    The deletion handlers have run and must not run again: a conflict is resolved here, and their
    records go together with the finalizer.

    Raises:
        APIError: the finalizer is still there, or records in the status are, which are kept as
            pending.
    """
    if obj.has_background:  # it is processed again when the last of them ends
        return
    finalizer = ctx.operator.settings.persistence.finalizer
    has_endpoint = ctx.has_status
    cleanup: dict[str, Any] = dict((obj.work or NOTHING).cleanup or {})
    status = cleanup.pop("status", None) if has_endpoint else None

    def build(raw: dict[str, Any]) -> dict[str, Any] | None:
        finalizers = raw["metadata"].get("finalizers") or []
        left = [name for name in finalizers if name != finalizer]
        if len(left) == len(finalizers):
            return None
        version = raw["metadata"]["resourceVersion"]
        metadata = {"finalizers": left, "resourceVersion": version}
        return {**cleanup, "metadata": {**cleanup.get("metadata", {}), **metadata}}

    try:
        await _send(ctx, obj, build, needs_state=True)
    except APIStatusError as exc:
        if classify(exc) is not Failure.DENIED or not cleanup:
            raise
        cleanup = {}  # records must not block the deletion
        await _send(ctx, obj, build, needs_state=True)
    if status and Body(obj.get_freshest() or {}).meta.finalizers:  # it stays, for others
        await save(ctx, obj, Pending(Patch(), Patch({"status": status})))


async def read(ctx: ResourceContext, obj: Tracked) -> dict[str, Any] | None:
    """Read the newest state from the API server; None if the object is gone.

    Raises:
        APIError: it cannot be read.
    """
    try:
        raw = await ctx.client.get(
            ctx.resource,
            obj.namespace,
            obj.name,
            is_queued=True,
            is_retried=False,
            keeps_managed_fields=ctx.operator.settings.watching.managed_fields,
        )
    except APINotFoundError as exc:
        if not exc.details.get("name"):  # the kind is not served, perhaps not yet
            raise
        return None
    return raw if get_uid(raw) == obj.uid else None


def postpone(ctx: ResourceContext, obj: Tracked, exc: Exception) -> float | None:
    """Pause the work on an object after an error outside of its handlers.

    The pauses of ``settings.networking`` come first, as for all requests, then those of
    ``settings.batching``, of which the last one repeats.

    Returns:
        The seconds of the pause; None for no retry.
    """
    networking, batching = ctx.operator.settings.networking, ctx.operator.settings.batching
    work = obj.open_work()
    if work.backoff is None:
        is_about_api = isinstance(exc, APIError) and classify(exc) is not Failure.DENIED
        first = networking.error_backoffs if is_about_api else ()
        phases = Backoff(first, is_endless=False), Backoff(batching.error_delays)
        pauses = chain.from_iterable(iter(phase.next, None) for phase in phases)
        work.backoff = Backoff(pauses, is_endless=False)
    delay = choose_pause(work.backoff, exc, is_enforced=networking.enforce_retry_after)
    if delay is not None and not work.is_denied:
        work.paused_until = asyncio.get_running_loop().time() + delay
    return delay


def write_later(ctx: ResourceContext, obj: Tracked, exc: APIError) -> None:
    """Let the worker of an object write what daemons or event handlers could not write."""
    if classify(exc) is not Failure.DENIED and obj.has_pending:
        if obj.backoff_left():  # it is pausing already
            until = asyncio.get_running_loop().time() + (choose_pause(Backoff((0.0,)), exc) or 0.0)
            obj.open_work().paused_until = max(obj.open_work().paused_until, until)
        else:
            postpone(ctx, obj, exc)
    obj.wake()


async def _send(
    ctx: ResourceContext,
    obj: Tracked,
    build: Callable[[dict[str, Any]], Mapping[str, Any] | list[JSONPatchOp] | None],
    subresource: str | None = None,
    *,
    attempts: int = ATTEMPTS,
    needs_state: bool = False,
) -> bool:
    """Send a patch made for the newest known state; if that was outdated, read and repeat.

    For a state, ``build`` returns operations (a JSON patch), a mapping (a merge patch), or nothing
    if there is nothing to write. If it needs a state and none is in memory, the state is read. For
    newer states, it is called again, up to the number of attempts.

    Returns:
        Whether the object is still there.
    """
    while not obj.is_gone:
        raw = obj.get_freshest() or (await read(ctx, obj) if needs_state else {})
        if raw is None:
            break
        content = build(raw)
        if not content:
            return True
        version = parse_version(raw) if raw else obj.version
        try:
            response = await _request(ctx, obj, content, subresource)
        except APIStatusError as exc:
            # The refusal of a JSON patch has causes, except if the patch expects an older object.
            is_newer = isinstance(content, list) and exc.status == 422
            is_newer = is_newer and not exc.details.get("causes")
            is_outdated = is_newer or classify(exc) is Failure.OUTDATED
            if not is_outdated and classify(exc) is not Failure.GONE:
                raise
            response = await read(ctx, obj) if is_outdated else None
            if response is not None:
                obj.accept_own(response)
                attempts -= 1
                if version and version == parse_version(response):
                    raise  # the conflict has another reason than a newer object
                if not attempts:
                    raise APIConflictError(str(exc), status=409) from exc
                continue
        if response is None and subresource and await read(ctx, obj) is not None:
            what = f"{ctx.resource.plural}/{subresource}"
            raise APINotFoundError(f"The API server no longer serves {what}.", status=404)
        if response is None:
            break
        _warn_of_pruning(ctx, obj, content, response)
        obj.accept_own(response)
        return True
    obj.suspected_deleted = True
    return False


async def _request(
    ctx: ResourceContext,
    obj: Tracked,
    content: Mapping[str, Any] | list[JSONPatchOp],
    subresource: str | None,
) -> dict[str, Any] | None:
    """Send a patch once; record how long it takes, and whether the API server answers."""
    loop, slots = asyncio.get_running_loop(), ctx.slots
    began = loop.time()
    try:
        response = await ctx.client.patch(
            ctx.resource,
            obj.namespace,
            obj.name,
            content,
            subresource,
            is_queued=True,
            is_retried=False,
            keeps_managed_fields=ctx.operator.settings.watching.managed_fields,
        )
    except APIError as exc:
        if classify(exc) is Failure.AWAY:
            slots.note_failure(str(exc))
        else:
            slots.note_write(loop.time() - began)
        raise
    slots.note_write(loop.time() - began)
    return response


def _build_status(obj: Tracked, status: Any) -> dict[str, Any]:
    version = parse_version(obj.raw) if obj.raw is not None else obj.version
    guard = {"metadata": {"resourceVersion": str(version)}} if version else {}
    return {"status": status, **guard}


def _prune(value: Any, path: str, dropped: list[str]) -> Any:
    """Return what JSON can represent of a patch, and list the rest."""
    if not isinstance(value, Mapping):
        return value
    kept = {}
    for key, item in value.items():
        try:
            pruned = _prune(item, f"{path}.{key}", dropped)
            encode_body({key: pruned})
        except RecursionError:
            if path:
                raise
            dropped.append(f"{key} (it contains itself)")
        except (TypeError, ValueError) as exc:
            dropped.append(f"{path}.{key} ({exc})".lstrip("."))
        else:
            kept[key] = pruned
    return kept


def _list_written(content: object) -> list[str]:
    """Return the fields of the status that a patch of either kind gives values to."""
    sent: dict[str, Any] = {}
    if isinstance(content, Mapping):
        sent = content["status"] if isinstance(content.get("status"), dict) else {}
    elif isinstance(content, list):
        for operation in content:
            _, stanza, *path = operation["path"].split("/")
            value = operation.get("value")
            if stanza == "status" and path:
                sent[path[0].replace("~1", "/").replace("~0", "~")] = value
            elif stanza == "status" and isinstance(value, dict):
                sent |= value
    return [key for key, value in sent.items() if value is not None]


def _warn_of_pruning(
    ctx: ResourceContext, obj: Tracked, content: object, response: dict[str, Any]
) -> None:
    """Warn if the API server dropped fields of the status that are not in the schema."""
    kept = response.get("status") or {}
    lost = [key for key in _list_written(content) if key not in kept]
    if lost:
        logger.log(
            ctx.slots.choose_level(f"lost {lost}"),
            "Patching failed with inconsistencies: the API server dropped status.%s of %s, which "
            "the schema in the CRD does not have. Add it there, or "
            "x-kubernetes-preserve-unknown-fields: true.",
            ", status.".join(lost),
            obj,
            extra=ctx.refer_to(obj),
        )
