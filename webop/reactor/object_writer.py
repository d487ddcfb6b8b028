"""The writer of an object: what is unwritten, and how it gets to the API server.

Handling cycles, event handlers, daemons and timers hand over what they have (:meth:`Writer.take`,
:attr:`Writer.records`); then it is the writer's. It writes when it is told to, when the commit
window ends, and after the pause that follows a failure, also while a handler of the object runs.

What a failure means (:func:`webop.reactor.failures.classify`):

- The object is gone, or another one has its name now: nothing is written.
- The API server rejects the patch for good: the reason is logged, the changes of handlers are
  dropped, the records are written alone. If even these are rejected, or silently not stored, the
  object is handled as if they were written; they are written with the next change, or after a
  pause.
- Permissions are missing: the same, but only if they are missing for a minute.
- The object has changed meanwhile: its newest state is read, and the patch is made for it.
- The API server is not available: the patch is kept, and written before anything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

from webop.aio.cancellation import convert_exception
from webop.aio.work_deadline import check_fence
from webop.client.watch_events import get_uid
from webop.errors import APIConflictError, APIError, APINotFoundError, APIStatusError
from webop.objects.body import Body
from webop.objects.fields import clone, convert_to_json
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
from webop.reactor.failures import DeniedError, Failure, NotStoredError, Pause, classify
from webop.reactor.resource_context import ResourceContext
from webop.reactor.store import State, WatchedObject
from webop.reactor.unselected_objects import build_annotations

logger = logging.getLogger(__name__)

ATTEMPTS = 10  # to patch an object that keeps changing; then there is a pause
_REFUSED = "The API server refused the changes of %s. They are lost, without a retry: %s"
_PATIENCE = 60.0  # seconds; permissions that are missing for longer are assumed to stay so
_MEMORY = 600.0  # seconds without any attempt; what was forbidden before says nothing about now

Content = Mapping[str, Any] | list[JSONPatchOp]


@dataclass(slots=True)
class UnwrittenPatch:
    """Changes of an object that are not written yet.

    Attributes:
        of_handlers: the changes of handlers.
        of_webop: webop's own records.
        undo: if the functions have changed all but the status: the merge patch that undoes this.
            They must not see it: it can be for them the sign that nothing is left to do.
    """

    of_handlers: Patch = field(default_factory=Patch)
    of_webop: Patch = field(default_factory=Patch)
    undo: dict[str, Any] | None = None

    def __bool__(self) -> bool:
        return bool(self.of_handlers or self.of_webop)

    def add(self, newer: UnwrittenPatch) -> None:
        """Merge with later changes."""
        self.of_handlers = _join(self.of_handlers, newer.of_handlers)
        self.of_webop = _join(self.of_webop, newer.of_webop)


class Writer:
    """Writes the changes of one object, in one request at a time.

    Attributes:
        ctx: the kind of the object.
        waiting: what was handed over, and has not been sent yet.
        sent: what was sent at least once, and may be stored or not; always older.
        is_denied: whether the API server has rejected the records for good, or not stored them.
        cleanup: the patch to write together with the removal of the finalizer; None until all
            deletion handlers have finished.
        has_removed_finalizer: whether it has removed the finalizer from a deleted object.
        pause: the pauses after failures. Nothing is sent meanwhile, unless records were denied.
    """

    __slots__ = (
        "_lock",
        "_obj",
        "_timer",
        "cleanup",
        "ctx",
        "has_removed_finalizer",
        "is_denied",
        "pause",
        "sent",
        "waiting",
    )

    def __init__(self, ctx: ResourceContext, obj: WatchedObject) -> None:
        self.ctx = ctx
        self.waiting = UnwrittenPatch()
        self.sent = UnwrittenPatch()
        self.is_denied = False
        self.cleanup: Patch | None = None
        self.has_removed_finalizer = False
        self.pause = Pause()
        self._obj = obj
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def records(self) -> Patch:
        """Webop's own records that have not been sent yet, to be changed in place."""
        return self.waiting.of_webop

    @property
    def has_unwritten(self) -> bool:
        """Whether anything is not written, or is being written."""
        return bool(self.waiting or self.sent)

    @property
    def is_writing(self) -> bool:
        """Whether it is writing."""
        return self._lock.locked()

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to remember."""
        return not (self.has_unwritten or self.is_writing) and self.cleanup is None

    def add_sent_records(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state of the object with all records that were sent."""
        return apply_merge_patch(raw, self.sent.of_webop) if self.sent.of_webop else raw

    def add_records(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a state of the object with all records."""
        raw = self.add_sent_records(raw)
        return apply_merge_patch(raw, self.records) if self.records else raw

    def take(self, patch: Patch) -> None:
        """Take over the patch of handlers, which is empty then."""
        if not patch:
            return
        try:
            wanted = Patch(convert_to_json(patch), fns=patch.fns)
        except ValueError as exc:
            text = "Dropped a patch of %s with a value that JSON cannot represent: %s"
            self._log_loss(text, str(exc))
        else:
            self.waiting.of_handlers = _join(self.waiting.of_handlers, wanted)
        patch.clear()

    def take_back(self, fns: list[PatchFn]) -> list[PatchFn]:
        """Return those of the given functions that have not changed anything yet; forget them."""
        found: list[PatchFn] = []
        for part in (self.sent, self.waiting):
            if part.undo is None:
                found += [fn for fn in part.of_handlers.fns if fn in fns]
                part.of_handlers.fns[:] = [fn for fn in part.of_handlers.fns if fn not in fns]
        if self.is_over:
            self._set_timer(None)
            self.pause = Pause()
        return found

    def write_at(self, moment: float) -> None:
        """Write at a moment of the loop's clock, unless it is written before."""
        if self._timer is None and self.waiting:
            self._set_timer(moment)

    async def write(self, attempts: int = ATTEMPTS) -> bool:
        """Write everything now, except during a pause after a failure.

        If the stream ends, or another operator becomes active, there is no later opportunity: then
        it is tried in spite of the pause.

        Args:
            attempts: how often functions are called again if the object changes meanwhile.

        Returns:
            Whether the work on the object can go on: all is written, or was denied for good.
        """
        async with self._lock:
            if not self._obj.may_exist:
                self._forget()
            try:
                is_tried = False
                while self._is_due or (self._can_remove_finalizer and not is_tried):
                    if self.pause.left and not self._obj.controller.is_stopped:
                        return False
                    self._set_timer(None)
                    if self._is_due:
                        await self._write_all(attempts)
                    else:
                        await self._remove_finalizer()
                        is_tried = True
                    if self.pause.has_failed and not self.is_denied:
                        self.pause = Pause()
            except Exception as exc:  # noqa: BLE001  logged; nothing that was handed over is lost
                self._retry_later(exc)
                return False
        return True

    async def set_finalizer(self, *, is_wanted: bool) -> None:
        """Add or remove the finalizer.

        Raises:
            APIError: this has failed.
        """
        async with self._lock:
            await self._set_finalizer({}, is_wanted=is_wanted)

    def _set_timer(self, moment: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = None if moment is None else loop.call_at(moment, self._start)

    def _start(self) -> None:
        """Write in a task, at the end of the window or of a pause."""
        self._timer = None
        obj = self._obj
        is_current = obj.work is not None and obj.work.writer is self
        if not is_current or (obj.controller.is_stopped and obj.state is not State.RUNNING):
            return
        self.is_denied, self.pause.until = False, 0.0
        obj.controller.write(obj, self.write())

    @property
    def _is_due(self) -> bool:
        """Whether there is anything to write, except for the removal of the finalizer."""
        return bool(self.waiting or (self.sent and not self.is_denied))

    @property
    def _can_remove_finalizer(self) -> bool:
        """Whether the finalizer must go; if daemons run, the end of the last one calls again."""
        raw = None if self.cleanup is None else self._obj.get_freshest()
        if raw is None or self._obj.has_daemons:
            return False
        return self.ctx.operator.settings.persistence.finalizer in Body(raw).meta.finalizers

    def _retry_later(self, exc: Exception) -> None:
        delay = self.pause.begin(self.ctx, self._obj, exc)
        self._set_timer(None if delay is None else self.pause.until)

    async def _write_all(self, attempts: int) -> None:
        """Write the changes of handlers and the records, in as few requests as possible.

        A part that the API server rejects does not hold up the next ones.
        """
        if self.sent.undo is None:  # else the functions must be applied alone
            self.sent.add(self.waiting)
            self.waiting = UnwrittenPatch()
        sent, dropped = self.sent, dict[str, Any]()
        wanted, own = sent.of_handlers, sent.of_webop
        # With functions, or if the status must not go before the rest, records take their own
        # requests. They come last: they say that it is done.
        precedes = self.ctx.has_status and "status" in own and bool(wanted.keys() - {"status"})
        self.is_denied = False
        try:
            if wanted and own and not wanted.fns and not precedes:
                await self._merge(wanted, own, dropped=dropped)  # if it is denied, each alone
            denials = await self._merge(wanted)
            if wanted.fns:
                denials += await self._apply_functions(wanted.fns, attempts)
            if denials:
                self._log_loss(_REFUSED, "; ".join(denials))
            wanted.clear()
            sent.undo = None
            denials = await self._merge(own, dropped=dropped)
        finally:
            own.update(merge_patches(own, dropped))
        if own:
            self.is_denied = True
            if self._obj.raw is not None:
                self._obj.raw = self._obj.complete(self._obj.raw)
            loss = NotStoredError(
                f"The API server dropped {_list_fields(own)} of {self._obj}: a policy or the "
                "schema removes it. It is kept in memory only: a restart repeats handlers."
            )
            self._retry_later(DeniedError("; ".join(denials)) if denials else loss)
            self.pause.until = 0.0  # it does not stop the work on the object

    async def _merge(self, *patches: Patch, dropped: dict[str, Any] | None = None) -> list[str]:
        """Write merge patches in one: the status where it has its own endpoint, then the rest.

        The status goes first, because the rest records that the change was handled. The patches
        lose their written parts. Parts that the API server silently drops go into ``dropped`` if
        they are of the last patch; otherwise they are logged.

        Returns:
            The reasons of rejections.
        """
        merged = reduce(_join, patches)
        if "metadata" in merged:
            storage = self.ctx.operator.settings.persistence.progress_storage
            storage.fit(body=Body(self._obj.get_freshest() or {}), patch=merged)
        denials: list[str] = []
        rest = dict(merged)
        is_apart = "status" in rest and self.ctx.has_status
        status = {"status": rest.pop("status")} if is_apart else {}
        for part, content in (("status", status), (None, rest)):
            if not content:
                continue
            response, denial = await self._send(partial(self._guard, content, part), part)
            if denial:
                denials.append(denial)
                continue
            for patch in patches:
                written = {key: patch.pop(key) for key in content.keys() & patch.keys()}
                missing = self._find_missing(written, response) if response else {}
                if dropped is not None and patch is patches[-1]:
                    dropped.update(merge_patches(dropped, missing))
                elif missing:
                    self._warn_of_loss(missing)
        return denials

    def _find_missing(self, written: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
        """Return what the API server has not stored, as far as the response shows it."""
        if self.ctx.is_partial:
            written = {key: written[key] for key in written if key == "metadata"}
        return find_missing(written, response)

    def _guard(self, content: dict[str, Any], part: str | None, raw: dict[str, Any]) -> Content:
        """Return a merge patch that is never applied to another object of the same name."""
        uid, version = self._obj.uid, get_version(raw) or str(self._obj.version or "")
        # The endpoint of the status checks the version, but not the uid. Some aggregated APIs have
        # no uids. The API server denies metadata that are not a mapping.
        guard = {"resourceVersion": version} if part else {"uid": "" if "/" in uid else uid}
        metadata = content.get("metadata") or {}
        if not content or not any(guard.values()) or not isinstance(metadata, Mapping):
            return content
        return {**content, "metadata": {**metadata, **guard}}

    async def _apply_functions(self, fns: list[PatchFn], attempts: int) -> list[str]:
        """Apply functions, once for each state; to the status last: it can say what is done.

        Returns:
            The reasons of rejections.
        """
        sent, has_status = self.sent, self.ctx.has_status
        before: dict[str, Any] = {}
        after: dict[str, Any] = {}
        changed: dict[str, Any] = {}
        part: str | None = None

        def build(raw: dict[str, Any]) -> Content | None:
            nonlocal before, after, changed
            if raw is not before:
                after = self._call_functions(fns, apply_merge_patch(raw, sent.undo or {}))
                before = raw
            rest, status = (raw, after) if part else (after, raw if has_status else after)
            changed = _without_status(rest) | {k: status[k] for k in status.keys() & {"status"}}
            operations = build_json_patch(raw, changed)
            version = raw["metadata"].get("resourceVersion")
            test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
            return [test, *operations] if operations else None

        denials: list[str] = []
        parts: list[str | None] = [None] if sent.undo is None else []
        for part in (*parts, "status") if has_status else parts:
            response, denial = await self._send(build, part, attempts, needs_state=True)
            if denial:
                denials.append(denial)
            elif response is not None:
                written = build_merge_patch(before, changed)
                self._warn_of_loss(self._find_missing(written, response))
                if has_status and part is None:
                    sent.undo = build_merge_patch(_without_status(after), _without_status(before))
        fns.clear()
        return denials

    def _call_functions(self, fns: list[PatchFn], raw: dict[str, Any]) -> dict[str, Any]:
        """Return what functions make of a body; those that fail are logged and skipped."""
        for fn in fns:
            draft = clone(raw)
            try:
                fn(draft)
                raw = convert_to_json(draft)
            except BaseException as exc:
                text = "A function in the patch of %s failed and is skipped."
                error, extra = convert_exception(exc), self.ctx.refer_to(self._obj)
                logger.exception(text, self._obj, exc_info=error, extra=extra)
        return raw

    async def _remove_finalizer(self) -> None:
        """Remove the finalizer from a deleted object.

        The deletion handlers have run and must not run again: their records go with the finalizer.
        """
        records = dict(self.cleanup or {})
        status = records.pop("status", None) if self.ctx.has_status else None
        response = await self._set_finalizer(records, is_wanted=False)
        self.cleanup = Patch()
        if status and response and Body(response).meta.finalizers:  # it stays, for others
            self.records.update(merge_patches(self.records, {"status": status}))

    async def _set_finalizer(
        self, records: dict[str, Any], *, is_wanted: bool
    ) -> dict[str, Any] | None:
        """Add or remove the finalizer, even if others change the object meanwhile."""
        finalizer = self.ctx.operator.settings.persistence.finalizer
        was_gone = self._obj.is_gone

        def build(raw: dict[str, Any]) -> Content | None:
            body = Body(raw)
            meta = body.meta
            names = [name for name in meta.finalizers if name != finalizer]
            is_there = len(names) < len(meta.finalizers)
            is_late = self._obj.is_gone is not was_gone or (is_wanted and meta.deletion_timestamp)
            if is_there == is_wanted or is_late:
                return None
            names += [finalizer] if is_wanted else []
            metadata: dict[str, Any] = {
                "finalizers": names,
                "resourceVersion": meta.resource_version,
            }
            if annotations := build_annotations(self.ctx, body, is_wanted=is_wanted):
                metadata["annotations"] = annotations
            return merge_patches(records, {"metadata": metadata})

        response, denial = await self._send(build, needs_state=was_gone)
        if denial and records:  # they must not block the deletion
            return await self._set_finalizer({}, is_wanted=is_wanted)
        if denial:
            raise DeniedError(denial)
        if response and (finalizer in Body(response).meta.finalizers) is not is_wanted:
            verb, what = ("add", "handlers") if is_wanted else ("remove", "deletion")
            raise NotStoredError(
                f"The API server did not {verb} {finalizer} in metadata.finalizers of {self._obj}: "
                f"an admission webhook undoes this. Its {what} must wait."
            )
        is_deleted = response is not None and Body(response).meta.deletion_timestamp is not None
        self.has_removed_finalizer = is_deleted and not is_wanted
        return response

    async def _send(
        self,
        build: Callable[[dict[str, Any]], Content | None],
        subresource: str | None = None,
        attempts: int = ATTEMPTS,
        *,
        needs_state: bool = False,
    ) -> tuple[dict[str, Any] | None, str]:
        """Send a patch made for the newest known state; if that was outdated, read and repeat.

        For a state, ``build`` returns operations (a JSON patch), a mapping (a merge patch), or
        nothing if there is nothing to write. If it needs a state and no whole one is in memory, the
        state is read. For newer states, it is called again, up to the number of attempts.

        Returns:
            The state after the patch, or None if nothing was written, or the object is gone; and
            why the API server rejects the patch for good, if it does.

        Raises:
            APIError: it was not written, but can be later.
        """
        ctx, obj = self.ctx, self._obj
        raw = None if needs_state and ctx.is_partial else obj.get_freshest()
        if raw is None:
            raw = await read(ctx, obj, is_whole=True) if needs_state else {}
        while raw is not None and obj.may_exist:
            if not (content := build(raw)):
                return None, ""
            newest: dict[str, Any] | None = None
            try:
                response = await self._request(content, subresource)
            except APIStatusError as exc:
                failure = self._classify(exc, content, subresource)
                if failure is Failure.OUTDATED:
                    newest = await self._read_newest(raw, is_whole=needs_state)
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
                obj.accept_own(response, is_content_own=_has_content(content))
                return response, ""
            if subresource and await read(ctx, obj) is not None:
                what = f"{ctx.resource.plural}/{subresource}"
                raise APINotFoundError(f"The API server no longer serves {what}.", status=404)
            raw = None
        self._forget()
        obj.controller.mark_gone(obj)
        return None, ""

    async def _read_newest(self, raw: dict[str, Any], *, is_whole: bool) -> dict[str, Any] | None:
        """Return the newest state after a conflict; the given one if it had another reason."""
        version = get_version(raw) or str(self._obj.version)
        newest = await read(self.ctx, self._obj, is_whole=is_whole)
        if newest is not None:
            self._obj.accept_own(self.ctx.cut(newest))
        return raw if newest is not None and get_version(newest) == version else newest

    def _classify(self, exc: APIStatusError, content: Content, subresource: str | None) -> Failure:
        failure = classify(exc)
        if failure is Failure.FORBIDDEN:
            place, now = (self._obj.namespace, subresource), asyncio.get_running_loop().time()
            since, last = self.ctx.queue.forbidden.get(place, (now, now))
            since = since if now - last < _MEMORY else now
            self.ctx.queue.forbidden[place] = since, now
            return Failure.DENIED if now - since >= _PATIENCE else Failure.AWAY
        # The refusal of a JSON patch has causes, except if the patch expects an older object.
        is_outdated = isinstance(content, list) and exc.status == 422
        return Failure.OUTDATED if is_outdated and not exc.details.get("causes") else failure

    async def _request(self, content: Content, subresource: str | None) -> dict[str, Any] | None:
        """Send a patch once; record how long it takes, and whether the API server answers."""
        loop, queue, obj = asyncio.get_running_loop(), self.ctx.queue, self._obj
        await check_fence()
        began = loop.time()
        try:
            response = await self.ctx.client.patch(
                self.ctx.resource,
                obj.namespace,
                obj.name,
                content,
                subresource,
                is_queued=True,
                is_retried=False,
                keeps_managed_fields=self.ctx.operator.settings.watching.managed_fields,
                is_partial=self.ctx.is_partial,
            )
        except APIError as exc:
            if classify(exc) is Failure.AWAY:
                queue.note_failure(exc, obj.namespace)
            else:
                queue.note_write(loop.time() - began, obj.namespace)
            raise
        queue.note_write(loop.time() - began, obj.namespace)
        queue.forbidden.pop((obj.namespace, subresource), None)
        return response

    def _forget(self) -> None:
        """Forget everything: the object is gone."""
        for part in (self.waiting, self.sent):
            part.of_handlers.clear()
            part.of_webop.clear()
            part.undo = None
        self.is_denied = False

    def _log_loss(self, text: str, reason: str) -> None:
        """Log that changes of handlers are lost, once a minute for the same reason."""
        is_new = self.ctx.queue.choose_level(f"lost of {self._obj.uid}: {reason}") > logging.DEBUG
        level = logging.ERROR if is_new else logging.DEBUG
        logger.log(level, text, self._obj, reason, extra=self.ctx.refer_to(self._obj))

    def _warn_of_loss(self, missing: dict[str, Any]) -> None:
        """Warn if the API server has silently dropped what handlers have changed."""
        if fields := _list_fields(missing):
            logger.log(
                self.ctx.queue.choose_level(f"dropped {fields}"),
                "Patching failed with inconsistencies: the API server dropped %s of %s. Add it to "
                "the schema in the CRD, or x-kubernetes-preserve-unknown-fields: true; or an "
                "admission policy removes it.",
                fields,
                self._obj,
                extra=self.ctx.refer_to(self._obj),
            )


def open_writer(ctx: ResourceContext, obj: WatchedObject) -> Writer:
    """Return the writer of an object; create it if there is none."""
    work = obj.open_work()
    if work.writer is None:
        work.writer = Writer(ctx, obj)
    work.writer.ctx = ctx  # the version of the kind can have changed
    return work.writer


async def read(
    ctx: ResourceContext, obj: WatchedObject, *, is_whole: bool = False
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


def get_version(raw: dict[str, Any]) -> str | None:
    """Return the resource version of a state."""
    found: str | None = (raw.get("metadata") or {}).get("resourceVersion")
    return found


def _join(patch: Patch, newer: Patch) -> Patch:
    """Return one patch with the effect of two; each can be empty, and is returned as it is then."""
    if not (patch and newer):
        return patch or newer
    return Patch(merge_patches(patch, newer), fns=[*patch.fns, *newer.fns])


def _has_content(content: Content) -> bool:
    """Return whether a patch changes more than metadata and status."""
    if isinstance(content, Mapping):
        changed = {*content}
    else:
        changed = {one["path"].split("/")[1] for one in content}
    return bool(changed - {"metadata", "status"})


def _without_status(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key != "status"}


def _list_fields(patch: Mapping[str, Any]) -> str:
    """Return the paths of the values in a patch."""

    def walk(value: Any, path: str) -> Iterator[str]:
        if isinstance(value, Mapping) and value:
            for key, item in value.items():
                yield from walk(item, f"{path}.{key}" if path else key)
        else:
            yield path

    return ", ".join(walk(patch, ""))
