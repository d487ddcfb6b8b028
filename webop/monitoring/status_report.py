"""The report ``/status.json``: its shape and its sources.

Flow: :class:`Reporter` reads the counters every 15 s, and all sources at each request.

It contains no values of objects and no texts of errors, which quote values, only their types. It
contains names and namespaces of objects. Lists are limited; the number of omitted items is given.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import heapq
import os
import re
import shlex
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from webop.handlers.model import name_decorator, name_kind
from webop.identities import is_in_pod
from webop.monitoring import metrics
from webop.monitoring.recent_counts import Recent
from webop.objects.shards import format_shards
from webop.reactor.entry import State
from webop.reactor.reconcilers import get_moment
from webop.telemetry.counters import BOUNDS, Labels, Timings
from webop.version import __version__

if TYPE_CHECKING:
    from webop.reactor.entry import Entry
    from webop.reactor.stream import Stream
    from webop.runtime.operator import Operator

LIMIT = 100
_STEP = 2000  # objects
_FAILURES_LIMIT = 10  # of one object
_POD_SUFFIX = re.compile(r"-[b-df-hj-np-tv-xz2-9]{6,10}-[b-df-hj-np-tv-xz2-9]{5}$|-\d{1,5}$")

Growth = Counter[Labels]
Row = dict[str, Any]
"""An item of a list; the documentation of the status page shows all of them."""


class Reporter:
    """Builds the reports of one operator; :attr:`recent` must run meanwhile."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._since = _format(dt.datetime.now(dt.UTC))
        self.recent = Recent(lambda: _read_counters(operator))

    async def build(self, wanted: str = "") -> Row:
        """Return the current report: of the operator, or of one object only.

        Args:
            wanted: the object: its kind and its uid, as in ``databases.example.com/UID``.
        """
        operator, growth = self._operator, self.recent.compute()
        leadership, expiry = operator.coordinator.leadership, operator.webhooks.hosting.expiry
        head = {
            "version": __version__,
            "time": _format(dt.datetime.now(dt.UTC)),
            "operator": _identify(operator, self._since),
            "acting": metrics.is_acting(operator),
            "role": operator.describe_role(),
            "not_ready": operator.list_obstacles(),
            "missing_kinds": operator.list_absent(),
            "lease": leadership and {"name": leadership[0], "is_held": leadership[1]},
            "shards": _describe_shards(operator),
        }
        if wanted:
            return {**head, **_describe_object(operator, *wanted.rpartition("/")[::2])}
        return {
            **head,
            "certificate_expires": None if expiry is None else _format(expiry),
            "handlers": _limit(_list_handlers(operator, growth)),
            "kinds": _limit(_list_kinds(operator)),
            "objects": await _list_objects(operator),
            "failed": _list_failed(operator),
            "bounds": list(BOUNDS),
            "webhooks": _limit(_list_webhooks(operator, growth)),
            "loop_lag": {
                "counts": [int(count) for count in operator.loop_lag.find()[:-1]],
                "recent_counts": _restore(growth, "lag"),
            },
            "threads": [
                {"id": name, "size": size, "busy": busy, "queued": queued}
                for name, size, busy, queued in metrics.measure_pools(operator)
            ],
        }


def _identify(operator: Operator, since: str) -> Row:
    """Return whose operator it is: its Lease or peering, else its Deployment, else its user."""
    settings, vault = operator.context.settings, operator.client.vault
    own = operator.context.identity.partition("/")[0]
    pod = os.environ.get("POD_ID") or socket.gethostname() if is_in_pod() else None
    peering = settings.peering.name if settings.peering.mandatory else None
    name = settings.leadership.lease_name or peering or (_POD_SUFFIX.sub("", pod) if pod else own)
    return {
        "name": name,
        "pod": pod,
        "namespace": vault.default_namespace,
        "cluster": vault.server,
        "since": since,
    }


def _describe_shards(operator: Operator) -> Row | None:
    if (members := operator.coordinator.members) is None:
        return None
    return {
        "lease": members.lease,
        "owned": format_shards(operator.context.ownership.owned),
        "unowned": format_shards(members.unowned),
        "owners": [
            {"replica": term.holder, "shards": format_shards(shards)}
            for term, shards in members.running.items()
        ],
        "replicas": members.count,
    }


