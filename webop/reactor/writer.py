"""Write to an object: the changes of handlers, webop's own records, the finalizer.

Handlers, daemons and timers put what they want into :class:`webop.reactor.entry.Unwritten`;
:func:`write` sends it, in one request at a time. What a failure means is decided by
:func:`webop.reactor.failures.classify`:

- The API server is not available: all is kept, and written before the next handlers are called.
- It denies the write: the changes of handlers are dropped, and told; records go alone. If these are
  denied, too, or silently not stored, they count as stored, and go with the next change.
- The object has changed meanwhile: it is read, and the patch is made for its newest state.
- It is gone: nothing is written. It rests until an event or a list says so, or shows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from webop.aio.cancellation import convert_exception
from webop.aio.work_deadline import check_fence
from webop.calls.progress import Progress, digest_seen, fetch_states
from webop.client.watch_events import get_uid
from webop.errors import APIConflictError, APIError, APINotFoundError, APIStatusError
from webop.objects.body import Body
from webop.objects.fields import clone, convert_to_json, is_mapping
from webop.objects.patch import (
    JSONPatchOp,
    Patch,
    PatchFn,
    apply_merge_patch,
    build_json_patch,
    build_merge_patch,
    find_missing,
    merge_patches,
)
from webop.reactor.entry import Entry, Unwritten
from webop.reactor.failures import DeniedError, Failure, NotStoredError, classify, fail
from webop.reactor.resource_context import ResourceContext

logger = logging.getLogger(__name__)

ATTEMPTS: Final = 10  # to patch an object that keeps changing; then there is a pause
_REFUSED: Final = "The API server refused the changes of %s. They are lost, without a retry: %s"

Json = dict[str, Any]
Content = Mapping[str, Any] | list[JSONPatchOp]


class _GoneError(Exception):
    """The object is gone, or another one has its name."""


def take(ctx: ResourceContext, obj: Entry, patch: Patch) -> None:
    """Take over the patch of handlers, which is empty then, to be written."""
    if not patch:
        return
    try:
        wanted = Patch(convert_to_json(patch), fns=patch.fns)
    except ValueError as exc:
        text = "Dropped a patch of %s with a value that JSON cannot represent: %s"
        _log_loss(ctx, obj, text, str(exc))
    else:
        unwritten = obj.open_unwritten()
        unwritten.changes = _join(unwritten.changes, wanted)
    patch.clear()


async def write(
    ctx: ResourceContext, obj: Entry, attempts: int = ATTEMPTS, *, is_released: bool = False
) -> bool:
    """Write everything now, except during the pause after a failure; return whether this is done.

    Changes that are denied for good count as done. If the stream ends or pauses, there is no later
    opportunity: then it is tried in spite of the pause.

    Args:
        ctx: of the work on the object.
        obj: the object.
        attempts: how often functions are called again if the object changes meanwhile.
        is_released: whether the object has left the selectors, and is written a last time.
    """
    if (unwritten := obj.unwritten) is None:
        return True
    async with unwritten.lock:
        while unwritten.is_due:
            if obj.is_gone and not is_released:
                _drop(unwritten)
                break
            if is_pausing(obj) and not obj.stream.is_stopped:
                return False
            try:
                await _write_all(ctx, obj, unwritten, attempts)
            except _GoneError:
                _drop(unwritten)
            except Exception as exc:  # noqa: BLE001  logged; nothing is lost
                pause(ctx, obj, exc)
                return False
    return True


def is_pausing(obj: Entry) -> bool:
    """Return whether a failure of the object is so recent that it must rest."""
    return obj.not_before > 0 and asyncio.get_running_loop().time() < obj.not_before


def pause(ctx: ResourceContext, obj: Entry, exc: Exception) -> None:
    """Begin the pause of an object after a failure; it has its turn again after it."""
    level = ctx.workers.reports.choose_level("away")
    delay = fail(obj, exc, ctx.operator.settings, level, ctx.refer_to(obj))
    if delay is not None:
        obj.stream.wake(obj, after=delay)


async def set_finalizer(ctx: ResourceContext, obj: Entry, *, is_wanted: bool) -> Json | None:
    """Add or remove the finalizer, even if others change the object meanwhile.

    Returns:
        The state after that; None if nothing was written.

    Raises:
        APIError: this has failed.
    """
    unwritten = obj.open_unwritten()
    async with unwritten.lock:
        try:
            return await _set_finalizer(ctx, obj, is_wanted=is_wanted)
        except _GoneError:
            _drop(unwritten)
            return None


def let_rest(ctx: ResourceContext, obj: Entry) -> None:
    """Forget the state of an object that is gone, though no event or list has said so.

    If it has a turn nevertheless, that reads it first.
    """
    if not obj.is_gone:
        ctx.workers.bodies.keep(obj, None)


async def read(
    ctx: ResourceContext, obj: Entry, *, is_whole: bool = False
) -> dict[str, Any] | None:
    """Read the newest state from the API server; None if the object is gone.

    It is the whole object on request, or if handlers need it.

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
            is_partial=ctx.is_partial and not is_whole,
        )
    except APINotFoundError as exc:
        if not exc.details.get("name"):  # the kind is not served, perhaps not yet
            raise
        return None
    return raw if get_uid(raw) == obj.uid else None


