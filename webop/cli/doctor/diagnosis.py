"""All checks in order; each step needs the results of those before it.

Flow: credentials → startup handlers → webhook configurations and calls → conversions → Lease,
peering, selectors, rules → RBAC.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

from webop.admission.configurations.building import KINDS
from webop.cli.doctor import records
from webop.cli.doctor.check_context import Context
from webop.cli.doctor.conversions import check_conversions
from webop.cli.doctor.findings import Finding, Report, approve, fail, note, warn
from webop.cli.doctor.missing_rights import check_permissions, list_unknown
from webop.cli.doctor.policy_checks import check_rules
from webop.cli.doctor.reachability import check_trust, probe
from webop.cli.doctor.selector_checks import check_selectors
from webop.cli.doctor.shard_checks import check_shards
from webop.cli.required_rights import call_startup
from webop.client.discovery import discover
from webop.client.self_review import review_self
from webop.client.standalone import connect_command
from webop.controlplane.cache import get_root
from webop.errors import APIError, APIForbiddenError, LoginError
from webop.handlers.model import Activity, WebhookType

_REMEDY = (
    "Pass what they set: --managed, --lease, --shards, --peering, or variables "
    "WEBOP_<GROUP>__<NAME>."
)


async def examine(context: Context) -> Report:
    """Check an operator and return the report; errors of the cluster become findings."""
    report: dict[str, list[Finding]] = {}
    try:
        async with connect_command() as context.client:
            async for title, findings in _examine(context):
                report.setdefault(title, []).extend(findings)
    except APIError as exc:
        subject = "login" if isinstance(exc, LoginError) else "server"
        report.setdefault("API server", []).append(fail(subject, str(exc), _advise()))
    return {title: findings for title, findings in report.items() if findings}


def _advise() -> str:
    folder = Path(os.environ.get("KUBECONFIG", "")).parent
    if folder.parent == get_root() / "clusters":
        return f"If it is stopped, start it again: webop cluster start --name {folder.name}"
    return "Check the kubeconfig (KUBECONFIG, ~/.kube/config), then: kubectl cluster-info"


async def _complete_settings(context: Context, host: str) -> list[Finding]:
    if not context.registry.select_activities(Activity.STARTUP):
        return []
    why = "the startup handlers were not called (--no-startup)"
    if context.calls_startup:
        why = await call_startup(context, host)
    if why:
        return [warn("startup", why, _REMEDY)]
    return [approve("startup", "the settings include those of the startup handlers")]


async def _examine(context: Context) -> AsyncIterator[tuple[str, Iterable[Finding]]]:
    client, server = context.client, (await context.client.vault.get()).server
    yield "Settings", await _complete_settings(context, urlsplit(server).hostname or "")
    if not context.is_known or context.registry.needs_webhook_server:
        context.managed = context.managed or context.settings.admission.managed
    version = (await client.request("GET", "/version")).get("gitVersion")
    me = await review_self(client)
    context.now, context.username = me.now, me.username
    login = approve(
        "login", me.username or "the API server does not return the name of this account"
    )
    yield "API server", [approve("server", f"{server}, Kubernetes {version}"), login]
    context.resources = (await discover(client)).resources
    found, findings = await records.find_configurations(context)
    yield "Webhook configurations", findings
    webhooks = [(reason, one) for (_, reason), held in found.items() for one in held.webhooks]
    probed = iter(await probe(context, webhooks) if context.is_probing else ())
    for name in dict.fromkeys(name for name, _ in found):
        both = {kind: found[name, kind] for kind in KINDS}
        removal = f"webop uninstall --managed {name}"
        yield f"Replicas of {name}", records.check_replicas(both, removal, context.now)
        live = both[WebhookType.VALIDATING].list_live(context.now)
        context.replicas |= {record.identity for record in live}
    for (name, reason), held in found.items():
        findings = [
            *await check_trust(context, held.webhooks),
            *islice(probed, len(held.webhooks)),
        ]
        if context.is_known and len(context.names) == 1:
            findings += records.check_handlers(context, name, reason, held)
        yield f"{KINDS[reason].kind} {name}", findings or [approve("webhooks", "none")]
    async for title, findings in check_conversions(context):
        yield title, findings
    whose = f"Permissions of {context.account or context.username or 'this account'}"
    for title, check in (
        ("Coordination", records.check_lease),
        ("Coordination", check_shards),
        ("Coordination", records.check_peering),
        ("Coordination", records.check_finalizers),
        ("Objects that wait", records.check_events),
        ("Selectors", check_selectors),
        ("Rules", check_rules),
        (whose, check_permissions),
    ):
        try:
            findings = await check(context)
        except APIForbiddenError as exc:
            findings = [note("unknown", str(exc))]
        yield title, findings
    yield whose, list_unknown(context)
