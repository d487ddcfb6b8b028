"""The whole examination, in order: each step needs what those before it have found out.

Flow: credentials → the API server → the configurations of the operator → for each one: who keeps
it, where it leads, what it trusts, whether the API server can call it → the handlers → RBAC.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from webop.admission.managed.clock import ServerClock
from webop.client.api import Client
from webop.client.credentials import Vault
from webop.client.discovery import discover
from webop.doctor.addresses import (
    check_addresses,
    describe_state,
    fetch_secret,
    get_secret_name,
    list_services,
)
from webop.doctor.findings import (
    Finding,
    Section,
    approve,
    complain,
    describe_names,
    fail,
    note,
    warn,
)
from webop.doctor.matching import check_handlers
from webop.doctor.permissions import (
    Need,
    check_permissions,
    find_home,
    list_configuration_needs,
    list_handler_needs,
    list_lease_needs,
    list_peering_needs,
    list_secret_needs,
)
from webop.doctor.probing import Probing
from webop.doctor.records import Configuration, check_replicas, fetch_configurations, list_names
from webop.doctor.startup import call_startup
from webop.doctor.visit import Options, Visit, describe_place, log_in, open_client
from webop.errors import APIConnectionError, APIError, LoginError
from webop.handling.handlers import Activity
from webop.servers.service import WebhookServiceServer
from webop.settings import OperatorSettings

_SERVER = "API server"
_CONFIGURATIONS = "Webhook configurations"


class Examination:
    """An examination of the admission of an operator.

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
            vault = await log_in()
            server = (await vault.get()).server
            startup = await call_startup(self._options, self._settings, server)
            if startup is not None:
                self._add("Settings", [startup])
            async with open_client(vault) as client:
                await self._examine(await self._begin(client, vault))
        except LoginError as exc:
            remedy = (
                "Provide a kubeconfig (KUBECONFIG or ~/.kube/config), or run it in a pod that has "
                "a service account."
            )
            text = f"{str(exc).rstrip('.')} ({describe_place()})"
            self._add("Login", [fail("login", text, remedy)])
        except APIError as exc:
            remedy = "See whether kubectl can do the same; and run it again."
            if isinstance(exc, APIConnectionError):
                remedy = (
                    "Check that the cluster runs, and that the server of the kubeconfig is the "
                    "right one: kubectl cluster-info."
                )
            self._add(_SERVER, [fail("server", str(exc), remedy)])

    def _add(self, title: str, findings: Iterable[Finding]) -> None:
        listed = list(findings)
        if listed:
            self.sections.append(Section(title, listed))

    async def _begin(self, client: Client, vault: Vault) -> Visit:
        """Look at the API server."""
        server = (await vault.get()).server
        version = (await client.request("GET", "/version")).get("gitVersion")
        clock = ServerClock(client)
        await clock.adjust(0)
        if clock.username == "system:anonymous":
            login = fail(
                "login",
                "the API server takes this for an anonymous request",
                "Put credentials into the kubeconfig: a token or a client certificate.",
            )
        elif clock.username is None:
            login = note("login", "the API server does not tell who this is")
        else:
            login = approve("login", clock.username)
        self._add(_SERVER, [approve("server", f"{server}, Kubernetes {version}"), login])
        found = await discover(client)
        return Visit(
            client=client,
            options=self._options,
            settings=self._settings,
            now=clock.tell().astimezone(dt.UTC),
            username=clock.username,
            namespace=vault.default_namespace or "default",
            resources=found.resources,
        )

    async def _examine(self, visit: Visit) -> None:
        names = await list_names(visit)
        if isinstance(names, Finding):
            self._add(_CONFIGURATIONS, [names])
            names = []
        configurations = await self._fetch(visit, names)
        await self._examine_configurations(visit, configurations)
        self._add("Handlers", self._compare(visit, names, configurations))
        needs = await self._list_needs(visit, names, configurations)
        whose = visit.options.account or visit.username or "this account"
        unknown = _list_unknown(visit)
        self._add(f"Permissions of {whose}", [*await check_permissions(visit, needs), *unknown])

    async def _fetch(self, visit: Visit, names: Sequence[str]) -> list[Configuration]:
        """Read the configurations; those of the other kind need not be there."""
        read: list[Configuration] = []
        for name in names:
            found = await fetch_configurations(visit, name)
            if isinstance(found, Finding):
                self._add(_CONFIGURATIONS, [found])
            elif not any(configuration.is_there for configuration in found):
                absent = complain(
                    "existence",
                    f"there are no webhook configurations {name}: nothing is checked",
                    f"Start the operator with settings.admission.managed = '{name}'; if it runs, "
                    "see its log for what it lacks. Other names: --managed NAME.",
                    is_failure=name in (visit.options.managed, self._declared),
                )
                self._add(_CONFIGURATIONS, [absent])
            else:
                read += found
        return read

    async def _examine_configurations(
        self, visit: Visit, configurations: Sequence[Configuration]
    ) -> None:
        probing = Probing(visit)
        if visit.options.is_probing:
            await probing.run(record for found in configurations for record in found.records)
        for found in configurations:
            findings = [*check_replicas(found, visit.now)]
            findings += await check_addresses(visit, found.records)
            if visit.options.is_probing:
                findings += probing.judge(found.records)
            if found.is_there and not findings:
                findings.append(approve("webhooks", "none"))
            self._add(found.title, findings)

    def _compare(
        self, visit: Visit, names: Sequence[str], configurations: Sequence[Configuration]
    ) -> Iterable[Finding]:
        registry = visit.options.registry
        if registry is None:
            return
        if registry.select_activities(Activity.AUTHENTICATION):
            yield note("login", "the operator logs in by handlers of its own, the doctor does not")
        if len(names) > 1:
            yield warn(
                "handlers",
                f"there are several operators in the cluster: {describe_names(names)}",
                "Say which one has these handlers: --managed NAME.",
            )
        elif names:
            handlers = registry.select_webhooks()
            yield from check_handlers(handlers, names[0], configurations, visit.resources)

    async def _list_needs(
        self, visit: Visit, names: Sequence[str], configurations: Sequence[Configuration]
    ) -> list[Need]:
        registry = visit.options.registry
        handlers = [] if registry is None else registry.select_resource_handlers()
        webhooks = [] if registry is None else registry.select_webhooks()
        needs: list[Need] = []
        if visit.options.managed or registry is None or webhooks:
            needs += [need for name in names for need in list_configuration_needs(name)]
        records = [record for found in configurations for record in found.records]
        home = find_home(visit.options.account) or visit.namespace
        secrets = [(where, get_secret_name(service)) for where, service in list_services(records)]
        kept = _find_secret(visit.settings.admission.server, home) if webhooks else []
        for place in dict.fromkeys((*secrets, *kept)):
            state = describe_state(await fetch_secret(visit, *place))
            is_optional = state.is_absent and place not in kept
            needs += list_secret_needs(*place, replace(state, is_absent=is_optional))
        known, places = visit.resources, visit.options.namespaces
        if registry is not None:
            needs += list_handler_needs(handlers, known, places, visit.settings)
        if handlers:
            needs += list_lease_needs(visit.settings, home)
            needs += list_peering_needs(visit.settings, known, places)
        return needs