async def _write_all(ctx: ResourceContext, obj: Entry, unwritten: Unwritten, attempts: int) -> None:
    """Write all that there is, in as few requests as possible; records last.

    They say that it is done. Later changes are for the next write.
    """
    changes, unwritten.changes = unwritten.changes, Patch()
    own: Json = clone(unwritten.records)
    denied: Json = {}
    unwritten.is_denied = False
    try:
        if changes.fns:
            await _apply_functions(ctx, obj, changes, attempts)
            own = clone(unwritten.records)
        elif _is_for_essence(ctx, changes) and _has_seen(ctx, obj):
            await _write_essence(ctx, obj, changes)
            own = clone(unwritten.records)
        for part, wanted, records in _divide(ctx, changes, own):
            missing = await _merge(ctx, obj, part, wanted, records)
            for key in wanted:
                changes.pop(key, None)
            denied = merge_patches(denied, missing)
            unwritten.records = Patch(_without(unwritten.records, records, missing))
    finally:
        unwritten.changes = _join(changes, unwritten.changes)
    unwritten.is_denied = bool(denied) and denied == unwritten.records


def _divide(
    ctx: ResourceContext, changes: Json, records: Json
) -> Iterator[tuple[str | None, Json, Json]]:
    """Yield the requests for changes and records: the subresource, and its part of both."""
    if not ctx.has_status:
        yield None, dict(changes), records
        return
    (main, status), (own_main, own_status) = map(_split, (changes, records))
    if main and own_status:  # the records in the status must not be first
        yield None, main, {}
        main = {}
    yield "status", status, own_status
    yield None, main, own_main


def _split(patch: Json) -> tuple[Json, Json]:
    """Return the parts of a patch for the object and for its status."""
    if "status" not in patch:
        return dict(patch), {}
    return _without_status(patch), {"status": patch["status"]}


async def _merge(
    ctx: ResourceContext, obj: Entry, part: str | None, wanted: Json, records: Json
) -> Json:
    """Write a merge patch; return the records that are not stored."""
    if not wanted and not records:
        return {}
    patch = Patch(merge_patches(wanted, records))
    if "metadata" in patch:
        storage = ctx.operator.settings.persistence.progress_storage
        storage.fit(body=Body(ctx.workers.bodies.load(obj) or {}), patch=patch)
    response, denial = await _send(ctx, obj, partial(_guard, obj, patch, part), part)
    if denial and wanted and records:  # each alone
        await _merge(ctx, obj, part, wanted, {})
        return await _merge(ctx, obj, part, {}, records)
    if denial and wanted:
        _log_loss(ctx, obj, _REFUSED, denial)
        return {}
    if denial:
        text = "The API server refused the progress of handlers of %s. A restart repeats them: %s"
        _log_loss(ctx, obj, text, denial)
        return records
    if response is None:
        return {}
    _warn_of_loss(ctx, obj, _find_missing(ctx, wanted, response))
    if missing := _find_missing(ctx, records, response):
        reason = f"{_list_fields(missing)}: a policy or the schema removes it."
        text = "The API server dropped the progress of handlers of %s. A restart repeats them: %s"
        _log_loss(ctx, obj, text, reason)
    return missing


