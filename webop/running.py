"""One operator from its startup handlers to its cleanup handlers: the task group in between.

Flow of :meth:`Operator.run`: startup → serving of webhooks, logins, watches, posting → cleanup.
Webhooks are in :mod:`webop.admission.host`, watches in :mod:`webop.reactor.observer`.
The ways to start it are :mod:`webop.app` (uvicorn), :mod:`webop.embedding` (code) and
:mod:`webop.cli` (command line).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from webop.admission.access import ClientAccess
from webop.admission.host import WebhookHost
from webop.admission.managed.management import ConfigurationManager
from webop.client.api import Client
from webop.client.credentials import Vault
from webop.client.kubeconfig import get_default_logins
from webop.errors import ActivityError, LoginError
from webop.handling.activities import run_activity
from webop.handling.context import OperatorContext
from webop.handling.handlers import Activity, ActivityHandler, ErrorsMode
from webop.handling.indexes import Indexes
from webop.handling.registry import OperatorRegistry, get_default_registry
from webop.handling.stores import Memo, Memos
from webop.lifecycles import LifeCycleFn, get_default_lifecycle
from webop.posting import Poster, current_poster
from webop.reactor.observer import Observer, Scope
from webop.settings import OperatorSettings

logger = logging.getLogger(__name__)

_PROBES_VALIDITY = 10.0  # seconds; health endpoints are asked far more often than needed
_LOGIN_PAUSE = 5.0  # seconds; between attempts where the operator lives without a cluster too


@dataclass(frozen=True, kw_only=True)
class OperatorOptions:
    """How an operator is to be run.

    Attributes:
        registry: the handlers; by default those of the default registry.
        settings: the settings; by default those of the environment.
        memo: the operator's memo.
        lifecycle: the order of handlers.
        vault: credentials from outside.
        scope: which namespaces are served.
        identity: the name of this process in peering.
        is_hosted: whether an ASGI server runs the app: then webhooks are served by it, and the
            operator lives on if there is no cluster.
        services: what else is to be served while the operator runs, such as its health.
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


