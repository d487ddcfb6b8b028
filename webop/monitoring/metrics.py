"""The definition of each metric: its name, its labels, its meaning, and its values.

Names begin with ``webop_`` and continue like those of controller-runtime. Metrics without this
prefix mean exactly the same as those of client-go, so existing dashboards and alerts work.

Label values are bounded: ids of handlers, kinds, methods, statuses, fixed words. No label has names
of objects, namespaces or values. For the watches of several namespaces, the value is the sum or the
worst one.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, product
from typing import TYPE_CHECKING, NamedTuple

from webop.calls.threads import count_calls
from webop.client.watch import State, WatchStatus
from webop.reactor.entry import State as ObjectState
from webop.telemetry.counters import Labels, Timings
from webop.version import __version__

if TYPE_CHECKING:
    from webop.handlers.model import Handler
    from webop.reactor.stream import Stream
    from webop.runtime.operator import Operator

Values = Mapping[Labels, float]

_USUAL_REJECTIONS = ("denied", "error", "overloaded", "timeout", "unavailable")


class Definition(NamedTuple):
    """One metric.

    Attributes:
        name: the name; of a histogram, without ``_bucket``, ``_count`` and ``_sum``.
        type: "counter", "gauge" or "histogram".
        labels: the names of the labels.
        text: the meaning.
        read: returns the values by labels; of a histogram, the timings.
    """

    name: str
    type: str
    labels: Labels
    text: str
    read: Callable[[Operator], Values | Timings]


def is_acting(operator: Operator) -> bool:
    """Return whether this replica calls handlers for objects."""
    return operator.is_started and operator.context.pausing.is_active


def read_calls(operator: Operator) -> Values:
    """Return the calls of handlers by handler, type and outcome."""
    registry, counted = operator.context.registry, operator.context.counters.count_outcomes()
    changes = (_name_outcomes(handler, "retry") for handler in registry.select_resource_handlers())
    reviews = (_name_outcomes(handler, "denied") for handler in registry.select_webhooks())
    conversions = map(_name_outcomes, registry.select_converters())
    # Begin with 0: Prometheus would not see an increase in a series that begins with 1.
    known = dict.fromkeys(chain.from_iterable((*changes, *reviews, *conversions)), 0)
    return {**known, **counted}


def _name_outcomes(handler: Handler, *others: str) -> Iterator[Labels]:
    for outcome in ("success", "failure", *others):
        yield handler.id, handler.family, outcome


def read_rejections(operator: Operator) -> Values:
    """Return the number of requests that were not allowed, by webhook and reason."""
    known = product(operator.webhooks.review.ids, _USUAL_REJECTIONS)
    return {**dict.fromkeys(known, 0), **operator.webhooks.hosting.counters.rejections}


def read_watches(operator: Operator) -> Values:
    """Return the number of watches by resource and state."""
    return Counter(
        (resource.plural_name, _name_state(status))
        for status, resource in [*operator.client.watches.items()]
    )


def _name_state(status: WatchStatus) -> str:
    if status.state is not State.WATCHING:
        return "listing"
    return "watching" if status.is_connected else "reconnecting"


def read_watch_ages(operator: Operator) -> Values:
    """Return the ages of streams by resource."""
    ages: defaultdict[Labels, float] = defaultdict(lambda: math.inf)
    for status, resource in [*operator.client.watches.items()]:
        labels = (resource.plural_name,)
        ages[labels] = min(ages[labels], status.get_age())
    return ages


def list_streams(operator: Operator) -> list[Stream]:
    """Return the streams of objects; none if the operator does not run."""
    observer = operator.observer if operator.is_started else None
    return list(observer.streams) if observer else []


def _measure_objects(operator: Operator) -> Iterator[tuple[Labels, int, float]]:
    """Yield the resource and the state, the number of objects, the age of the oldest one."""
    moment = time.monotonic()
    for stream in list_streams(operator):
        busy = [
            obj for obj in stream.objects.values() if obj.state is not ObjectState.IDLE
        ]  # quick
        for state in ObjectState:
            since = [obj.since for obj in busy if obj.state is state]
            count = len(since) if state is not ObjectState.IDLE else len(stream.objects) - len(busy)
            age = moment - min(filter(None, since), default=moment)
            yield (stream.ctx.resource.plural_name, state.value), count, age


def read_objects(operator: Operator) -> Values:
    """Return the number of objects by resource and state."""
    counts: Counter[Labels] = Counter()
    for labels, count, _ in _measure_objects(operator):
        counts[labels] += count
    return counts


def read_ages(operator: Operator) -> Values:
    """Return the longest time of an object in a state, by resource and state."""
    ages: dict[Labels, float] = {}
    for labels, _, age in _measure_objects(operator):
        if labels[1] in {"held", "waiting", "working"}:
            ages[labels] = max(age, ages.get(labels, 0.0))
    return ages


def read_misfits(operator: Operator) -> Values:
    """Return the number of objects that do not fit their model, by resource."""
    counts: Counter[Labels] = Counter()
    for stream in list_streams(operator):
        counts[stream.ctx.resource.plural_name,] += 0
    for misfit, _ in operator.context.counters.misfits.values():
        counts[misfit.resource,] += 1
    return counts


def read_calls_in_flight(operator: Operator) -> Values:
    """Return the number of reviews in progress, by webhook."""
    calls = operator.webhooks.hosting.gate.calls
    return {(key,): calls.get(key, 0) for key in operator.webhooks.review.ids}


def _read_expiry(operator: Operator) -> Values:
    expiry = operator.webhooks.hosting.expiry
    return {} if expiry is None else {(): expiry.timestamp()}


def _read_leadership(operator: Operator) -> Values:
    leadership = operator.coordinator.leadership
    return {} if leadership is None else {(leadership[0],): float(leadership[1])}


def _read_unowned(operator: Operator) -> Values:
    members = operator.coordinator.members
    return {(): len(members.unowned)} if members and members.map.uid else {}


def measure_pools(operator: Operator) -> Iterator[tuple[str, int | None, int, int]]:
    """Yield the name of each pool of threads, its size, its running and its waiting calls."""
    settings = operator.context.settings
    for pool in (settings.execution, settings.background, settings.admission):
        calls, size = count_calls(pool), pool.max_workers
        busy = calls if size is None else min(calls, size)
        yield pool.threads.name, size, busy, calls - busy


DEFINITIONS = (
    Definition(
        *("webop_info", "gauge", ("version",)),
        "The version of webop; the value is always 1.",
        lambda _: {(__version__,): 1},
    ),
    Definition(
        *("webop_ready", "gauge", ()),
        "1 if this replica is ready, as /readyz reports; else 0.",
        lambda operator: {(): float(not operator.list_obstacles())},
    ),
    Definition(
        *("webop_acting", "gauge", ()),
        "1 if this replica calls handlers for objects, 0 if it is a standby, is paused, or does "
        "not run.",
        lambda operator: {(): is_acting(operator)},
    ),
    Definition(
        *("leader_election_master_status", "gauge", ("name",)),
        "1 if this replica holds the Lease of that name, else 0; absent without a Lease. With "
        "shards, each replica has its own Lease.",
        _read_leadership,
    ),
    Definition(
        *("webop_shards_owned", "gauge", ()),
        "Shards of this replica; absent without shards, as the next three.",
        lambda operator: (
            {(): len(operator.context.ownership.owned)} if operator.coordinator.members else {}
        ),
    ),
    Definition(
        *("webop_shards_unowned", "gauge", ()),
        "Shards of which no running replica is the owner, as this replica sees it.",
        _read_unowned,
    ),
    Definition(
        *("webop_shard_moves_total", "counter", ("direction",)),
        "Shards that this replica has got or given up. Directions: gained, given.",
        lambda operator: {
            (how,): members.moves[how]
            for how in ("gained", "given")
            if (members := operator.coordinator.members)
        },
    ),
    Definition(
        *("webop_shard_handler_seconds_total", "counter", ("shard",)),
        "Time in which this replica has worked on objects of a shard: handlers and writes, "
        "without daemons and timers.",
        lambda operator: {
            (str(shard),): seconds
            for shard, seconds in [*operator.context.ownership.seconds.items()]
        },
    ),
    Definition(
        *("webop_canary_failed", "gauge", ()),
        "1 if this canary has given up its shards because too many calls failed, else 0; absent "
        "without shards.",
        lambda operator: (
            {(): bool(members.canary.failure)} if (members := operator.coordinator.members) else {}
        ),
    ),
    Definition(
        *("webop_handler_calls_total", "counter", ("handler", "type", "outcome")),
        "Finished calls of handlers. Types: activity, change, conversion (its handler is the kind "
        "and both versions: sites.example.com/v1-v2), daemon, event, index, reconcile, timer, "
        "webhook. Outcomes: success; retry (it will be called again); failure (it will not); "
        "denied (a webhook denied the request); ignored (an error without consequences); "
        "cancelled. All sub-handlers of a handler count as one: parent/*.",
        read_calls,
    ),
    Definition(
        *("webop_handler_duration_seconds", "histogram", ("handler", "type")),
        "Duration of these calls. For sync handlers, including the wait for a thread.",
        lambda operator: operator.context.counters.durations,
    ),
    Definition(
        *("webop_objects", "gauge", ("resource", "state")),
        "Known objects. States: idle; held (until indexes are filled); waiting (for a worker); "
        "working (a worker processes it, handlers included); resting (until a retry is due).",
        read_objects,
    ),
    Definition(
        *("webop_objects_oldest_seconds", "gauge", ("resource", "state")),
        "Longest time that an object has been held, waiting, or working.",
        read_ages,
    ),
    Definition(
        *("webop_objects_misfit", "gauge", ("resource",)),
        "Objects that do not fit the model of their handlers, which wait until they do.",
        read_misfits,
    ),
    Definition(
        *("webop_watches", "gauge", ("resource", "state")),
        "Watches, including those of webop itself. States: listing; watching; reconnecting.",
        read_watches,
    ),
    Definition(
        *("webop_watch_age_seconds", "gauge", ("resource",)),
        "Time since the stream of a watch was opened; 0 if it is not open. For several "
        "namespaces: the youngest stream.",
        read_watch_ages,
    ),
    Definition(
        *("webop_watch_restarts_total", "counter", ("resource", "reason")),
        "Ended streams of watches. Reasons: ended (API servers end them after some minutes), "
        "failed (any error).",
        lambda operator: operator.client.counters.restarts,
    ),
    Definition(
        *("rest_client_requests_total", "counter", ("method", "code")),
        "Requests to the API server by HTTP method (WATCH for the streams of watches) and status; "
        "<error> if there was no response. Each retry counts.",
        lambda operator: operator.client.counters.codes,
    ),
    Definition(
        *("rest_client_request_duration_seconds", "histogram", ("verb",)),
        "Duration of these requests, by the same methods; WATCH: until the stream was accepted.",
        lambda operator: operator.client.counters.durations,
    ),
    Definition(
        *("webop_webhook_latency_seconds", "histogram", ("webhook",)),
        "Duration of reviews, from the head of the request to the response. (all): reviews that "
        "name no webhook; (unknown): reviews for webhooks that do not exist.",
        lambda operator: operator.webhooks.hosting.counters.durations,
    ),
    Definition(
        *("webop_webhook_requests_in_flight", "gauge", ("webhook",)),
        "Reviews in progress.",
        read_calls_in_flight,
    ),
    Definition(
        *("webop_webhook_rejections_total", "counter", ("webhook", "reason")),
        "Requests that were not allowed. Reasons: denied (by a handler, on purpose); error "
        "(a handler or webop failed); timeout; overloaded (429); unavailable (503); "
        "unknown_webhook; unknown_client; malformed; too_large; slow_request.",
        read_rejections,
    ),
    Definition(
        *("webop_webhook_certificate_expiration_timestamp_seconds", "gauge", ()),
        "When the certificate of the webhook server expires, in Unix time; absent if webop does "
        "not serve TLS.",
        _read_expiry,
    ),
    Definition(
        *("webop_event_loop_lag_seconds", "histogram", ()),
        "Delay of the event loop, measured twice a second.",
        lambda operator: operator.loop_lag,
    ),
    Definition(
        *("webop_threads", "gauge", ("pool",)),
        "Number of sync handlers that can run at once. Pools: handlers, daemons, admission.",
        lambda operator: {
            (name,): size for name, size, _, _ in measure_pools(operator) if size is not None
        },
    ),
    Definition(
        *("webop_threads_busy", "gauge", ("pool",)),
        "Number of running sync handlers, including those that run on after their timeout.",
        lambda operator: {(name,): busy for name, _, busy, _ in measure_pools(operator)},
    ),
    Definition(
        *("webop_threads_queued", "gauge", ("pool",)),
        "Number of sync handlers that wait for a thread.",
        lambda operator: {(name,): queued for name, _, _, queued in measure_pools(operator)},
    ),
)