def _guard(obj: Entry, patch: Json, part: str | None, raw: Json) -> Content:
    """Return a merge patch that is never applied to another object of the same name."""
    uid, version = obj.uid, get_version(raw) or str(obj.version or "")
    # The endpoint of the status checks the version, but not the uid. Some aggregated APIs have
    # no uids. The API server denies metadata that are not a mapping.
    guard = {"resourceVersion": version} if part else {"uid": "" if "/" in uid else uid}
    metadata = patch.get("metadata") or {}
    if not any(guard.values()) or not isinstance(metadata, Mapping):
        return patch
    return {**patch, "metadata": {**metadata, **guard}}


async def _write_essence(ctx: ResourceContext, obj: Entry, changes: Patch) -> None:
    """Write changes of handlers before the records, which then say that they were seen."""
    main, status = _split(changes) if ctx.has_status else (dict(changes), {})
    before: Json = {}

    def build(raw: Json) -> Content:
        nonlocal before
        before = raw
        metadata = wanted.get("metadata") or {}
        return {**wanted, "metadata": {**metadata, "resourceVersion": get_version(raw)}}

    for part, wanted in (("status", status), (None, main)):
        if not wanted:
            continue
        response, denial = await _send(ctx, obj, build, part, needs_state=True)
        if denial:
            _log_loss(ctx, obj, _REFUSED, denial)
        elif response is not None:
            _warn_of_loss(ctx, obj, _find_missing(ctx, wanted, response))
            _stamp(ctx, obj, before, response)
        for key in wanted:
            changes.pop(key, None)


async def _apply_functions(ctx: ResourceContext, obj: Entry, changes: Patch, attempts: int) -> None:
    """Apply functions, once for each state; to the status last: it can say what is done."""
    before: Json = {}
    after: Json = {}
    changed: Json = {}
    part: str | None = None

    def build(raw: Json) -> Content | None:
        nonlocal before, after, changed
        if raw is not before:
            wanted = changes if not part else _split(changes)[1]
            before = raw
            after = _call_functions(ctx, obj, changes.fns, apply_merge_patch(raw, wanted))
        rest, status = (raw, after) if part else (after, raw if ctx.has_status else after)
        changed = _without_status(rest) | {k: status[k] for k in status.keys() & {"status"}}
        operations = build_json_patch(raw, changed)
        version = raw["metadata"].get("resourceVersion")
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        return [test, *operations] if operations else None

    for part in (None, "status") if ctx.has_status else (None,):
        response, denial = await _send(ctx, obj, build, part, attempts, needs_state=True)
        if denial:
            _log_loss(ctx, obj, _REFUSED, denial)
        elif response is not None:
            written = build_merge_patch(before, changed)
            _warn_of_loss(ctx, obj, _find_missing(ctx, written, response))
            _stamp(ctx, obj, before, response)
    changes.clear()


def _call_functions(ctx: ResourceContext, obj: Entry, fns: list[PatchFn], raw: Json) -> Json:
    """Return what functions make of a body; those that fail are logged and skipped."""
    for fn in fns:
        draft = clone(raw)
        try:
            fn(draft)
            raw = convert_to_json(draft)
        except BaseException as exc:
            text = "A function in the patch of %s failed and is skipped."
            error, extra = convert_exception(exc), ctx.refer_to(obj)
            logger.exception(text, obj, exc_info=error, extra=extra)
    return raw


def _is_for_essence(ctx: ResourceContext, changes: Json) -> bool:
    """Return whether changes can be a change for handlers."""
    has_status_fields = any(path[0] == "status" for path in ctx.handlers.extra_fields)
    return bool(changes.keys() - {"status"}) or ("status" in changes and has_status_fields)


def _has_seen(ctx: ResourceContext, obj: Entry) -> bool:
    """Return whether handlers have seen a state that own writes must not make another one."""
    if obj.unwritten is not None and obj.unwritten.essence is not None:
        return True
    raw = ctx.workers.bodies.load(obj)
    return raw is None or any(state.seen for state in list_states(ctx, obj, raw).values())


def list_states(ctx: ResourceContext, obj: Entry, raw: Json) -> Progress:
    """Return the states of all handlers on an object, those of sub-handlers included."""
    storage, body = ctx.operator.settings.persistence.progress_storage, Body(obj.add_records(raw))
    states = Progress(fetch_states(ctx.handlers.changes, body=body, storage=storage))
    return Progress(states.list_all(body=body, storage=storage))