class Operator:
    """An operator: what it is made of, what it does, how it is doing.

    Args:
        options: how it is to be run.
        on_ready: called when the startup is done.
    """

    def __init__(
        self, options: OperatorOptions, *, on_ready: Callable[[], None] | None = None
    ) -> None:
        self.options = options
        self._on_ready = on_ready
        registry = get_default_registry() if options.registry is None else options.registry
        settings = options.settings or OperatorSettings.from_environment()
        self.context = OperatorContext(
            settings=settings,
            registry=registry,
            memos=Memos(Memo() if options.memo is None else options.memo),
            lifecycle=options.lifecycle or get_default_lifecycle(),
            identity=options.identity or detect_identity(),
            poster=Poster(settings),
            indices=Indexes(registry.select_indexers()),
        )
        self.webhooks = WebhookHost(self.context, is_hosted=options.is_hosted)
        self.is_started = False
        self.observer: Observer | None = None
        self.problem = ""
        self._wanted = asyncio.Event()  # the cluster is needed, by us or by the webhook server
        self._logged_in = asyncio.Event()
        self._probed: tuple[float, dict[str, Any]] | None = None
        self._probing = asyncio.Lock()

    async def run(self) -> None:
        """Run until cancelled, or until something that cannot be gone on without has failed.

        Raises:
            ActivityError: a startup or a cleanup handler has failed for good.
            LoginError: there are no credentials (unless hosted).
            ConfigurationError: the settings do not fit the handlers.
        """
        current_poster.set(self.context.poster)
        await run_activity(self.context, Activity.STARTUP)
        try:
            self.webhooks.begin()
            self.context.insights.is_awaited = self.needs_cluster
            self.is_started = True
            if self._on_ready is not None:
                self._on_ready()
            await self._serve()
        except BaseExceptionGroup as group:
            failure = _unwrap(group)
            self.problem = f"the operator has ended: {failure}"
            raise failure from None
        finally:
            self.is_started = False
            await run_activity(self.context, Activity.CLEANUP)

    async def probe(self) -> dict[str, Any]:
        """Return the results of the probe handlers, not older than ten seconds (PRB-05).

        Raises:
            ActivityError: one of them has failed.
        """
        async with self._probing:
            if self._probed is None or time.monotonic() - self._probed[0] > _PROBES_VALIDITY:
                results = await run_activity(self.context, Activity.PROBE)
                self._probed = (time.monotonic(), results)
        return self._probed[1]

    def list_obstacles(self) -> list[str]:
        """Return what keeps the operator from being ready, in words; nothing if it is."""
        obstacles = [self.problem] if self.problem else []
        if not self.is_started and not self.problem:
            obstacles.append("the startup is not finished")
        if self.observer is None:
            if self.is_started and self.needs_cluster and not self.problem:
                obstacles.append("the operator is not logged in to the cluster yet")
        else:
            if not self.observer.scanned.is_set():
                obstacles.append("the resources of the cluster are not discovered yet")
            unindexed = self.observer.list_unindexed()
            if unindexed:
                obstacles.append(f"the indexes are not filled yet: {', '.join(unindexed)}")
            obstacles += [
                f"the watch of {resource.name} is not up: {status.error or 'listing'}"
                for (resource, _), status in self.observer.statuses.items()
                if not status.version
            ]
        return obstacles + self.webhooks.list_obstacles()

    @property
    def needs_cluster(self) -> bool:
        """Whether there is anything to do for which an API server is needed."""
        has_handlers = bool(self.context.registry.select_resource_handlers())
        return has_handlers or self.webhooks.is_managing

    async def _serve(self) -> None:
        vault = self.options.vault or Vault()
        networking = self.context.settings.networking
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(Client(vault, networking))
            for service in self.options.services:
                await stack.enter_async_context(service(self))
            managing = self.webhooks.is_managing
            manager = ConfigurationManager(self.context, client) if managing else None
            self.webhooks.connect(ClientAccess(client, on_use=self._wanted.set), manager)
            async with asyncio.TaskGroup() as group:
                if self.webhooks.has_server:
                    group.create_task(self.webhooks.run(), name="webhook server")
                group.create_task(self._keep_logged_in(vault), name="login")
                if self.needs_cluster:
                    self._wanted.set()
                    group.create_task(self._keep_working(client), name="work with the cluster")
                try:
                    await asyncio.Event().wait()
                finally:
                    await self.webhooks.withdraw()  # while the server still answers

    async def _keep_working(self, client: Client) -> None:
        """Do all that needs the API server; if hosted, whenever there are credentials for it."""
        while True:
            await self._logged_in.wait()
            try:
                async with asyncio.TaskGroup() as group:
                    self.observer = Observer(self.context, client, self.options.scope, group)
                    group.create_task(self.observer.run(), name="observer")
                    group.create_task(self.context.poster.run(client), name="poster of events")
                    if (manager := self.webhooks.manager) is not None:
                        group.create_task(manager.run(), name="webhook configurations")
            except* LoginError:
                if not self.options.is_hosted:
                    raise
                self.observer = None

    async def _keep_logged_in(self, vault: Vault) -> None:
        """Run the login handlers whenever there are no credentials, and need of them."""
        await self._wanted.wait()
        insights = self.context.insights
        while True:
            insights.is_awaited = self.needs_cluster and not insights.is_known
            if not vault.is_empty():
                self._logged_in.set()
                await vault.wait_for_emptiness()
            try:
                await self._collect_credentials(vault)
                self.problem = ""
            except (LoginError, ActivityError) as exc:
                if not self.options.is_hosted:
                    raise
                self._logged_in.clear()
                insights.is_awaited = False
                if self.problem != str(exc):
                    self.problem = str(exc)
                    logger.warning("%s Only admission and probes are served until then.", exc)
                await asyncio.sleep(_LOGIN_PAUSE)

    async def _collect_credentials(self, vault: Vault) -> None:
        registry = self.context.registry
        if not registry.select_activities(Activity.AUTHENTICATION):
            for fn in get_default_logins():
                registry.append(_build_fallback(fn))
        results = await run_activity(self.context, Activity.AUTHENTICATION)
        await vault.populate({key: info for key, info in results.items() if info is not None})
        if vault.is_empty():
            raise LoginError(_NO_CREDENTIALS.format(os.environ.get("KUBECONFIG", "not set")))


_NO_CREDENTIALS = (
    "There are no credentials for the API server: no kubeconfig (KUBECONFIG, which is "
    "{}, or ~/.kube/config) "
    "and no service account of a pod. Provide one of them, or a @webop.on.login() handler."
)


def detect_identity() -> str:
    """Return a name for this process that no other one has (PEE-18)."""
    pod = os.environ.get("POD_ID")
    if pod:
        return pod
    user = os.environ.get("USER") or "webop"
    return f"{user}@{socket.gethostname()}/{int(time.time())}/{secrets.token_hex(3)}"


def _build_fallback(fn: Callable[..., Any]) -> ActivityHandler:
    return ActivityHandler(
        id=fn.__name__,
        fn=fn,
        activity=Activity.AUTHENTICATION,
        errors=ErrorsMode.IGNORED,
        is_fallback=True,
    )


def _unwrap(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first of the errors that have ended a task group; groups tell users nothing."""
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
