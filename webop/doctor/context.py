"""What every check needs: the client, whom it is for, the settings as the operator sets them."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from logging.handlers import BufferingHandler
from typing import Any

from webop.client.api import Client
from webop.client.credentials import Vault
from webop.coordination.peers import build_kinds
from webop.dedicated_threads import DedicatedThreads
from webop.doctor.findings import Finding, approve, warn
from webop.errors import ActivityError, APIForbiddenError, APINotFoundError
from webop.handling.activities import run_activity
from webop.handling.checks import names_argument
from webop.handling.handlers import Activity, BackgroundHandler, ChangeHandler, EventHandler
from webop.handling.registry import OperatorRegistry
from webop.objects.resources import Resource
from webop.reactor.observer import Scope
from webop.running import Operator, OperatorOptions
from webop.servers.service import WebhookServiceServer
from webop.settings import OperatorSettings

Json = dict[str, Any]

_POD_VARIABLE = "KUBERNETES_SERVICE_HOST"  # by which programs recognise that they run in a pod
_REMEDY = "Say what they set by --managed, --lease, --peering, or variables: WEBOP_<GROUP>__<NAME>."


@dataclass(kw_only=True)
class Context:
    """One examination: what users ask for; and the cluster, as soon as it is known."""

    settings: OperatorSettings
    managed: str | None  # the name of the webhook configurations that there must be
    account: str | None  # whose permissions are checked; by default, one's own
    namespaces: tuple[str, ...]  # where the operator works; empty for everywhere
    registry: OperatorRegistry  # the handlers; empty if they are not known
    is_probing: bool
    calls_startup: bool
    startup_timeout: float
    client: Client = field(init=False)
    resources: Collection[Resource] = ()
    now: dt.datetime = field(init=False)
    username: str | None = None
    names: Sequence[str] = ()  # of the webhook configurations
    replicas: set[str] = field(default_factory=set)  # those that are alive, by their records

    @property
    def home(self) -> str:
        """The namespace of the service account; empty for other accounts."""
        account = self.account or ""
        return account.split(":")[2] if account.startswith("system:serviceaccount:") else ""

    @property
    def namespace(self) -> str:
        """Where the operator is, as far as it is known."""
        return self.home or self.client.vault.default_namespace or "default"

    @property
    def peerings(self) -> list[Resource]:
        """The peering kinds that the cluster has for such an operator."""
        kinds = build_kinds(clusterwide=not self.namespaces)
        return [kind for kind in self.resources if kind in kinds]

    @property
    def handled(self) -> dict[Resource, bool]:
        """The resources that there are handlers for, and whether these change objects."""
        found: dict[Resource, bool] = {}
        for handler in self.registry.select_resource_handlers():
            is_writing = isinstance(handler, ChangeHandler | BackgroundHandler) or (
                isinstance(handler, EventHandler) and names_argument(handler.fn, "patch")
            )
            for one in handler.selector.select(self.resources) if handler.selector else ():
                found[one] = found.get(one, False) or is_writing
        return found

    async def read(self, path: str, **params: str) -> Json:
        """Read an object or a list; nothing if there is none."""
        with contextlib.suppress(APINotFoundError):
            return dict(await self.client.request("GET", path, params=params))
        return {}

    def name_secret(self, service: str) -> str:
        """Return the name of the Secret with the certificate of a Service."""
        server = self.settings.admission.server
        named = server.secret if isinstance(server, WebhookServiceServer) else None
        return named or f"{service}-webhook-certs"

    @property
    def service_server(self) -> WebhookServiceServer | None:
        """The server of the webhooks, if they are behind a Service."""
        server = self.settings.admission.server if self.registry.select_webhooks() else None
        return server if isinstance(server, WebhookServiceServer) else None

    @property
    def secret(self) -> tuple[str, str] | None:
        """The namespace and the name of the Secret with the certificate, if there is to be one."""
        server = self.service_server
        if server is None or server.certfile:
            return None
        # In manifests that are made by the command, it has the name of the account.
        named = server.service or os.environ.get("WEBOP_SERVICE")
        service = named or (self.account or "").rpartition(":")[2]
        return server.namespace or self.namespace, self.name_secret(service)

    async def read_secret(self, namespace: str, name: str) -> Json:
        """Return what can be read of a Secret."""
        with contextlib.suppress(APIForbiddenError):
            return await self.read(f"/api/v1/namespaces/{namespace}/secrets/{name}")
        return {}


async def call_startup(visit: Context, host: str) -> list[Finding]:
    """Call the startup handlers, which change the settings, and then the cleanup handlers.

    They run in a thread with an event loop of its own, which nobody waits for: whatever they do,
    the command ends. For a service account, they find the host of the API server where they do in
    a pod.
    """
    registry, settings, limit = visit.registry, visit.settings, visit.startup_timeout
    if not registry.select_activities(Activity.STARTUP):
        return []
    if not visit.calls_startup:
        return [warn("startup", "the startup handlers are not called (--no-startup)", _REMEDY)]
    scope = Scope(not visit.namespaces, visit.namespaces)
    vault = Vault()
    await vault.populate({}, reason="webop doctor connects no client for startup handlers.")
    options = OperatorOptions(registry=registry, settings=settings, scope=scope, vault=vault)
    operator = Operator(options).context
    settings.execution.executor = threads = DedicatedThreads("webop-startup")
    logger, log = logging.getLogger("webop.activities.startup"), BufferingHandler(sys.maxsize)
    log.setLevel(logging.WARNING)
    done = list[Finding]()

    async def call() -> None:
        async with asyncio.timeout(limit):
            await run_activity(operator, Activity.STARTUP)
            done.append(approve("startup", "the settings are those of the startup handlers"))
            with contextlib.suppress(ActivityError):
                await run_activity(operator, Activity.CLEANUP)

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        logger.addHandler(log)
        stack.callback(logger.removeHandler, log)
        if visit.home and _POD_VARIABLE not in os.environ:
            os.environ[_POD_VARIABLE] = host
            stack.callback(os.environ.pop, _POD_VARIABLE)
        ended = asyncio.wrap_future(threads.submit(asyncio.run, call()))
        ended.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({ended}, timeout=limit + 0.1)
    why = f"they have not ended in {limit:g} s"
    if log.buffer:
        why += f"; the last error: {log.buffer[-1].getMessage()}"
    if ended.done() and not isinstance(exc := ended.exception(), TimeoutError):
        why = str(exc) or type(exc).__name__
    return done or [warn("startup", f"the startup handlers do not work here: {why}", _REMEDY)]
