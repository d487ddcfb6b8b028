"""Whether RBAC lets an operator do what it must.

What is needed is listed by pure functions; the API server is asked by Self- or
SubjectAccessReview (Kubernetes API, authorization.k8s.io/v1).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from webop.admission.managed.configurations import GROUP, KINDS
from webop.coordination.peers import build_kinds
from webop.coordination.requests import LEASES
from webop.doctor.findings import Finding, Level, approve, build_rule, join_names, warn
from webop.doctor.trust import find_secret
from webop.doctor.visit import Json, Visit
from webop.errors import APIForbiddenError
from webop.handling.handlers import BackgroundHandler, ChangeHandler, ResourceHandler
from webop.objects.resources import Resource
from webop.servers.service import WebhookServiceServer
from webop.settings import OperatorSettings

_API = "authorization.k8s.io"
# What the rights are for without which the operator does most of its work.
_LISTING = "needed if the API server has no streaming lists, or cannot give one at the moment"
_GETTING = "needed when others change an object at the same time: patches conflict then"
_STATUS = "needed for results, and what handlers write there"


@dataclass(frozen=True, slots=True)
class Need:
    """Something that an operator must be permitted to do."""

    subject: str
    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    namespaces: tuple[str, ...] = ()  # empty for everywhere
    name: str = ""  # of the one object; verbs without a name (create) are for all anyway
    level: Level = Level.FAILURE
    use: str = ""  # what it is needed for, if the operator does most without it

    def list_reviews(self) -> list[Json]:
        """Return what to ask the API server about, as ``resourceAttributes``."""
        reviews = []
        where = self.namespaces or ("",)
        for namespace, resource, verb in product(where, self.resources, self.verbs):
            plural, _, part = resource.partition("/")
            name = "" if verb == "create" else self.name
            rest = {"subresource": part, "namespace": namespace, "name": name}
            given = {key: value for key, value in rest.items() if value}
            reviews.append({"group": self.group, "resource": plural, "verb": verb, **given})
        return reviews

    def judge(self, missing: Sequence[Mapping[str, str]]) -> Finding:
        """Say which of the reviews are negative, and what to add to the roles."""
        if not missing:
            return approve(self.subject, f"{', '.join(self.verbs)} granted")
        grouped: dict[str, dict[str, None]] = {}
        for item in missing:
            name = "/".join(item[key] for key in ("resource", "subresource") if key in item)
            grouped.setdefault(name, {})[item["verb"]] = None
        listed = "; ".join(f"{' and '.join(verbs)} {name}" for name, verbs in grouped.items())
        places = " and ".join(sorted({item["namespace"] for item in missing if self.namespaces}))
        role = f"Role in {' and '.join(self.namespaces)}" if self.namespaces else "ClusterRole"
        named = [verb for verb in self.verbs if self.name and verb != "create"]
        others = [verb for verb in self.verbs if verb not in named]
        rules = ", ".join(
            build_rule(self.group or '""', self.resources, verbs, name)
            for verbs, name in ((others, ""), (named, self.name))
            if verbs
        )
        text = f"not granted: {listed}{places and f' in {places}'}{self.use and f'; {self.use}'}"
        return Finding(self.level, self.subject, text, f"Add to the {role}: {rules}")


_weak = partial(Need, level=Level.WARNING)
_optional = partial(Need, level=Level.NOTE)


def list_configuration_needs(name: str) -> Need:
    """Return what it takes to keep the webhook configurations of a name (ADM-43)."""
    resources = tuple(resource.plural for resource in KINDS.values())
    return Need("configurations", GROUP, resources, ("create", "patch"), name=name)


def list_handler_needs(
    handlers: Iterable[ResourceHandler],
    resources: Collection[Resource],
    namespaces: tuple[str, ...],
    settings: OperatorSettings,
) -> Iterator[Need]:
    """Yield what it takes to serve resources (chapter "Deployment", RBAC)."""
    is_patched: dict[Resource, bool] = {}
    for handler in handlers:
        for resource in handler.selector.select(resources) if handler.selector else ():
            is_writing = isinstance(handler, ChangeHandler | BackgroundHandler)
            is_patched[resource] = is_patched.get(resource, False) or is_writing
    for resource in sorted(is_patched, key=lambda resource: resource.name):
        plural, group = (resource.plural,), resource.group
        where = namespaces if resource.namespaced else ()
        verbs = ("watch", "patch") if is_patched[resource] else ("watch",)
        yield Need(*plural, group, plural, verbs, where)
        yield _weak(f"{plural[0]} (list)", group, plural, ("list",), where, use=_LISTING)
        if is_patched[resource]:
            yield _weak(f"{plural[0]} (get)", group, plural, ("get",), where, use=_GETTING)
        if is_patched[resource] and "status" in resource.subresources:
            status = f"{plural[0]}/status"
            yield _weak(status, group, (status,), ("patch",), where, use=_STATUS)
    verbs = ("list", "watch")
    if not settings.scanning.disabled:
        kind, use = "customresourcedefinitions", "needed to notice new kinds"
        yield _weak(kind, "apiextensions.k8s.io", (kind,), verbs, use=use)
        if namespaces:
            use = "optional, as the namespaces are named"
            yield _optional("namespaces", "", ("namespaces",), verbs, use=use)
    if settings.posting.enabled:
        where = namespaces
        if where and not all(resource.namespaced for resource in is_patched):
            where = tuple(dict.fromkeys((*where, "default")))
        yield _weak("events", "", ("events",), ("create", "patch"), where)


def _list_coordination_needs(visit: Visit) -> Iterator[Need]:
    """Yield what the Lease and the peering need, if there are any."""
    settings, namespaces = visit.settings, visit.namespaces
    if (name := settings.leadership.lease_name) is not None:
        subject, group, kind = f"Lease {name}", LEASES.group, (LEASES.plural,)
        where: tuple[str, ...] = (settings.leadership.lease_namespace or visit.namespace,)
        yield Need(subject, group, kind, ("get", "create", "update"), where, name)
        use = "optional: with it, replicas take over more quickly"
        yield _optional(f"{subject} (watch)", group, kind, ("list", "watch"), where, name, use=use)
    peering = settings.peering
    level = Level.FAILURE if peering.mandatory else Level.WARNING
    for one in [] if peering.standalone else build_kinds(clusterwide=not namespaces):
        for known in (resource for resource in visit.resources if resource == one):
            written = f"{one.plural}/status" if "status" in known.subresources else one.plural
            for plural, verbs in ((one.plural, ("list", "watch")), (written, ("patch",))):
                title = f"peering {peering.name} ({', '.join(verbs)})"
                yield Need(title, one.group, (plural,), verbs, namespaces, peering.name, level)


async def _list_needs(visit: Visit, names: Iterable[str]) -> list[Need]:
    """Return all that the operator needs, whose webhook configurations have these names."""
    settings, needs = visit.settings, list[Need]()
    if visit.managed or visit.registry is None or visit.webhooks:
        needs += map(list_configuration_needs, names)
    server = settings.admission.server if visit.webhooks else None
    if isinstance(server, WebhookServiceServer) and not server.certfile:
        where = server.namespace or visit.namespace
        name = find_secret(server, server.service or os.environ.get("WEBOP_SERVICE", ""))
        secret = await visit.look("", f"/api/v1/namespaces/{where}/secrets/{name}")
        known = secret["metadata"].get("annotations") or {} if isinstance(secret, dict) else None
        is_own = known is None or "webop.dev/certificate" in known  # one of others is only read
        verbs = ("get", "create", "update") if is_own else ("get",)
        needs.append(Need(f"Secret {name}", "", ("secrets",), verbs, (where,), name))
    if visit.registry is not None:
        needs += list_handler_needs(visit.handlers, visit.resources, visit.namespaces, settings)
        needs += _list_coordination_needs(visit) if visit.handlers else ()
    return needs


def build_review(attributes: Mapping[str, str], account: str | None, home: str) -> tuple[str, Json]:
    """Return the path and the body of the question whether an account, or one's own, may do it."""
    spec: Json = {"resourceAttributes": dict(attributes)}
    kind = "SelfSubjectAccessReview"
    if account is not None:
        kind = "SubjectAccessReview"
        groups = ["system:authenticated"]  # as the API server puts users into them by itself
        if home:
            groups += ["system:serviceaccounts", f"system:serviceaccounts:{home}"]
        spec |= {"user": account, "groups": groups}
    body = {"apiVersion": f"{_API}/v1", "kind": kind, "spec": spec}
    return f"/apis/{_API}/v1/{kind.lower()}s", body


