"""The settings of an operator, in groups with their defaults (chapter "Configuration").

Users set them in startup handlers (``settings.posting.level = logging.WARNING``), by variables
(``WEBOP_POSTING__LEVEL=30``), or pass an object to ``webop.run(settings=…)``. Assignments are
checked immediately. Times are in seconds. The docstring of a setting is its description on the page
"Settings".
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal

from webop.objects.names import SUBDOMAIN
from webop.objects.resources import Resource, Selector
from webop.objects.shards import SHARDS
from webop.objects.storage.diffbase import AnnotationsDiffBaseStorage, DiffBaseStorage
from webop.objects.storage.progress import (
    AnnotationsProgressStorage,
    ProgressStorage,
    SmartProgressStorage,
)
from webop.objects.typed_values import must_be, number
from webop.servers.limits import DefaultLimits
from webop.settings.base import Section, made
from webop.settings.environment import apply_environment
from webop.settings.thread_pools import PoolSection, Threads
from webop.settings.values import (
    Count,
    Delays,
    Label,
    Level,
    Positive,
    Rights,
    Seconds,
    Server,
    Subdomain,
    parse,
    without_effect,
)
from webop.settings.watch_selectors import Kinds, SelectorMapping, Selectors

_SERVING = DefaultLimits()
_FIBONACCI = (1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610)

_CLASH = "settings.persistence.{} is set already. Set only one of them"
_STORAGES = frozenset({"progress_storage", "diffbase_storage"})

_HANDLERS = Threads("handlers", "handlers", "execution")
_DAEMONS = Threads("daemons", "daemons", "background", 1000)
_ADMISSION = Threads("admission", "admission handlers", "admission", 1000)


class IdentitySettings(Section):
    """Which operator this is: what must differ between operators is made of its name."""

    name: Label = "webop"
    """The name of the operator, in the labels of its children; no other operator of the cluster may
    have it. By default, the name of the first package or file, or of its folder; else ``webop``."""

    def set_default(self, name: str) -> None:
        """Set the name, unless it is set already."""
        if "name" not in self._given:
            self.name = name


class ProcessSettings(Section):
    """The process of the operator."""

    ultimate_exiting_timeout: Seconds | None = 10 * 60
    """The time from the signal to stop until the process kills itself; None for no limit."""
    blocked_loop_threshold: Positive | None = 1.0
    """If a handler blocks the event loop for longer, webop logs its stack; None to disable it."""


class PostingSettings(Section):
    """Kubernetes Events from log messages and from ``webop.event()`` and similar functions."""

    enabled: bool = True
    """Whether webop posts Events."""
    level: Level = logging.INFO
    """The minimum level of log messages that become Events, such as 20 or INFO."""
    loggers: bool = True
    """Whether log messages of handlers become Events."""
    reporting_component: str = "webop"
    """The component that Events name as their reporter."""
    reporting_instance: str = "dev"
    """The instance of that component."""
    event_name_prefix: str = "webop-event-"
    """The prefix of the names of Events."""
    rate: Positive = 50.0
    """The average number of requests per second that the operator sends for Events."""
    burst: Count = 500
    """The number of requests that it can send at once after a quiet time."""
    aggregation_interval: Seconds = 600.0
    """Seconds within which a repeated message is counted in the same Event."""
    queue_limit: Count = 2_000
    """The maximum number of waiting Events; Normal Events use at most half of it."""
    memory_limit: Count = 10_000
    """The number of posted Events that webop remembers to detect repetitions."""


class PeeringSettings(Section):
    """How operators for the same resources agree which one is active (chapter "Peering")."""

    name: str = "default"
    """The name of the peering object."""
    stealth: bool = False
    """Whether the log omits renewals of the operator's record."""
    priority: int = 0
    """The priority of this operator: the operator with the highest one is active."""
    lifetime: Count = 60
    """How long the record of this operator is valid; the operator renews it before that."""
    mandatory: bool = False
    """Whether the operator pauses while the peering object does not exist."""
    standalone: bool = False
    """Whether the operator ignores peering objects."""
    clusterwide: bool = False
    """Whether the peering object is a ClusterKopfPeering; the operator sets it at the start,
    according to its namespaces."""

    @property
    def namespaced(self) -> bool:
        """The opposite of ``clusterwide``."""
        return not self.clusterwide

    @namespaced.setter
    def namespaced(self, value: bool) -> None:
        try:
            self.clusterwide = not parse(bool, value)
        except ValueError as exc:
            raise self._build_error("namespaced", value, str(exc)) from None


