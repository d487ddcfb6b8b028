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
from typing import Any, Final, NamedTuple

from webop.aio.cancellation import convert_exception
from webop.aio.work_deadline import check_fence
from webop.calls.progress import Progress, fetch_states
from webop.client.watch_events import get_uid
from webop.errors import APIConflictError, APINotFoundError, APIStatusError
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
    join_patches,
    list_fields,
    merge_patches,
    split_status,
    subtract_patch,
    without_status,
)
from webop.reactor.entry import Entry, Unwritten
from webop.reactor.failures import (
    DeniedError,
    Failure,
    NotStoredError,
    classify,
    count_denials,
    fail,
    must_wait,
    recover,
)
from webop.reactor.resource_context import ResourceContext

logger = logging.getLogger(__name__)

ATTEMPTS: Final = 10  # to patch an object that keeps changing; then there is a pause
_LAST_PAUSE: Final = 5.0  # seconds; the process cannot wait for longer
_REFUSED: Final = "The API server refused the changes of %s. They are lost, without a retry: %s"
_UNRECORDED: Final = (
    "The API server does not store the progress of handlers of %s. A restart repeats them: %s"
)

Json = dict[str, Any]
Content = Mapping[str, Any] | list[JSONPatchOp]


class _OverError(Exception):
    """Nothing more must be written: the object is gone, or others have continued in a pause."""


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
        unwritten.changes = join_patches(unwritten.changes, wanted)
    patch.clear()


async def write(ctx: ResourceContext, obj: Entry, attempts: int = ATTEMPTS) -> bool:
    """Write everything now, except during the pause after a failure; return whether this is done.

    Changes that are denied for good count as done. An object that is gone is written only if it can
    have left the selectors. During a pause, and at the end, no turn follows: then it is tried in
    spite of a former failure. At the end, a second attempt waits for its moment here.

    Args:
        ctx: of the work on the object.
        obj: the object.
        attempts: how often functions are called again if the object changes meanwhile.
    """
    is_done = await _write_once(ctx, obj, attempts)
    if not is_done and obj.stream.is_ending:
        pause = obj.not_before - asyncio.get_running_loop().time()
        if 0 < pause < _LAST_PAUSE:
            await asyncio.sleep(pause)
            return await _write_once(ctx, obj, attempts)
    return is_done


async def _write_once(ctx: ResourceContext, obj: Entry, attempts: int) -> bool:
    if (unwritten := obj.unwritten) is None:
        return True
    async with unwritten.lock:
        while unwritten.is_due and obj.unwritten is unwritten:
            if obj.is_gone and not ctx.build_selectors():
                _drop(unwritten)
                break
            if must_wait(obj) and not obj.stream.is_paused:
                return False
            try:
                await _write_all(ctx, obj, unwritten, attempts)
            except _OverError:
                _drop(unwritten)
            except Exception as exc:  # noqa: BLE001  logged; nothing is lost
                fail(ctx, obj, exc)
                return False
            else:
                recover(obj)
    return True


async def set_finalizer(ctx: ResourceContext, obj: Entry, *, is_wanted: bool) -> Json | None:
    """Add or remove the finalizer, even if others change the object meanwhile.

    Returns:
        The state after that; None if nothing was written.

    Raises:
        APIError: this has failed.
    """
    finalizer = ctx.operator.settings.persistence.finalizer
    was_gone, unwritten = obj.is_gone, obj.open_unwritten()

    def build(raw: Json) -> Content | None:
        meta = Body(raw).meta
        names = [name for name in meta.finalizers if name != finalizer]
        is_there = len(names) < len(meta.finalizers)
        is_late = obj.is_gone is not was_gone or (is_wanted and meta.deletion_timestamp)
        if is_there == is_wanted or is_late:
            return None
        names += [finalizer] if is_wanted else []
        return {"metadata": {"finalizers": names, "resourceVersion": meta.resource_version}}

    async with unwritten.lock:
        try:
            response = await _send(ctx, obj, _Request(build))
        except _OverError:
            _drop(unwritten)
            return None
    if response and (finalizer in Body(response).meta.finalizers) is not is_wanted:
        verb, what = ("add", "handlers") if is_wanted else ("remove", "deletion")
        raise NotStoredError(
            f"The API server did not {verb} {finalizer} in metadata.finalizers of {obj}: "
            f"an admission webhook undoes this. Its {what} must wait."
        )
    return response


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
        options = ctx.options
        options["is_partial"] = ctx.is_partial and not is_whole
        raw = await ctx.client.get(ctx.resource, obj.namespace, obj.name, **options)
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
    denied: Json = {}
    unwritten.is_denied = False
    try:
        if changes.fns or (_is_for_essence(ctx, changes) and _has_seen(ctx, obj)):
            await _edit(ctx, obj, changes, attempts if changes.fns else ATTEMPTS)
        own: Json = clone(unwritten.records)
        for part, wanted, records in _divide(ctx, changes, own):
            if obj.unwritten is not unwritten:
                raise _OverError
            missing = await _merge(ctx, obj, part, wanted, records)
            for key in wanted:
                changes.pop(key, None)
            denied = merge_patches(denied, missing)
            unwritten.records = Patch(subtract_patch(unwritten.records, records, missing))
    finally:
        unwritten.changes = join_patches(changes, unwritten.changes)
    unwritten.is_denied = bool(denied) and denied == unwritten.records


