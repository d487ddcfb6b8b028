"""Why handlers are called: what has happened, with all arguments for handlers.

A cause is made once per occasion and gives the keyword arguments of all handlers called for it
(chapter "Arguments" of the manual). Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from webop.handling.handlers import Activity, Reason
from webop.handling.stopping import DaemonStopped
from webop.objects import diffs, fields
from webop.objects.body import Body, RawEvent, RawEventType
from webop.objects.diffs import Diff
from webop.objects.fields import FieldPath
from webop.objects.patch import Patch
from webop.objects.resources import Resource


@dataclass(kw_only=True)
class Cause:
    """What all occasions have in common."""

    logger: Any
    memo: Any
    indices: Mapping[str, Any] = field(default_factory=dict)
    _kwargs: dict[str, Any] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments of handlers and callbacks; built at first use, then shared.

        Names of indices win over the names of the framework (IDX-21).
        """
        if self._kwargs is None:
            self._kwargs = self._build_kwargs()
            if self.indices:  # few operators have any
                self._kwargs.update(self.indices)
        return self._kwargs

    def _build_kwargs(self) -> dict[str, Any]:
        return {"logger": self.logger, "memo": self.memo}


@dataclass(kw_only=True)
class ActivityCause(Cause):
    """An occasion in the operator's own life."""

    activity: Activity
    settings: Any

    def _build_kwargs(self) -> dict[str, Any]:
        return super()._build_kwargs() | {"settings": self.settings, "activity": self.activity}


@dataclass(kw_only=True)
class ResourceCause(Cause):
    """Something about one object of a resource."""

    resource: Resource
    body: Body
    patch: Patch

    def identify(self) -> dict[str, str | None]:
        """Return which object it is about, for traces: nothing of what is in it."""
        get = self.body.meta.raw.get
        return {
            "webop.resource": self.resource.plural_name,
            "k8s.namespace.name": get("namespace"),
            "webop.object.name": get("name"),
            "webop.object.uid": get("uid"),
        }

    def _build_kwargs(self) -> dict[str, Any]:
        body = self.body
        meta = body.meta
        fields = meta.raw
        return {
            "logger": self.logger,
            "memo": self.memo,
            "resource": self.resource,
            "patch": self.patch,
            "body": body,
            "spec": body.spec,
            "meta": meta,
            "status": body.status,
            "uid": fields.get("uid"),
            "name": fields.get("name"),
            "namespace": fields.get("namespace"),
            "labels": meta.labels,
            "annotations": meta.annotations,
        }


@dataclass(kw_only=True)
class EventCause(ResourceCause):
    """A raw event of a watch or of a listing, for ``@on.event``."""

    type: RawEventType
    event: RawEvent

    def _build_kwargs(self) -> dict[str, Any]:
        return super()._build_kwargs() | {"type": self.type, "event": self.event}


@dataclass(kw_only=True)
class BackgroundCause(ResourceCause):
    """The life of an object, for daemons and timers; the body is a live view of it.

    The arguments are not kept: there are as many causes as there are daemons, and most sleep.
    """

    stopped: DaemonStopped

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments of the handler, and of the callable of its initial delay."""
        return {**self._build_kwargs(), "stopped": self.stopped, **self.indices}


@dataclass(kw_only=True)
class DiffCause(ResourceCause):
    """An occasion with a state before and a state after."""

    old: Any
    new: Any
    diff: Diff

    def _build_kwargs(self) -> dict[str, Any]:
        kwargs = super()._build_kwargs()
        kwargs.update(old=self.old, new=self.new, diff=self.diff)
        return kwargs

    def build_field_kwargs(self, path: FieldPath) -> dict[str, Any]:
        """Return what a handler of one field gets instead: the values and the diff of it only."""
        return {
            "old": fields.resolve(self.old or {}, path),
            "new": fields.resolve(self.new or {}, path),
            "diff": diffs.reduce(self.diff, path),
        }


@dataclass(kw_only=True)
class ChangeCause(DiffCause):
    """A detected change of an object, for ``@on.create`` and the like.

    Attributes:
        reason: what has happened.
        initial: whether the object was there before the operator, and is not yet fully resumed.
        own: what the framework writes in addition to the ``patch`` of the handlers: progress, and
            the state that was handled.
    """

    reason: Reason
    initial: bool = False
    own: Patch = field(default_factory=Patch)

    @property
    def is_deleted(self) -> bool:
        """Whether the object is marked for deletion."""
        return self.body.meta.deletion_timestamp is not None

    def _build_kwargs(self) -> dict[str, Any]:
        kwargs = super()._build_kwargs()
        kwargs["reason"] = self.reason
        return kwargs

    def since(self, old: Any) -> ChangeCause:
        """Return the same cause with what has changed since another state."""
        return dataclasses.replace(self, old=old, diff=diffs.diff(old, self.new))


@dataclass(kw_only=True)
class WebhookCause(DiffCause):
    """An admission request, for ``@on.validate`` and ``@on.mutate``.

    ``name`` and ``namespace`` are those of the request: in some requests, such as the connections
    to pods, there is an object without metadata. What handlers put into ``audit_annotations`` gets
    into the audit log of the API server.
    """

    operation: str
    subresource: str | None
    dryrun: bool
    userinfo: Mapping[str, Any]
    warnings: list[str]
    headers: Mapping[str, str]
    sslpeer: Mapping[str, Any] | None
    name: str | None = None
    namespace: str | None = None
    audit_annotations: dict[str, str] = field(default_factory=dict)

    def _build_kwargs(self) -> dict[str, Any]:
        kwargs = super()._build_kwargs()
        kwargs["name"] = kwargs["name"] or self.name
        kwargs["namespace"] = kwargs["namespace"] or self.namespace
        kwargs["operation"] = self.operation
        kwargs["subresource"] = self.subresource
        kwargs["dryrun"] = self.dryrun
        kwargs["userinfo"] = self.userinfo
        kwargs["warnings"] = self.warnings
        kwargs["audit_annotations"] = self.audit_annotations
        kwargs["headers"] = self.headers
        kwargs["sslpeer"] = self.sslpeer
        return kwargs


def detect_reason(
    *,
    event_type: RawEventType,
    deleting: bool,
    blocked: bool,
    old: Any,
    changed: bool,
    initial: bool,
) -> Reason:
    """Tell what has happened to an object (EVT-06 to EVT-08).

    Args:
        event_type: the type of the watch event.
        deleting: whether the object is marked for deletion.
        blocked: whether the object carries the operator's finalizer.
        old: the last-handled essence, or None if the object was never handled.
        changed: whether the essence differs from the last-handled one.
        initial: whether the object was there before the operator and must still be resumed.
    """
    if event_type == "DELETED":
        return Reason.GONE
    if deleting:
        return Reason.DELETE if blocked else Reason.FREE
    if old is None:
        return Reason.CREATE
    if changed:
        return Reason.UPDATE
    return Reason.RESUME if initial else Reason.NOOP
