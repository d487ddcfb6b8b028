"""Ask the API server whether RBAC permits what the handlers and the settings need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

from webop.admission.configurations.building import GROUP, KINDS
from webop.aio.concurrency import run_concurrently
from webop.cli.doctor.context import Context, Json
from webop.cli.doctor.findings import Finding, Level, approve, warn
from webop.coordination.requests import LEASES
from webop.objects.names import join_names
from webop.objects.rights import parse_right
from webop.servers.certificates.secret import parse_secret

_API = "authorization.k8s.io"
_EMPTY = '""'
_AT_TIMES = "list is needed if the API server has no streaming lists; get, after conflicts"


@dataclass(frozen=True, slots=True)
class Need:
    """Verbs on a resource that an operator must be granted, in the cluster or in namespaces."""

    group: str
    resource: str  # with the subresource, as in "pods/status"
    verbs: tuple[str, ...]
    namespaces: tuple[str, ...] = ()
    name: str = ""  # of a single object; RBAC cannot limit "create" to a name
    level: Level = Level.FAILURE
    use: str = ""  # the reason, if the operator mostly works without it
    is_declared: bool = False  # in settings.networking.rights or --rules

    def list_reviews(self) -> list[dict[str, str]]:
        """Return the questions for the API server, as ``resourceAttributes``."""
        plural, _, part = self.resource.partition("/")
        what = {"group": self.group, "resource": plural, "subresource": part}
        named = {verb: "" if verb == "create" else self.name for verb in self.verbs}
        return [
            {**what, "verb": verb, "namespace": namespace, "name": named[verb]}
            for namespace, verb in product(self.namespaces or ("",), self.verbs)
        ]

    def build_rules(self) -> Iterator[dict[str, list[str]]]:
        """Yield the rules of a Role; creation cannot be limited to a name."""
        named = [verb for verb in self.verbs if self.name and verb != "create"]
        others = [verb for verb in self.verbs if verb not in named]
        what = {"apiGroups": [self.group], "resources": [self.resource]}
        if others:
            yield {**what, "verbs": others}
        if named:
            yield {**what, "resourceNames": [self.name], "verbs": named}

    def judge(self, missing: list[dict[str, str]]) -> Finding:
        """Return a finding: which verbs are missing, and what to add to which role."""
        if not missing:
            return approve(self.resource, f"{', '.join(self.verbs)} granted")
        verbs = " and ".join(dict.fromkeys(item["verb"] for item in missing))
        text, role = f"not granted: {verbs} {self.resource}", "ClusterRole"
        if self.namespaces:
            text += f" in {' and '.join(dict.fromkeys(item['namespace'] for item in missing))}"
            role = f"Role in {' and '.join(self.namespaces)}"
        if self.use:
            text += f"; {self.use}"
        rules = (
            ", ".join(f"{key}: [{', '.join(item or _EMPTY for item in rule[key])}]" for key in rule)
            for rule in self.build_rules()
        )
        remedy = f"Add to the {role}: {', '.join(f'{{{rule}}}' for rule in rules)}"
        return Finding(self.level, self.resource, text, remedy)


_weak = partial(Need, level=Level.WARNING)


def list_object_needs(context: Context) -> Iterator[Need]:
    """Yield what the operator needs to handle objects (chapter "Deployment", RBAC)."""
    settings, namespaces, is_patched = context.settings, context.namespaces, context.handled
    for resource in sorted(is_patched, key=lambda resource: resource.name):
        plural, group = resource.plural, resource.group
        where = namespaces if resource.namespaced else ()
        yield Need(group, plural, ("watch", "patch") if is_patched[resource] else ("watch",), where)
        verbs = ("list", "get") if is_patched[resource] else ("list",)
        yield _weak(group, plural, verbs, where, use=_AT_TIMES)
        if is_patched[resource] and "status" in resource.subresources:
            use = "needed for results of handlers, and for what they write there"
            yield _weak(group, f"{plural}/status", ("patch",), where, use=use)
    if not settings.scanning.disabled and context.registry.follows_kinds:
        use, verbs = "needed to notice new kinds", ("list", "watch")
        yield _weak("apiextensions.k8s.io", "customresourcedefinitions", verbs, use=use)
        if namespaces:
            use = "optional, since --namespace names the namespaces"
            yield Need("", "namespaces", verbs, level=Level.NOTE, use=use)
    # Messages of admission handlers do not become Events.
    if settings.posting.enabled and context.registry.select_resource_handlers():
        if namespaces and not all(resource.namespaced for resource in is_patched):
            namespaces = tuple(dict.fromkeys((*namespaces, "default")))
        yield _weak("", "events", ("create", "patch"), namespaces)


def _list_coordination_needs(context: Context) -> Iterator[Need]:
    leadership, peering = context.settings.leadership, context.settings.peering
    if (name := leadership.lease_name) is not None:
        where = (leadership.lease_namespace or context.namespace,)
        yield Need(LEASES.group, LEASES.plural, ("get", "create", "update"), where, name)
        use = "optional: replicas take over faster with it"
        yield Need(LEASES.group, LEASES.plural, ("list", "watch"), where, name, Level.NOTE, use)
    need = Need if peering.mandatory else _weak
    for kind in [] if peering.standalone else context.peerings:
        yield need(kind.group, kind.plural, ("list", "watch"), context.namespaces, peering.name)
        written = f"{kind.plural}/status" if "status" in kind.subresources else kind.plural
        yield need(kind.group, written, ("patch",), context.namespaces, peering.name)


def _list_declared_needs(context: Context) -> Iterator[Need]:
    for right in map(parse_right, context.settings.networking.rights):
        for one in right.selector.select(context.resources):
            resource = f"{one.plural}/{right.subresource}".rstrip("/")
            where = context.namespaces if one.namespaced else ()
            use = "declared in settings.networking.rights"
            yield Need(one.group, resource, right.verbs, where, use=use, is_declared=True)


def list_needs(context: Context, *, has_own_secret: bool = True) -> Iterator[Need]:
    """Yield everything that the operator must be granted, as far as it is known.

    A Secret with a certificate that webop did not make only needs ``get``.
    """
    for name, kind in product(context.names, KINDS.values()):
        yield Need(GROUP, kind.plural, ("create", "patch"), name=name)
    if (secret := context.secret) is not None:
        verbs = ("get", "create", "update") if has_own_secret else ("get",)
        yield Need("", "secrets", verbs, (secret[0],), secret[1])
    yield from list_object_needs(context) if context.registry else ()
    if context.registry.select_resource_handlers():
        yield from _list_coordination_needs(context)
    yield from _list_declared_needs(context)


def build_review(attributes: Json, account: str | None, home: str) -> tuple[str, Json]:
    """Return the path and the body of an access review for an account; None for the user's own."""
    spec: Json = {"resourceAttributes": attributes}
    kind = "SelfSubjectAccessReview"
    if account is not None:
        kind = "SubjectAccessReview"
        groups = ["system:authenticated"]  # as the API server puts users into them by itself
        if home:
            groups += ["system:serviceaccounts", f"system:serviceaccounts:{home}"]
        spec |= {"user": account, "groups": groups}
    body = {"apiVersion": f"{_API}/v1", "kind": kind, "spec": spec}
    return f"/apis/{_API}/v1/{kind.lower()}s", body


