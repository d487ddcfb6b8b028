"""Causes: why handlers are called, and their keyword arguments (chapter "Arguments").

All handlers that are called together share one cause. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from webop.errors import AdmissionError, MisfitError
from webop.handlers.model import Activity, Reason
from webop.handlers.stopping import DaemonStopped
from webop.objects import fields
from webop.objects.body import Body, RawEvent, RawEventType
from webop.objects.diffs import Diff, diff
from webop.objects.fields import FieldPath
from webop.objects.kept_annotations import find_records, name_removal
from webop.objects.names import join_names
from webop.objects.patch import Patch
from webop.objects.resources import Resource

if TYPE_CHECKING:
    from webop.models.arguments import Argument


@dataclass(kw_only=True)
class Cause:
    """The common base of all causes."""

    logger: Any
    recall: Callable[[], Any]  # most objects have no memo until a function is called for them
    indices: Mapping[str, Any] = field(default_factory=dict)
    _kwargs: dict[str, Any] | None = field(default=None, init=False, repr=False, compare=False)
    # The models that all handlers of the cause share.
    _fitted: dict[Argument, Any] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def is_deleted(self) -> bool:
        """Whether the object is being deleted: then it need not fit its model."""
        return False

    def fit(self, wanted: Sequence[Argument], arguments: dict[str, Any]) -> None:
        """Replace arguments by their models, if the object fits them."""
        from webop.models.arguments import convert_arguments  # noqa: PLC0415 - it imports pydantic

        known = {} if self._fitted is None else self._fitted
        convert_arguments(wanted, arguments, known, is_lenient=self.is_deleted)

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments of handlers and filters; built at first use, then shared.

        An index with the name of an argument hides that argument.
        """
        if self._kwargs is None:
            self._kwargs = self._build_kwargs()
            if self.indices:  # few operators have any
                self._kwargs.update(self.indices)
        return self._kwargs

    def _build_kwargs(self) -> dict[str, Any]:
        return {"logger": self.logger, "memo": self.recall()}


@dataclass(kw_only=True)
class ActivityCause(Cause):
    """The cause of an activity; ``planning`` is whether it is a startup for ``webop plan``."""

    activity: Activity
    settings: Any
    planning: bool = False

    def _build_kwargs(self) -> dict[str, Any]:
        own = {"settings": self.settings, "activity": self.activity, "planning": self.planning}
        return super()._build_kwargs() | own