class LeadershipSettings(Section):
    """Leader election among equal replicas, with a Lease (coordination.k8s.io/v1), or shards.

    All replicas serve webhooks and fill their indexes. Only the leader calls handlers and runs
    daemons and timers; with shards, each replica does so for its part of the objects. The terms are
    those of Kubernetes' own components.
    """

    lease_name: str | None = None
    """The name of the Lease; None for no leader election: every replica handles objects. With
    shards, the names of their Leases begin with it."""
    sharded: bool = False
    """Whether all replicas work: each object belongs to one of 64 shards, and each shard to one
    replica (page "Shards")."""
    shard_by: Literal["object", "namespace"] = "object"
    """Whether the shard of an object depends on its own uid, or on its namespace: then one replica
    handles all objects of a namespace."""
    unsharded: Kinds = ()
    """Kinds that one replica handles alone: the owner of shard 0."""
    canary_shards: Annotated[int, number(1, SHARDS, is_whole=True)] | None = None
    """How many shards the replicas of this version try the version with; None for a normal replica.
    The variable WEBOP_CANARY sets it, too."""
    canary_failures: Annotated[float, number(0, 1)] = 0.2
    """The share of failed calls of handlers from which a canary gives up its shards."""
    lease_namespace: str | None = None
    """The namespace of the Lease; by default that of the credentials, such as the pod's."""
    lease_duration: Positive = 15.0
    """How long standbys wait after the last renewal that they saw before they take over."""
    renew_deadline: Positive = 10.0
    """How long the leader continues after its last renewal; less than ``lease_duration``."""
    retry_period: Positive = 2.0
    """The pause between attempts to acquire or renew the Lease; less than ``renew_deadline``."""
    exits_when_stuck: bool = True
    """Whether the process exits immediately if the leader loses the Lease while handlers run that
    webop cannot stop, such as sync handlers in threads. Otherwise, two replicas can handle the
    same object."""


class WatchingSettings(Section):
    """The streams of changes from the API server."""

    server_timeout: Seconds | None = None
    """The time after which the API server should end a watch; None for the server's default."""
    client_timeout: Seconds | None = None
    """The time after which webop ends a watch; None for no limit."""
    connect_timeout: Seconds | None = None
    """The limit for connecting; None for that of other requests."""
    reconnect_backoff: Seconds = 0.1
    """The pause between two streams if the first one ended without an error."""
    inactivity_timeout: Seconds | None = 70.0
    """webop reconnects a stream that is silent for longer; bookmarks come once a minute."""
    streaming_list: bool = True
    """Whether existing objects come at the beginning of the watch instead of in a list before it,
    if the API server supports it (Kubernetes API concepts: "Streaming lists")."""
    managed_fields: bool = False
    """Whether handlers get ``metadata.managedFields``, often the larger part of an object."""
    label_selectors: Selectors = made(SelectorMapping)
    """Label selectors by kinds: webop sees only the objects that match (page "Selectors")."""
    field_selectors: Selectors = made(SelectorMapping)
    """Field selectors by kinds, in the same way."""
    shard_selectors: Selectors = made(SelectorMapping)
    """Shard selectors by kinds, in the same way; if several match a kind, the first one counts.
    Peers of the same priority do not pause the operator then."""

    def build_selectors(self, resource: Resource, *, is_named: bool = False) -> dict[str, str]:
        """Return the selectors of a kind, as parameters of its lists and watches.

        With ``is_named``, only those whose keys name the kind.
        """
        labels, fields, shards = (
            selectors.collect(resource, is_named=is_named)
            for selectors in (self.label_selectors, self.field_selectors, self.shard_selectors)
        )
        found = {
            "labelSelector": ",".join(sorted({*labels})),
            "fieldSelector": ",".join(sorted({*fields})),
            "shardSelector": next(iter(shards), ""),
        }
        return {name: text for name, text in found.items() if text}

    def list_unused(self, resources: Collection[Resource]) -> list[tuple[str, Selector]]:
        """Return the keys that match none of some kinds, each with the name of its setting."""
        return [
            (name, key)
            for name in ("label_selectors", "field_selectors", "shard_selectors")
            for key in getattr(self, name)
            if not any(map(key.check, resources))
        ]


class BatchingSettings(Section):
    """The processing of many objects at once."""

    worker_limit: Count | None = None
    """The number of objects of one kind that are processed at once; None for no limit."""
    idle_timeout: Annotated[float | None, without_effect("idle_timeout")] = 5.0
    """No effect, accepted with a warning: objects without work have no worker."""
    batch_window: Annotated[float | None, without_effect("batch_window")] = 0.1
    """No effect, accepted with a warning: webop uses the newest state without waiting."""
    exit_timeout: Seconds = 2.0
    """How long objects in progress can take when the operator shuts down."""
    error_delays: Delays = _FIBONACCI
    """Pauses for an object after errors of the framework itself, or of a filter; the last one
    repeats. Its changes, and its deletion, wait until then. With an empty list, it is tried again
    when it changes. After failures of the API server, a pause is 30 seconds at most."""