def _stamp(ctx: ResourceContext, obj: Entry, before: Json, after: Json) -> None:
    """Let handlers that had seen the state before an own write have seen the one after it.

    So none is called for the patch of another one.
    """
    old, new = (ctx.build_essence(Body(raw)) for raw in (before, after))
    unwritten, storage = obj.open_unwritten(), ctx.operator.settings.persistence.progress_storage
    if old == new:
        return
    if unwritten.essence == old:
        unwritten.essence = new
    body = Body(obj.add_records(after))
    for key, state in list_states(ctx, obj, after).items():
        path = ctx.handlers.find_field(key)
        if state.seen is not None and state.seen == digest_seen(old, path):
            record = replace(state, seen=digest_seen(new, path)).build_record()
            storage.store(key=key, record=record, body=body, patch=unwritten.records)
    storage.flush()


async def _set_finalizer(ctx: ResourceContext, obj: Entry, *, is_wanted: bool) -> Json | None:
    finalizer = ctx.operator.settings.persistence.finalizer
    was_gone = obj.is_gone

    def build(raw: Json) -> Content | None:
        meta = Body(raw).meta
        names = [name for name in meta.finalizers if name != finalizer]
        is_there = len(names) < len(meta.finalizers)
        is_late = obj.is_gone is not was_gone or (is_wanted and meta.deletion_timestamp)
        if is_there == is_wanted or is_late:
            return None
        names += [finalizer] if is_wanted else []
        return {"metadata": {"finalizers": names, "resourceVersion": meta.resource_version}}

    response, denial = await _send(ctx, obj, build, needs_state=True, is_whole=False)
    if denial:
        raise DeniedError(denial)
    if response and (finalizer in Body(response).meta.finalizers) is not is_wanted:
        verb, what = ("add", "handlers") if is_wanted else ("remove", "deletion")
        raise NotStoredError(
            f"The API server did not {verb} {finalizer} in metadata.finalizers of {obj}: "
            f"an admission webhook undoes this. Its {what} must wait."
        )
    return response


async def _send(  # noqa: PLR0913  the two last ones say what a body in memory is worth
    ctx: ResourceContext,
    obj: Entry,
    build: Callable[[Json], Content | None],
    part: str | None = None,
    attempts: int = ATTEMPTS,
    *,
    needs_state: bool = False,
    is_whole: bool = True,
) -> tuple[Json | None, str]:
    """Send a patch made for the newest known state; if that was outdated, read and repeat.

    For a state, ``build`` returns operations (a JSON patch), a mapping (a merge patch), or nothing
    if there is nothing to write. If it needs a state and no whole one is in memory, the state is
    read. For newer states, it is called again, up to the number of attempts.

    Returns:
        The state after the patch, or None if nothing was written; and why the API server rejects
        the patch for good, if it does.

    Raises:
        APIError: it was not written, but can be later.
        _GoneError: the object is gone.
    """
    is_whole &= needs_state
    raw = None if is_whole and ctx.is_partial else ctx.workers.bodies.load(obj)
    if raw is None:
        raw = await read(ctx, obj, is_whole=is_whole) if needs_state else {}
    while raw is not None:
        if not (content := build(raw)):
            return None, ""
        newest: Json | None = None
        try:
            response = await _request(ctx, obj, content, part)
        except APIStatusError as exc:
            failure = _classify(obj, exc, content)
            if failure is Failure.OUTDATED:
                newest = await _read_newest(ctx, obj, raw, is_whole=is_whole)
                attempts -= 1
                failure = Failure.DENIED if newest is raw and exc.status == 422 else failure
            if failure is Failure.DENIED:
                return None, str(exc)
            if failure is Failure.AWAY or newest is raw:
                raise
            if newest is not None and not attempts:
                raise APIConflictError(str(exc), status=409) from exc
            raw = newest
            continue
        if response is not None:
            obj.stream.accept_response(obj, response)
            return response, ""
        if part and await read(ctx, obj) is not None:
            what = f"{ctx.resource.plural}/{part}"
            raise APINotFoundError(f"The API server no longer serves {what}.", status=404)
        raw = None
    let_rest(ctx, obj)
    raise _GoneError


