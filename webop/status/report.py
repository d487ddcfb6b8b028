"""The report ``/status.json``: its shape and its sources.

It contains no values of objects and no texts of errors, which quote values, only their types. It
contains names and namespaces of objects. Lists are limited; the number of omitted items is given.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import heapq
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from typing_extensions import TypedDict  # pydantic does not support that of typing before 3.12

from webop.counters import BOUNDS, Labels
from webop.handling.observing import name_type
from webop.metrics import definitions as metrics
from webop.version import __version__

if TYPE_CHECKING:
    from webop.reactor.tracking import Tracked
    from webop.running import Operator

LIMIT = 100
_FAILURES_LIMIT = 10  # of one object

Row = TypeVar("Row")


class Rows(TypedDict, Generic[Row]):
    """A list, and the number of omitted items."""

    items: list[Row]
    left_out: int


class LastError(TypedDict):
    """The last error of a handler: its type, and its age in seconds."""

    type: str
    age: float


class HandlerRow(TypedDict):
    """A handler; ``calls`` are numbers by outcome, ``seconds`` is the duration of all calls."""

    id: str
    type: str
    resources: list[str]
    calls: dict[str, int]
    seconds: float
    last_error: LastError | None


class KindRow(TypedDict):
    """A watched kind: the age of its youngest stream, its watches and objects by state.

    ``oldest`` is the longest time of an object in a state, in seconds.
    """

    resource: str
    age: float
    watches: dict[str, int]
    restarts: dict[str, int]
    objects: dict[str, int]
    oldest: dict[str, float]


class FailureRow(TypedDict):
    """A handler that will be retried; without an id, work of webop itself."""

    handler: str
    attempts: int
    error: str


class ObjectRow(TypedDict):
    """An object in progress; ``since`` and ``retry_in`` are seconds, None if they do not apply."""

    resource: str
    namespace: str | None
    name: str
    state: str
    since: float | None
    retry_in: float | None
    running: str
    failures: list[FailureRow]


class WebhookRow(TypedDict):
    """A webhook; ``counts`` are numbers of reviews by latency, by the report's ``bounds``."""

    id: str
    counts: list[int]
    seconds: float
    in_flight: int
    rejections: dict[str, int]


class Lease(TypedDict):
    """The Lease of the replicas."""

    name: str
    is_held: bool


class Report(TypedDict):
    """The report. ``bounds`` are the upper bounds of latencies; the last bucket has none."""

    version: str
    time: str
    acting: bool
    role: str
    not_ready: list[str]
    lease: Lease | None
    certificate_expires: str | None
    handlers: Rows[HandlerRow]
    kinds: Rows[KindRow]
    objects: Rows[ObjectRow]
    bounds: list[float]
    webhooks: Rows[WebhookRow]


def build_report(operator: Operator) -> Report:
    """Return the current report of an operator."""
    leadership, expiry = operator.coordinator.leadership, operator.webhooks.hosting.expiry
    return {
        "version": __version__,
        "time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "acting": metrics.is_acting(operator),
        "role": operator.describe_role(),
        "not_ready": operator.list_obstacles(),
        "lease": leadership and {"name": leadership[0], "is_held": leadership[1]},
        "certificate_expires": None if expiry is None else expiry.isoformat(timespec="seconds"),
        "handlers": _limit(_list_handlers(operator)),
        "kinds": _limit(_list_kinds(operator)),
        "objects": _list_objects(operator),
        "bounds": list(BOUNDS),
        "webhooks": _limit(_list_webhooks(operator)),
    }


def _limit(rows: list[Row]) -> Rows[Row]:
    return {"items": rows[:LIMIT], "left_out": max(0, len(rows) - LIMIT)}


def _group(values: Mapping[Labels, float]) -> defaultdict[Labels, dict[str, Any]]:
    """Return the values by all labels except the last one, then by the last one."""
    grouped: defaultdict[Labels, dict[str, Any]] = defaultdict(dict)
    for (*labels, last), value in values.items():
        grouped[tuple(labels)][last] = value
    return grouped


