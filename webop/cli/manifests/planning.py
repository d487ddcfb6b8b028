"""Build all manifests from handlers and settings.

Flow: startup handlers → Lease and webhook settings → kinds → rights → objects.
"""

from __future__ import annotations

import base64
import ipaddress
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from webop.admission.configurations.building import build_client_config, build_configuration
from webop.admission.configurations.crd_conversions import build_conversion
from webop.admission.configurations.policies import MUTATING, MUTATING_SINCE, build_policy
from webop.admission.conversion_reviews import PATH
from webop.cli.manifests.kinds import find_kinds, list_builtin, parse_definition, read_definitions
from webop.cli.manifests.objects import PROBES_PORT, STATUS_PORT, SYSTEM_PRIORITY, Plan, Request
from webop.cli.manifests.roles import build_dry_run_policy, build_rights, split_rules
from webop.cli.required_rights import (
    Inspection,
    call_startup,
    find_models,
    list_needs,
    list_planning_needs,
)
from webop.cli.yaml_text import dump
from webop.client.api import Client
from webop.client.discovery import discover
from webop.client.standalone import connect_command
from webop.coordination.peer_records import build_kinds
from webop.coordination.shard_map import SLOTS
from webop.errors import ConfigurationError
from webop.handlers.model import Rule, WebhookType
from webop.handlers.registry import OperatorRegistry
from webop.handlers.validation import names_argument
from webop.models.crd_comparison import compare_versions
from webop.models.crds import build_crds
from webop.models.versions import collect_versions
from webop.objects.resources import Resource
from webop.objects.rights import parse_right
from webop.servers.base import WebhookClientConfig, WebhookClientConfigService
from webop.servers.local import WebhookServer
from webop.servers.service_server import WebhookServiceServer
from webop.settings.groups import OperatorSettings

Files = dict[str, list[str]]  # YAML documents by the name of their file

_HOST = "kubernetes.default.svc"
_OPERATOR = "WEBOP_OPERATOR__NAME"
_MANAGED = "WEBOP_ADMISSION__MANAGED"
_SERVICE = "WEBOP_SERVICE"
_OPEN = (
    "The NetworkPolicy is open: all pods of the cluster can connect to the webhooks. Pass the "
    "network of your pods with --pod-network; --cluster reads it from the nodes, if they have one."
)
_UNSERVED = (
    "was left out, because the cluster has no policies that change objects. They need Kubernetes "
    f"{MUTATING_SINCE}."
)


def _choose_replicas(request: Request, *, is_shared: bool) -> int:
    """Return the number of replicas."""
    replicas = request.replicas or (2 if is_shared else 1)
    if replicas > 1 and not is_shared:
        raise ConfigurationError(
            f"All {replicas} replicas would handle the same objects. They need a Lease: remove "
            "--no-lease."
        )
    return replicas