async def _read_newest(
    ctx: ResourceContext, obj: Entry, raw: Json, *, is_whole: bool
) -> Json | None:
    """Return the newest state after a conflict; the given one if it had another reason."""
    version = get_version(raw) or str(obj.version)
    newest = await read(ctx, obj, is_whole=is_whole)
    if newest is None:
        return None
    obj.stream.accept_response(obj, ctx.cut(newest))
    return raw if get_version(newest) == version else newest


def _classify(obj: Entry, exc: APIStatusError, content: Content) -> Failure:
    # The refusal of a JSON patch has causes, except if the patch expects an older object.
    if isinstance(content, list) and exc.status == 422 and not exc.details.get("causes"):
        return Failure.OUTDATED
    return classify(exc, 0 if obj.backoff is None else obj.backoff.failures)


async def _request(
    ctx: ResourceContext, obj: Entry, content: Content, part: str | None
) -> Json | None:
    """Send a patch once; record whether the API server answers."""
    await check_fence()
    try:
        response = await ctx.client.patch(
            ctx.resource,
            obj.namespace,
            obj.name,
            content,
            part,
            is_queued=True,
            is_retried=False,
            keeps_managed_fields=ctx.operator.settings.watching.managed_fields,
            is_partial=ctx.is_partial,
        )
    except APIError as exc:
        is_away = classify(exc) is Failure.AWAY
        ctx.workers.outages.note(obj, exc if is_away else None)
        raise
    ctx.workers.outages.note(obj, None)
    return response


def _drop(unwritten: Unwritten) -> None:
    """Forget what cannot be written: the object is gone."""
    unwritten.changes.clear()
    unwritten.records.clear()


def get_version(raw: Json) -> str | None:
    """Return the resource version of a state."""
    found: str | None = (raw.get("metadata") or {}).get("resourceVersion")
    return found


def _join(patch: Patch, newer: Patch) -> Patch:
    """Return one patch with the effect of two; each can be empty, and is returned as it is then."""
    if not (patch and newer):
        return patch or newer
    return Patch(merge_patches(patch, newer), fns=[*patch.fns, *newer.fns])


def _without(patch: Json, sent: Json, kept: Json) -> Json:
    """Return a patch without the values that were sent, except for those to keep."""
    rest: Json = {}
    for key, value in patch.items():
        former: Any = sent.get(key)
        if is_mapping(value) and is_mapping(former) and value:
            if inner := _without(dict(value), dict(former), kept.get(key) or {}):
                rest[key] = inner
        elif key not in sent or key in kept or value != former:
            rest[key] = value
    return rest


def _without_status(raw: Json) -> Json:
    return {key: value for key, value in raw.items() if key != "status"}


def _find_missing(ctx: ResourceContext, written: Json, response: Json) -> Json:
    """Return what the API server has not stored, as far as the response shows it."""
    if ctx.is_partial:
        written = {key: written[key] for key in written if key == "metadata"}
    return find_missing(written, response) if written else {}


def _log_loss(ctx: ResourceContext, obj: Entry, text: str, reason: str) -> None:
    """Log that something is lost, once a minute for the same reason."""
    is_new = ctx.workers.reports.choose_level(f"lost of {obj.uid}: {reason}") > logging.DEBUG
    level = logging.ERROR if is_new else logging.DEBUG
    logger.log(level, text, obj, reason, extra=ctx.refer_to(obj))


def _warn_of_loss(ctx: ResourceContext, obj: Entry, missing: Json) -> None:
    """Warn if the API server has silently dropped what handlers have changed."""
    if fields := _list_fields(missing):
        logger.log(
            ctx.workers.reports.choose_level(f"dropped {fields}"),
            "Patching failed with inconsistencies: the API server dropped %s of %s. Add it to "
            "the schema in the CRD, or x-kubernetes-preserve-unknown-fields: true; or an "
            "admission policy removes it.",
            fields,
            obj,
            extra=ctx.refer_to(obj),
        )


def _list_fields(patch: Mapping[str, Any]) -> str:
    """Return the paths of the values in a patch."""

    def walk(value: Any, path: str) -> Iterator[str]:
        if isinstance(value, Mapping) and value:
            for key, item in value.items():
                yield from walk(item, f"{path}.{key}" if path else key)
        else:
            yield path

    return ", ".join(walk(patch, ""))
