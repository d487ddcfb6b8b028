"""The settings of an operator, in groups (chapter "Configuration").

Changed in startup handlers (``settings.posting.level = logging.WARNING``), by the environment
(``WEBOP_POSTING__LEVEL=30``), or given ready-made to ``webop.run(settings=…)``. Assignments are
checked at once. Times are in seconds.
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, get_type_hints

import pydantic
from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from webop.errors import ConfigurationError
from webop.objects.storage.diffbase import AnnotationsDiffBaseStorage, DiffBaseStorage
from webop.objects.storage.progress import ProgressStorage, SmartProgressStorage
from webop.servers.hosting import DefaultLimits

# Iterables of delays may be infinite or stateful: they are only ever iterated at use.
Delays = Annotated[float | Iterable[float], SkipValidation]

_DAEMON_THREADS = 1000
_ADMISSION_THREADS = 1000  # they are started as they are needed
_SERVING = DefaultLimits()
_FIBONACCI = (1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610)


class Section(BaseModel):
    """A group of settings: unknown names and values of wrong types are refused on assignment."""

    model_config = ConfigDict(
        validate_assignment=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        defer_build=True,  # importing handlers is to be fast
    )


class ProcessSettings(Section):
    """The process as a whole."""

    ultimate_exiting_timeout: float | None = 10 * 60
    """From the signal to stop until the process kills itself; None for never."""


class PostingSettings(Section):
    """Kubernetes Events made of log messages and of ``webop.event()`` and the like."""

    enabled: bool = True
    level: int = logging.INFO
    """The minimum level of messages that become events."""
    loggers: bool = True
    """Whether the messages of the handlers' loggers become events at all."""
    reporting_component: str = "webop"
    reporting_instance: str = "dev"
    event_name_prefix: str = "webop-event-"
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
    stealth: bool = False
    priority: int = 0
    lifetime: int = 60
    mandatory: bool = False
    standalone: bool = False
    clusterwide: bool = False

    @property
    def namespaced(self) -> bool:
        """The inverse of ``clusterwide``."""
        return not self.clusterwide

    @namespaced.setter
    def namespaced(self, value: bool) -> None:
        self.clusterwide = not value


class WatchingSettings(Section):
    """The streams of changes from the API server."""

    server_timeout: float | None = None
    client_timeout: float | None = None
    connect_timeout: float | None = None
    reconnect_backoff: float = 0.1
    inactivity_timeout: float | None = 70.0
    """A stream that is silent for longer is taken for dead; bookmarks come once a minute."""
    streaming_list: bool = True
    """Existing objects come at the beginning of the watch, where the server has that (Kubernetes
    API concepts: "Streaming lists"), instead of pages of a list before it."""
    managed_fields: bool = False
    """Whether handlers get ``metadata.managedFields``: often the larger part of an object."""


class BatchingSettings(Section):
    """The work on many objects at once."""

    worker_limit: int | None = Field(default=None, ge=1)
    idle_timeout: float = 5.0
    batch_window: float = 0.1
    exit_timeout: float = 2.0
    error_delays: Delays = _FIBONACCI
    """Pauses of an object after errors of the framework itself; the last one repeats."""


class ScanningSettings(Section):
    """The observation of resource kinds and namespaces."""

    disabled: bool = False


def _build_pool(name: str, size: int | None = None) -> concurrent.futures.Executor:
    """Return a pool of threads, which are started only as they are needed."""
    if size is not None and size < 1:
        raise ValueError(f"At least one thread is needed for sync {name}, not {size}.")
    return concurrent.futures.ThreadPoolExecutor(size, thread_name_prefix=f"webop-{name}")


class AdmissionSettings(Section):
    """Admission webhooks (chapter "Admission control")."""

    server: Annotated[Any, SkipValidation] = None
    managed: str | None = None
    max_body: int = Field(default=_SERVING.max_body, ge=1)
    """Bytes of the largest review that is served; larger ones get 413."""
    read_timeout: float = Field(default=_SERVING.read_timeout, gt=0)
    """Within which a request must have come as a whole; then its connection is cut."""
    idle_timeout: float = Field(default=_SERVING.idle_timeout, gt=0)
    """After which a connection without requests is closed."""
    review_timeout: float = Field(default=_SERVING.review_timeout, gt=0)
    """For reviews whose clients do not say how long they wait; API servers do."""
    max_reviews: int = Field(default=1000, ge=1)
    """Reviews at once; more are refused at once, for the API server to try again."""
    max_calls: int = Field(default=100, ge=1)
    """Calls of one handler at once, so that one that hangs leaves the others alone."""
    executor: concurrent.futures.Executor = Field(
        default_factory=lambda: _build_pool("admission", _ADMISSION_THREADS)
    )
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

    @property
    def max_workers(self) -> int | None:
        """The size of the thread pool of sync admission handlers."""
        return getattr(self.executor, "_max_workers", None)

    @max_workers.setter
    def max_workers(self, value: int | None) -> None:
        self.executor = _build_pool("admission", value)


