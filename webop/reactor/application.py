"""Writing what was decided about an object into the cluster, in as few requests as possible."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from webop.client.calls import encode_body
from webop.errors import APIConflictError, APIUnprocessableError
from webop.objects.body import Body
from webop.objects.patch import JSONPatchOp, Patch, PatchFn
from webop.reactor.planning import ResourceContext
from webop.reactor.tracking import Tracked

logger = logging.getLogger(__name__)

REFUSALS = frozenset({400, 405, 409, 413, 415, 422})
"""Answers to a patch that would be the same if it were sent again."""


async def save_patch(ctx: ResourceContext, obj: Tracked, patch: Patch) -> bool:
    """Apply a patch; what JSON cannot hold is left out: it is a mistake in a handler, and is told.

    Returns:
        Whether the object is still there.
    """
    try:
        return await apply_patch(ctx, obj, patch)
    except (TypeError, ValueError):
        dropped: list[str] = []
        kept = Patch(_prune(patch, "", dropped), fns=patch.fns)
        what, extra = "; ".join(dropped), ctx.refer_to(obj)
        logger.warning("JSON cannot hold this in the patch of %s: %s", obj, what, extra=extra)
        return await apply_patch(ctx, obj, kept)


async def apply_patch(ctx: ResourceContext, obj: Tracked, patch: Patch) -> bool:
    """Apply a patch to an object: the status where it has its own endpoint, then the rest.

    The status goes first: the rest says that it is handled. Transformation functions go as a
    JSON patch against the freshest state.

    Returns:
        Whether the object is still there.
    """
    merged = dict(patch)
    if "status" in ctx.resource.subresources and "status" in merged:
        status = {"status": merged.pop("status")}
        if not await _send(ctx, obj, status, subresource="status"):
            return False
    if merged and not await _send(ctx, obj, merged, subresource=None):
        return False
    return not patch.fns or await apply_transformations(ctx, obj, patch.fns, attempts=None)


async def apply_transformations(
    ctx: ResourceContext, obj: Tracked, fns: Sequence[PatchFn], *, attempts: int | None = 1
) -> bool:
    """Apply transformation functions; what they do to the status, to its own endpoint.

    Args:
        ctx: the context of the resource.
        obj: the object.
        fns: the functions; they are called on the freshest known state, maybe several times.
        attempts: how often it is tried if the object changes meanwhile; None for as long as
            newer states arrive.

    Returns:
        Whether the object is still there.

    Raises:
        APIUnprocessableError: the object has changed in the meantime once too often, or the
            result is refused.
    """
    parts = ("status", "") if "status" in ctx.resource.subresources else (None,)
    for part in parts:
        if not await _transform_part(ctx, obj, fns, part, attempts=attempts):
            return False
    return True


async def _transform_part(
    ctx: ResourceContext,
    obj: Tracked,
    fns: Sequence[PatchFn],
    part: str | None,
    *,
    attempts: int | None,
) -> bool:
    """Apply the functions: part "status" is the status only, "" all but it, None everything."""
    tries = 0
    while (raw := obj.get_freshest()) is not None:
        operations = _build_operations(ctx, obj, raw, fns, part)
        if not operations:
            return True
        test = {
            "op": "test",
            "path": "/metadata/resourceVersion",
            "value": raw["metadata"]["resourceVersion"],
        }
        try:
            response = await ctx.client.patch_json(
                ctx.resource, obj.namespace, obj.name, [test, *operations], part or None
            )
        except APIUnprocessableError:
            tries += 1
            if tries == attempts or not await _wait_for_newer(ctx, obj, raw):
                raise
        else:
            return _take(obj, response)
    return False


def _build_operations(
    ctx: ResourceContext,
    obj: Tracked,
    raw: dict[str, Any],
    fns: Sequence[PatchFn],
    part: str | None,
) -> list[JSONPatchOp]:
    try:
        operations = Patch(fns=fns).as_json_patch(raw)
    except Exception:
        said = "A function in the patch of %s has failed; it is left out."
        logger.exception(said, obj, extra=ctx.refer_to(obj))
        return []
    return [op for op in operations if part is None or _is_of_status(op) == (part == "status")]


async def _wait_for_newer(ctx: ResourceContext, obj: Tracked, raw: dict[str, Any]) -> bool:
    """Wait for a state that is newer than the given one; tell whether it is there."""
    if obj.get_freshest() is not raw:
        return True
    return await obj.wait_for_news(ctx.operator.settings.persistence.consistency_timeout)


def _is_of_status(operation: JSONPatchOp) -> bool:
    path: str = operation["path"]
    return path == "/status" or path.startswith("/status/")


async def apply_finalizers(
    ctx: ResourceContext, obj: Tracked, body: Body, finalizers: list[str]
) -> bool:
    """Replace the finalizers of an object, unless it has changed since the given state.

    Returns:
        Whether it is done; if not, a newer state is on its way, and is to be planned for anew.
    """
    metadata = {"finalizers": finalizers, "resourceVersion": body.meta.resource_version}
    try:
        await _send(ctx, obj, {"metadata": metadata}, subresource=None)
    except APIConflictError:
        return False
    return True


async def _send(
    ctx: ResourceContext,
    obj: Tracked,
    patch: dict[str, Any],
    *,
    subresource: str | None,
) -> bool:
    response = await ctx.client.patch_merge(
        ctx.resource, obj.namespace, obj.name, patch, subresource
    )
    if response is not None:
        _warn_of_pruning(ctx, obj, patch, response)
    return _take(obj, response)


def _prune(value: Any, path: str, dropped: list[str]) -> Any:
    """Return what JSON can hold of a patch, and list the rest."""
    if not isinstance(value, Mapping):
        return value
    kept = {}
    for key, item in value.items():
        pruned = _prune(item, f"{path}.{key}", dropped)
        try:
            encode_body({key: pruned})
        except (TypeError, ValueError) as exc:
            dropped.append(f"{path}.{key} ({exc})".lstrip("."))
        else:
            kept[key] = pruned
    return kept


def _warn_of_pruning(
    ctx: ResourceContext, obj: Tracked, patch: dict[str, Any], response: dict[str, Any]
) -> None:
    """Tell the user if the API server has dropped the status: the schema does not know it."""
    sent, kept = patch.get("status"), response.get("status")
    if not isinstance(sent, dict):
        return
    lost = [key for key, value in sent.items() if value is not None and key not in (kept or {})]
    if lost:
        logger.warning(
            "Patching of %s failed with inconsistencies: status.%s is not stored. Is there "
            "x-kubernetes-preserve-unknown-fields in the schema of the status?",
            obj,
            ", status.".join(lost),
            extra=ctx.refer_to(obj),
        )


def _take(obj: Tracked, response: dict[str, Any] | None) -> bool:
    if response is None:
        return False
    obj.accept_own(response)
    return True
