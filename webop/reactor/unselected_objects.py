"""Find objects that left the selectors of a watch while no operator ran.

Their finalizer must be removed, but neither the watch nor its list shows them. So the metadata of
all objects are listed once. Operators can share a kind and a finalizer, each with a selector of its
own: only objects count whose former labels match the own selector. These are in the last handled
state. Before there is any, an annotation has them, which is added and removed with the finalizer.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from webop.client.http.requests import Selection, encode_body
from webop.errors import APIError
from webop.objects.body import Body
from webop.objects.fields import resolve
from webop.objects.json_text import load
from webop.objects.label_selectors import Requirement, matches_labels, parse_label_selector
from webop.objects.storage.keys import DEFAULT_PREFIX, build_marker
from webop.reactor.resource_context import ResourceContext

logger = logging.getLogger(__name__)

_LABELS = ("metadata", "labels")
_NAME_LIMIT = 63  # characters of the name of an annotation


async def find_left(
    ctx: ResourceContext, namespace: str | None
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the metadata of the objects that left while no operator ran; log why it ends early.

    Field selectors hide what cannot be checked here: with them, nothing is found.
    """
    params = ctx.build_selectors()
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


def build_annotations(ctx: ResourceContext, body: Body, *, is_wanted: bool) -> dict[str, Any]:
    """Return the change of annotations that belongs to that of the finalizer.

    With the finalizer, an object gets a note of its labels that matter to the label selector.
    """
    key = _name_annotation(ctx)
    if not is_wanted:
        return {key: None} if key in body.meta.annotations else {}
    selectors = ctx.operator.settings.watching.build_selectors(ctx.resource)
    requirements = parse_label_selector(selectors.get("labelSelector", ""))
    if not requirements:
        return {}
    labels = body.meta.labels
    noted = {one.key: labels[one.key] for one in requirements if one.key in labels}
    # With the mark, other operators do not take the note for a change of the object.
    return {key: encode_body(noted).decode(), **build_marker(key.partition("/")[0])}


def _name_annotation(ctx: ResourceContext) -> str:
    """Return the name of the annotation; operators with other finalizers have others."""
    prefix, _, name = ctx.operator.settings.persistence.finalizer.rpartition("/")
    return f"{prefix or DEFAULT_PREFIX}/{f'selected-{name}'[:_NAME_LIMIT]}"


def _has_left(
    ctx: ResourceContext, requirements: list[Requirement], raw: Mapping[str, Any]
) -> bool:
    body = Body(raw)
    if ctx.operator.settings.persistence.finalizer not in body.meta.finalizers:
        return False
    if matches_labels(requirements, body.meta.labels):
        return False
    former = _find_former_labels(ctx, body)
    return former is not None and matches_labels(requirements, former)


def _find_former_labels(ctx: ResourceContext, body: Body) -> Mapping[str, Any] | None:
    """Return the labels of the last handled state, or those when it got the finalizer, if known."""
    handled: Any = ctx.operator.settings.persistence.diffbase_storage.fetch(body=body)
    labels: Any = None
    if isinstance(handled, Mapping):
        labels = resolve(handled, _LABELS) or {}
    elif text := body.meta.annotations.get(_name_annotation(ctx)):
        with contextlib.suppress(ValueError):
            labels = load(text)
    return labels if isinstance(labels, Mapping) else None