class ExecutionSettings(Section):
    """The calls of handlers."""

    executor: concurrent.futures.Executor = Field(default_factory=lambda: _build_pool("handlers"))
    """The threads of sync handlers, timers included."""
    default_backoff: float = 60
    commit_window: float = Field(default=0.2, ge=0)
    """Handlers of one object that finish within this time share one patch of it."""

    @property
    def max_workers(self) -> int | None:
        """The size of the thread pool of sync handlers."""
        return getattr(self.executor, "_max_workers", None)

    @max_workers.setter
    def max_workers(self, value: int | None) -> None:
        self.executor = _build_pool("handlers", value)


class BackgroundSettings(Section):
    """Daemons and timers."""

    executor: concurrent.futures.Executor = Field(
        default_factory=lambda: _build_pool("daemons", _DAEMON_THREADS)
    )
    """The threads of sync daemons, each of which keeps one as long as it runs."""
    cancellation_polling: float = 60
    instant_exit_timeout: float | None = None
    instant_exit_zero_time_cycles: int | None = 10

    @property
    def max_workers(self) -> int | None:
        """The size of the thread pool of sync daemons: how many can run at once."""
        return getattr(self.executor, "_max_workers", None)

    @max_workers.setter
    def max_workers(self, value: int | None) -> None:
        self.executor = _build_pool("daemons", value)


class NetworkingSettings(Section):
    """Requests to the API server, but for watches."""

    request_timeout: float | None = 5 * 60
    connect_timeout: float | None = None
    error_backoffs: Delays = (1, 1, 2, 3, 5, 8, 13, 21)
    """Pauses between the attempts of a request that fails; as many retries as there are items."""
    enforce_retry_after: bool = False
    trust_env: bool = False


class PersistenceSettings(Section):
    """What is kept on the objects, and where."""

    finalizer: str = "kopf.zalando.org/KopfFinalizerMarker"
    progress_storage: ProgressStorage = Field(default_factory=SmartProgressStorage)
    diffbase_storage: DiffBaseStorage = Field(default_factory=AnnotationsDiffBaseStorage)
    consistency_timeout: float | None = 5.0


class OperatorSettings(Section):
    """All settings of one operator; operators in one process do not share them (CFG-50)."""

    process: ProcessSettings = Field(default_factory=ProcessSettings)
    posting: PostingSettings = Field(default_factory=PostingSettings)
    peering: PeeringSettings = Field(default_factory=PeeringSettings)
    watching: WatchingSettings = Field(default_factory=WatchingSettings)
    batching: BatchingSettings = Field(default_factory=BatchingSettings)
    scanning: ScanningSettings = Field(default_factory=ScanningSettings)
    admission: AdmissionSettings = Field(default_factory=AdmissionSettings)
    execution: ExecutionSettings = Field(default_factory=ExecutionSettings)
    background: BackgroundSettings = Field(default_factory=BackgroundSettings)
    networking: NetworkingSettings = Field(default_factory=NetworkingSettings)
    persistence: PersistenceSettings = Field(default_factory=PersistenceSettings)

    @property
    def queueing(self) -> BatchingSettings:
        """The newer name of ``batching`` (D-23)."""
        return self.batching

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> OperatorSettings:
        """Return the defaults with what ``WEBOP_<GROUP>__<NAME>`` variables say otherwise.

        Raises:
            ConfigurationError: a variable names no setting, or its value does not fit.
        """
        settings = cls()
        for variable, text in sorted(environment.items()):
            group, separator, name = variable.removeprefix("WEBOP_").lower().partition("__")
            if variable.startswith("WEBOP_") and separator:
                _assign(settings, variable, (group, name), text)
        return settings


_IN_CODE = frozenset({"server", "executor", "progress_storage", "diffbase_storage"})
_DELAYS = frozenset({"error_delays", "error_backoffs"})


def _assign(settings: OperatorSettings, variable: str, path: tuple[str, str], text: str) -> None:
    group, name = path
    known = group in (*type(settings).model_fields, "queueing")
    section: Section | None = getattr(settings, group) if known else None
    if section is None or name not in {*type(section).model_fields, *_find_setters(type(section))}:
        raise ConfigurationError(
            f"There is no setting '{group}.{name}', which {variable} is about."
        )
    if name in _IN_CODE:
        raise ConfigurationError(
            f"{variable}: {group}.{name} can be set only in code, such as in a startup handler."
        )
    try:
        setattr(section, name, _parse(type(section), name, text))
    except ValueError as exc:
        why = exc.errors()[0]["msg"] if isinstance(exc, pydantic.ValidationError) else str(exc)
        raise ConfigurationError(f"{variable}={text!r} does not fit: {why.rstrip('.')}.") from exc


def _parse(section: type[Section], name: str, text: str) -> Any:
    """Return the value for a setting; what is left to parse is up to the setting's own check."""
    if name in _DELAYS:
        words = [] if text.lower() == "none" else text.split(",")
        return tuple(float(word) for word in words if word.strip())
    value = None if text.lower() in ("", "none") else text
    setter = _find_setters(section).get(name)
    if setter is None:
        return value
    return pydantic.TypeAdapter(get_type_hints(setter.fget)["return"]).validate_python(value)


def _find_setters(section: type[Section]) -> dict[str, property]:
    """Return the settings that are made of others: ``namespaced``, ``max_workers``."""
    return {name: item for name, item in vars(section).items() if isinstance(item, property)}
