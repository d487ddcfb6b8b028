"""The whole examination, in order: each step needs what those before it have found out.

Flow: credentials → the API server → the webhook configurations of the operator: who keeps them,
whom they trust, whether the API server can call them → the handlers → who acts → RBAC.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Iterable

from webop.admission.managed.clock import ServerClock
from webop.client.discovery import discover
from webop.command_client import connect
from webop.doctor import records
from webop.doctor.findings import Finding, Section, approve, fail, join_names, warn
from webop.doctor.permissions import check_permissions
from webop.doctor.probing import probe
from webop.doctor.trust import check_trust
from webop.doctor.visit import Visit, call_startup
from webop.errors import APIConnectionError, APIError, LoginError

_CONFIGURATIONS = "Webhook configurations"
Part = tuple[str, Iterable[Finding]]


async def examine(visit: Visit) -> list[Section]:
    """Examine an operator; what is wrong with the cluster is in the report, and never raised."""
    parts: list[Part] = []
    try:
        async with connect() as visit.client:
            async for part in _examine(visit):
                parts.append(part)  # noqa: PERF401 - those before an error are kept
    except LoginError as exc:
        remedy = "Provide a kubeconfig (KUBECONFIG, ~/.kube/config), or run it in a pod."
        parts.append(("Login", [fail("login", str(exc), remedy)]))
    except APIError as exc:
        remedy = "See whether kubectl can do the same; and run it again."
        if isinstance(exc, APIConnectionError):
            remedy = "Check that the cluster runs, and the kubeconfig: kubectl cluster-info."
        parts.append(("API server", [fail("server", str(exc), remedy)]))
    return [Section(title, found) for title, findings in parts if (found := list(findings))]


async def _examine(visit: Visit) -> AsyncIterator[Part]:
    """Yield the findings about one thing after the other, with a title."""
    client, server = visit.client, (await visit.client.vault.get()).server
    declared = visit.settings.admission.managed  # before the startup handlers
    yield "Settings", await call_startup(visit, server)
    version = (await client.request("GET", "/version")).get("gitVersion")
    clock = ServerClock(client)
    await clock.adjust(0)
    login = approve("login", clock.username or "the API server does not say who this is")
    yield "API server", [approve("server", f"{server}, Kubernetes {version}"), login]
    visit.now, visit.username = clock.tell().astimezone(dt.UTC), clock.username
    visit.resources = (await discover(client)).resources
    names, found, findings = await records.find_configurations(visit)
    is_required = not {visit.managed, declared}.isdisjoint(names)
    yield _CONFIGURATIONS, [finding.soften(is_required=is_required) for finding in findings]
    if visit.registry is not None and len(names) > 1:
        text = f"there are several operators in the cluster: {join_names(names)}"
        remedy = "Say which one has these handlers: --managed NAME."
        yield _CONFIGURATIONS, [warn("handlers", text, remedy)]
    probed = await probe(visit, [record for one in found for record in one.records])
    for one in found:
        findings = [*records.check_replicas(one, visit.now), *await check_trust(visit, one.records)]
        findings += [probed.pop(0) for _ in one.records if visit.is_probing]
        if visit.registry is not None and len(names) == 1:
            findings += records.check_handlers(visit, one)
        yield one.title, findings or [approve("webhooks", "none")]
    replicas = {m.identity for one in found for m in one.marks if m.is_alive(visit.now)}
    lease, peering = await records.check_lease(visit, replicas), await records.check_peering(visit)
    yield "Coordination", [*lease, *peering, *await records.check_finalizers(visit)]
    whose = visit.account or visit.username or "this account"
    yield f"Permissions of {whose}", await check_permissions(visit, names)
