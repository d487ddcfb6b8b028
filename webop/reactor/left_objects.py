"""Find objects that left the selectors of a watch while no operator ran.

Their finalizer must be removed, but neither the watch nor its list shows them. So the metadata of
all objects are listed once. Operators can share a kind and a finalizer, each with a selector of its
own: only objects count that were last handled with labels that match the own selector.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from webop.client.http.requests import Selection
from webop.errors import APIError
from webop.objects.body import Body
from webop.objects.fields import resolve
from webop.objects.label_selectors import Requirement, matches_labels, parse_label_selector
from webop.reactor.resource_context import ResourceContext

logger = logging.getLogger(__name__)

_LABELS = ("metadata", "labels")


async def find_left(ctx: ResourceContext, namespace: str | None) -> AsyncGenerator[dict[str, Any]]:
    """Yield the metadata of the objects that left while no operator ran; log why it ends early.

    Field selectors hide what cannot be checked here: with them, nothing is found.
    """
    params = ctx.operator.settings.watching.build_selectors(ctx.resource)
    requirements = parse_label_selector(params.pop("labelSelector", ""))
    if not requirements or "fieldSelector" in params or not ctx.handlers.uses_finalizers:
        return
    selection = Selection(params, is_partial=True)
    queue = ctx.resource.plural_name
    pages = ctx.client.list_pages(ctx.resource, namespace, selection, queue=queue)
    try:
        async with contextlib.aclosing(pages):
            async for page in pages:
                for raw in page.items:
                    await ctx.queue.yield_to_loop()
                    if _has_left(ctx, requirements, raw):
                        yield raw
    except APIError as exc:
        logger.warning(
            "Cannot search for objects of %s that left its selectors while no operator ran. They "
            "keep the finalizer until the next start: %s",
            ctx.resource,
            exc,
        )


def _has_left(
    ctx: ResourceContext, requirements: list[Requirement], raw: Mapping[str, Any]
) -> bool:
    body, persistence = Body(raw), ctx.operator.settings.persistence
    if persistence.finalizer not in body.meta.finalizers:
        return False
    if matches_labels(requirements, body.meta.labels):
        return False
    handled = persistence.diffbase_storage.fetch(body=body)
    if not isinstance(handled, Mapping):  # never handled, or only a digest is known
        return False
    labels = resolve(handled, _LABELS)
    return matches_labels(requirements, labels if isinstance(labels, Mapping) else {})