async def build_manifests(registry: OperatorRegistry, request: Request) -> tuple[Files, list[str]]:
    """Return the manifests of an operator, and warnings; set the variables of the request.

    Raises:
        ConfigurationError: the handlers cannot work with these options or settings, or a kind is
            unknown.
        LoginError: there are no credentials for the cluster (``--cluster``).
        APIError: a request to that cluster failed.
    """
    variables = dict(request.variables)
    operator = await _prepare(registry, request, variables)
    settings, known = operator.settings, set[Resource]()  # of equal kinds, the first stays
    pod_networks = list(request.pod_networks)
    if request.asks_cluster:
        async with connect_command() as client:
            known.update((await discover(client)).resources)
            if operator.service_server and not pod_networks:
                pod_networks = await _read_pod_networks(client)
    has_mutating = MUTATING in known or not request.asks_cluster
    known.update(read_definitions(request.crds))
    definitions = build_crds(find_models(registry))
    known.update(kind for each in definitions for kind in parse_definition(each["spec"]))
    known.update(list_builtin())
    watched, webhooks = registry.select_resource_handlers(), registry.select_webhooks()
    texts, own = split_rules(request.rbac)
    settings.networking.rights = texts = [*settings.networking.rights, *texts]
    rights = map(parse_right, texts)
    kinds, warnings = find_kinds([*watched, *rights], known, is_complete=request.asks_cluster)
    clients = [str(one) for one in (*watched, *webhooks) if names_argument(one.fn, "client")]
    if clients and not (texts or own):
        warnings.append(
            f"{', '.join(clients)}: what these handlers do with the client is unknown. Declare it "
            "in settings.networking.rights, or with --rbac."
        )
    peerings = (
        () if settings.peering.standalone else build_kinds(clusterwide=not operator.namespaces)
    )
    operator.resources = {*kinds, *(kind for kind in peerings if "kopf" in kind.group)}
    lease = settings.leadership.lease_name if watched else None
    is_shared = lease is not None or not watched
    replicas = _choose_replicas(request, is_shared=is_shared)
    # Twice the replicas, with a canary; in a chart, their number is a value.
    operator.slots = SLOTS if request.is_chart else min(SLOTS, 2 * (replicas + 1))
    plan = Plan(
        request=request,
        arguments=_build_arguments(request, settings, lease),
        variables=variables,
        replicas=replicas,
        is_shared=is_shared,
        is_sharded=lease is not None and settings.leadership.sharded,
        server=operator.service_server,
        pod_networks=pod_networks,
        priority=None
        if request.priority == "none"
        else request.priority or (SYSTEM_PRIORITY if registry.needs_webhook_server else None),
    )
    if request.rights_for == "plan":
        return {"rbac": [*_build_planning_account(plan, operator, own)]}, warnings
    warnings += _complete_definitions(definitions, registry, plan)
    files: Files = {"crds": [dump(definition) for definition in definitions]}
    rules = [rule for rule in registry.rules if has_mutating or not rule.is_mutating]
    warnings += [f"{rule} {_UNSERVED}" for rule in registry.rules if rule not in rules]
    ruled, more = find_kinds(rules, known, is_complete=request.asks_cluster)
    files["policies"] = list(_build_policies(rules, operator, plan, ruled))
    warnings += more
    head = [plan.build_namespace()] if request.creates_namespace else []
    roles = build_rights(plan, list_needs(operator), operator.handled, own)
    files["rbac"] = [*head, plan.build_account(), *roles]
    files |= _build_objects(plan)
    if plan.server and not pod_networks:
        warnings.append(_OPEN)
    files["webhooks"] = []  # charts get an empty file, in place of an earlier one
    if request.ca is not None and webhooks:
        found, more = find_kinds(webhooks, known, is_complete=request.asks_cluster)
        warnings += more
        files["webhooks"] = list(_build_webhooks(registry, plan, found))
    return files, warnings


def _build_planning_account(plan: Plan, operator: Inspection, own: str) -> Iterator[str]:
    """Yield the account of ``webop plan``, its rights, and what denies it all but dry runs."""
    operator.settings.posting.enabled = False
    plan = replace(plan, request=replace(plan.request, name=f"{plan.request.name}-plan"))
    yield plan.build_account()
    yield from build_rights(plan, list_planning_needs(operator), operator.handled, own)
    yield from build_dry_run_policy(plan)


def _build_objects(plan: Plan) -> Files:
    """Return the Deployment and the network objects."""
    deployment = [plan.build_deployment()]
    deployment += [plan.build_budget()] if plan.is_shared else []
    deployment += [plan.build_quota()] if plan.priority == SYSTEM_PRIORITY else []
    canary = [plan.build_canary(plan.request.canary)] if plan.request.canary else []
    network = [plan.build_service()] if plan.server else []
    network.append(plan.build_policy())
    return {"deployment": deployment, "canary": canary, "network": network}