def _format(moment: dt.datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _read_counters(operator: Operator) -> dict[Labels, int]:
    """Return all counters whose recent growth is in the report."""
    counters, hosting = operator.context.counters, operator.webhooks.hosting.counters
    return {
        **{("calls", *labels): count for labels, count in counters.count_outcomes().items()},
        **{("rejections", *labels): count for labels, count in hosting.rejections.items()},
        **_flatten("reviews", hosting.durations),
        **_flatten("lag", operator.loop_lag),
    }


def _flatten(what: str, timings: Timings) -> dict[Labels, int]:
    return {
        (what, *labels, str(index)): int(count)
        for labels, (*counts, _) in timings.rows.items()
        for index, count in enumerate(counts)
        if count
    }


def _restore(growth: Growth, *labels: str) -> list[int]:
    """Return the growth of a row of timings, by buckets."""
    return [growth[*labels, str(index)] for index in range(len(BOUNDS) + 1)]


def build_command(verb: str, resource: str, *names: str, namespace: str | None = None) -> str:
    """Return a line for a shell; names of some kinds can contain anything but "/" and "%"."""
    place = () if namespace is None else (f"--namespace={namespace}",)
    return shlex.join(("kubectl", verb, "/".join((resource, *names)), *place))


def _limit(rows: list[Row]) -> Row:
    return {"items": rows[:LIMIT], "left_out": max(0, len(rows) - LIMIT)}


def _group(values: Mapping[Labels, float]) -> defaultdict[Labels, dict[str, Any]]:
    """Return the values by all labels except the last one, then by the last one."""
    grouped: defaultdict[Labels, dict[str, Any]] = defaultdict(dict)
    for (*labels, last), value in values.items():
        grouped[tuple(labels)][last] = value
    return grouped


def _list_handlers(operator: Operator, growth: Growth) -> list[Row]:
    counters, registry, now = operator.context.counters, operator.context.registry, time.monotonic()
    resources: defaultdict[Labels, dict[str, None]] = defaultdict(dict)
    for handler in (*registry.select_resource_handlers(), *registry.select_webhooks()):
        resources[handler.id, handler.family][name_kind(handler)] = None
    rows: list[Row] = []
    for labels, calls in _group(metrics.read_calls(operator)).items():
        error = counters.errors.get(labels)
        row = counters.durations.rows.get(labels)
        rows.append(
            {
                "id": labels[0],
                "type": labels[1],
                "resources": list(resources[labels]),
                "calls": calls,
                "recent": _pick(growth, "calls", labels, calls),
                "seconds": row[-1] if row else 0.0,
                "last_error": error and {"type": error[0], "age": now - error[1]},
            }
        )
    return rows


def _pick(growth: Growth, what: str, labels: Labels, last: Iterable[str]) -> dict[str, int]:
    """Return what has grown, by the last label."""
    grown = {each: growth[what, *labels, each] for each in last}
    return {each: count for each, count in grown.items() if count}


def _list_kinds(operator: Operator) -> list[Row]:
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
            "kubectl": f"{build_command('get', labels[0])} --all-namespaces",
        }
        for labels in sorted(ages)
    ]


async def _list_objects(operator: Operator) -> Row:
    """Return the objects in progress: most failures first, then longest duration."""
    busy = [
        (stream.ctx.resource.plural_name, obj)
        for stream in metrics.list_streams(operator)
        for obj in stream.objects.values()
        if obj.state is not State.IDLE or (obj.status and obj.status.failures)
    ]
    shown: list[tuple[str, Entry]] = []
    for start in range(0, len(busy), _STEP):
        part = [*shown, *busy[start : start + _STEP]]
        shown = heapq.nsmallest(LIMIT, part, key=lambda item: _rank(item[1]))
        await asyncio.sleep(0)  # there can be any number of them
    items = [_build_object_row(resource, obj) for resource, obj in shown]
    return {"items": items, "left_out": len(busy) - len(items)}


def _rank(obj: Entry) -> tuple[int, bool, float]:
    attempts = (count for count, _ in obj.status.failures.values()) if obj.status else ()
    return -max(attempts, default=0), not obj.since, obj.since


