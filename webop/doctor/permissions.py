"""Whether RBAC lets an operator do what it has to.

What is needed is listed by pure functions; the API server is asked by Self- or
SubjectAccessReview (Kubernetes API, authorization.k8s.io/v1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from webop.admission.managed.configurations import GROUP, KINDS
from webop.coordination.peers import build_kinds
from webop.coordination.requests import LEASES
from webop.doctor.findings import Finding, Level, approve, note, warn
from webop.doctor.visit import Json, Visit
from webop.errors import APIForbiddenError, APIStatusError
from webop.handling.handlers import BackgroundHandler, ChangeHandler, ResourceHandler
from webop.objects.resources import Resource
from webop.settings import OperatorSettings

ACCOUNT_PREFIX = "system:serviceaccount:"
_REVIEWS = "/apis/authorization.k8s.io/v1"
_REVIEWING = (
    "{apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}"
)


@dataclass(frozen=True, slots=True)
class Need:
    """Something that an operator has to be permitted to do.

    Attributes:
        namespaces: where; empty for everywhere.
        name: of the one object; empty for all. Verbs without a name (create) are for all anyway.
        level: how bad it is not to have it.
    """

    subject: str
    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    namespaces: tuple[str, ...] = ()
    name: str = ""
    level: Level = Level.FAILURE

    @property
    def rule(self) -> str:
        """The rule of a role that grants it, in YAML."""
        group = self.group or '""'
        resources, verbs = ", ".join(self.resources), ", ".join(self.verbs)
        return f"{{apiGroups: [{group}], resources: [{resources}], verbs: [{verbs}]}}"

    @property
    def role(self) -> str:
        """What kind of a role it takes."""
        names = " and ".join(self.namespaces)
        return f"Role in {names}" if names else "ClusterRole"

    def list_reviews(self) -> list[Json]:
        """Return what to ask the API server about, as ``resourceAttributes``."""
        return [
            {
                "group": self.group,
                "resource": resource.partition("/")[0],
                **({"subresource": resource.partition("/")[2]} if "/" in resource else {}),
                "verb": verb,
                **({"namespace": namespace} if namespace else {}),
                **({"name": self.name} if self.name and verb != "create" else {}),
            }
            for namespace, resource, verb in product(
                self.namespaces or ("",), self.resources, self.verbs
            )
        ]


@dataclass(frozen=True, slots=True)
class SecretState:
    """What is known of a Secret: both are false of one that may not be read."""

    is_absent: bool = False
    is_foreign: bool = False


def list_configuration_needs(name: str) -> list[Need]:
    """Return what it takes to keep the webhook configurations of a name (ADM-43)."""
    resources = tuple(resource.plural for resource in KINDS.values())
    verbs = ("create", "patch")
    return [Need("configurations", GROUP, resources, verbs, name=name)]


def list_secret_needs(namespace: str, name: str, state: SecretState) -> list[Need]:
    """Return what it takes to share a certificate in a Secret.

    One of others is only read. Without any, the certificates may come from files.
    """
    verbs = ("get",) if state.is_foreign else ("get", "create", "update")
    level = Level.WARNING if state.is_absent else Level.FAILURE
    return [Need(f"Secret {name}", "", ("secrets",), verbs, (namespace,), name, level)]


def list_handler_needs(
    handlers: Iterable[ResourceHandler],
    resources: Collection[Resource],
    namespaces: tuple[str, ...],
    settings: OperatorSettings,
) -> list[Need]:
    """Return what it takes to serve resources (chapter "Deployment", RBAC)."""
    verbs: dict[Resource, tuple[str, ...]] = {}
    for handler in handlers:
        for resource in handler.selector.select(resources) if handler.selector else ():
            is_patched = isinstance(handler, ChangeHandler | BackgroundHandler)
            if is_patched or resource not in verbs:
                verbs[resource] = ("list", "watch", *(("patch",) if is_patched else ()))
    needs = []
    for resource in sorted(verbs, key=lambda resource: resource.name):
        plural, where = resource.plural, namespaces if resource.namespaced else ()
        needs.append(Need(plural, resource.group, (plural,), verbs[resource], where))
        # States that wait for their turn are dropped from memory if they are very many.
        waiting = f"{plural} in large numbers"
        needs.append(Need(waiting, resource.group, (plural,), ("get",), where, level=Level.WARNING))
        if "patch" in verbs[resource] and "status" in resource.subresources:
            status, level = f"{plural}/status", Level.WARNING  # not all handlers write to it
            needs.append(Need(status, resource.group, (status,), ("patch",), where, level=level))
    watched = []
    if not settings.scanning.disabled:
        watched.append(("apiextensions.k8s.io", "customresourcedefinitions", Level.WARNING))
        if namespaces:  # they are named, so they are served without it, too
            watched.append(("", "namespaces", Level.NOTE))
    for group, plural, level in watched:
        needs.append(Need(plural, group, (plural,), ("list", "watch"), level=level))
    if settings.posting.enabled:
        verbs_of_events, where = ("create", "patch"), namespaces
        if where and not all(resource.namespaced for resource in verbs):
            where = tuple(dict.fromkeys((*where, "default")))
        needs.append(Need("events", "", ("events",), verbs_of_events, where, level=Level.WARNING))
    return needs


def list_lease_needs(settings: OperatorSettings, home: str) -> list[Need]:
    """Return the rights that the election by a Lease needs, if there is one.

    Args:
        settings: those of the operator.
        home: the namespace of its credentials.
    """
    leadership = settings.leadership
    if leadership.lease_name is None:
        return []
    group, resources, name = LEASES.group, (LEASES.plural,), leadership.lease_name
    where, subject = (leadership.lease_namespace or home,), f"Lease {name}"
    verbs, watching = ("get", "create", "update"), ("list", "watch")
    return [
        Need(subject, group, resources, verbs, where, name),
        Need(f"{subject}, quickly", group, resources, watching, where, name, Level.WARNING),
    ]


def list_peering_needs(
    settings: OperatorSettings, resources: Collection[Resource], namespaces: tuple[str, ...]
) -> list[Need]:
    """Return what it takes to meet other operators, if the cluster has a kind for it."""
    peering = settings.peering
    if peering.standalone:
        return []
    kinds = build_kinds(clusterwide=not namespaces)
    level = Level.FAILURE if peering.mandatory else Level.WARNING
    needs = []
    for kind in (resource for resource in resources if resource in kinds):
        where, subject = namespaces if kind.namespaced else (), f"peering {peering.name}"
        written = f"{kind.plural}/status" if "status" in kind.subresources else kind.plural
        for plural, verbs in ((kind.plural, ("list", "watch")), (written, ("patch",))):
            title = f"{subject} ({', '.join(verbs)})"
            needs.append(Need(title, kind.group, (plural,), verbs, where, peering.name, level))
    return needs


def build_review(attributes: Mapping[str, str], account: str | None) -> tuple[str, Json]:
    """Return the path and the body of the question whether something is permitted."""
    spec: Json = {"resourceAttributes": dict(attributes)}
    kind = "SelfSubjectAccessReview"
    if account is not None:
        kind = "SubjectAccessReview"
        spec |= {"user": account, "groups": list_groups(account)}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    return f"{_REVIEWS}/{kind.lower()}s", body


def find_home(account: str | None) -> str:
    """Return the namespace of a service account; empty for others."""
    if account is None or not account.startswith(ACCOUNT_PREFIX):
        return ""
    return account.removeprefix(ACCOUNT_PREFIX).partition(":")[0]


def list_groups(account: str) -> list[str]:
    """Return the groups that the API server puts a user into by itself."""
    groups = ["system:authenticated"]
    if namespace := find_home(account):
        groups += ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    return groups


def judge(need: Need, missing: Sequence[Mapping[str, str]]) -> Finding:
    """Say what of a need is not granted, and what to add to the roles."""
    if not missing:
        return approve(need.subject, f"{', '.join(need.verbs)} granted")
    grouped: dict[str, dict[str, None]] = {}
    for item in missing:
        name = "/".join([item["resource"], *filter(None, [item.get("subresource")])])
        grouped.setdefault(name, {})[item["verb"]] = None
    listed = "; ".join(f"{' and '.join(verbs)} {name}" for name, verbs in grouped.items())
    places = {item["namespace"] for item in missing if "namespace" in item}
    where = f" in {' and '.join(sorted(places))}" if places else ""
    remedy = f"Add to the {need.role}: {need.rule}"
    return Finding(need.level, need.subject, f"not granted: {listed}{where}", remedy)


async def check_permissions(visit: Visit, needs: Sequence[Need]) -> list[Finding]:
    """Ask the API server about all needs, for the account that is asked for, or the present one."""
    try:
        return list(await asyncio.gather(*(_check_need(visit, need) for need in needs)))
    except APIForbiddenError:
        return [
            warn(
                "--as",
                "this account may not ask about the permissions of others",
                f"Ask as somebody who may: {_REVIEWING}; or run it as the account itself.",
            )
        ]
    except APIStatusError as exc:
        return [note("reviews", f"it cannot be told: {exc}")]


async def _check_need(visit: Visit, need: Need) -> Finding:
    missing = []
    for attributes in need.list_reviews():
        path, body = build_review(attributes, visit.options.account)
        answer = await visit.ask("POST", path, body)
        if not answer["status"].get("allowed"):
            missing.append(attributes)
    return judge(need, missing)
