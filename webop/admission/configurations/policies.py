"""Build admission policies of API servers from rules (``webop.rule``).

Pure. The format is that of the Kubernetes API, admissionregistration.k8s.io/v1. Validating policies
are in all supported versions of Kubernetes, mutating ones from 1.36 on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from webop.admission.configurations.building import (
    GROUP,
    build_rules,
    exempt_user,
    join_conditions,
)
from webop.handlers.model import Rule
from webop.objects.fields import Json
from webop.objects.resources import Resource

#: The oldest version of Kubernetes with mutating policies.
MUTATING_SINCE: Final = "1.36"
MUTATING: Final = Resource(
    GROUP, "v1", "mutatingadmissionpolicies", kind="MutatingAdmissionPolicy", namespaced=False
)
#: An older object can violate the rule; without this, nobody could remove its finalizers.
_NOT_DELETED: Final = {
    "not-being-deleted": "object == null || !has(object.metadata.deletionTimestamp)"
}


def build_policy(
    rule: Rule,
    name: str,
    resources: Collection[Resource],
    *,
    labels: Mapping[str, str],
    exempt: str | None = None,
) -> tuple[Json, Json]:
    """Build a policy and its binding; the rule does not apply to an exempt user."""
    constraints: Json = {
        "matchPolicy": "Equivalent",
        "resourceRules": build_rules(rule, resources),
    }
    if rule.object_selector:
        constraints["objectSelector"] = dict(rule.object_selector)
    if rule.namespace_selector:
        constraints["namespaceSelector"] = dict(rule.namespace_selector)
    spec: Json = {
        "failurePolicy": "Fail",
        "matchConstraints": constraints,
        "matchConditions": join_conditions(
            rule.match_conditions, _NOT_DELETED | exempt_user(exempt)
        ),
    }
    binding: Json = {"policyName": name}
    if rule.is_mutating:
        kind = "Mutating"
        spec["reinvocationPolicy"] = "Never"
        spec["mutations"] = [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": rule.apply}}
            if rule.apply
            else {"patchType": "JSONPatch", "jsonPatch": {"expression": rule.json_patch}}
        ]
    else:
        kind = "Validating"
        spec["validations"] = [{"expression": rule.cel, "message": rule.message}]
        binding["validationActions"] = [rule.action]
    made: Json = {
        "apiVersion": f"{GROUP}/v1",
        "kind": f"{kind}AdmissionPolicy",
        "metadata": {"name": name, "labels": dict(labels)},
    }
    return {**made, "spec": spec}, {**made, "kind": f"{made['kind']}Binding", "spec": binding}
