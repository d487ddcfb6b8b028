"""Compare the rules of the files (``webop.rule``) with the admission policies of the cluster."""

from __future__ import annotations

from typing import Final

from webop.admission.configurations.building import GROUP, OWN_REQUESTS
from webop.admission.configurations.policies import MUTATING, MUTATING_SINCE, build_policy
from webop.cli.doctor.check_context import Context, Json
from webop.cli.doctor.findings import Finding, Level, approve, fail, warn
from webop.handlers.model import Rule
from webop.planning.configurations import compare_policies

_REMEDY: Final = "With the same options as before: webop manifests FILES | kubectl apply -f -"


async def check_rules(context: Context) -> list[Finding]:
    """Find rules that are not in force, or not as ``webop manifests`` writes them now."""
    findings = []
    read: dict[str, list[dict[str, Json]]] = {}
    for rule in context.registry.rules:
        if rule.is_mutating and MUTATING not in context.resources:
            text = f"not in force: policies that change objects need Kubernetes {MUTATING_SINCE}"
            findings.append(warn(rule.id, text, "Upgrade the cluster, or use @webop.on.mutate."))
            continue
        kind = "mutating" if rule.is_mutating else "validating"
        if kind not in read:
            read[kind] = [
                {one["metadata"]["name"]: one["spec"] for one in listed.get("items", ())}
                for plural in (f"{kind}admissionpolicies", f"{kind}admissionpolicybindings")
                for listed in [await context.read(f"/apis/{GROUP}/v1/{plural}")]
            ]
        policies, bindings = read[kind]
        # 'webop manifests' names the policy after the rule and the account.
        names = {name for name in policies if name.rpartition(".")[0] == rule.id}
        if context.home:
            names &= {f"{rule.id}.{str(context.account).rpartition(':')[2]}"}
        found = [_judge(context, rule, n, policies[n], bindings.get(n)) for n in sorted(names)]
        found = [one for one in found if one.level is Level.OK] or found
        missing = fail(rule.id, "not in force: its policy is not in the cluster", _REMEDY)
        findings += found[:1] or [missing]
    return findings


def _judge(context: Context, rule: Rule, name: str, policy: Json, binding: Json | None) -> Finding:
    if binding is None:
        return fail(rule.id, f"not in force: {name} has no binding", _REMEDY)
    exempt = None
    if context.account and context.calls_startup:
        exempt = context.account if context.settings.admission.exempt_account else None
    elif "matchConditions" in policy:  # whose requests are exempt is unknown here
        conditions = [one for one in policy["matchConditions"] if one["name"] != OWN_REQUESTS]
        policy = {**policy, "matchConditions": conditions}
    made = build_policy(rule, name, context.resources, labels={}, exempt=exempt)
    for wanted, spec in zip(made, (policy, binding), strict=True):
        if changes := compare_policies(spec, wanted["spec"]):
            text = f"{wanted['kind']} {name} differs from the rule in {changes[0].field}"
            return warn(rule.id, text, _REMEDY)
    return approve(rule.id, f"in force as {name}")