def _build_object_row(resource: str, obj: Entry) -> Row:
    failed = obj.status.failures if obj.status else {}
    failures: list[Row] = [
        {"handler": key, "attempts": attempts, "error": error}
        for key, (attempts, error) in failed.items()
    ]
    calls = obj.status.running if obj.status else ()
    running = (key for key in calls if key not in obj.daemons)
    loop = asyncio.get_running_loop()
    return {
        "resource": resource,
        "namespace": obj.namespace,
        "name": obj.name,
        "state": obj.state.value,
        "since": time.monotonic() - obj.since if obj.since else None,
        "retry_in": None if obj.due is None else max(0.0, obj.due - loop.time()),
        "running": next(running, ""),
        "failures": failures[:_FAILURES_LIMIT],
        "kubectl": build_command("describe", resource, obj.name, namespace=obj.namespace),
    }


def _describe_object(operator: Operator, kind: str, uid: str) -> Row:
    """Return how an object and its kind are served; None for what is not."""
    streams = metrics.list_streams(operator)
    streams = [one for one in streams if one.ctx.resource.plural_name == kind]
    found = ((one, obj) for one in streams if (obj := one.objects.get(uid)))
    scope = streams and {
        "namespaces": sorted(filter(None, (one.namespace for one in streams))),
        "selectors": streams[0].ctx.build_selectors(),
        "handlers": [f"{name_decorator(one)} {one.id}" for one in streams[0].handlers.everything],
        "fields": sorted(streams[0].handlers.extra_fields),
        "divided_by": operator.context.ownership.get_divisor(streams[0].ctx.resource),
    }
    return {
        "kind": scope or None,
        "object": next((_describe_entry(stream, obj) for stream, obj in found), None),
        "failed": _list_failed(operator, uid),
    }


def _describe_entry(stream: Stream, obj: Entry) -> Row:
    gate, clock = "", asyncio.get_running_loop().time()
    if (place := stream.ctx.workers.outages.find_hold(obj)) is not None:
        gate = f"a successful write to {place.name}: the last ones failed"
    elif stream.find_gate(obj) is not None:
        gate = f"the list of {stream}, or the indexes"
    return {
        **_build_object_row(stream.ctx.resource.plural_name, obj),
        "waits_for": gate,
        "daemons": list(obj.daemons),
        "reconcilers": [
            {"id": one.id, "due_in": max(0.0, moment - clock), "reason": known.reason}
            for one in (stream.handlers.reconcilers if obj.due else ())
            if (known := obj.reconcilers.get(one.id))
            and (moment := get_moment(known, one)) is not None
        ],
    }


def _list_failed(operator: Operator, wanted: str = "") -> Row:
    """Return the handlers that failed for good, and the objects that do not fit their model.

    The newest come first; deleted objects are left out. With a uid, only those of one object.
    """
    counters, now = operator.context.counters, time.monotonic()
    streams = defaultdict(list)
    for stream in metrics.list_streams(operator):
        streams[stream.ctx.resource.plural_name].append(stream)
    kept = [
        call
        for (uid, _), call in counters.failed.items()
        if wanted in ("", uid)
        if not (known := streams[call.resource]) or any(uid in each.objects for each in known)
    ]
    kept += [misfit for uid, (misfit, _) in [*counters.misfits.items()] if wanted in ("", uid)]
    items: list[Row] = [
        {
            "resource": call.resource,
            "namespace": call.namespace,
            "name": call.name,
            "handler": call.handler,
            "error": call.error,
            "age": now - call.time,
            "kubectl": build_command(
                "describe", call.resource, call.name, namespace=call.namespace
            ),
        }
        for call in heapq.nlargest(LIMIT, kept, key=lambda call: call.time)
    ]
    return {"items": items, "left_out": len(kept) - len(items) + counters.dropped}


def _list_webhooks(operator: Operator, growth: Growth) -> list[Row]:
    latencies = operator.webhooks.hosting.counters.durations.rows
    in_flight = metrics.read_calls_in_flight(operator)
    rejections = _group(metrics.read_rejections(operator))
    empty = [0.0] * (len(BOUNDS) + 2)
    rows: list[Row] = []
    for labels in dict.fromkeys((*in_flight, *latencies, *rejections)):
        *counts, seconds = latencies.get(labels, empty)
        rows.append(
            {
                "id": labels[0],
                "counts": [int(count) for count in counts],
                "recent_counts": _restore(growth, "reviews", *labels),
                "seconds": seconds,
                "in_flight": int(in_flight.get(labels, 0)),
                "rejections": rejections[labels],
                "recent_rejections": _pick(growth, "rejections", labels, rejections[labels]),
            }
        )
    return rows