def _build_arguments(request: Request, settings: OperatorSettings, lease: str | None) -> list[str]:
    """Return the arguments of ``webop`` in the container."""
    scope = [f"--namespace={one}" for one in request.namespaces] or ["--all-namespaces"]
    others = ["--standalone"] if settings.peering.standalone else []
    others += [f"--peering={request.peering}"] if request.peering else []
    option = "--shards" if settings.leadership.sharded else "--lease"
    others += [f"{option}={lease}"] if lease is not None else []
    probes = [f"--liveness=http://0.0.0.0:{PROBES_PORT}/healthz"]
    probes += [f"--status=http://localhost:{STATUS_PORT}/ui"]  # for kubectl port-forward
    probes += [f"--metrics=http://0.0.0.0:{PROBES_PORT}/metrics"] if request.metrics else []
    return ["run", *scope, *others, *probes, *request.sources]


async def _read_pod_networks(client: Client) -> list[str]:
    """Return the networks that the nodes of a cluster have for their pods; often there are none.

    Raises:
        APIError: the request failed.
    """
    nodes = await client.request("GET", "/api/v1/nodes")
    found = {cidr for node in nodes["items"] for cidr in node["spec"].get("podCIDRs", ())}
    networks = [ipaddress.ip_network(cidr) for cidr in found]
    collapsed = chain(
        ipaddress.collapse_addresses(one for one in networks if one.version == 4),
        ipaddress.collapse_addresses(one for one in networks if one.version == 6),
    )
    return [str(network) for network in collapsed]


async def _prepare(
    registry: OperatorRegistry, request: Request, variables: dict[str, str]
) -> Inspection:
    """Call the startup handlers; return the operator with their settings, and add variables."""
    variables.setdefault(_OPERATOR, request.name)
    is_called = registry.needs_webhook_server
    if is_called:
        if request.managed is not None and request.ca is None:
            variables[_MANAGED] = request.managed
        variables.setdefault(_SERVICE, request.service or request.name)
    os.environ.update(variables)  # the startup handlers see them as in the container
    settings = OperatorSettings.from_environment(variables)
    if request.has_lease and registry.select_resource_handlers():
        name = request.lease or settings.leadership.lease_name or request.name
        settings.leadership.lease_name = name
        settings.leadership.sharded |= request.sharded
    if request.peering:
        settings.peering.name, settings.peering.mandatory = request.peering, True
    operator = Inspection(
        settings=settings,
        account=f"system:serviceaccount:{request.home}:{request.name}",
        namespaces=request.namespaces,
        registry=registry,
    )
    if request.calls_startup and (why := await call_startup(operator, _HOST)):
        raise ConfigurationError(
            f"{why}. Set the variables that they need with --env NAME=VALUE, or skip them with "
            "--no-startup."
        )
    variables[_OPERATOR] = settings.operator.name
    settings.peering.standalone |= not settings.peering.mandatory
    if is_called:
        _complete_webhooks(settings, request, variables)
        operator.names = [settings.admission.managed] if settings.admission.managed else []
    return operator


def _complete_webhooks(
    settings: OperatorSettings, request: Request, variables: dict[str, str]
) -> None:
    """Complete the settings and the variables of webhooks; API servers must be able to call them.

    The variable of the Service is removed if the server does not need it.
    """
    admission = settings.admission
    if admission.server is None and not request.calls_startup:
        admission.server = WebhookServiceServer()
    server = admission.server
    if not isinstance(server, WebhookServiceServer):
        if server is None or isinstance(server, WebhookServer):
            given = "not set" if server is None else f"a {type(server).__name__}"
            raise ConfigurationError(
                "In a cluster, webhooks need a Service, but settings.admission.server is "
                f"{given}. In a startup handler, set: "
                "settings.admission.server = webop.WebhookServiceServer()"
            )
        del variables[_SERVICE]
    else:
        _check_equal("--service", request.service, server.service or request.service)
        _check_equal("--operator-namespace", request.home, server.namespace or request.home)
        if server.service:
            del variables[_SERVICE]
        if server.port == 0:
            raise ConfigurationError("WebhookServiceServer(port=0): a Service needs a fixed port.")
    if request.ca is not None:
        if admission.managed is not None:
            raise ConfigurationError(
                f"--ca is for webhook configurations that you maintain, but the startup handlers "
                f"set settings.admission.managed = {admission.managed!r}."
            )
    elif request.managed is None and admission.managed is None:
        admission.managed = variables[_MANAGED] = request.configurations
    _check_equal("--managed", request.managed, admission.managed or request.managed)


