"""One operator, from its startup handlers to its cleanup handlers.

Flow of :meth:`Operator.run`: startup → webhooks, logins, watches, Events, concurrently → cleanup.
It is started by :mod:`webop.app` (uvicorn) and :mod:`webop.embedding` (code, command line).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypedDict

from webop.admission.cluster_access import ClientAccess
from webop.admission.webhook_server import WebhookHost
from webop.calls.blocked_loop import measure_lag, watching_loop
from webop.client.api import Client
from webop.client.auth.vault import Vault
from webop.client.http.sessions import build_transport
from webop.client.http.transport import TransportFactory
from webop.client.objects import AsyncClient
from webop.context.indexes import Indexes
from webop.context.memos import Memo, Memos
from webop.context.operator_context import OperatorContext
from webop.coordination.coordinator import Coordinator
from webop.errors import ActivityError, WebopError
from webop.events.loggers import Poster, current_poster
from webop.handlers.model import Activity
from webop.handlers.registry import OperatorRegistry, get_default_registry
from webop.handlers.validation import check_registry
from webop.identities import detect_process_identity
from webop.lifecycles import LifeCycleFn, get_default_lifecycle
from webop.logs import restore_loggers
from webop.objects.namespace_patterns import is_exact
from webop.reactor.observer import Observer, Scope
from webop.runtime.activity_handlers import run_activity
from webop.runtime.authentication import Authenticator
from webop.settings.groups import OperatorSettings
from webop.telemetry.counters import Timings
from webop.telemetry.tracing import set_up_tracing

logger = logging.getLogger(__name__)

_PROBES_VALIDITY = 10.0  # seconds; results are cached, as health endpoints are called often
_PROBES_TIMEOUT = 10.0  # seconds; so that a probe that hangs does not block the next ones


class OperatorArguments(TypedDict, total=False):
    """The options of operators that every way to run them from code has."""

    lifecycle: LifeCycleFn | None
    """The order of handlers; by default that of ``webop.set_default_lifecycle()``"""
    registry: OperatorRegistry | None
    """The handlers; by default ``webop.get_default_registry()``"""
    settings: OperatorSettings | None
    """The settings that startup handlers get; by default those of the environment"""
    identity: str | None
    """The name under which other operators see this one; by default generated"""
    vault: Vault | None
    """Credentials; by default filled by login handlers"""
    memo: Any
    """The operator's memo"""


@dataclass(frozen=True, kw_only=True)
class OperatorOptions:
    """The options of an operator: those of :class:`OperatorArguments`, and how it runs.

    Attributes:
        scope: the namespaces that the operator serves.
        is_hosted: whether an ASGI server runs the app: it then serves the webhooks, and the
            operator keeps running without a cluster.
        services: context managers around the operator's run, such as its health endpoints.
        transport_factory: makes the connections to the API server, as in :class:`Client`.
    """

    registry: OperatorRegistry | None = None
    settings: OperatorSettings | None = None
    memo: Any = None
    lifecycle: LifeCycleFn | None = None
    vault: Vault | None = None
    scope: Scope = field(default_factory=lambda: Scope(clusterwide=True))
    identity: str | None = None
    is_hosted: bool = False
    services: Collection[Callable[[Operator], AbstractAsyncContextManager[Any]]] = ()
    transport_factory: TransportFactory = build_transport


