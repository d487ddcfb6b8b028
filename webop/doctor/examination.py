"""The whole examination, in order: each step needs what those before it have found out.

Flow: credentials → the API server → the configurations of the operator → for each one: who keeps
it, where it leads, what it trusts, whether the API server can call it → the handlers → RBAC.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence

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
from webop.doctor.findings import Finding, Section, approve, describe_names, fail, note, warn
from webop.doctor.matching import check_handlers
from webop.doctor.permissions import (
    Need,
    check_permissions,
    list_configuration_needs,
    list_handler_needs,
    list_secret_needs,
)
from webop.doctor.probing import Probing
from webop.doctor.records import Configuration, check_replicas, fetch_configurations, list_names
from webop.doctor.visit import Options, Visit, describe_place, log_in, open_client
from webop.errors import APIConnectionError, APIError, LoginError
from webop.handling.handlers import Activity
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
        self.sections: list[Section] = []

    async def run(self) -> None:
        """Do it all; what is wrong with the cluster is in the sections, and never raised."""
        try:
            vault = await log_in()
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
        if needs:
            whose = visit.options.account or visit.username or "this account"
            self._add(f"Permissions of {whose}", await check_permissions(visit, needs))

    async def _fetch(self, visit: Visit, names: Sequence[str]) -> list[Configuration]:
        """Read the configurations; those of the other kind need not be there."""
        read: list[Configuration] = []
        for name in names:
            found = await fetch_configurations(visit, name)
            if isinstance(found, Finding):
                self._add(_CONFIGURATIONS, [found])
            elif not any(configuration.is_there for configuration in found):
                absent = fail(
                    "existence",
                    f"there are no webhook configurations {name}: nothing is checked",
                    f"Start the operator with settings.admission.managed = '{name}'; if it runs, "
                    "see its log for what it lacks. Other names: --managed NAME.",
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
        needs = [need for name in names for need in list_configuration_needs(name)]
        records = [record for found in configurations for record in found.records]
        for namespace, service in list_services(records):
            state = describe_state(await fetch_secret(visit, namespace, service))
            needs += list_secret_needs(namespace, get_secret_name(service), state)
        if visit.options.registry is not None:
            handlers = visit.options.registry.select_resource_handlers()
            needs += list_handler_needs(
                handlers, visit.resources, visit.options.namespaces, visit.settings
            )
        return needs
