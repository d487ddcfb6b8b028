"""Causes as the reactor and the admission see them, made of two states of an object."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import webop
from webop import Body, Memo, Patch, Resource
from webop.handlers.causes import ChangeCause, EventCause, detect_reason
from webop.handlers.filters import matches
from webop.handlers.model import Reason
from webop.handlers.registry import ResourceHandlers

Json = dict[str, Any]

RESOURCE = Resource("kopf.dev", "v1", "kopfexamples", kind="KopfExample", namespaced=True)
STORAGE = webop.AnnotationsDiffBaseStorage()


@dataclass
class Unhashable:
    """A handler with settings of its own, as instances of dataclasses are: without a hash."""

    size: int = 1

    def __call__(self, **_: Any) -> str:
        return threading.current_thread().name


class FailedTest(BaseException):
    """As that of ``pytest.fail()``: no ``Exception``, so that few catch it."""


class UnreadableError(Exception):
    """Its text is no string: a mistake that shows when somebody reads it."""

    def __str__(self) -> str:
        number: str = self.args[0]
        return number


def build_body(
    spec: Any = None,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **others: Any,
) -> Json:
    """Return an object; stanzas that are not given are absent."""
    metadata: Json = {"name": "kex", "namespace": "ns", "uid": "u1", **others.pop("metadata", {})}
    if labels is not None:
        metadata["labels"] = dict(labels)
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    body = {"apiVersion": "kopf.dev/v1", "kind": "KopfExample", "metadata": metadata, **others}
    return body if spec is None else {**body, "spec": spec}


def _describe(body: Body) -> Json:
    """Return what all causes have."""
    return {
        "logger": logging.getLogger("test"),
        "recall": Memo,
        "resource": RESOURCE,
        "body": body,
        "patch": Patch(body=body),
    }


def build_change(
    new: Json, old: Json | None = None, *, initial: bool = False, reason: Reason | None = None
) -> ChangeCause:
    """Return the cause of a change from one state (None: never handled) to another."""
    body = Body(new)
    before: Any = None if old is None else STORAGE.build(body=Body(old))
    after: Any = STORAGE.build(body=body)
    deleting = body.meta.deletion_timestamp is not None
    detected = detect_reason(
        deleting=deleting, blocked=deleting, old=before, changed=before != after, initial=initial
    )
    return ChangeCause(
        **_describe(body), old=before, new=after, reason=reason or detected, initial=initial
    )


def build_event(new: Json) -> EventCause:
    return EventCause(
        **_describe(Body(new)),
        type="MODIFIED",
        event={"type": "MODIFIED", "object": new},  # type: ignore[typeddict-item]
    )


def select_ids(registry: webop.OperatorRegistry, cause: ChangeCause) -> list[str]:
    handlers = ResourceHandlers(registry.select_resource_handlers())
    return [handler.id for handler in handlers.select_changes(cause)]


def is_in_scope(registry: webop.OperatorRegistry, cause: ChangeCause) -> bool:
    """Tell whether the state of the object is stored for any of the handlers."""
    return ResourceHandlers(registry.select_resource_handlers()).has_scope_for(cause)


def select_event_ids(registry: webop.OperatorRegistry, cause: EventCause) -> list[str]:
    handlers = ResourceHandlers(registry.select_resource_handlers())
    return [handler.id for handler in handlers.events if matches(handler, cause)]