@dataclass(kw_only=True)
class ResourceCause(Cause):
    """A cause that concerns one object."""

    resource: Resource
    body: Body
    patch: Patch
    children: Any = None  # those of a kind with a reconciler

    @property
    def is_deleted(self) -> bool:
        """Whether the object is being deleted: then it need not fit its model."""
        return self.body.meta.deletion_timestamp is not None

    @property
    def unconverted(self) -> MisfitError | None:
        """Why handlers would see a part of the object only; None if they see all of it."""
        if not (records := find_records(self.body.raw)) or self.is_deleted:
            return None
        meta = self.body.meta
        command = name_removal(self.resource.plural_name, meta.namespace, str(meta.name), records)
        versions = join_names(record.rpartition("/")[2] for record in records)
        return MisfitError(
            f"it could not be converted from {versions}. Correct it there, or the function. If "
            f"nobody needs that content any more: {command}"
        )

    def identify(self) -> dict[str, str | None]:
        """Return the identity of the object for traces, without any of its contents."""
        get = self.body.meta.raw.get
        return {
            "webop.resource": self.resource.plural_name,
            "k8s.namespace.name": get("namespace"),
            "webop.object.name": get("name"),
            "webop.object.uid": get("uid"),
        }

    def _build_kwargs(self) -> dict[str, Any]:
        body, meta = self.body, self.body.meta
        fields = meta.raw
        kwargs = {
            "logger": self.logger,
            "memo": self.recall(),
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
        if self.children is not None:
            kwargs["children"] = self.children
        return kwargs


@dataclass(kw_only=True)
class EventCause(ResourceCause):
    """A raw event of a watch or a list, for ``@on.event``."""

    type: RawEventType
    event: RawEvent

    @property
    def is_deleted(self) -> bool:
        """Whether the object is being deleted, or is gone."""
        return self.type == "DELETED" or super().is_deleted

    def _build_kwargs(self) -> dict[str, Any]:
        return super()._build_kwargs() | {"type": self.type, "event": self.event}


@dataclass(kw_only=True)
class BackgroundCause(ResourceCause):
    """The cause of a daemon or timer; the body always shows the newest state of the object.

    The arguments are not kept, to save memory: each daemon has a cause, and most daemons sleep.

    Attributes:
        status_before: for a timer, the status of the object before the call; None if a change of
            it is not written yet. Handlers can change that of the body in place.
    """

    stopped: DaemonStopped
    status_before: Any = None

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments of the handler, and of the function of its initial delay."""
        return {**self._build_kwargs(), "stopped": self.stopped, **self.indices}


@dataclass(kw_only=True)
class DiffCause(ResourceCause):
    """A cause with a state before and a state after."""

    old: Any
    new: Any
    _diffs: dict[FieldPath, Diff] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def find_diff(self, path: FieldPath) -> Diff:
        """Return the differences of a field, which all handlers share."""
        found = self._diffs.get(path)
        if found is None:
            old, new = fields.resolve(self.old, path), fields.resolve(self.new, path)
            found = self._diffs[path] = diff(old, new)
        return found

    def _build_kwargs(self) -> dict[str, Any]:
        kwargs, old, new = super()._build_kwargs(), self.old, self.new
        kwargs["old"], kwargs["new"], kwargs["diff"] = old, new, diff(old, new)
        return kwargs

    def build_field_kwargs(self, path: FieldPath) -> dict[str, Any]:
        """Return the arguments ``old``, ``new``, ``diff`` for a handler of one field."""
        return {
            "old": fields.resolve(self.old, path),
            "new": fields.resolve(self.new, path),
            "diff": self.find_diff(path),
        }


@dataclass(kw_only=True)
class ChangeCause(DiffCause):
    """A detected change of an object, for ``@on.create`` and the like."""

    reason: Reason
    initial: bool = False  # whether it is older than the operator, and not resumed completely
    _fitted: dict[Argument, Any] | None = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def _build_kwargs(self) -> dict[str, Any]:
        kwargs = super()._build_kwargs()
        kwargs["reason"] = self.reason
        return kwargs


@dataclass(kw_only=True)
class ReconcileCause(ResourceCause):
    """A call of ``@webop.reconcile``; ``because`` names what has led to it."""

    because: tuple[str, ...]

    def _build_kwargs(self) -> dict[str, Any]:
        return super()._build_kwargs() | {"because": self.because}


REVIEW_ARGUMENTS = (
    *("operation", "subresource", "dryrun", "userinfo", "warnings", "audit_annotations"),
    *("headers", "sslpeer"),
)
_get_review_arguments = attrgetter(*REVIEW_ARGUMENTS)


@dataclass(kw_only=True)
class WebhookCause(DiffCause):
    """An admission request, for ``@on.validate`` and ``@on.mutate``.

    ``name`` and ``namespace`` are those of the request: in some requests, such as connections to
    pods, the object has no metadata. The API server writes ``audit_annotations`` to its audit log.
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

    @property
    def is_deleted(self) -> bool:
        """Whether the request is a deletion."""
        return self.operation == "DELETE" or super().is_deleted

    def fit(self, wanted: Sequence[Argument], arguments: dict[str, Any]) -> None:
        """Replace arguments by their models; deny the request if the object does not fit."""
        try:
            super().fit(wanted, arguments)
        except MisfitError as exc:
            raise AdmissionError(str(exc), 422, reason="Invalid", causes=exc.causes) from None

    def _build_kwargs(self) -> dict[str, Any]:
        kwargs = super()._build_kwargs()
        kwargs["name"] = kwargs["name"] or self.name
        kwargs["namespace"] = kwargs["namespace"] or self.namespace
        kwargs.update(zip(REVIEW_ARGUMENTS, _get_review_arguments(self), strict=True))
        return kwargs


def detect_reason(
    *,
    deleting: bool,
    blocked: bool,
    old: Any,
    changed: bool,
    initial: bool,
) -> Reason:
    """Return what has happened to an object that is not gone.

    Args:
        deleting: whether the object is being deleted.
        blocked: whether the object has the operator's finalizer.
        old: the last handled essence, or None if the object was never handled.
        changed: whether the essence differs from the last handled one.
        initial: whether the object is older than the operator and must still be resumed.
    """
    if deleting:
        return Reason.DELETE if blocked else Reason.FREE
    if old is None:
        return Reason.CREATE
    if changed:
        return Reason.UPDATE
    return Reason.RESUME if initial else Reason.NOOP
