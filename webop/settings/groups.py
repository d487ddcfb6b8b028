"""The groups of settings, their defaults, and what they mean.

The text below a setting is what the page of settings says about it.
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field, TypeAdapter

from webop.objects.storage.diffbase import AnnotationsDiffBaseStorage, DiffBaseStorage
from webop.objects.storage.progress import ProgressStorage, SmartProgressStorage
from webop.servers.hosting import DefaultLimits
from webop.settings.environment import apply_environment
from webop.settings.sections import (
    Delays,
    Level,
    PoolSection,
    Rights,
    Seconds,
    Section,
    Server,
    Threads,
)

_SERVING = DefaultLimits()
_FIBONACCI = (1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610)

_HANDLERS = Threads("handlers", "handlers", "execution")
_DAEMONS = Threads("daemons", "daemons", "background", 1000)
_ADMISSION = Threads("admission", "admission handlers", "admission", 1000)


class ProcessSettings(Section):
    """The process as a whole."""

    ultimate_exiting_timeout: Seconds | None = 10 * 60
    """From the signal to stop until the process kills itself; None for never."""
    blocked_loop_threshold: float | None = Field(default=1.0, gt=0, allow_inf_nan=False)
    """After how long a handler that blocks the event loop is logged, with its stack; None for
    never."""


class PostingSettings(Section):
    """Kubernetes Events made of log messages and of ``webop.event()`` and the like."""

    enabled: bool = True
    """Whether events are posted at all."""
    level: Level = logging.INFO
    """The minimum level of messages that become events, such as 20 or INFO."""
    loggers: bool = True
    """Whether the messages of the handlers' loggers become events at all."""
    reporting_component: str = "webop"
    """Who posts the events."""
    reporting_instance: str = "dev"
    """Which one of them."""
    event_name_prefix: str = "webop-event-"
    """What the names of events begin with."""
    rate: float = Field(default=50.0, gt=0, allow_inf_nan=False)
    """Requests per second that the operator spends on events in the long run."""
    burst: int = Field(default=500, ge=1)
    """Requests that it may spend at once after a quiet time."""
    object_burst: int = Field(default=25, ge=1)
    """Requests that one object may cause at once, for each type of events."""
    object_interval: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    """Seconds per request of an object that has used up its burst."""
    aggregation_interval: float = Field(default=600.0, ge=0)
    """Seconds within which a repeated message counts for the same event."""
    aggregation_limit: int = Field(default=20, ge=1)
    """Different messages of an object with one type and reason; more share a combined event."""
    queue_limit: int = Field(default=2_000, ge=1)
    """Requests that wait, at most; messages of the type Normal get only half of the places."""
    memory_limit: int = Field(default=10_000, ge=1)
    """Posted events that are remembered, so that their repetitions are recognised."""


class PeeringSettings(Section):
    """How operators for the same resources find out who is active (chapter "Peering")."""

    name: str = "default"
    """The name of the peering object."""
    stealth: bool = False
    """Whether the renewals of the own record are kept out of the log."""
    priority: int = 0
    """The own priority: the operator with the highest one is active."""
    lifetime: int = Field(default=60, ge=1)
    """How long the own record is valid; it is renewed before that."""
    mandatory: bool = False
    """Whether nothing is handled as long as there is no peering object."""
    standalone: bool = False
    """Whether peering objects are not looked for at all."""
    clusterwide: bool = False
    """Which kind of peering objects it is; what is served decides, when the operator starts."""

    @property
    def namespaced(self) -> bool:
        """The inverse of ``clusterwide``."""
        return not self.clusterwide

    @namespaced.setter
    def namespaced(self, value: bool) -> None:
        self.clusterwide = not TypeAdapter(bool).validate_python(value)


class LeadershipSettings(Section):
    """Which of several equal replicas acts: the one that holds a Lease (coordination.k8s.io/v1).

    All replicas serve admission and keep their indexes filled; one calls handlers, and runs
    daemons and timers. The terms are those of Kubernetes' own components.
    """

    lease_name: str | None = None
    """The name of the Lease; None for no leadership: every replica acts."""
    lease_namespace: str | None = None
    """Where the Lease is; by default, the namespace of the credentials, such as of the pod."""
    lease_duration: float = Field(default=15.0, gt=0, allow_inf_nan=False)
    """How long the others wait after the last renewal they have seen, before they take over."""
    renew_deadline: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """How long the leader goes on acting after the last renewal; less than ``lease_duration``."""
    retry_period: float = Field(default=2.0, gt=0, allow_inf_nan=False)
    """The pause between two attempts to acquire or to renew; less than ``renew_deadline``."""
    exits_when_stuck: bool = True
    """Whether the process ends at once if work goes on at the end of the lease that cannot be
    stopped, such as sync handlers in threads; if not, two replicas can be at the same work."""