def _find_secret(server: Any, home: str) -> list[tuple[str, str]]:
    """Return the namespace and the name of the Secret that a webhook server keeps, if any."""
    if not isinstance(server, WebhookServiceServer) or server.certfile or server.pkeyfile:
        return []
    service = server.service or os.environ.get("WEBOP_SERVICE", "")
    return [(server.namespace or home, server.secret or get_secret_name(service))]


def _list_unknown(visit: Visit) -> Iterator[Finding]:
    """Return the kinds that are not in the cluster: the rights to them are not known."""
    registry = visit.options.registry
    handlers = [] if registry is None else registry.select_resource_handlers()
    for selector in dict.fromkeys(handler.selector for handler in handlers):
        if selector and selector.is_specific and not selector.select(visit.resources):
            yield warn(
                str(selector),
                "not in the cluster: the rights to it are not checked",
                "Create its definition (kubectl apply -f CRD.yaml), and run this again.",
            )
    peering = visit.settings.peering
    places = visit.options.namespaces
    if (
        handlers
        and peering.mandatory
        and not list_peering_needs(visit.settings, visit.resources, places)
    ):
        yield fail(
            f"peering {peering.name}",
            "there is no kind for it in the cluster: the operator will be paused",
            "kubectl apply -f manifests/peering.yaml, from webop's repository.",
        )