async def check_permissions(context: Context) -> list[Finding]:
    """Ask the API server about everything that the operator needs."""

    async def check(need: Need) -> Finding:
        missing = []
        for attributes in need.list_reviews():
            path, body = build_review(attributes, context.account, context.home)
            review = await context.client.request("POST", path, body=body)
            if not review["status"].get("allowed"):
                missing.append(attributes)
        return need.judge(missing)

    found = {} if context.secret is None else await context.read_secret(*context.secret)
    is_own = parse_secret(found or None).is_own  # others are only read
    findings = await run_concurrently(map(check, list_needs(context, has_own_secret=is_own)))
    return list(dict.fromkeys(findings))  # several configurations need the same


def list_unknown(context: Context) -> Iterator[Finding]:
    """Yield the kinds of handlers and rights that the cluster does not have, or not uniquely."""
    rights = {parse_right(text).selector for text in context.settings.networking.rights}
    handled = context.registry.collect_selectors()
    for selector in sorted({*handled, *rights}, key=str):
        if not selector.is_specific or selector.select(context.resources):
            continue
        what, remedy = "not in the cluster", "Create its CRD: kubectl apply -f CRD.yaml"
        if names := sorted(map(str, selector.find_candidates(context.resources))):
            what, remedy = f"ambiguous: {join_names(names)}", "Name the API group as well."
        effect = "its handlers are not called, and " if selector in handled else ""
        text = f"{what}: {effect}its permissions were not checked"
        yield warn(str(selector), text, remedy)
