"""Writing what was decided about an object into the cluster, in as few requests as possible."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from webop.client.calls import encode_body
from webop.errors import APIConflictError, APIUnprocessableError
from webop.objects.body import Body
from webop.objects.patch import JSONPatchOp, Patch
from webop.reactor.planning import ResourceContext
from webop.reactor.tracking import Tracked

logger = logging.getLogger(__name__)


async def save_patch(ctx: ResourceContext, obj: Tracked, patch: Patch, *, epoch: int) -> bool:
    """Apply a patch; what JSON cannot hold is left out: it is a mistake in a handler, and is told.

    Returns:
        Whether the object is still there.
    """
    try:
        return await apply_patch(ctx, obj, patch, epoch=epoch)
    except (TypeError, ValueError):
        dropped: list[str] = []
        kept = Patch(_prune(patch, "", dropped), fns=patch.fns)
        logger.warning("JSON cannot hold this in the patch of %s: %s", obj, "; ".join(dropped))
        return await apply_patch(ctx, obj, kept, epoch=epoch)


async def apply_patch(ctx: ResourceContext, obj: Tracked, patch: Patch, *, epoch: int) -> bool:
    """Apply a patch to an object: the status where it has its own endpoint, then the rest.

    The status goes first: the rest says that it is handled. Transformation functions go as a
    JSON patch against the freshest state.

    Returns:
        Whether the object is still there.
    """
    merged = dict(patch)
    if "status" in ctx.resource.subresources and "status" in merged:
        status = {"status": merged.pop("status")}
        if not await _send(ctx, obj, status, subresource="status", epoch=epoch):
            return False
    if merged and not await _send(ctx, obj, merged, subresource=None, epoch=epoch):
        return False
    return not patch.fns or await _transform(ctx, obj, patch, epoch=epoch)


async def _transform(ctx: ResourceContext, obj: Tracked, patch: Patch, *, epoch: int) -> bool:
    """Apply the transformation functions; what they do to the status, to its own endpoint."""
    if "status" not in ctx.resource.subresources:
        return await _transform_part(ctx, obj, patch, None, epoch=epoch)
    for subresource in ("status", ""):
        if not await _transform_part(ctx, obj, patch, subresource, epoch=epoch):
            return False
    return True


async def _transform_part(
    ctx: ResourceContext, obj: Tracked, patch: Patch, part: str | None, *, epoch: int
) -> bool:
    """Apply the functions to the freshest state, until it is the freshest.

    Args:
        ctx: the context of the resource.
        obj: the object.
        patch: where the functions are.
        part: "status" for the status only, "" for all but the status, None for everything.
        epoch: the count of the listing.
    """
    while obj.raw is not None and obj.event_type != "DELETED":
        try:
            operations = Patch(fns=patch.fns).as_json_patch(obj.raw)
        except Exception:
            logger.exception("A function in the patch of %s has failed; it is left out.", obj)
            return True
        if part is not None:
            operations = [op for op in operations if _is_of_status(op) == (part == "status")]
        if not operations:
            return True
        version = obj.raw["metadata"]["resourceVersion"]
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        try:
            response = await ctx.client.patch_json(
                ctx.resource, obj.namespace, obj.name, [test, *operations], part or None
            )
        except APIUnprocessableError:
            timeout = ctx.operator.settings.persistence.consistency_timeout
            if not await obj.wait_for_news(timeout):
                raise
        else:
            return _take(obj, response, epoch=epoch)
    return False


def _is_of_status(operation: JSONPatchOp) -> bool:
    path: str = operation["path"]
    return path == "/status" or path.startswith("/status/")


async def apply_finalizers(
    ctx: ResourceContext, obj: Tracked, body: Body, finalizers: list[str], *, epoch: int
) -> bool:
    """Replace the finalizers of an object, unless it has changed since the given state.

    Returns:
        Whether it is done; if not, a newer state is on its way, and is to be planned for anew.
    """
    metadata = {"finalizers": finalizers, "resourceVersion": body.meta.resource_version}
    try:
        await _send(ctx, obj, {"metadata": metadata}, subresource=None, epoch=epoch)
    except APIConflictError:
        return False
    return True


async def _send(
    ctx: ResourceContext,
    obj: Tracked,
    patch: dict[str, Any],
    *,
    subresource: str | None,
    epoch: int,
) -> bool:
    response = await ctx.client.patch_merge(
        ctx.resource, obj.namespace, obj.name, patch, subresource
    )
    if response is not None:
        _warn_of_pruning(obj, patch, response)
    return _take(obj, response, epoch=epoch)


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


def _warn_of_pruning(obj: Tracked, patch: dict[str, Any], response: dict[str, Any]) -> None:
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
        )


def _take(obj: Tracked, response: dict[str, Any] | None, *, epoch: int) -> bool:
    if response is None:
        return False
    obj.accept_own(response, epoch=epoch)
    return True