class WatchingSettings(Section):
    """The streams of changes from the API server."""

    server_timeout: Seconds | None = None
    """After how long the server is asked to end a watch; None for its own choice."""
    client_timeout: Seconds | None = None
    """After how long a watch is ended from this side; None for never."""
    connect_timeout: Seconds | None = None
    """For connecting; None for the same as for other requests."""
    reconnect_backoff: Seconds = 0.1
    """The pause between two streams that end well."""
    inactivity_timeout: Seconds | None = 70.0
    """A stream that is silent for longer is taken for dead; bookmarks come once a minute."""
    streaming_list: bool = True
    """Existing objects come at the beginning of the watch, where the server has that (Kubernetes
    API concepts: "Streaming lists"), instead of pages of a list before it."""
    managed_fields: bool = False
    """Whether handlers get ``metadata.managedFields``: often the larger part of an object."""


class BatchingSettings(Section):
    """The work on many objects at once."""

    worker_limit: int | None = Field(default=None, ge=1)
    """Objects of a kind that are worked on at once; None for all that there is work for."""
    idle_timeout: Seconds = 5.0
    """Accepted for compatibility: objects without work have no worker."""
    batch_window: Seconds = 0.1
    """Accepted for compatibility: the newest state wins without waiting."""
    exit_timeout: Seconds = 2.0
    """How long the work under way may take at the end."""
    error_delays: Delays = _FIBONACCI
    """Pauses of an object after errors of the framework itself; the last one repeats; none if
    there are no items."""


class ScanningSettings(Section):
    """The observation of resource kinds and namespaces."""

    disabled: bool = False
    """Whether kinds and namespaces that come and go later are not looked for."""


class AdmissionSettings(PoolSection):
    """Admission webhooks (chapter "Admission control")."""

    threads: ClassVar[Threads] = _ADMISSION

    server: Server = None
    """The webhook server or tunnel; under uvicorn, none is needed, and a plain
    ``WebhookServer`` is ignored."""
    managed: str | None = None
    """The name of the webhook configurations that are kept in the cluster; None for none."""
    max_body: int = Field(default=_SERVING.max_body, ge=1)
    """Bytes of the largest review that is served; larger ones get 413."""
    max_held_bytes: int = Field(default=_SERVING.max_held_bytes, ge=1)
    """Bytes of all reviews in memory together, as sent; more are refused (429). Decoded, they
    take up to ten times as much: fit it to the memory limit of the container."""
    max_connections: int = Field(default=_SERVING.max_connections, ge=1)
    """Connections that a webhook server keeps open at once."""
    read_timeout: float = Field(default=_SERVING.read_timeout, gt=0)
    """Within which a request must have come as a whole; then its connection is cut."""
    idle_timeout: float = Field(default=_SERVING.idle_timeout, gt=0)
    """After which a connection without requests is closed."""
    review_timeout: float = Field(default=_SERVING.review_timeout, gt=0)
    """For reviews whose clients do not say how long they wait; API servers do."""
    max_reviews: int = Field(default=_SERVING.max_reviews, ge=1)
    """Reviews at once; more are refused at once (429), for the API server to try again."""
    max_calls: int = Field(default=_SERVING.max_calls, ge=1)
    """Calls of one handler at once, so that one that hangs leaves the others alone."""
    executor: concurrent.futures.Executor = Field(default_factory=_ADMISSION.build_default)
    """The threads of sync admission handlers."""
    memo_limit: int = Field(default=5000, ge=0)
    """Memos of objects that are known from reviews only; the oldest ones go."""
    shutdown_delay: float = Field(default=10.0, ge=0)
    """From the signal to stop until webhooks are not accepted any more; not ready meanwhile."""
    drain_timeout: float = Field(default=_SERVING.drain_timeout, ge=0)
    """For the reviews that are in flight then."""
    replica_lifetime: float = Field(default=180.0, gt=0)
    """After which a replica that has not been heard of counts as gone."""
    exempt_namespace: bool = False
    """Whether managed webhooks leave out the objects of the operator's own namespace."""
    exempt_account: bool = False
    """Whether managed webhooks leave out the requests of the operator's own account."""