class ScanningSettings(Section):
    """The watch for new and removed kinds and namespaces."""

    disabled: bool = False
    """Whether webop ignores kinds and namespaces that are created or removed after its start."""


class AdmissionSettings(PoolSection):
    """Admission webhooks (chapter "Admission control")."""

    threads: ClassVar[Threads] = _ADMISSION

    server: Server = None
    """The webhook server or tunnel. Under uvicorn, you need none, and webop ignores a plain
    ``WebhookServer``."""
    managed: Subdomain = None
    """The name of the webhook configurations that webop maintains; None for none."""
    max_body: Count = _SERVING.max_body
    """The maximum size of a review in bytes; larger ones are denied."""
    max_held_bytes: Count = _SERVING.max_held_bytes
    """The memory for all reviews in bytes, decoded; further ones get 429. One review, or the
    reviews from one address, can take half of it. Adapt it to the memory limit of the container."""
    max_connections: Count = _SERVING.max_connections
    """The maximum number of open connections of a port; then webop closes idle ones."""
    read_timeout: Positive = _SERVING.read_timeout
    """The time in which a client must send a complete request; then webop closes the
    connection."""
    idle_timeout: Positive = _SERVING.idle_timeout
    """The time after which webop closes a connection without requests."""
    review_timeout: Positive = _SERVING.review_timeout
    """The limit for reviews of clients that send no timeout; API servers send one."""
    max_reviews: Count = _SERVING.max_reviews
    """The maximum number of reviews at once; further ones get 429, and the API server retries
    them."""
    max_calls: Count = _SERVING.max_calls
    """The maximum number of calls of one handler at once, so that a slow handler does not block
    the others."""
    executor: concurrent.futures.Executor = made(_ADMISSION.build_default)
    """The thread pool of sync admission handlers."""
    memo_limit: Annotated[int, number(0, is_whole=True)] = 5000
    """The maximum number of memos for objects that webop knows only from reviews; it drops the
    oldest."""
    shutdown_delay: Seconds = 10.0
    """How long webop still accepts webhook requests after the signal to stop; it is not ready
    during this time."""
    drain_timeout: Seconds = _SERVING.drain_timeout
    """How long webop then waits for running reviews."""
    replica_lifetime: Positive = 180.0
    """The time after which a replica that does not renew its record counts as dead."""
    take_over: bool = False
    """Whether to take managed webhooks over from replicas at another address."""
    exempt_namespace: bool = False
    """Whether managed webhooks skip objects in the operator's own namespace."""
    exempt_account: bool = False
    """Whether managed webhooks skip requests of the operator's own account."""


class ExecutionSettings(PoolSection):
    """The calls of handlers."""

    threads: ClassVar[Threads] = _HANDLERS

    executor: concurrent.futures.Executor = made(_HANDLERS.build_default)
    """The thread pool of sync handlers, including timers."""
    default_backoff: Seconds = 60
    """The pause before a retry after an arbitrary error, for handlers without ``backoff``."""
    retry_on_change: bool = False
    """Whether a failed handler of a change is called again at once when somebody else changes the
    object, except in metadata or status; at most once a second."""


class BackgroundSettings(PoolSection):
    """Daemons and timers."""

    threads: ClassVar[Threads] = _DAEMONS

    executor: concurrent.futures.Executor = made(_DAEMONS.build_default)
    """The thread pool of sync daemons; each uses one thread as long as it runs."""
    cancellation_polling: Seconds = 60
    """The interval of warnings about a daemon that does not stop."""
    instant_exit_timeout: Seconds | None = None
    """How long a daemon without ``cancellation_backoff`` can take to stop before webop cancels
    it."""
    instant_exit_zero_time_cycles: int | None = 10
    """The same in iterations of the event loop, if ``instant_exit_timeout`` is None."""


class NetworkingSettings(Section):
    """Requests to the API server, except watches."""

    request_timeout: Seconds | None = 5 * 60
    """The limit for a request."""
    connect_timeout: Seconds | None = None
    """The limit for connecting; None for only that of the request."""
    error_backoffs: Delays = (1, 1, 2, 3, 5, 8, 13, 21)
    """The pauses between attempts of a failing request; the number of items is the number of
    retries."""
    enforce_retry_after: bool = False
    """Whether the pause is exactly that of ``Retry-After``. Otherwise, it is at least the pause
    above, and ``Retry-After`` extends it to a minute at most."""
    trust_env: bool = False
    """Whether the client uses the proxies in environment variables."""
    field_manager: (
        Annotated[str, must_be("1 to 128 characters", str, lambda text: 1 <= len(text) <= 128)]
        | None
    ) = None
    """The field manager of what handlers apply with the client; its name begins those of children.
    None for the name of the operator."""
    rights: Rights = ()
    """The rights that handlers need for the client, such as ``["secrets:get,list"]``. ``webop
    manifests`` grants them, ``webop doctor`` checks them."""