def _divide(
    ctx: ResourceContext, changes: Json, records: Json
) -> Iterator[tuple[str | None, Json, Json]]:
    """Yield the requests for changes and records: the subresource, and its part of both.

    Records are last. If there are some in both parts, those in the status are: what is handled is
    stored before it is removed there how far it is.
    """
    if not ctx.has_status:
        yield None, dict(changes), records
        return
    (main, status), (own_main, own_status) = map(split_status, (changes, records))
    if own_status and not own_main:
        yield None, main, {}
        yield "status", status, own_status
        return
    yield "status", status, {}
    yield None, main, own_main
    yield "status", {}, own_status


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
    unwritten, is_quiet = obj.open_unwritten(), not _is_news(ctx, wanted)

    def build(raw: Json) -> Content:
        guarded = _guard(patch, part, raw)
        if is_quiet:
            unwritten.expect(raw, guarded)
        return guarded

    try:
        response = await _send(ctx, obj, _Request(build, part))
    except DeniedError as exc:
        if wanted and records:  # each alone
            await _merge(ctx, obj, part, wanted, {})
            return await _merge(ctx, obj, part, {}, records)
        _log_loss(ctx, obj, _REFUSED if wanted else _UNRECORDED, str(exc))
        return records
    finally:
        unwritten.expected = None
    _warn_of_loss(ctx, obj, _find_missing(ctx, wanted, response or wanted))
    missing = _find_missing(ctx, records, response or records)
    if missing:
        reason = f"a policy or the schema removes {list_fields(missing)}."
        _log_loss(ctx, obj, _UNRECORDED, reason)
    return missing


def _guard(patch: Json, part: str | None, raw: Json) -> Json:
    """Return a merge patch that is never applied to another object of the same name."""
    # The endpoint of the status checks the version, but not the uid. Some aggregated APIs have
    # no uids. The API server denies metadata that are not a mapping.
    guard = {"resourceVersion": get_version(raw)} if part else {"uid": raw["metadata"].get("uid")}
    metadata = patch.get("metadata") or {}
    if not any(guard.values()) or not is_mapping(metadata):
        return patch
    return {**patch, "metadata": {**metadata, **guard}}


async def _edit(ctx: ResourceContext, obj: Entry, changes: Patch, attempts: int) -> None:
    """Write changes to exactly one version of the object; records say then that they were seen.

    Functions are called once for both parts; again if others change the object before the second
    one is written, the status: it can say what is done.
    """
    before: Json = {}
    after: Json = {}
    changed: Json = {}
    part: str | None = None
    own: Json = {}

    def build(raw: Json) -> Content | None:
        nonlocal before, after, changed
        if get_version(raw) != get_version(before):  # not that of the first part
            after = _call_functions(ctx, obj, changes.fns, apply_merge_patch(raw, changes))
        before = raw
        rest, other = (raw, after) if part else (after, raw if ctx.has_status else after)
        changed = without_status(rest) | {k: other[k] for k in other.keys() & {"status"}}
        operations, version = build_json_patch(raw, changed), get_version(raw)
        if operations and not changes.fns:
            return merge_patches(own, {"metadata": {"resourceVersion": version}})
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        return [test, *operations] if operations else None

    main, status = split_status(changes) if ctx.has_status else (dict(changes), {})
    for part, own in ((None, main), ("status", status))[: 1 + ctx.has_status]:
        response = None
        try:
            response = await _send(ctx, obj, _Request(build, part, attempts, is_whole=True))
        except DeniedError as exc:
            _log_loss(ctx, obj, _REFUSED, str(exc))
        for key in own:
            del changes[key]
        if response is not None:
            written = build_merge_patch(before, changed)
            _warn_of_loss(ctx, obj, _find_missing(ctx, written, response))
            _stamp(ctx, obj, before, response)
            before = {**before, "metadata": response["metadata"]}  # functions are not called again
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


