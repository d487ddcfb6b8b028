"""The whole examination, in order: each step needs what those before it have found out.

Flow: credentials → startup handlers → webhook configurations and calls → who acts → RBAC.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from urllib.parse import urlsplit

from webop.admission.managed.configurations import KINDS
from webop.admission.managed.server_clock import ServerClock
from webop.client.connecting import connect_command
from webop.client.discovery import discover
from webop.doctor import records
from webop.doctor.context import Context, call_startup
from webop.doctor.findings import Finding, Report, approve, fail, note
from webop.doctor.permissions import check_permissions, list_unknown
from webop.doctor.reachability import check_trust, probe
from webop.errors import APIError, APIForbiddenError, LoginError


async def examine(visit: Context) -> Report:
    """Examine an operator; what is wrong with the cluster is in the report, and never raised."""
    report: dict[str, list[Finding]] = {}
    try:
        async with connect_command() as visit.client:
            async for title, findings in _examine(visit):
                report.setdefault(title, []).extend(findings)
    except (LoginError, APIError) as exc:
        subject = "login" if isinstance(exc, LoginError) else "server"
        remedy = "Check the kubeconfig (KUBECONFIG, ~/.kube/config), and kubectl cluster-info."
        report.setdefault("API server", []).append(fail(subject, str(exc), remedy))
    return {title: findings for title, findings in report.items() if findings}


async def _examine(visit: Context) -> AsyncIterator[tuple[str, Iterable[Finding]]]:
    client, server = visit.client, (await visit.client.vault.get()).server
    if not visit.registry or visit.registry.select_webhooks():
        visit.managed = visit.managed or visit.settings.admission.managed
    yield "Settings", await call_startup(visit, urlsplit(server).hostname or "")
    version = (await client.request("GET", "/version")).get("gitVersion")
    clock = ServerClock(client)
    await clock.adjust(0)
    visit.now, visit.username = clock.now().astimezone(dt.UTC), clock.username
    login = approve("login", clock.username or "the API server does not say who this is")
    yield "API server", [approve("server", f"{server}, Kubernetes {version}"), login]
    visit.resources = (await discover(client)).resources
    found, findings = await records.find_configurations(visit)
    yield "Webhook configurations", findings
    webhooks = [(reason, one) for (_, reason), held in found.items() for one in held.webhooks]
    probed = iter(await probe(visit, webhooks) if visit.is_probing else ())
    for (name, reason), held in found.items():
        removal = f"kubectl delete {KINDS[reason].plural} {name}"
        findings = [*records.check_replicas(held, removal, visit.now)]
        findings += [*await check_trust(visit, held.webhooks), *islice(probed, len(held.webhooks))]
        if visit.registry and len(visit.names) == 1:
            findings += records.check_handlers(visit, name, reason, held)
        yield f"{KINDS[reason].kind} {name}", findings or [approve("webhooks", "none")]
        visit.replicas |= {one.identity for one in held.records.values() if one.is_alive(visit.now)}
    whose = f"Permissions of {visit.account or visit.username or 'this account'}"
    for title, check in (
        ("Coordination", records.check_lease),
        ("Coordination", records.check_peering),
        ("Coordination", records.check_finalizers),
        (whose, check_permissions),
    ):
        try:
            findings = await check(visit)
        except APIForbiddenError as exc:
            findings = [note("unknown", str(exc))]
        yield title, findings
    yield whose, list_unknown(visit)