def _check_equal(option: str, wanted: str | None, set_to: str | None) -> None:
    if wanted not in (None, set_to):
        raise ConfigurationError(
            f"{option} is {wanted!r}, but the startup handlers set {set_to!r}."
        )


def _build_policies(
    rules: Iterable[Rule], operator: Inspection, plan: Plan, kinds: Collection[Resource]
) -> Iterator[str]:
    """Yield the policies of rules, each with its binding."""
    exempt = operator.account if operator.settings.admission.exempt_account else None
    built = set[str]()
    for rule in rules:
        if rule.id in built:
            raise ConfigurationError(f"Two rules have the id {rule.id!r}. Give one another id=.")
        built.add(rule.id)
        since = f"# This needs Kubernetes {MUTATING_SINCE}.\n" if rule.is_mutating else ""
        name = f"{rule.id}.{plan.request.name}"
        for each in build_policy(rule, name, kinds, labels=plan.labels, exempt=exempt):
            yield f"{since}{dump(each)}"


def _build_webhooks(
    registry: OperatorRegistry, plan: Plan, kinds: Collection[Resource]
) -> Iterator[str]:
    """Yield the webhook configurations, for users who maintain them (``--ca``)."""
    config = _build_client_config(plan)
    for reason in WebhookType:
        configuration = build_configuration(
            reason=reason,
            name=plan.request.configurations,
            handlers=registry.select_webhooks(),
            resources=kinds,
            client_config=config,
        )
        configuration["metadata"]["labels"] = plan.labels
        if configuration["webhooks"]:
            yield dump(configuration, width=80)


def _complete_definitions(
    definitions: Iterable[dict[str, Any]], registry: OperatorRegistry, plan: Plan
) -> list[str]:
    """Add the address for conversions to definitions; in a chart, have Helm never delete them.

    Return warnings of fields that get lost between versions without conversion.

    The operator adds its CA. Until then, requests in other versions fail. Without the address, the
    API server would only change ``apiVersion``, and drop fields.
    """
    names, warnings = collect_versions(registry.select_converters()), list[str]()
    for definition in definitions:
        name = definition["metadata"]["name"]
        if name not in names:
            warnings += [f"{name}: {drop}." for drop in compare_versions(definition)]
        elif plan.server is not None:
            config = build_client_config(_build_client_config(plan), PATH)
            definition["spec"]["conversion"] = build_conversion(config)
        if plan.request.is_chart:
            annotations = definition["metadata"].setdefault("annotations", {})
            annotations.setdefault("helm.sh/resource-policy", "keep")
    return warnings


def _build_client_config(plan: Plan) -> WebhookClientConfig:
    """Return where API servers call the operator; with ``--ca``, and which CAs they trust."""
    if plan.server is None:
        raise ConfigurationError("--ca is for webhooks behind a Service: use WebhookServiceServer.")
    service = WebhookClientConfigService(
        namespace=plan.request.home, name=plan.service, port=plan.server.service_port
    )
    if plan.server.path:
        service["path"] = plan.server.path
    config = WebhookClientConfig(service=service)
    if (ca := plan.request.ca) is not None:
        config["caBundle"] = base64.b64encode(ca.read_bytes()).decode()
    return config