def _is_news(ctx: ResourceContext, changes: Json) -> bool:
    """Return whether handlers must look at the object after own changes and records."""
    handlers = ctx.handlers
    has_others = bool(handlers.background or handlers.reconcilers or handlers.has_models)
    is_seen = bool(changes) and (has_others or _is_for_essence(ctx, changes))
    return is_seen or handlers.looks_at_anything


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
    old, new = (ctx.build_essence(Body(ctx.cut(raw))) for raw in (before, after))
    unwritten, storage = obj.open_unwritten(), ctx.operator.settings.persistence.progress_storage
    if old == new:
        return
    if unwritten.essence == old:
        unwritten.essence = new
    body = Body(obj.add_records(after))
    for key, state in list_states(ctx, obj, after).items():
        if state.seen is not None and state.seen == ctx.digest_seen(key, state, old):
            record = replace(state, seen=ctx.digest_seen(key, state, new)).build_record()
            storage.store(key=key, record=record, body=body, patch=unwritten.records)
    storage.flush()


class _Request(NamedTuple):
    """A patch that is made for a state of an object, and again for newer ones.

    Attributes:
        build: returns operations (a JSON patch), a mapping (a merge patch), or nothing if there is
            nothing to write.
        part: the subresource.
        attempts: for how many states.
        is_whole: whether it needs the whole object, even if handlers do not.
    """

    build: Callable[[Json], Content | None]
    part: str | None = None
    attempts: int = ATTEMPTS
    is_whole: bool = False


async def _send(ctx: ResourceContext, obj: Entry, request: _Request) -> Json | None:
    """Send a patch made for the newest known state; if that was outdated, read and repeat.

    Returns:
        The state after the patch, or None if nothing had to be written.

    Raises:
        DeniedError: the API server rejects it for good.
        APIError: it was not written, but can be later.
        _OverError: the object is gone, or others could act since it was sent.
    """
    build, part, attempts, is_whole = request
    kind, place, unwritten = ctx.resource, (obj.namespace, obj.name), obj.unwritten
    raw = None if is_whole and ctx.is_partial else ctx.workers.bodies.load(obj)
    if raw is None:
        raw = await read(ctx, obj, is_whole=is_whole)
    while raw is not None:
        if not (content := build(raw)):
            return None
        await check_fence()
        try:
            response = await ctx.client.patch(kind, *place, content, part, **ctx.options)
        except APIStatusError as exc:
            failure = _classify(ctx, obj, exc, content)
            if failure is Failure.AWAY:
                raise
            if failure is Failure.DENIED:
                raise DeniedError(str(exc)) from exc
            is_gone = failure is Failure.GONE
            raw = None if is_gone else await _read_newer(ctx, obj, raw, exc, is_whole=is_whole)
            if obj.unwritten is not unwritten:
                raise _OverError from exc
            attempts -= 1
            if raw is not None and not attempts:
                raise APIConflictError(str(exc), status=409) from exc
        else:
            ctx.workers.outages.note(obj, None)
            if response is not None:
                obj.stream.accept_response(obj, response)
                return response
            if part and await read(ctx, obj) is not None:
                what = f"{kind.plural}/{part}"
                raise APINotFoundError(f"The API server no longer serves {what}.", status=404)
            raw = None
    let_rest(ctx, obj)
    raise _OverError


async def _read_newer(
    ctx: ResourceContext, obj: Entry, raw: Json, conflict: APIStatusError, *, is_whole: bool
) -> Json | None:
    """Return a newer state after a conflict; None if the object is gone.

    Raises:
        APIError: there is none: the conflict had another reason.
    """
    version = get_version(raw) or str(obj.version)
    newest = await read(ctx, obj, is_whole=is_whole)
    if newest is not None:
        obj.stream.accept_response(obj, ctx.cut(newest))
        if get_version(newest) == version:
            raise DeniedError(str(conflict)) if conflict.status == 422 else conflict
    return newest


def _classify(ctx: ResourceContext, obj: Entry, exc: APIStatusError, content: Content) -> Failure:
    """Return what a refusal means. It also says that something can be written there."""
    if classify(exc) is not Failure.AWAY:  # missing permissions can count as denied all the same
        ctx.workers.outages.note(obj, None)
    # The refusal of a JSON patch has causes, except if the patch expects an older object.
    if isinstance(content, list) and exc.status == 422 and not exc.details.get("causes"):
        return Failure.OUTDATED
    return classify(exc, count_denials(obj))


def _drop(unwritten: Unwritten) -> None:
    """Forget what cannot be written: the object is gone."""
    unwritten.changes.clear()
    unwritten.records.clear()


def get_version(raw: Json) -> str | None:
    """Return the resource version of a state."""
    found: str | None = (raw.get("metadata") or {}).get("resourceVersion")
    return found


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
    if fields := list_fields(missing):
        logger.log(
            ctx.workers.reports.choose_level(f"dropped {fields}"),
            "Patching failed with inconsistencies: the API server dropped %s of %s. Add it to "
            "the schema in the CRD, or x-kubernetes-preserve-unknown-fields: true; or an "
            "admission policy removes it.",
            fields,
            obj,
            extra=ctx.refer_to(obj),
        )