class PersistenceSettings(Section):
    """The state on the objects, and its storages."""

    finalizer: Annotated[str, must_be("a string that is not empty", str, bool)] = (
        "kopf.zalando.org/KopfFinalizerMarker"
    )
    """The name of the finalizer."""
    progress_storage: ProgressStorage = made(SmartProgressStorage)
    """The storage of the progress of handlers."""
    diffbase_storage: DiffBaseStorage = made(AnnotationsDiffBaseStorage)
    """The storage of the last handled state."""
    consistency_timeout: Annotated[float | None, without_effect("consistency_timeout")] = 5.0
    """No effect, accepted with a warning: webop reads the newest state when a patch conflicts."""
    _prefix: str | None = None

    @property
    def prefix(self) -> str | None:
        """The prefix of the operator's own state; it sets the finalizer and both storages.

        A finalizer that is set to another name, before or after, stays.
        """
        return self._prefix

    @prefix.setter
    def prefix(self, value: str | None) -> None:
        if not isinstance(value, str) or not SUBDOMAIN.fullmatch(value):
            why = "it must be a lower-case DNS name, such as shop.example.com"
            raise self._build_error("prefix", value, why)
        taken = sorted(_STORAGES & self._given) if self._prefix is None else ()
        if taken:
            raise self._build_error("prefix", value, _CLASH.format(taken[0]))
        is_chosen = "finalizer" in self._given
        if not is_chosen or self.finalizer == f"{self._prefix}/finalizer":
            self.finalizer = f"{value}/finalizer"
        self._prefix = None  # so that these can be set
        self.progress_storage = AnnotationsProgressStorage(prefix=value)
        self.diffbase_storage = AnnotationsDiffBaseStorage(prefix=value)
        self._prefix = value

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a setting, unless the prefix has set it."""
        if name in _STORAGES and self._prefix is not None:
            raise self._build_error(name, value, _CLASH.format("prefix"))
        super().__setattr__(name, value)


class OperatorSettings(Section):
    """All settings of one operator, in groups: the argument ``settings`` of startup handlers.

    ::

        @webop.on.startup()
        def configure(settings: webop.OperatorSettings, **_):
            settings.posting.level = logging.WARNING
            settings.admission.server = webop.WebhookServiceServer()

    A wrong name or value is an error at once. Times are in seconds. See docs/reference/settings.md.
    """

    operator: IdentitySettings = made(IdentitySettings)
    process: ProcessSettings = made(ProcessSettings)
    posting: PostingSettings = made(PostingSettings)
    peering: PeeringSettings = made(PeeringSettings)
    leadership: LeadershipSettings = made(LeadershipSettings)
    watching: WatchingSettings = made(WatchingSettings)
    batching: BatchingSettings = made(BatchingSettings)
    scanning: ScanningSettings = made(ScanningSettings)
    admission: AdmissionSettings = made(AdmissionSettings)
    execution: ExecutionSettings = made(ExecutionSettings)
    background: BackgroundSettings = made(BackgroundSettings)
    networking: NetworkingSettings = made(NetworkingSettings)
    persistence: PersistenceSettings = made(PersistenceSettings)

    @property
    def queueing(self) -> BatchingSettings:
        """The newer name of ``batching``."""
        return self.batching

    @property
    def field_manager(self) -> str:
        """The field manager of the operator."""
        return self.networking.field_manager or self.operator.name

    @classmethod
    def choose(cls, given: Any, environment: Mapping[str, str] = os.environ) -> OperatorSettings:
        """Return the value of an option ``settings=``, or else the settings of the environment.

        Raises:
            TypeError: it is something else.
        """
        if given is not None and not isinstance(given, OperatorSettings):
            raise TypeError(f"settings= must be a webop.OperatorSettings, got {given!r}.")
        return given or cls.from_environment(environment)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> OperatorSettings:
        """Return the defaults, changed by the variables ``WEBOP_<GROUP>__<NAME>``.

        Log a warning for unknown variables that begin with ``WEBOP_``.

        Raises:
            ConfigurationError: a value is invalid, or the setting can be set only in code.
        """
        settings = cls()
        apply_environment(settings, environment)
        return settings
