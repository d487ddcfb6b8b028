"""Build webhook configurations from handlers and resources.

Pure. The format is that of the Kubernetes API, admissionregistration.k8s.io/v1. The API server
refuses a whole configuration if one of its names is invalid, and functions can have any names, so
names are normalized here.

A webhook that cannot be reached blocks all its requests (failure policy "Fail"). On pods and nodes,
these include the requests that would bring it back (Kubernetes, "Admission Webhook Good
Practices"). :func:`list_dangers` warns of such handlers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from webop.handlers.model import MatchCondition, Rule, WebhookHandler, WebhookType
from webop.handlers.webhook_options import MAX_CONDITIONS, build_expressions
from webop.objects.names import SUBDOMAIN
from webop.objects.resources import EVERYTHING, Resource
from webop.servers.base import WebhookClientConfig

GROUP = "admissionregistration.k8s.io"
KINDS = {
    reason: Resource(GROUP, "v1", f"{kind.lower()}s", kind=kind, namespaced=False)
    for reason, kind in (
        (WebhookType.VALIDATING, "ValidatingWebhookConfiguration"),
        (WebhookType.MUTATING, "MutatingWebhookConfiguration"),
    )
}
_MAX_NAME = 253  # RFC 1123, a subdomain
_MAX_STEM = 128  # leaves room for the name of the configuration

OWN_REQUESTS = "not-by-the-operator"
_SYSTEM_NAMESPACE = "kube-system"
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"  # every namespace has it, and nobody can change it

_FOREIGN = re.compile(r"[^a-z0-9.-]")

_ADVICE = (
    "Narrow it down by labels=, namespace_selector= or match_conditions=, "
    "or set failure_policy='Ignore'."
)
_DEBUGGING = (
    " It is not called for containers that 'kubectl debug' adds to pods: these need a handler with "
    "subresource='ephemeralcontainers'."
)

# Resources that a cluster cannot work without, and whether they are namespaced.
_VITAL = {
    ("", "pods"): True,
    ("", "nodes"): False,
    ("", "namespaces"): False,
    ("", "events"): True,
    ("events.k8s.io", "events"): True,
    ("coordination.k8s.io", "leases"): True,
}


@dataclass(frozen=True, slots=True)
class Exclusions:
    """The requests for which no webhook is called, so that the operator does not block itself.

    Attributes:
        namespace: exclude the objects of this namespace, if any.
        username: exclude the requests of this user, if any, such as
            "system:serviceaccount:ns:name".
        secret: exclude the Secret of this namespace and name, if any: the webhook server needs it
            to start.
    """

    namespace: str | None = None
    username: str | None = None
    secret: tuple[str, str] | None = None


_NO_EXCLUSIONS = Exclusions()


def build_configuration(
    *,
    reason: WebhookType,
    name: str,
    handlers: Iterable[WebhookHandler],
    resources: Collection[Resource],
    client_config: WebhookClientConfig,
    exclusions: Exclusions = _NO_EXCLUSIONS,
) -> dict[str, Any]:
    """Build a Validating- or MutatingWebhookConfiguration.

    The name is also the suffix of the names of its webhooks. Handlers of the other type, and those
    whose resources the cluster does not have, are skipped.
    """
    webhooks: dict[str, dict[str, Any]] = {}
    everything = list(handlers)
    shared = {handler.id for handler in everything if handler.reason is not reason}
    for handler in everything:
        rules = build_rules(handler, resources) if handler.reason is reason else []
        if rules:
            path = build_typed_id(handler) if handler.id in shared else handler.id
            unique = build_webhook_name(handler.id, name, taken=webhooks)
            config = build_client_config(client_config, path)
            webhooks[unique] = {
                "name": unique,
                "rules": rules,
                "clientConfig": config,
                "sideEffects": "NoneOnDryRun" if handler.side_effects else "None",
                "failurePolicy": "Ignore" if handler.is_optional else "Fail",
                "matchPolicy": handler.match_policy,
                "timeoutSeconds": handler.timeout_seconds,
                "admissionReviewVersions": ["v1", "v1beta1"],
                **_build_conditions(handler, exclusions, rules, client_config),
            }
            if handler.reinvocation_policy is not None:
                webhooks[unique]["reinvocationPolicy"] = handler.reinvocation_policy
    return {
        "apiVersion": KINDS[reason].api_version,
        "kind": KINDS[reason].kind,
        "metadata": {"name": name},
        "webhooks": list(webhooks.values()),
    }


def build_webhook_name(handler_id: str, suffix: str, *, taken: Collection[str] = ()) -> str:
    """Return the name of a webhook, such as "validate1.auto.kopf.dev".

    It is a DNS name of at least three parts. Slashes become dots, underscores become dashes,
    capitals become small letters, other characters become their hexadecimal codes. Handlers for
    different operations can have the same id: a number is added to names that are ``taken``.
    """
    stem = _normalize(handler_id).replace("/", ".")
    padding = ".local" if f"{stem}.{suffix}".count(".") < 2 else ""
    number, name = 1, f"{stem}.{suffix}{padding}"
    while name in taken:
        number += 1
        name = f"{stem}-{number}.{suffix}{padding}"
    return name


def build_typed_id(handler: WebhookHandler) -> str:
    """Return an id that no handler of the other type has, such as "mutating/fn"."""
    return f"{handler.reason}/{handler.id}"


def build_service_id(handler_id: str) -> str:
    """Return the unique id of a handler for the path of a ``clientConfig.service``.

    That path must consist of DNS names (the path of a ``url`` need not, and has the id itself).
    So ``check_numbers`` becomes, for example, ``check-numbers-0f1e2d3c``.
    """
    segments = handler_id.split("/")
    if all(len(text) <= _MAX_NAME and SUBDOMAIN.fullmatch(text) for text in segments):
        return handler_id
    digest = hashlib.blake2b(handler_id.encode(), digest_size=4).hexdigest()
    return f"{_normalize(handler_id)}-{digest}"


def _normalize(handler_id: str) -> str:
    """Turn an id into DNS names with slashes in between; the result may not be unique."""
    segments = []
    for segment in handler_id.lower().split("/"):
        text = _FOREIGN.sub(lambda match: match[0].encode().hex(), segment.replace("_", "-"))
        segments.append(".".join(filter(None, (label.strip("-") for label in text.split(".")))))
    text = "/".join(filter(None, segments)) or "webhook"
    return text if len(text) <= _MAX_STEM else text[:_MAX_STEM].rstrip("-./")


def _build_conditions(
    handler: WebhookHandler,
    exclusions: Exclusions,
    rules: Collection[dict[str, Any]],
    client_config: WebhookClientConfig,
) -> dict[str, Any]:
    """Return the selectors and match conditions of a webhook.

    By default, webhooks for pods skip those that the cluster, and the webhooks, cannot start
    without.
    """
    expressions = build_expressions(handler.labels)
    conditions: dict[str, Any] = {
        "objectSelector": {"matchExpressions": expressions} if expressions else None
    }
    namespaces = dict(handler.namespace_selector or {})
    skipped = [] if exclusions.namespace is None else [exclusions.namespace]
    if handler.namespace_selector is None and any(map(_includes_pods, rules)):
        home = (client_config.get("service") or {}).get("namespace")
        skipped = [_SYSTEM_NAMESPACE, *filter(None, dict.fromkeys((home, *skipped)))]
    if skipped:
        others = {"key": _NAMESPACE_LABEL, "operator": "NotIn", "values": skipped}
        namespaces["matchExpressions"] = [*namespaces.get("matchExpressions", ()), others]
    if namespaces:
        conditions["namespaceSelector"] = namespaces
    extra = exempt_user(exclusions.username)
    if exclusions.secret is not None and any(
        rule["apiGroups"] == [""] and {"secrets", "*", "*/*"} & {*rule["resources"]}
        for rule in rules
    ):
        namespace, name = map(_quote, exclusions.secret)
        extra["not-the-certificate"] = (
            'request.resource.group != "" || request.resource.resource != "secrets" || '
            f"request.namespace != {namespace} || !has(request.name) || request.name != {name}"
        )
    if matching := join_conditions(handler.match_conditions, extra):
        conditions["matchConditions"] = matching
    return conditions


def _includes_pods(rule: Mapping[str, Any]) -> bool:
    names = {resource.partition("/")[0] for resource in rule["resources"]}
    return bool({"", "*"} & {*rule["apiGroups"]} and {"pods", "*"} & names)


def _quote(text: str) -> str:
    """Return a CEL string literal: CEL knows JSON's escapes, except those of surrogates."""
    return json.dumps(text, ensure_ascii=False)


