"""Plan what concerns the whole operator: webhook configurations, definitions, policies.

The operator itself writes the webhook configurations, if it manages them, and the conversions of
its kinds. Definitions are applied by ``webop crd apply``, and policies come from ``webop
manifests``: the plan has them for the reader, not as changes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Sequence
from typing import Final

from webop.admission.configurations.building import (
    GROUP,
    KINDS,
    OWN_REQUESTS,
    Exclusions,
    build_configuration,
)
from webop.admission.configurations.policies import build_policy
from webop.admission.configurations.replica_agreement import simplify
from webop.admission.configurations.stored_configurations import Configuration, parse_configuration
from webop.client.api import Client
from webop.client.standalone import fetch
from webop.context.operator_context import OperatorContext
from webop.errors import APIForbiddenError
from webop.models.crd_comparison import compare
from webop.models.crds import is_converted
from webop.models.versions import collect_versions
from webop.objects.fields import Json
from webop.objects.names import join_names
from webop.objects.resources import CRDS
from webop.planning.items import Certainty, FieldChange, Item, Section, list_changes, note
from webop.servers.base import WebhookClientConfig, WebhookClientConfigService
from webop.servers.service_server import WebhookServiceServer

_OWN: Final = (OWN_REQUESTS, "not-the-certificate")  # conditions that depend on the deployment
_WRITTEN: Final = "Webhook configurations"  # by the operator itself
_DEFINED: Final = "'webop crd apply' does it, the operator does not"
_RULED: Final = "'webop manifests' has it, the operator does not write it"


async def plan_configurations(
    operator: OperatorContext, client: Client, definitions: Sequence[Json]
) -> list[Section]:
    """Return the sections that have items."""
    found = []
    for title, items in (
        (_WRITTEN, _plan_webhooks(operator, client)),
        ("CustomResourceDefinitions", _plan_definitions(client, definitions)),
        ("Rules", _plan_rules(operator, client)),
    ):
        section = Section(title)
        try:
            section.notes += [item async for item in items]
        except APIForbiddenError as exc:
            unread = Item("read", title, Certainty.UNKNOWN, str(exc), is_change=title == _WRITTEN)
            section.notes.append(unread)
        found += [section] if section.notes else []
    return found


async def _plan_webhooks(operator: OperatorContext, client: Client) -> AsyncIterator[Item]:
    """Compare the webhooks of this version with those in force, without their address and CAs."""
    registry, admission = operator.registry, operator.settings.admission
    name = admission.managed
    if not (name and registry.needs_webhook_server):
        return
    for reason, resource in KINDS.items():
        stored = parse_configuration(await fetch(client, resource.get_url(name=name)) or None)
        config = _build_config(operator, client, stored)
        home = (config.get("service") or {}).get("namespace")
        made = build_configuration(
            reason=reason,
            name=name,
            handlers=registry.select_webhooks(),
            resources=operator.cluster_view.resources,
            client_config=config,
            exclusions=Exclusions(namespace=home if admission.exempt_namespace else None),
        )
        live = stored.list_live(dt.datetime.now(dt.UTC))
        others = join_names(sorted(record.identity for record in live if not record.is_retired))
        why = f"when the replicas {others} serve the same" if others else ""
        certainty = Certainty.MAY if others else Certainty.WILL
        before, after = (
            {one["name"]: _reduce(one) for one in several}
            for several in (stored.webhooks, made["webhooks"])
        )
        for key in {**before, **after}:
            fields = [*list_changes(before.get(key) or {}, after.get(key) or {})]
            action = "create" if key not in before else "change" if key in after else "delete"
            if fields:
                target = f"the webhook {key} in the {resource.kind} {name}"
                yield Item(action, target, certainty, why, fields)
    for kind in collect_versions(registry.select_converters()):
        present = await fetch(client, CRDS.get_url(name=kind))
        if present and not is_converted(present):
            fields = [FieldChange("spec.conversion.strategy", "None", "Webhook")]
            yield Item("change", f"the CustomResourceDefinition {kind}", fields=fields)


def _build_config(
    operator: OperatorContext, client: Client, stored: Configuration
) -> WebhookClientConfig:
    """Return where API servers would call the operator, as far as it is known: mostly the path."""
    server = operator.settings.admission.server
    path: str = getattr(server, "path", None) or ""
    if not isinstance(server, WebhookServiceServer):
        return WebhookClientConfig(url=f"https://unknown.invalid/{path.strip('/')}")
    known = (one["clientConfig"].get("service") or {} for one in stored.webhooks)
    place = next(known, {}).get("namespace") or server.namespace or client.vault.default_namespace
    service = WebhookClientConfigService(namespace=place, name="unknown", path=path)
    return WebhookClientConfig(service=service)


def _reduce(webhook: Json) -> Json:
    """Return a webhook without what depends on where the operator runs."""
    reduced: Json = simplify(webhook)
    conditions = [one for one in reduced.pop("matchConditions", ()) if one["name"] not in _OWN]
    return reduced | ({"matchConditions": conditions} if conditions else {})


async def _plan_definitions(client: Client, definitions: Sequence[Json]) -> AsyncIterator[Item]:
    for wanted in definitions:
        name = wanted["metadata"]["name"]
        if not (present := await fetch(client, CRDS.get_url(name=name))):
            yield note("create", name, Certainty.MAY, _DEFINED)
            continue
        stored = {key: value for key, value in present["spec"].items() if key != "conversion"}
        if fields := [*list_changes(stored, wanted["spec"], "spec")]:
            why = "; ".join([_DEFINED, *compare(present, wanted)])
            yield note("change", name, Certainty.MAY, why, fields)


def compare_policies(stored: Json, made: Json) -> list[FieldChange]:
    """Return the fields of a policy, or of its binding, that differ; API servers add empty ones."""
    changes = list_changes(stored, made, "spec")
    return [one for one in changes if one.new is not None or one.old]


async def _plan_rules(operator: OperatorContext, client: Client) -> AsyncIterator[Item]:
    for rule in operator.registry.rules:
        effect = "mutating" if rule.is_mutating else "validating"
        listed = await fetch(client, f"/apis/{GROUP}/v1/{effect}admissionpolicies")
        # 'webop manifests' names the policy after the rule and the account.
        known = {one["metadata"]["name"]: one["spec"] for one in listed.get("items") or ()}
        found = {name: spec for name, spec in known.items() if name.rpartition(".")[0] == rule.id}
        if not found:
            yield note("create", str(rule), Certainty.MAY, _RULED)
        for name, spec in found.items():
            others = spec.get("matchConditions") or ()
            spec["matchConditions"] = [one for one in others if one["name"] not in _OWN]
            made, _ = build_policy(rule, name, operator.cluster_view.resources, labels={})
            if fields := compare_policies(spec, made["spec"]):
                yield note("change", f"the policy {name}", Certainty.MAY, _RULED, fields)
