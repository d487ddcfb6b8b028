"""Conversion by the functions of ``@webop.on.convert``, without an operator.

Flow: the API server of :class:`webop.testing.FakeClient` calls :func:`convert`, as kube-apiserver
calls :class:`webop.admission.conversion_reviews.ConversionService`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from webop.handlers.model import ConversionHandler
from webop.handlers.registry import OperatorRegistry, get_default_registry
from webop.models.kept_content import VersionChange
from webop.models.versions import FunctionCall, Versions, collect_versions, get_definition
from webop.objects.fields import Json
from webop.testing.apiserver.conversions import refuse_conversion

logger = logging.getLogger(__name__)

_CONVERSION: Json = {
    "strategy": "Webhook",
    "webhook": {
        "clientConfig": {"url": "https://fake.invalid/convert"},
        "conversionReviewVersions": ["v1"],
    },
}


def add_conversions(definitions: Iterable[Json]) -> None:
    """Have API servers convert objects of the kinds that have functions, as operators do."""
    kinds = _collect()
    for crd in definitions:
        strategy = (crd["spec"].get("conversion") or {}).get("strategy")
        if crd["metadata"]["name"] in kinds and strategy != "Webhook":
            crd["spec"]["conversion"] = _CONVERSION


def convert(body: Json, api_version: str, registry: OperatorRegistry | None = None) -> Json:
    """Return an object in another version of its kind.

    Args:
        body: the object; it is not modified.
        api_version: that it gets.
        registry: of the functions; the default one if it is None.

    Raises:
        Refusal: there are no functions for it.
    """
    group, _, target = api_version.rpartition("/")
    source = body["apiVersion"].rpartition("/")[2]
    for kind in _collect(registry).values():
        definition = get_definition(kind.models[kind.hub])
        if (definition.group, definition.kind) == (group, body["kind"]):
            path = kind.find_path(source, target)
            if path is not None:
                return functools.reduce(_take_step, path, body)
    raise refuse_conversion(
        body, f"failed: no function converts it from {source} to {target}: import its module."
    )


def _collect(registry: OperatorRegistry | None = None) -> dict[str, Versions[ConversionHandler]]:
    return collect_versions((registry or get_default_registry()).select_converters())


def _take_step(body: Json, handler: ConversionHandler) -> Json:
    """Convert an object by a function; without it, if it fails: operators do the same."""
    step = VersionChange.begin(handler.source, handler.target, body)
    if not step.needs_function:
        return step.end()
    try:
        states = (step.body, step.shown)
        found = [None if one is None else call_converter(handler, one) for one in states]
    except Exception:
        what = f"{body['kind']} {body['metadata'].get('name')}"
        versions = [get_definition(each).version for each in (handler.source, handler.target)]
        logger.exception("Cannot convert %s from %s to %s", what, *versions)
        return step.end()
    return step.end(*found)


def call_converter(handler: ConversionHandler, body: Json) -> Json:
    """Convert an object by a function; an async one runs in a separate event loop.

    Raises:
        Exception: the object does not fit, the function fails, or its result is wrong.
    """
    call = FunctionCall.begin(handler.source, body)
    if not handler.is_async:
        return call.end(handler.target, handler.fn(call.model))

    async def run() -> Any:
        return await handler.fn(call.model)

    return call.end(handler.target, _get_pool().submit(asyncio.run, run()).result())


@functools.cache
def _get_pool() -> ThreadPoolExecutor:
    """Return a thread whose event loop does not run yet."""
    return ThreadPoolExecutor(1, thread_name_prefix="webop-conversions")