def exempt_user(username: str | None) -> dict[str, str]:
    """Return the match condition that excludes the requests of a user, if any."""
    if username is None:
        return {}
    return {OWN_REQUESTS: f"request.userInfo.username != {_quote(username)}"}


def join_conditions(
    conditions: Collection[MatchCondition], extra: Mapping[str, str]
) -> list[dict[str, str]]:
    """Return all match conditions; join the extra ones with "&&" where their number is limited."""
    built = [{"name": name, "expression": expression} for name, expression in conditions]
    for stem, expression in extra.items():
        if len(built) < MAX_CONDITIONS:
            name, number, taken = stem, 1, {item["name"] for item in built}
            while name in taken:
                number += 1
                name = f"{stem}-{number}"
            built.append({"name": name, "expression": expression})
        else:
            built[-1]["expression"] = f"({built[-1]['expression']}\n) && ({expression})"
    return built


def build_rules(
    handler: WebhookHandler | Rule, resources: Iterable[Resource]
) -> list[dict[str, Any]]:
    """Return which requests a webhook or a policy is for.

    For EVERYTHING, they have "*" for all kinds of an API version. So they stay short in a cluster
    with many kinds, and a new kind is checked at once. (There is no "*" for all groups: it would
    include Events, which EVERYTHING does not mean.)
    """
    if handler.selector is None:
        return []
    # "*" includes the object itself, unlike in Kubernetes.
    parts = {None: [""], "*": ["", "/*"]}.get(handler.subresource, [f"/{handler.subresource}"])
    everything = ["*/*"] if handler.subresource == "*" else [f"*{parts[0]}"]
    found = sorted(handler.selector.select(resources), key=lambda resource: resource.name)
    names: dict[tuple[str, str], list[list[str]]] = {}
    for resource in found:
        own = [f"{resource.plural}{part}" for part in parts]
        names.setdefault((resource.group, resource.version), []).append(own)
    if handler.selector.any_name is EVERYTHING:
        others = {(one.group, one.version) for one in {*resources}.difference(found)}
        names |= {api: [everything] for api in names.keys() - others}
    return [
        {
            "apiGroups": [group],
            "apiVersions": [version],
            "resources": own,
            "operations": sorted(handler.operations) or ["*"],
            "scope": "*" if isinstance(handler, Rule) else handler.scope,
        }
        for (group, version), several in names.items()
        for own in several
    ]


