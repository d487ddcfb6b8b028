"""The context of all checks: the client, the options, the settings after the startup handlers."""

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

from webop.aio.dedicated_threads import DedicatedThreads
from webop.cli.doctor.findings import Finding, approve, warn
from webop.client.api import Client
from webop.client.auth.vault import Vault
from webop.coordination.peers import build_kinds
from webop.errors import ActivityError, APIForbiddenError, APINotFoundError
from webop.handlers.model import Activity, BackgroundHandler, ChangeHandler, EventHandler
from webop.handlers.registry import OperatorRegistry
from webop.handlers.validation import names_argument
from webop.identities import is_in_pod
from webop.objects.resources import Resource
from webop.reactor.observer import Scope
from webop.runtime.activity_handlers import run_activity
from webop.runtime.operator import Operator, OperatorOptions
from webop.servers.service import WebhookServiceServer
from webop.settings import OperatorSettings

Json = dict[str, Any]

_POD_VARIABLE = "KUBERNETES_SERVICE_HOST"  # set in all pods
_REMEDY = "Pass what they set: --managed, --lease, --peering, or variables WEBOP_<GROUP>__<NAME>."


@dataclass(kw_only=True)
class Context:
    """The state of one diagnosis: the options of the user, and what is known of the cluster."""

    settings: OperatorSettings
    managed: str | None = None  # the name of the webhook configurations that must exist
    account: str | None = None  # the account whose permissions are checked; None for the user's own
    namespaces: tuple[str, ...]  # where the operator works; empty for the whole cluster
    registry: OperatorRegistry  # the handlers; empty if unknown
    is_probing: bool = True
    calls_startup: bool = True
    startup_timeout: float = 10.0
    client: Client = field(init=False)
    resources: Collection[Resource] = ()
    now: dt.datetime = field(init=False)
    username: str | None = None
    names: Sequence[str] = ()  # of the webhook configurations
    replicas: set[str] = field(default_factory=set)  # live ones, by their records

    @property
    def home(self) -> str:
        """The namespace of the service account; "" for other accounts."""
        account = self.account or ""
        return account.split(":")[2] if account.startswith("system:serviceaccount:") else ""

    @property
    def namespace(self) -> str:
        """The namespace of the operator itself, as far as it is known."""
        return self.home or self.client.vault.default_namespace or "default"

    @property
    def peerings(self) -> list[Resource]:
        """The peering kinds in the cluster that this operator would use."""
        kinds = build_kinds(clusterwide=not self.namespaces)
        return [kind for kind in self.resources if kind in kinds]

    @property
    def handled(self) -> dict[Resource, bool]:
        """The resources that have handlers, and whether the handlers change objects."""
        found: dict[Resource, bool] = {}
        for handler in self.registry.select_resource_handlers():
            is_writing = isinstance(handler, ChangeHandler | BackgroundHandler) or (
                isinstance(handler, EventHandler) and names_argument(handler.fn, "patch")
            )
            for one in handler.selector.select(self.resources) if handler.selector else ():
                found[one] = found.get(one, False) or is_writing
        return found

    async def read(self, path: str, **params: str) -> Json:
        """Return an object or a list; {} if it does not exist."""
        with contextlib.suppress(APINotFoundError):
            return dict(await self.client.request("GET", path, params=params))
        return {}

    def name_secret(self, service: str) -> str:
        """Return the name of the Secret that holds the certificate of a Service."""
        server = self.settings.admission.server
        named = server.secret if isinstance(server, WebhookServiceServer) else None
        return named or f"{service}-webhook-certs"

    @property
    def service_server(self) -> WebhookServiceServer | None:
        """The webhook server, if it is behind a Service."""
        server = self.settings.admission.server if self.registry.select_webhooks() else None
        return server if isinstance(server, WebhookServiceServer) else None

    @property
    def secret(self) -> tuple[str, str] | None:
        """The namespace and the name of the Secret with the certificate; None without a Secret."""
        server = self.service_server
        if server is None or server.certfile:
            return None
        # 'webop manifests' gives the Service the name of the account.
        named = server.service or os.environ.get("WEBOP_SERVICE")
        service = named or (self.account or "").rpartition(":")[2]
        return server.namespace or self.namespace, self.name_secret(service)

    async def read_secret(self, namespace: str, name: str) -> Json:
        """Return a Secret; {} if it does not exist or must not be read."""
        with contextlib.suppress(APIForbiddenError):
            return await self.read(f"/api/v1/namespaces/{namespace}/secrets/{name}")
        return {}


async def call_startup(context: Context, host: str) -> list[Finding]:
    """Call the startup handlers, which can change settings, and then the cleanup handlers.

    They run in a thread with its own event loop. The command does not wait for it longer than
    the timeout, so handlers that hang cannot block it. If a service account is checked, the
    handlers find the host of the API server in the variable that pods have.
    """
    registry, settings, limit = context.registry, context.settings, context.startup_timeout
    if not registry.select_activities(Activity.STARTUP):
        return []
    if not context.calls_startup:
        text = "the startup handlers were not called (--no-startup)"
        return [warn("startup", text, _REMEDY)]
    scope = Scope(not context.namespaces, context.namespaces)
    vault = Vault()
    await vault.populate({}, reason="webop doctor gives startup handlers no client.")
    options = OperatorOptions(registry=registry, settings=settings, scope=scope, vault=vault)
    operator = Operator(options).context
    settings.execution.executor = threads = DedicatedThreads("webop-startup")
    logger, log = logging.getLogger("webop.activities.startup"), BufferingHandler(sys.maxsize)
    log.setLevel(logging.WARNING)
    done = list[Finding]()

    async def call() -> None:
        async with asyncio.timeout(limit):
            await run_activity(operator, Activity.STARTUP)
            done.append(approve("startup", "the settings include those of the startup handlers"))
            with contextlib.suppress(ActivityError):
                await run_activity(operator, Activity.CLEANUP)

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        logger.addHandler(log)
        stack.callback(logger.removeHandler, log)
        if context.home and not is_in_pod():
            os.environ[_POD_VARIABLE] = host
            stack.callback(os.environ.pop, _POD_VARIABLE)
        ended = asyncio.wrap_future(threads.submit(asyncio.run, call()))
        ended.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({ended}, timeout=limit + 0.1)
    why = f"they did not end within {limit:g} s"
    if log.buffer:
        why += f"; the last error: {log.buffer[-1].getMessage().rstrip('.')}"
    if ended.done() and not isinstance(exc := ended.exception(), TimeoutError):
        why = str(exc) or type(exc).__name__
    return done or [warn("startup", f"the startup handlers failed here: {why}", _REMEDY)]