def _list_handlers(operator: Operator) -> list[HandlerRow]:
    counters, registry, now = operator.context.counters, operator.context.registry, time.monotonic()
    resources: defaultdict[Labels, dict[str, None]] = defaultdict(dict)
    for handler in (*registry.select_resource_handlers(), *registry.select_webhooks()):
        selector = handler.selector
        named = str(selector) if selector and not selector.fn else "chosen by a function"
        resources[handler.id, name_type(handler)][named] = None
    rows: list[HandlerRow] = []
    for labels, calls in _group(metrics.read_calls(operator)).items():
        error = counters.errors.get(labels)
        row = counters.durations.rows.get(labels)
        rows.append(
            {
                "id": labels[0],
                "type": labels[1],
                "resources": list(resources[labels]),
                "calls": calls,
                "seconds": row[-1] if row else 0.0,
                "last_error": error and {"type": error[0], "age": now - error[1]},
            }
        )
    return rows


def _list_kinds(operator: Operator) -> list[KindRow]:
    watches, restarts, objects, oldest = map(
        _group,
        (
            metrics.read_watches(operator),
            operator.client.counters.restarts,
            metrics.read_objects(operator),
            metrics.read_ages(operator),
        ),
    )
    ages = metrics.read_watch_ages(operator)
    return [
        {
            "resource": labels[0],
            "age": ages[labels],
            "watches": watches[labels],
            "restarts": restarts[labels],
            "objects": objects[labels],
            "oldest": oldest[labels],
        }
        for labels in sorted(ages)
    ]


def _list_objects(operator: Operator) -> Rows[ObjectRow]:
    """Return the objects in progress: most failures first, then longest duration."""
    busy = [
        (stream.ctx.resource.plural_name, obj)
        for stream in metrics.list_streams(operator)
        if stream.dispatcher is not None
        for obj in stream.dispatcher.list_busy()
    ]
    shown = heapq.nsmallest(LIMIT, busy, key=lambda item: _rank(item[1]))
    items = [_build_object_row(resource, obj) for resource, obj in shown]
    return {"items": items, "left_out": len(busy) - len(items)}


def _rank(obj: Tracked) -> tuple[int, bool, float]:
    attempts = (count for each in obj.standings for count, _ in each.failures.values())
    return -max(attempts, default=0), not obj.since, obj.since


def _build_object_row(resource: str, obj: Tracked) -> ObjectRow:
    failures: list[FailureRow] = [
        {"handler": key, "attempts": attempts, "error": error}
        for standing in obj.standings
        for key, (attempts, error) in standing.failures.items()
    ]
    cycle = obj.work.cycle if obj.work is not None else None
    loop = asyncio.get_running_loop()
    return {
        "resource": resource,
        "namespace": obj.namespace,
        "name": obj.name,
        "state": obj.phase.name.lower(),
        "since": time.monotonic() - obj.since if obj.since else None,
        "retry_in": None if obj.timer is None else max(0.0, obj.timer.when() - loop.time()),
        "running": "" if cycle is None else cycle.standing.running,
        "failures": failures[:_FAILURES_LIMIT],
    }


def _list_webhooks(operator: Operator) -> list[WebhookRow]:
    latencies = operator.webhooks.hosting.counters.durations.rows
    in_flight = metrics.read_calls_in_flight(operator)
    rejections = _group(metrics.read_rejections(operator))
    empty = [0.0] * (len(BOUNDS) + 2)
    rows: list[WebhookRow] = []
    for labels in dict.fromkeys((*in_flight, *latencies, *rejections)):
        *counts, seconds = latencies.get(labels, empty)
        rows.append(
            {
                "id": labels[0],
                "counts": [int(count) for count in counts],
                "seconds": seconds,
                "in_flight": int(in_flight.get(labels, 0)),
                "rejections": rejections[labels],
            }
        )
    return rows
