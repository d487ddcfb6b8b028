"""Whether RBAC lets an operator do what it must.

What is needed is listed by pure functions; the API server is asked by Self- or
SubjectAccessReview (Kubernetes API, authorization.k8s.io/v1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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

_API = "authorization.k8s.io"
_REVIEWING = f"{{apiGroups: [{_API}], resources: [subjectaccessreviews], verbs: [create]}}"


@dataclass(frozen=True, slots=True)
class Need:
    """Something that an operator must be permitted to do.

    Attributes:
        namespaces: where; empty for everywhere.
        name: of the one object; empty for all. Verbs without a name (create) are for all anyway.
        level: how bad it is not to have it.
        use: what it is needed for, if the operator does most without it.
    """

    subject: str
    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    namespaces: tuple[str, ...] = ()
    name: str = ""
    level: Level = Level.FAILURE
    use: str = ""

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

    def judge(self, missing: Sequence[Mapping[str, str]]) -> Finding:
        """Say which of the reviews are negative, and what to add to the roles."""
        if not missing:
            return approve(self.subject, f"{', '.join(self.verbs)} granted")
        grouped: dict[str, dict[str, None]] = {}
        for item in missing:
            name = "/".join([item["resource"], *filter(None, [item.get("subresource")])])
            grouped.setdefault(name, {})[item["verb"]] = None
        listed = "; ".join(f"{' and '.join(verbs)} {name}" for name, verbs in grouped.items())
        places = sorted({item["namespace"] for item in missing if "namespace" in item})
        where = f" in {' and '.join(places)}" if places else ""
        role = f"Role in {' and '.join(self.namespaces)}" if self.namespaces else "ClusterRole"
        text = f"not granted: {listed}{where}{self.use and f'; {self.use}'}"
        return Finding(self.level, self.subject, text, f"Add to the {role}: {self._build_rules()}")

    def _build_rules(self) -> str:
        """Return the rules to add: limited to the name, but for creations, which cannot be."""
        group, resources = self.group or '""', ", ".join(self.resources)
        named = [verb for verb in self.verbs if self.name and verb != "create"]
        others = [verb for verb in self.verbs if verb not in named]
        return ", ".join(
            f"{{apiGroups: [{group}], resources: [{resources}], "
            f"{names}verbs: [{', '.join(verbs)}]}}"
            for names, verbs in (("", others), (f"resourceNames: [{self.name}], ", named))
            if verbs
        )


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
    warning = Level.WARNING
    for resource in sorted(is_patched, key=lambda resource: resource.name):
        plural, group = resource.plural, resource.group
        where = namespaces if resource.namespaced else ()
        verbs = ("watch", "patch") if is_patched[resource] else ("watch",)
        yield Need(plural, group, (plural,), verbs, where)
        use = "needed if the API server has no streaming lists, or cannot give one at the moment"
        title = f"{plural} (list)"
        yield Need(title, group, (plural,), ("list",), where, level=warning, use=use)
        if is_patched[resource]:
            use = "needed when others change an object at the same time: patches conflict then"
            title = f"{plural} (get)"
            yield Need(title, group, (plural,), ("get",), where, level=warning, use=use)
        if is_patched[resource] and "status" in resource.subresources:
            status, use = f"{plural}/status", "needed for results, and what handlers write there"
            yield Need(status, group, (status,), ("patch",), where, level=warning, use=use)
    verbs = ("list", "watch")
    if not settings.scanning.disabled:
        plural, use = "customresourcedefinitions", "needed to notice new kinds"
        yield Need(plural, "apiextensions.k8s.io", (plural,), verbs, level=warning, use=use)
        if namespaces:
            use = "optional, as the namespaces are named"
            yield Need("namespaces", "", ("namespaces",), verbs, level=Level.NOTE, use=use)
    if settings.posting.enabled:
        where = namespaces
        if where and not all(resource.namespaced for resource in is_patched):
            where = tuple(dict.fromkeys((*where, "default")))
        yield Need("events", "", ("events",), ("create", "patch"), where, level=warning)


def list_lease_needs(settings: OperatorSettings, home: str) -> Iterator[Need]:
    """Yield what the election by a Lease needs, if there is one; home is the own namespace."""
    if (name := settings.leadership.lease_name) is not None:
        where, subject = (settings.leadership.lease_namespace or home,), f"Lease {name}"
        kind, use = (LEASES.plural,), "optional: with it, replicas take over more quickly"
        yield Need(subject, LEASES.group, kind, ("get", "create", "update"), where, name)
        quick = Level.NOTE
        yield Need(
            f"{subject} (watch)", LEASES.group, kind, ("list", "watch"), where, name, quick, use
        )


def list_peering_needs(
    settings: OperatorSettings, resources: Collection[Resource], namespaces: tuple[str, ...]
) -> Iterator[Need]:
    """Yield what it takes to meet other operators, if the cluster has a kind for it."""
    peering = settings.peering
    level = Level.FAILURE if peering.mandatory else Level.WARNING
    kinds = [] if peering.standalone else build_kinds(clusterwide=not namespaces)
    for kind in (resource for resource in resources if resource in kinds):
        where, subject = namespaces if kind.namespaced else (), f"peering {peering.name}"
        written = f"{kind.plural}/status" if "status" in kind.subresources else kind.plural
        for plural, verbs in ((kind.plural, ("list", "watch")), (written, ("patch",))):
            title = f"{subject} ({', '.join(verbs)})"
            yield Need(title, kind.group, (plural,), verbs, where, peering.name, level)


def build_review(attributes: Mapping[str, str], account: str | None, home: str) -> tuple[str, Json]:
    """Return the path and the body of the question whether something is permitted.

    Args:
        attributes: what is asked about.
        account: whose permissions; None for those of the one who asks.
        home: the namespace of the account if it is a service account.
    """
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


async def check_permissions(visit: Visit, needs: Iterable[Need]) -> list[Finding]:
    """Ask the API server about all needs, for the account that is asked for, or the present one."""
    options = visit.options

    async def check(need: Need) -> Finding:
        missing = []
        for attributes in need.list_reviews():
            path, body = build_review(attributes, options.account, options.home)
            answer = await visit.client.request("POST", path, body=body)
            if not answer["status"].get("allowed"):
                missing.append(attributes)
        return need.judge(missing)

    try:
        return list(await asyncio.gather(*map(check, needs)))
    except APIForbiddenError:
        return [
            warn(
                "--as",
                "this account may not ask about the permissions of others",
                f"Ask as somebody who may: {_REVIEWING}; or run it as the account itself.",
            )
        ]
    except APIStatusError as exc:
        return [note("reviews", f"unknown: {exc}")]