async def check_permissions(visit: Visit, names: Iterable[str]) -> list[Finding]:
    """Ask the API server about all needs; the names are those of the webhook configurations."""

    async def check(need: Need) -> Finding:
        missing = []
        for attributes in need.list_reviews():
            path, body = build_review(attributes, visit.account, visit.home)
            answer = await visit.client.request("POST", path, body=body)
            if not answer["status"].get("allowed"):
                missing.append(attributes)
        return need.judge(missing)

    needs = await _list_needs(visit, names)
    try:
        findings = await asyncio.gather(*map(check, needs))
    except APIForbiddenError:
        rule = build_rule(_API, ["subjectaccessreviews"], ["create"])
        remedy = f"Ask as somebody who may: {rule}; or run it as the account itself."
        text = "this account may not ask about the permissions of others"
        findings = [warn("--as", text, remedy)]
    return [*findings, *_list_unknown(visit)]


def _list_unknown(visit: Visit) -> Iterator[Finding]:
    """Yield the kinds that are not in the cluster: their handlers and the rights are unknown."""
    handlers = (*visit.webhooks, *visit.handlers)
    for selector in dict.fromkeys(handler.selector for handler in handlers):
        if selector is None or not selector.is_specific or selector.select(visit.resources):
            continue
        what, remedy = "not in the cluster", "Create its definition: kubectl apply -f CRD.yaml"
        if names := sorted(map(str, selector.find_candidates(visit.resources))):
            what, remedy = f"ambiguous: {join_names(names)}", "Name the API group, too."
        text = f"{what}: its handlers are not called, and the rights to it are not checked"
        yield warn(str(selector), text, remedy)
