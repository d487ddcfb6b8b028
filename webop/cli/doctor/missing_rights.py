"""Ask the API server whether RBAC permits what the handlers and the settings need."""

from __future__ import annotations

from collections.abc import Iterator

from webop.aio.concurrency import run_concurrently
from webop.cli.doctor.check_context import Context, Json
from webop.cli.doctor.findings import Finding, Level, approve, warn
from webop.cli.required_rights import Need, list_needs
from webop.cli.yaml_text import dump
from webop.models.definitions import advise_creation
from webop.objects.rights import parse_right
from webop.servers.certificates.secret import parse_secret

_API = "authorization.k8s.io"


def judge(need: Need, missing: list[dict[str, str]]) -> Finding:
    """Return a finding: which verbs are missing, and what to add to which role."""
    if not missing:
        return approve(need.resource, f"{', '.join(need.verbs)} granted")
    verbs = " and ".join(dict.fromkeys(item["verb"] for item in missing))
    text, role = f"not granted: {verbs} {need.resource}", "ClusterRole"
    if need.namespaces:
        text += f" in {' and '.join(dict.fromkeys(item['namespace'] for item in missing))}"
        role = f"Role in {' and '.join(need.namespaces)}"
    if need.use:
        text += f"; {need.use}"
    rules = ", ".join(dump(rule, is_flow=True, width=10_000) for rule in need.build_rules())
    remedy = f"Add to the {role}: {rules}"
    return Finding(Level(need.level), need.resource, text, remedy)


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
        return judge(need, missing)

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
        what, hint, remedy = "not in the cluster", "", advise_creation(selector).strip()
        if not remedy:
            remedy = "Create its CRD: kubectl apply -f CRD.yaml"
            hint = selector.suggest(context.resources, {one.group for one in context.resources})
        if rivals := selector.list_rivals(context.resources):
            what, hint = f"ambiguous: {rivals}", ""
            remedy = "Name the API group as well."
        effect = "its handlers are not called, and " if selector in handled else ""
        text = f"{what}: {effect}its permissions were not checked{hint and f'.{hint}'}"
        yield warn(str(selector), text, remedy)
