"""The whole examination, in order: each step needs what those before it have found out.

Flow: credentials → the API server → the webhook configurations of the operator: who keeps them,
whom they trust, whether the API server can call them → the handlers → who acts → RBAC.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Iterator, Sequence

from webop.admission.managed.clock import ServerClock
from webop.admission.managed.configurations import KINDS
from webop.client.api import Client
from webop.client.discovery import discover
from webop.command_client import connect
from webop.doctor.coordination import check_finalizers, check_lease, check_peering
from webop.doctor.findings import (
    Finding,
    Section,
    approve,
    describe_names,
    fail,
    soften,
    warn,
)
from webop.doctor.permissions import (
    Need,
    check_permissions,
    list_configuration_needs,
    list_handler_needs,
    list_lease_needs,
    list_peering_needs,
)
from webop.doctor.probing import Probing
from webop.doctor.records import (
    Configuration,
    check_handlers,
    check_replicas,
    fetch_configuration,
    list_names,
)
from webop.doctor.startup import call_startup
from webop.doctor.trust import check_trust, find_secret
from webop.doctor.visit import Options, Visit
from webop.errors import APIConnectionError, APIError, APIForbiddenError, LoginError
from webop.servers.service import WebhookServiceServer
from webop.settings import OperatorSettings

_CONFIGURATIONS = "Webhook configurations"


class Examination:
    """An examination of an operator in a cluster.

    Attributes:
        sections: what has been found so far.
    """

    def __init__(self, options: Options, settings: OperatorSettings) -> None:
        self._options = options
        self._settings = settings
        self._declared = settings.admission.managed  # before the startup handlers
        self.sections: list[Section] = []

    async def run(self) -> None:
        """Do it all; what is wrong with the cluster is in the sections, and never raised."""
        try:
            async with connect() as client:
                server = (await client.vault.get()).server
                startup = await call_startup(self._options, self._settings, server)
                self._add("Settings", [startup])
                await self._examine(await self._begin(client, server))
        except LoginError as exc:
            remedy = "Provide a kubeconfig (KUBECONFIG, ~/.kube/config), or run it in a pod."
            self._add("Login", [fail("login", str(exc), remedy)])
        except APIError as exc:
            remedy = "See whether kubectl can do the same; and run it again."
            if isinstance(exc, APIConnectionError):
                remedy = "Check that the cluster runs, and the kubeconfig: kubectl cluster-info."
            self._add("API server", [fail("server", str(exc), remedy)])

    def _add(self, title: str, findings: Iterable[Finding | None]) -> None:
        if listed := [finding for finding in findings if finding is not None]:
            self.sections.append(Section(title, listed))

    async def _begin(self, client: Client, server: str) -> Visit:
        """Look at the API server."""
        version = (await client.request("GET", "/version")).get("gitVersion")
        clock = ServerClock(client)
        await clock.adjust(0)
        login = approve("login", clock.username or "the API server does not say who this is")
        if clock.username == "system:anonymous":
            remedy = "Put credentials into the kubeconfig: a token or a client certificate."
            login = fail("login", "the API server takes this for an anonymous request", remedy)
        self._add("API server", [approve("server", f"{server}, Kubernetes {version}"), login])
        return Visit(
            client=client,
            options=self._options,
            settings=self._settings,
            now=clock.tell().astimezone(dt.UTC),
            username=clock.username,
            resources=(await discover(client)).resources,
        )

    async def _examine(self, visit: Visit) -> None:
        registry, names = visit.options.registry, await list_names(visit)
        if isinstance(names, Finding):
            self._add(_CONFIGURATIONS, [names])
            names = []
        found = [one for name in names for one in await self._fetch(visit, name)]
        if registry is not None and len(names) > 1:
            text = f"there are several operators in the cluster: {describe_names(names)}"
            remedy = "Say which one has these handlers: --managed NAME."
            self._add(_CONFIGURATIONS, [warn("handlers", text, remedy)])
        probing = Probing(visit)
        if visit.options.is_probing:
            await probing.run(record for one in found for record in one.records)
        for one in found:
            findings = [*check_replicas(one, visit.now), *await check_trust(visit, one.records)]
            if visit.options.is_probing:
                findings += probing.judge(one.records)
            if registry is not None and len(names) == 1:
                findings += check_handlers(visit, one)
            self._add(one.title, findings or [approve("webhooks", "none")])
        replicas = {m.identity for one in found for m in one.marks if m.is_alive(visit.now)}
        lease, peering = await check_lease(visit, replicas), await check_peering(visit)
        self._add("Coordination", [lease, *peering, *await check_finalizers(visit)])
        whose = visit.options.account or visit.username or "this account"
        permissions = await check_permissions(visit, await _list_needs(visit, names))
        self._add(f"Permissions of {whose}", [*permissions, *_list_unknown(visit)])

    async def _fetch(self, visit: Visit, name: str) -> Sequence[Configuration]:
        """Read the configurations of a name; those of one kind need not be there."""
        try:
            found = [await fetch_configuration(visit, reason, name) for reason in KINDS]
        except APIForbiddenError as exc:
            remedy = "Run it as an account that may get or patch it, such as the operator's."
            self._add(_CONFIGURATIONS, [warn("configurations", f"{name}: {exc}", remedy)])
            return []
        if not any(one.is_there for one in found):
            text = f"there are no webhook configurations {name}: nothing is checked"
            remedy = "Start the operator, or see its log. Other names: --managed NAME."
            is_required = name in (visit.options.managed, self._declared)
            absent = soften(fail("existence", text, remedy), is_required=is_required)
            self._add(_CONFIGURATIONS, [absent])
        return found


async def _list_needs(visit: Visit, names: Sequence[str]) -> list[Need]:
    options, settings, known = visit.options, visit.settings, visit.resources
    needs: list[Need] = []
    if options.managed or options.registry is None or options.webhooks:
        needs += map(list_configuration_needs, names)
    server = settings.admission.server if options.webhooks else None
    if isinstance(server, WebhookServiceServer) and not server.certfile:
        where = server.namespace or visit.namespace
        name = find_secret(server, server.service or os.environ.get("WEBOP_SERVICE", ""))
        needs.append(await _find_secret_need(visit, where, name))
    if options.registry is not None:
        needs += list_handler_needs(options.handlers, known, options.namespaces, settings)
    if options.handlers:
        needs += list_lease_needs(settings, visit.namespace)
        needs += list_peering_needs(settings, known, options.namespaces)
    return needs


async def _find_secret_need(visit: Visit, namespace: str, name: str) -> Need:
    """Return what it takes to share a certificate in a Secret; one of others is only read."""
    verbs: tuple[str, ...] = ("get", "create", "update")
    try:
        secret = await visit.read(f"/api/v1/namespaces/{namespace}/secrets/{name}")
    except APIForbiddenError:
        secret = None
    if secret and "webop.dev/certificate" not in (secret["metadata"].get("annotations") or {}):
        verbs = ("get",)
    return Need(f"Secret {name}", "", ("secrets",), verbs, (namespace,), name)


def _list_unknown(visit: Visit) -> Iterator[Finding]:
    """Yield the kinds that are not in the cluster: their handlers and the rights are unknown."""
    handlers = (*visit.options.webhooks, *visit.options.handlers)
    for selector in dict.fromkeys(handler.selector for handler in handlers):
        if selector is None or not selector.is_specific or selector.select(visit.resources):
            continue
        what, remedy = "not in the cluster", "Create its definition: kubectl apply -f CRD.yaml"
        if names := sorted(map(str, selector.find_candidates(visit.resources))):
            what, remedy = f"ambiguous: {describe_names(names)}", "Name the API group, too."
        text = f"{what}: its handlers are not called, and the rights to it are not checked"
        yield warn(str(selector), text, remedy)