class Operator:
    """An operator: its parts, its run, its state.

    Raises:
        ConfigurationError: the declaration of a handler is invalid.
    """

    def __init__(
        self, options: OperatorOptions, *, on_ready: Callable[[], None] | None = None
    ) -> None:
        self.options = options
        self._on_ready = on_ready
        registry = get_default_registry() if options.registry is None else options.registry
        for warning in check_registry(registry):
            logger.warning(warning)
        settings = options.settings or OperatorSettings.from_environment()
        settings.peering.clusterwide = options.scope.clusterwide
        vault, transport = options.vault or Vault(), options.transport_factory
        self.client = Client(vault, settings.networking, transport_factory=transport)
        self.context = OperatorContext(
            settings=settings,
            registry=registry,
            memos=Memos(Memo() if options.memo is None else options.memo),
            lifecycle=options.lifecycle or get_default_lifecycle(),
            identity=options.identity or detect_process_identity(),
            poster=Poster(settings),
            client=AsyncClient(
                self.client,
                get_manager=lambda: settings.field_manager,
                on_use=lambda: self.login.wanted.set(),  # noqa: PLW0108 - created below
                watching=settings.watching,
            ),
            indices=Indexes(registry.select_indexers()),
        )
        self.webhooks = WebhookHost(self.context, is_hosted=options.is_hosted)
        self.coordinator = Coordinator(self.context, _find_only_namespace(options.scope))
        self.login = Authenticator(self.context, vault, keeps_trying=options.is_hosted)
        self.is_started = False
        self.observer: Observer | None = None
        self.loop_lag = Timings()
        self.problem = ""
        self._caller: asyncio.Task[Any] | None = None
        self._probed: tuple[float, dict[str, Any]] | None = None
        self._probing = asyncio.Lock()

    async def run(self) -> None:
        """Run until cancelled, or until an essential part fails.

        Raises:
            ActivityError: a startup or a cleanup handler failed for good.
            LoginError: there are no credentials (unless hosted).
            ConfigurationError: the settings contradict the handlers.
        """
        # A failure cancels only the task of the parts. So the task of the caller is cancelled if,
        # and only if, somebody has asked for the stop.
        self._caller = asyncio.current_task()
        await asyncio.create_task(self._run_parts(), name="parts of the operator")

    async def _run_parts(self) -> None:
        current_poster.set(self.context.poster)
        try:
            with watching_loop(self.context.settings.process):
                async with self.client, asyncio.TaskGroup() as group:
                    keeping = self.login.run(needs_cluster=lambda: self.needs_cluster)
                    group.create_task(keeping, name="login")
                    await self._run_phases()
        except BaseExceptionGroup as failures:
            failure: BaseException = failures
            while isinstance(failure, BaseExceptionGroup):  # one error is clearer than the group
                failure = failure.exceptions[0]
            kind = failure.kind if isinstance(failure, WebopError) else type(failure).__name__
            self.problem = f"the operator has ended: {kind}"
            raise failure from None

    async def _run_phases(self) -> None:
        # The operator's modules or its startup handlers may have configured logging and tracing.
        restore_loggers()
        set_up_tracing()
        await run_activity(self.context, Activity.STARTUP)
        restore_loggers()
        set_up_tracing()
        self.client.options = self.context.settings.networking
        try:
            self.webhooks.begin()
            if self.watches_objects:
                self.coordinator.begin()
            self.context.cluster_view.is_awaited = self.needs_cluster
            self.is_started = True
            if self._on_ready is not None:
                self._on_ready()
            if not self.watches_objects:
                webhooks = self.webhooks.describe()
                logger.info("The operator is running: %s, no watched kinds.", webhooks)
            await self._serve()
        finally:
            self.is_started = False
            await run_activity(self.context, Activity.CLEANUP)

    async def probe(self) -> dict[str, Any]:
        """Return the results of the probe handlers, at most ten seconds old.

        Raises:
            ActivityError: a handler failed, or they took too long.
        """
        async with self._probing:
            if self._probed is None or time.monotonic() - self._probed[0] > _PROBES_VALIDITY:
                try:
                    async with asyncio.timeout(_PROBES_TIMEOUT):
                        results = await run_activity(self.context, Activity.PROBE)
                except TimeoutError:
                    what = f"The probe has failed: no result within {_PROBES_TIMEOUT:g} s"
                    raise ActivityError(what, kind=what) from None
                report = {key: result for key, result in results.items() if result is not None}
                self._probed = (time.monotonic(), report)
        return self._probed[1]

    def list_obstacles(self) -> list[str]:
        """Return why the operator is not ready, as texts; nothing if it is ready."""
        return self._list_own_obstacles() + self.webhooks.list_obstacles()

    def _list_own_obstacles(self) -> list[str]:
        problems = self.problem, self.login.problem, *self.coordinator.list_obstacles()
        obstacles = [problem for problem in problems if problem]
        if not self.is_started and not obstacles:
            obstacles.append("the startup is not finished")
        if self.observer is None:
            if self.is_started and self.needs_cluster and not obstacles:
                obstacles.append("the operator is not logged in to the cluster yet")
        else:
            if not self.context.cluster_view.is_known:
                obstacles.append("the resources of the cluster are not discovered yet")
            unindexed = self.observer.list_unindexed()
            if unindexed:
                obstacles.append(f"the indexes are not filled yet: {', '.join(unindexed)}")
            obstacles += self.observer.list_troubles()
        return obstacles

    def list_absent(self) -> list[str]:
        """Return which kinds of handlers the cluster does not have; they do not end readiness."""
        return [] if self.observer is None else self.observer.list_absent()

    @property
    def needs_cluster(self) -> bool:
        """Whether the operator needs an API server."""
        return self.watches_objects or self.webhooks.is_managing

    @property
    def watches_objects(self) -> bool:
        """Whether there are handlers for objects."""
        return bool(self.context.registry.select_resource_handlers())

    def describe_role(self) -> str:
        """Return the role of this replica and its reason as text; empty without object handlers."""
        if not self.watches_objects:
            return ""
        why = "; ".join(self.context.pausing.pause_reasons)
        role = self.coordinator.describe() or ("standing by" if why else "acting")
        return f"{role}: {why}" if why else role

    async def retire(self) -> None:
        """Hand over to other replicas: the objects at once, the webhooks after their delay."""
        self.context.pausing.stop()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.coordinator.resign(), name="release of the lease")
            group.create_task(self.webhooks.retire(), name="shutdown of webhooks")

    async def _serve(self) -> None:
        client = self.client
        async with AsyncExitStack() as stack:
            for service in self.options.services:
                await stack.enter_async_context(service(self))
            manager = None
            if self.webhooks.is_managing:
                from webop.admission.configurations.management import (  # noqa: PLC0415 - few need it
                    ConfigurationManager,
                )

                manager = ConfigurationManager(
                    self.context, client, lambda: not self._list_own_obstacles()
                )
            self.webhooks.connect(ClientAccess(client, on_use=self.login.wanted.set), manager)
            async with asyncio.TaskGroup() as group:
                if self.webhooks.has_server:
                    group.create_task(self.webhooks.run(), name="webhook server")
                group.create_task(measure_lag(self.loop_lag), name="lag of the event loop")
                if self.needs_cluster:
                    self.login.wanted.set()
                    group.create_task(self._run_cluster_tasks(client), name="work with the cluster")
                try:
                    await asyncio.Event().wait()
                finally:
                    self.context.pausing.stop()
                    # While the server still runs.
                    is_asked = self._caller is not None and self._caller.cancelling() > 0
                    await self.webhooks.withdraw(is_asked=is_asked)

    async def _run_cluster_tasks(self, client: Client) -> None:
        """Run all parts that need the API server, from the first login on.

        Without credentials, their requests fail; they send them again.
        """
        await self.login.logged_in.wait()
        async with asyncio.TaskGroup() as group:
            self.observer = Observer(self.context, client, self.options.scope, group)
            group.create_task(self.observer.run(), name="observer")
            group.create_task(self.context.poster.run(client), name="posting of Events")
            if self.watches_objects:
                group.create_task(self.coordinator.run(client), name="coordination")
            if (manager := self.webhooks.manager) is not None:
                group.create_task(manager.run(), name="webhook configurations")


def _find_only_namespace(scope: Scope) -> str | None:
    """Return the served namespace, if the scope is exactly one name."""
    patterns = () if scope.clusterwide else scope.patterns
    names = list(filter(is_exact, patterns))
    return names[0] if len(patterns) == len(names) == 1 else None
