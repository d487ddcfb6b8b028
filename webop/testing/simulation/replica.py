"""A replica of an operator: webop itself, with its handlers, as a process of a simulated world.

It has its own connections, and can be killed and stopped. Killed, it never runs a step again.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import webop
from webop.calls.progress import fetch_states
from webop.client.auth.vault import ConnectionInfo, Vault
from webop.handlers.model import Activity
from webop.objects.body import Body
from webop.reactor.entry import Entry, State
from webop.reactor.observer import Scope
from webop.reactor.resource_context import ResourceContext
from webop.runtime.operator import Operator, OperatorOptions
from webop.servers.base import WebhookClientConfig, WebhookFn
from webop.testing.simulation.network import SimulatedTransport
from webop.testing.simulation.virtual_loop import Process, current_process

if TYPE_CHECKING:
    from webop.settings.groups import OperatorSettings
    from webop.testing.simulation.world import World

SERVICE = "simulated-operator"
_LIFETIME = 30 * 86400.0  # seconds; else its renewals would take most of the time of long runs
_NAME = "simulated.webop.dev"  # of the webhook configurations and of the Lease


class Replica(Process):
    """One incarnation of a replica.

    Attributes:
        number: of the replica; the next incarnation has the same.
        identity: of this incarnation.
        review: answers reviews; None while no server listens.
        started_at: by the loop's clock.
        context: that of its calls.
        lost: done when it is killed, or has ended.
        is_dead: whether it was killed.
        task: the whole operator.
    """

    def __init__(self, world: World, number: int, serial: int) -> None:
        super().__init__()
        self.number = number
        self.identity = f"replica-{number}-{serial}"
        self.review: WebhookFn | None = None
        self.is_dead = False
        self.started_at = world.loop.time()
        self.lost: asyncio.Future[None] = world.loop.create_future()
        self._world = world
        self.context = contextvars.copy_context()
        self.context.run(current_process.set, self)
        self.operator: Operator = self.context.run(self._build)
        self.task = world.loop.create_task(
            self.operator.run(), name=self.identity, context=self.context
        )

    def __str__(self) -> str:
        return self.identity

    @property
    def is_running(self) -> bool:
        """Whether it has neither ended nor been killed."""
        return not self.is_dead and not self.task.done()

    @property
    def is_ready(self) -> bool:
        """Whether it has begun to work."""
        return self.is_running and not self.operator.list_obstacles()

    @property
    def is_active(self) -> bool:
        """Whether it handles objects, and does not stand by."""
        return self.operator.context.pausing.is_active

    def list_busy(self) -> list[str]:
        """Return the objects that it works on, or will try again, as texts."""
        observer = self.operator.observer
        return [
            _describe(stream.ctx.resource.plural_name, obj)
            for stream in (observer.streams if observer else ())
            if not stream.is_paused
            for obj in stream.objects.values()
            if _is_busy(stream.ctx, obj)
        ]

    async def serve(self, fn: WebhookFn) -> AsyncGenerator[WebhookClientConfig, None]:
        """Serve webhooks (the protocol of ``settings.admission.server``)."""
        self.review, self.context = fn, contextvars.copy_context()
        try:
            yield {"service": {"namespace": "default", "name": SERVICE}, "caBundle": ""}
            await asyncio.Event().wait()
        finally:
            self.review = None

    async def retire(self) -> None:
        """End as after SIGTERM."""
        try:
            await self.operator.retire()
        finally:
            self.task.cancel()

    def _build(self) -> Operator:
        world = self._world
        registry, modules = world.sources.load()
        world.clocks.adopt(modules)
        for handler in registry.select_activities(Activity.AUTHENTICATION):
            registry.remove(handler)
        webop.on.login(registry=registry, id="simulation")(_log_in)
        webop.on.startup(registry=registry, id="simulation")(self._prepare)
        settings = webop.OperatorSettings()
        self._use_threads(settings)
        # A single one is a container that starts again in its pod, and takes its record over.
        identity = "replica" if world.replica_count == 1 else self.identity
        return Operator(
            OperatorOptions(
                registry=registry,
                settings=settings,
                vault=Vault({"simulation": _log_in()}),
                scope=Scope(clusterwide=True),
                identity=identity,
                transport_factory=lambda _: SimulatedTransport(world.network, self),
            )
        )

    def _use_threads(self, settings: OperatorSettings) -> None:
        for pool in (settings.execution, settings.background, settings.admission):
            pool.executor = self._world.threads

    def _prepare(self, settings: OperatorSettings, **_: Any) -> None:
        """Change what the startup handlers have set as far as it is about the world outside."""
        settings.process.blocked_loop_threshold = None
        settings.watching.inactivity_timeout = None  # no watch falls silent, nor has bookmarks
        self._use_threads(settings)
        settings.admission.server = self.serve
        settings.admission.managed = settings.admission.managed or _NAME
        settings.admission.replica_lifetime = _LIFETIME
        settings.peering.standalone = True
        is_alone = self._world.replica_count == 1
        if is_alone:
            settings.leadership.lease_name, settings.leadership.sharded = None, False
        elif not settings.leadership.lease_name:
            settings.leadership.lease_name = "simulated"
            settings.leadership.lease_namespace = "default"


def _log_in(**_: Any) -> ConnectionInfo:
    return ConnectionInfo(server="https://simulated")


def _is_busy(ctx: ResourceContext, obj: Entry) -> bool:
    is_failing = bool(obj.status and obj.status.failures)
    is_failing = is_failing or any(known.failures for known in obj.reconcilers.values())
    if is_failing or obj.state in {State.WAITING, State.RUNNING}:
        return True
    if obj.state is not State.RESTING or not (raw := ctx.workers.bodies.load(obj)):
        return False
    storage = ctx.operator.settings.persistence.progress_storage  # of a process before, too
    states = fetch_states(ctx.handlers.changes, body=Body(raw), storage=storage)
    return any(not state.is_finished for state in states.values())


def _describe(kind: str, obj: Entry) -> str:
    failures = obj.status.failures if obj.status else {}
    texts = [f"{key} has failed {count} times: {error}" for key, (count, error) in failures.items()]
    failing = {key: known.failures for key, known in obj.reconcilers.items() if known.failures}
    texts += [f"{key} has failed {count} times" for key, count in failing.items()]
    place = f"{obj.namespace}/{obj.name}" if obj.namespace else obj.name
    return f"{kind} {place}: {'; '.join(texts) or obj.state.value}"
