"""Plan what concerns the whole operator: webhook configurations, definitions, policies.

The operator itself writes the webhook configurations, if it manages them, and the conversions of
its kinds. Definitions are applied by ``webop crd apply``, and policies come from ``webop
manifests``: the plan has them for the reader, not as changes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any, Final

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
from webop.context.operator_context import OperatorContext
from webop.errors import APIForbiddenError, APINotFoundError
from webop.handlers.model import Rule
from webop.models.crd_comparison import compare
from webop.models.crds import is_converted
from webop.models.versions import collect_versions
from webop.objects.names import join_names
from webop.objects.resources import CRDS
from webop.planning.items import Certainty, FieldChange, Item, Section, list_changes
from webop.servers.base import WebhookClientConfig, WebhookClientConfigService
from webop.servers.service_server import WebhookServiceServer

Json = dict[str, Any]

_NOWHERE: Final = "https://unknown.invalid"  # API servers never get it
_OWN: Final = (OWN_REQUESTS, "not-the-certificate")
_DEFINED: Final = "'webop crd apply' does it, the operator does not"
_RULED: Final = "'webop manifests' has it, the operator does not write it"


async def plan_configurations(
    operator: OperatorContext, client: Client, definitions: Sequence[Json]
) -> list[Section]:
    """Return the sections that have items."""
    found = []
    for title, listing in (
        ("Webhook configurations", _plan_webhooks(operator, client)),
        ("CustomResourceDefinitions", _plan_definitions(client, definitions)),
        ("Rules", _plan_rules(operator, client)),
    ):
        section = Section(title)
        try:
            section.notes += await listing
        except APIForbiddenError as exc:
            section.notes.append(Item("read", title, Certainty.UNKNOWN, str(exc), is_change=False))
        found += [section] if section.notes else []
    return found


async def _read(client: Client, path: str) -> Json | None:
    try:
        found: Json = await client.request("GET", path)
    except APINotFoundError:
        return None
    return found


async def _plan_webhooks(operator: OperatorContext, client: Client) -> list[Item]:
    """Compare the webhooks of this version with those in force, without their address and CAs."""
    registry, name = operator.registry, operator.settings.admission.managed
    items = list[Item]()
    if not (name and registry.needs_webhook_server):
        return items
    for reason, resource in KINDS.items():
        stored = parse_configuration(await _read(client, resource.get_url(name=name)))
        config = _build_config(operator, client, stored)
        home = (config.get("service") or {}).get("namespace")
        is_exempt = operator.settings.admission.exempt_namespace
        made = build_configuration(
            reason=reason,
            name=name,
            handlers=registry.select_webhooks(),
            resources=operator.cluster_view.resources,
            client_config=config,
            exclusions=Exclusions(namespace=home if is_exempt else None),
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
            fields = tuple(list_changes(before.get(key) or {}, after.get(key) or {}))
            action = "create" if key not in before else "change" if key in after else "delete"
            if fields:
                target = f"the webhook {key} in the {resource.kind} {name}"
                items.append(Item(action, target, certainty, why, fields))
    for kind in collect_versions(registry.select_converters()):
        present = await _read(client, CRDS.get_url(name=kind))
        if present is not None and not is_converted(present):
            field = FieldChange("spec.conversion.strategy", "None", "Webhook")
            items.append(Item("change", f"the CustomResourceDefinition {kind}", fields=(field,)))
    return items


def _build_config(
    operator: OperatorContext, client: Client, stored: Configuration
) -> WebhookClientConfig:
    """Return where API servers would call the operator, as far as it is known: mostly the path."""
    server = operator.settings.admission.server
    path = getattr(server, "path", None)
    if not isinstance(server, WebhookServiceServer):
        return WebhookClientConfig(url=f"{_NOWHERE}/{(path or '').strip('/')}")
    known = (one["clientConfig"].get("service") or {} for one in stored.webhooks)
    place = next(known, {}).get("namespace") or server.namespace or client.vault.default_namespace
    service = WebhookClientConfigService(namespace=place, name="unknown")
    if path:
        service["path"] = path
    return WebhookClientConfig(service=service)


def _reduce(webhook: Json) -> Json:
    """Return a webhook without what depends on where the operator runs."""
    reduced = simplify(webhook)
    conditions = [one for one in reduced.pop("matchConditions", ()) if one["name"] not in _OWN]
    return reduced | ({"matchConditions": conditions} if conditions else {})


async def _plan_definitions(client: Client, definitions: Sequence[Json]) -> list[Item]:
    items = []
    for wanted in definitions:
        name = wanted["metadata"]["name"]
        present = await _read(client, CRDS.get_url(name=name))
        if present is None:
            items.append(Item("create", name, Certainty.MAY, _DEFINED, is_change=False))
            continue
        stored = {key: value for key, value in present["spec"].items() if key != "conversion"}
        if fields := tuple(list_changes(stored, wanted["spec"], "spec")):
            problems = compare(present, wanted)
            why = "; ".join([_DEFINED, *problems])
            items.append(Item("change", name, Certainty.MAY, why, fields, is_change=False))
    return items


async def _plan_rules(operator: OperatorContext, client: Client) -> list[Item]:
    items, policies = [], dict[bool, dict[str, Json]]()
    for rule in operator.registry.rules:
        if rule.is_mutating not in policies:
            plural = f"{'mutating' if rule.is_mutating else 'validating'}admissionpolicies"
            listed = await _read(client, f"/apis/{GROUP}/v1/{plural}") or {}
            policies[rule.is_mutating] = {
                one["metadata"]["name"]: one["spec"] for one in listed.get("items") or ()
            }
        known = policies[rule.is_mutating]
        # 'webop manifests' names the policy after the rule and the account.
        names = [name for name in known if name.rpartition(".")[0] == rule.id]
        if not names:
            items.append(Item("create", str(rule), Certainty.MAY, _RULED, is_change=False))
        for name in names:
            if fields := tuple(_compare(operator, rule, name, known[name])):
                target = f"the policy {name}"
                items.append(Item("change", target, Certainty.MAY, _RULED, fields, is_change=False))
    return items


def _compare(
    operator: OperatorContext, rule: Rule, name: str, stored: Json
) -> Iterator[FieldChange]:
    conditions = [one for one in stored.get("matchConditions") or () if one["name"] not in _OWN]
    made, _ = build_policy(rule, name, operator.cluster_view.resources, labels={})
    for change in list_changes({**stored, "matchConditions": conditions}, made["spec"], "spec"):
        if change.new is not None or change.old:  # API servers add empty ones
            yield change
