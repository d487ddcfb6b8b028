"""The options of decorators as types: what editors and type checkers know of them.

They are checked at import by :mod:`webop.handling.options`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, TypedDict

from webop.handling.handlers import (
    ErrorsMode,
    InitialDelay,
    MetaCriterion,
    MetaFilterToken,
    ValueCriterion,
)
from webop.handling.registry import OperatorRegistry
from webop.handling.webhook_options import LabelSelector, NamedExpression
from webop.objects.fields import FieldSpec
from webop.objects.resources import Marker

ResourcePart = str | Marker | Callable[..., bool] | None


class CommonOptions(TypedDict, total=False):
    """What every handler can be given."""

    id: str | None
    param: Any
    registry: OperatorRegistry | None


class RetryOptions(TypedDict, total=False):
    """How failures are treated; times in seconds (chapter "Error handling")."""

    errors: ErrorsMode | None
    timeout: float | None
    retries: int | None
    backoff: float | None


class MetaOptions(TypedDict, total=False):
    """Filters by metadata and by a callback (chapter "Filtering")."""

    labels: Mapping[str, MetaCriterion] | None
    annotations: Mapping[str, MetaCriterion] | None
    when: Callable[..., bool] | None


class FieldOptions(TypedDict, total=False):
    """Filters by one field."""

    field: FieldSpec
    value: ValueCriterion


class TransitionOptions(TypedDict, total=False):
    """Filters by the change of one field."""

    old: ValueCriterion
    new: ValueCriterion


class SelectorOptions(TypedDict, total=False):
    """The resource by keywords."""

    group: str | None
    version: str | None
    kind: str | None
    plural: str | None
    singular: str | None
    shortcut: str | None
    category: str | None


class ActivityOptions(CommonOptions, RetryOptions, total=False):
    """Options of the operator's own handlers."""


class EventOptions(CommonOptions, MetaOptions, FieldOptions, SelectorOptions, total=False):
    """Options of ``@on.event``."""


class ChangeOptions(EventOptions, RetryOptions, total=False):
    """Options of ``@on.create`` and ``@webop.index``."""


class ResumeOptions(ChangeOptions, total=False):
    """Options of ``@on.resume``."""

    deleted: bool | None


class DeleteOptions(ChangeOptions, total=False):
    """Options of ``@on.delete``."""

    optional: bool | None


class UpdateOptions(ChangeOptions, TransitionOptions, total=False):
    """Options of ``@on.update`` and ``@on.field``."""


class DaemonOptions(ChangeOptions, total=False):
    """Options of ``@webop.daemon``."""

    initial_delay: InitialDelay
    cancellation_backoff: float | None
    cancellation_timeout: float | None
    cancellation_polling: float | None


class TimerOptions(ChangeOptions, total=False):
    """Options of ``@webop.timer``."""

    interval: float | None
    initial_delay: InitialDelay
    sharp: bool | None
    idle: float | None


class WebhookOptions(EventOptions, total=False):
    """Options of ``@on.validate`` and ``@on.mutate``.

    Only the API server goes by those after ``ignore_failures``, which are fields of its webhooks
    (Kubernetes, "Dynamic Admission Control"). ``failure_policy="Ignore"`` lets requests pass while
    the operator cannot be reached, ``ignore_failures=True`` also what its handler refuses.
    """

    operation: str | None
    operations: Collection[str] | None
    subresource: str | None
    persistent: bool | None
    side_effects: bool | None
    ignore_failures: bool | None
    failure_policy: Literal["Fail", "Ignore"] | None
    timeout_seconds: int | None
    namespace_selector: LabelSelector | Mapping[str, str | MetaFilterToken] | None
    match_conditions: Mapping[str, str] | Collection[NamedExpression] | None
    match_policy: Literal["Exact", "Equivalent"] | None
    reinvocation_policy: Literal["Never", "IfNeeded"] | None
    scope: Literal["*", "Namespaced", "Cluster"] | None


class RegisterOptions(RetryOptions, MetaOptions, total=False):
    """Options of ``webop.register``."""

    id: str | None
    param: Any


class SubhandlerOptions(RegisterOptions, FieldOptions, TransitionOptions, total=False):
    """Options of ``@webop.subhandler``."""