def build_client_config(config: WebhookClientConfig, handler_id: str) -> dict[str, Any]:
    """Return a config with the id of a handler at the end of its path."""
    result: dict[str, Any] = {key: value for key, value in config.items() if value is not None}
    if result.get("url"):
        result["url"] = f"{str(result['url']).rstrip('/')}/{quote(handler_id)}"
    if result.get("service"):
        service = {key: value for key, value in result["service"].items() if value is not None}
        path = service.get("path", "").strip("/")
        service["path"] = "/".join(("", *filter(None, (path, build_service_id(handler_id)))))
        result["service"] = service
    return result


def list_dangers(handlers: Iterable[WebhookHandler], resources: Iterable[Resource]) -> list[str]:
    """Return a warning for each handler that can stop the cluster or is never called."""
    known = list(resources)
    dangers = []
    for handler in handlers:
        found = [] if handler.selector is None else handler.selector.select(known)
        is_harmless = (
            handler.is_optional
            or handler.namespace_selector
            or handler.match_conditions
            or build_expressions(handler.labels)
        )
        if not is_harmless and (what := _describe_vital(handler, found)):
            is_blind = handler.subresource is None and ("", "pods") in {
                (resource.group, resource.plural) for resource in found
            }
            dangers.append(
                f"{handler} is called for all {what}: if it does not answer, the cluster stops. "
                f"{_ADVICE}{_DEBUGGING if is_blind else ''}"
            )
        if found and all(resource.group == GROUP for resource in found):
            names = " and ".join(sorted(resource.plural for resource in found))
            dangers.append(f"{handler} is for {names}: API servers never call webhooks for these.")
    return dangers


def _describe_vital(handler: WebhookHandler, resources: Collection[Resource]) -> str:
    selector = handler.selector
    if selector is not None and selector.any_name is EVERYTHING and selector.group is None:
        return "kinds of objects" if resources else ""
    scopes = {"*": (True, False), "Namespaced": (True,), "Cluster": (False,)}[handler.scope]
    names = {
        resource.plural
        for resource in resources
        if _VITAL.get((resource.group, resource.plural)) in scopes
    }
    return " and ".join(sorted(names))