class ExecutionSettings(PoolSection):
    """The calls of handlers."""

    threads: ClassVar[Threads] = _HANDLERS

    executor: concurrent.futures.Executor = Field(default_factory=_HANDLERS.build_default)
    """The threads of sync handlers, timers included."""
    default_backoff: Seconds = 60
    """The pause after arbitrary errors of handlers that have no ``backoff``."""
    commit_window: float = Field(default=0.2, ge=0)
    """Handlers of one object that finish within this time share one patch of it."""


class BackgroundSettings(PoolSection):
    """Daemons and timers."""

    threads: ClassVar[Threads] = _DAEMONS

    executor: concurrent.futures.Executor = Field(default_factory=_DAEMONS.build_default)
    """The threads of sync daemons, each of which keeps one as long as it runs."""
    cancellation_polling: Seconds = 60
    """How often a daemon that does not end is told about."""
    instant_exit_timeout: Seconds | None = None
    """How long a daemon without ``cancellation_backoff`` has before it is cancelled."""
    instant_exit_zero_time_cycles: int | None = 10
    """The same in turns of the event loop, if there is no such time-out."""


class NetworkingSettings(Section):
    """Requests to the API server, but for watches."""

    request_timeout: Seconds | None = 5 * 60
    """For a whole request."""
    connect_timeout: Seconds | None = None
    """For connecting; None for no limit but that of the request."""
    error_backoffs: Delays = (1, 1, 2, 3, 5, 8, 13, 21)
    """Pauses between the attempts of a request that fails; as many retries as there are items."""
    enforce_retry_after: bool = False
    """Whether the pause is exactly what ``Retry-After`` says; else it is no shorter than the
    pauses above, and no longer than a minute for that."""
    trust_env: bool = False
    """Whether proxies are taken from the environment."""
    field_manager: str = Field(default="webop", min_length=1, max_length=128)
    """The name by which the API server knows whose fields the client of handlers has written."""
    rights: Rights = ()
    """What handlers may do by the client, such as ``["secrets:get,list"]``: granted by
    ``webop manifests``, checked by ``webop doctor``."""


class PersistenceSettings(Section):
    """What is kept on the objects, and where."""

    finalizer: str = Field(default="kopf.zalando.org/KopfFinalizerMarker", min_length=1)
    """The name of the finalizer."""
    progress_storage: ProgressStorage = Field(default_factory=SmartProgressStorage)
    """Where the progress of handlers is kept."""
    diffbase_storage: DiffBaseStorage = Field(default_factory=AnnotationsDiffBaseStorage)
    """Where the last handled state is kept."""
    consistency_timeout: Seconds | None = 5.0
    """Accepted for compatibility: the newest state is read at once when a patch conflicts."""


class OperatorSettings(Section):
    """All settings of one operator; operators in one process do not share them (CFG-50)."""

    process: ProcessSettings = Field(default_factory=ProcessSettings.model_construct)
    posting: PostingSettings = Field(default_factory=PostingSettings.model_construct)
    peering: PeeringSettings = Field(default_factory=PeeringSettings.model_construct)
    leadership: LeadershipSettings = Field(default_factory=LeadershipSettings.model_construct)
    watching: WatchingSettings = Field(default_factory=WatchingSettings.model_construct)
    batching: BatchingSettings = Field(default_factory=BatchingSettings.model_construct)
    scanning: ScanningSettings = Field(default_factory=ScanningSettings.model_construct)
    admission: AdmissionSettings = Field(default_factory=AdmissionSettings.model_construct)
    execution: ExecutionSettings = Field(default_factory=ExecutionSettings.model_construct)
    background: BackgroundSettings = Field(default_factory=BackgroundSettings.model_construct)
    networking: NetworkingSettings = Field(default_factory=NetworkingSettings.model_construct)
    persistence: PersistenceSettings = Field(default_factory=PersistenceSettings.model_construct)

    @property
    def queueing(self) -> BatchingSettings:
        """The newer name of ``batching`` (D-23)."""
        return self.batching

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> OperatorSettings:
        """Return the defaults with what ``WEBOP_<GROUP>__<NAME>`` variables say otherwise.

        Variables that begin with ``WEBOP_`` and mean nothing are told of in the log.

        Raises:
            ConfigurationError: a value does not fit, or can be given only in code.
        """
        settings = cls.model_construct()  # validators take time: built when something is assigned
        apply_environment(settings, environment)
        return settings
