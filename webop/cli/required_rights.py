"""Inspect the handlers and the settings of an operator: its kinds, and the rights that it needs.

The doctor and the manifests use it. Flow: :func:`call_startup` completes the settings;
:func:`list_needs` yields the rights.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from logging.handlers import BufferingHandler
from typing import Literal

import pydantic

from webop.admission.configurations.building import GROUP, KINDS
from webop.aio.dedicated_threads import DedicatedThreads
from webop.client.auth.vault import Vault
from webop.coordination.peer_records import build_kinds
from webop.coordination.shard_map import name_leases
from webop.coordination.timed_requests import LEASES
from webop.errors import ActivityError
from webop.handlers.model import (
    Activity,
    BackgroundHandler,
    ChangeHandler,
    ChildHandler,
    EventHandler,
    ReconcileHandler,
)
from webop.handlers.registry import OperatorRegistry
from webop.handlers.validation import names_argument
from webop.identities import is_in_pod
from webop.models.definitions import find_file, list_models, list_versions
from webop.models.versions import collect_versions
from webop.objects.resources import CRDS, Resource
from webop.objects.rights import parse_right
from webop.reactor.observer import Scope
from webop.runtime.activity_handlers import run_activity
from webop.runtime.operator import Operator, OperatorOptions
from webop.servers.service_server import WebhookServiceServer
from webop.settings.groups import OperatorSettings

_POD_VARIABLE = "KUBERNETES_SERVICE_HOST"  # set in all pods
_LIMIT = 10  # seconds for the startup and cleanup handlers
_AT_TIMES = "list is needed if the API server has no streaming lists; get, after conflicts"


@dataclass(kw_only=True)
class Inspection:
    """An operator as its handlers and settings describe it.

    Attributes:
        settings: the settings, after a while with those of the startup handlers.
        account: the account of the operator; None for the user's own.
        namespaces: where the operator works; empty for the whole cluster.
        registry: the handlers; empty if unknown.
        resources: the known kinds.
        names: the names of the webhook configurations.
        slots: how many replicas, at most, divide the objects by shards.
    """

    settings: OperatorSettings
    account: str | None = None
    namespaces: tuple[str, ...]
    registry: OperatorRegistry
    resources: Collection[Resource] = ()
    names: Sequence[str] = ()
    slots: int = 2

    @property
    def home(self) -> str:
        """The namespace of the service account; "" for other accounts."""
        account = self.account or ""
        return account.split(":")[2] if account.startswith("system:serviceaccount:") else ""

    @property
    def namespace(self) -> str:
        """The namespace of the operator itself, as far as it is known."""
        return self.home or "default"

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
            families = ChangeHandler | BackgroundHandler | ReconcileHandler
            is_writing = isinstance(handler, families) or (
                isinstance(handler, EventHandler) and names_argument(handler.fn, "patch")
            )
            for one in handler.selector.select(self.resources) if handler.selector else ():
                found[one] = found.get(one, False) or is_writing
        return found

    @property
    def service_server(self) -> WebhookServiceServer | None:
        """The webhook server, if it is behind a Service."""
        server = self.settings.admission.server if self.registry.needs_webhook_server else None
        return server if isinstance(server, WebhookServiceServer) else None

    @property
    def secret(self) -> tuple[str, str] | None:
        """The namespace and the name of the Secret with the certificate; None if unknown."""
        server = self.service_server
        if server is None or server.certfile:
            return None
        # 'webop manifests' gives the Service the name of the service account.
        owner = (self.account or "").rpartition(":")[2] if self.home else ""
        service = server.service or os.environ.get("WEBOP_SERVICE") or owner
        if not (service or server.secret):
            return None
        return server.namespace or self.namespace, server.name_secret(service)


async def call_startup(operator: Inspection, host: str) -> str:
    """Call the startup handlers, which can change settings, and then the cleanup handlers.

    Returns why they failed; nothing after a success, or without such handlers.

    They run in a thread with its own event loop. The command does not wait for it longer than
    ten seconds, so handlers that hang cannot block it. If a service account is checked, the
    handlers find the host of the API server in the variable that pods have.
    """
    registry, settings = operator.registry, operator.settings
    if not registry.select_activities(Activity.STARTUP):
        return ""
    scope = Scope(not operator.namespaces, operator.namespaces)
    vault = Vault()
    await vault.populate({}, reason="Startup handlers have no client here.")
    options = OperatorOptions(registry=registry, settings=settings, scope=scope, vault=vault)
    context = Operator(options).context
    settings.execution.executor = threads = DedicatedThreads("webop-startup")
    logger, log = logging.getLogger("webop.activities.startup"), BufferingHandler(sys.maxsize)
    log.setLevel(logging.WARNING)
    has_succeeded = False

    async def call() -> None:
        nonlocal has_succeeded
        async with asyncio.timeout(_LIMIT):
            await run_activity(context, Activity.STARTUP)
            has_succeeded = True
            with contextlib.suppress(ActivityError):
                await run_activity(context, Activity.CLEANUP)

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        logger.addHandler(log)
        stack.callback(logger.removeHandler, log)
        if operator.home and not is_in_pod():
            os.environ[_POD_VARIABLE] = host
            stack.callback(os.environ.pop, _POD_VARIABLE)
        ended = asyncio.wrap_future(threads.submit(asyncio.run, call()))
        ended.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({ended}, timeout=_LIMIT + 0.1)
    why = f"they did not end within {_LIMIT} s"
    if log.buffer:
        why += f"; the last error: {log.buffer[-1].getMessage().rstrip('.')}"
    if ended.done() and not isinstance(exc := ended.exception(), TimeoutError):
        why = str(exc) or type(exc).__name__
    return "" if has_succeeded else f"the startup handlers failed here: {why}"


@dataclass(frozen=True, slots=True)
class Need:
    """Verbs on a resource that an operator must be granted, in the cluster or in namespaces."""

    group: str
    resource: str  # with the subresource, as in "pods/status"
    verbs: tuple[str, ...]
    namespaces: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # of single objects; RBAC cannot limit "create" to names
    level: Literal["failure", "warning", "note"] = "failure"  # if it is missing
    use: str = ""  # the reason, if the operator mostly works without it
    is_declared: bool = False  # in settings.networking.rights or --rbac

    def list_reviews(self) -> list[dict[str, str]]:
        """Return the questions for the API server, as ``resourceAttributes``."""
        plural, _, part = self.resource.partition("/")
        what = {"group": self.group, "resource": plural, "subresource": part}
        named = self.names or ("",)
        return [
            {**what, "verb": verb, "namespace": namespace, "name": name}
            for namespace, verb in product(self.namespaces or ("",), self.verbs)
            for name in (("",) if verb == "create" else named)
        ]

    def build_rules(self) -> Iterator[dict[str, list[str]]]:
        """Yield the rules of a Role; creation cannot be limited to names."""
        named = [verb for verb in self.verbs if self.names and verb != "create"]
        others = [verb for verb in self.verbs if verb not in named]
        what = {"apiGroups": [self.group], "resources": [self.resource]}
        if others:
            yield {**what, "verbs": others}
        if named:
            yield {**what, "resourceNames": [*self.names], "verbs": named}


_weak = partial(Need, level="warning")


def list_object_needs(operator: Inspection) -> Iterator[Need]:
    """Yield what the operator needs to handle objects (chapter "Deployment", RBAC)."""
    settings, namespaces, is_patched = operator.settings, operator.namespaces, operator.handled
    for resource in sorted(is_patched, key=lambda resource: resource.name):
        plural, group = resource.plural, resource.group
        where = namespaces if resource.namespaced else ()
        yield Need(group, plural, ("watch", "patch") if is_patched[resource] else ("watch",), where)
        verbs = ("list", "get") if is_patched[resource] else ("list",)
        yield _weak(group, plural, verbs, where, use=_AT_TIMES)
        if is_patched[resource] and "status" in resource.subresources:
            use = "needed for results of handlers, and for what they write there"
            yield _weak(group, f"{plural}/status", ("patch",), where, use=use)
    if not settings.scanning.disabled and operator.registry.follows_kinds:
        use, verbs = "needed to notice new kinds", ("list", "watch")
        yield _weak("apiextensions.k8s.io", "customresourcedefinitions", verbs, use=use)
        if namespaces:
            use = "optional, since --namespace names the namespaces"
            yield Need("", "namespaces", verbs, level="note", use=use)
    # Messages of admission handlers do not become Events.
    posting = operator.registry.select_resource_handlers() or operator.registry.select_converters()
    if settings.posting.enabled and posting:
        if namespaces and not all(resource.namespaced for resource in is_patched):
            namespaces = tuple(dict.fromkeys((*namespaces, "default")))
        yield _weak("", "events", ("create", "patch"), namespaces)


def _list_child_needs(operator: Inspection) -> Iterator[Need]:
    """Yield what reconcilers need for their children (page "Desired state")."""
    for handler in operator.registry.select_resource_handlers():
        for one in handler.selector.select(operator.resources) if handler.selector else ():
            where = operator.namespaces if one.namespaced else ()
            if isinstance(handler, ChildHandler):
                use = f"needed for the children of {handler.parent}"
                applying = () if handler.was_owned else ("create", "patch")
                verbs = ("get", *applying, "delete")
                yield Need(one.group, one.plural, verbs, where, use=use)
            elif isinstance(handler, ReconcileHandler) and handler.owns:
                use = "needed to own children, where the API server checks it, as in OpenShift"
                yield _weak(one.group, f"{one.plural}/finalizers", ("update",), where, use=use)


def _list_coordination_needs(operator: Inspection) -> Iterator[Need]:
    leadership, peering = operator.settings.leadership, operator.settings.peering
    if (name := leadership.lease_name) is not None:
        where = (leadership.lease_namespace or operator.namespace,)
        need_lease = partial(Need, LEASES.group, LEASES.plural, namespaces=where)
        if leadership.sharded:
            names = name, *name_leases(name, operator.slots)
            yield need_lease(("get", "update"), names=names)
            yield need_lease(("list", "watch", "create"))
        else:
            yield need_lease(("get", "create", "update"), names=(name,))
            use = "optional: replicas take over faster with it"
            yield need_lease(("list", "watch"), names=(name,), level="note", use=use)
            use = "needed to wait for replicas with --shards to stop"
            yield need_lease(("get",), names=(name_leases(name, 0)[0],), level="warning", use=use)
    need = Need if peering.mandatory else _weak
    for kind in [] if peering.standalone else operator.peerings:
        yield need(kind.group, kind.plural, ("list", "watch"), operator.namespaces, (peering.name,))
        written = f"{kind.plural}/status" if "status" in kind.subresources else kind.plural
        yield need(kind.group, written, ("patch",), operator.namespaces, (peering.name,))


def _list_declared_needs(operator: Inspection) -> Iterator[Need]:
    for right in map(parse_right, operator.settings.networking.rights):
        for one in right.selector.select(operator.resources):
            resource = f"{one.plural}/{right.subresource}".rstrip("/")
            where = operator.namespaces if one.namespaced else ()
            use = "declared in settings.networking.rights"
            yield Need(one.group, resource, right.verbs, where, use=use, is_declared=True)


def list_needs(operator: Inspection, *, has_own_secret: bool = True) -> Iterator[Need]:
    """Yield everything that the operator must be granted, as far as it is known.

    A Secret with a certificate that webop did not make only needs ``get``.
    """
    for name, kind in product(operator.names, KINDS.values()):
        yield Need(GROUP, kind.plural, ("create", "patch"), names=(name,))
    for name in collect_versions(operator.registry.select_converters()) if operator.names else ():
        use = "needed to write where objects are converted"
        yield Need(CRDS.group, CRDS.plural, ("get", "patch"), names=(name,), use=use)
    if (secret := operator.secret) is not None:
        verbs = ("get", "create", "update") if has_own_secret else ("get",)
        yield Need("", "secrets", verbs, (secret[0],), (secret[1],))
    yield from list_object_needs(operator)
    yield from _list_child_needs(operator)
    if operator.registry.select_resource_handlers():
        yield from _list_coordination_needs(operator)
    yield from _list_declared_needs(operator)


def list_planning_needs(operator: Inspection) -> Iterator[Need]:
    """Yield what ``webop plan`` needs: RBAC has no verbs for dry runs, so they are those of writes.

    Events and coordination are not planned.
    """
    for name, kind in product(operator.names, KINDS.values()):
        yield Need(GROUP, kind.plural, ("get",), names=(name,))
    for effect in ("validating", "mutating") if operator.registry.rules else ():
        yield Need(GROUP, f"{effect}admissionpolicies", ("list",))
    yield Need(CRDS.group, CRDS.plural, ("get",))
    yield Need("", "resourcequotas", ("list",), operator.namespaces)
    if operator.namespaces:
        yield Need("", "namespaces", ("list",))
    yield from list_object_needs(operator)
    yield from _list_child_needs(operator)
    yield from _list_declared_needs(operator)


def find_models(registry: OperatorRegistry) -> list[type[pydantic.BaseModel]]:
    """Return the models of handlers, rules and loaded files, with all versions of their kinds."""
    handlers = (*registry.select_resource_handlers(), *registry.select_webhooks())
    named = {handler.model for handler in handlers} | {rule.model for rule in registry.rules}
    for converter in registry.select_converters():
        named |= {converter.source, converter.target}
    found: dict[type[pydantic.BaseModel], None] = {}
    for model in list_models():
        if model in named or os.path.realpath(find_file(model) or "") in registry.files:
            found |= dict.fromkeys(list_versions(model))
    return [*found]
