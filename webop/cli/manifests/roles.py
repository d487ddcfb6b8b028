"""Build roles and bindings from the needs of an operator: :mod:`webop.cli.required_rights`."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from webop.admission.configurations.building import GROUP
from webop.cli.manifests.objects import Plan
from webop.cli.required_rights import Need
from webop.cli.yaml_text import dump
from webop.errors import ConfigurationError
from webop.objects.resources import CRDS, Resource
from webop.objects.rights import VERBS, parse_right

_HANDLED: Final = "The objects that the handlers handle."
_OWN: Final = "For what the handlers do themselves, from the file of --rbac."
_DECLARED: Final = "For what handlers do themselves, from settings.networking.rights and --rbac."
_OWNING: Final = "To make these objects owners of children: some clusters (OpenShift) check it."
_CONVERSION: Final = "To write where API servers have objects converted between versions."
_COMPARED: Final = "To compare the webhooks with those in force."
_WHY: Final = {  # by the name of the resource with its group
    "customresourcedefinitions.apiextensions.k8s.io": "To find kinds, also those created later.",
    "resourcequotas": "A dry run checks them for each object alone: the plan says so.",
    **dict.fromkeys(
        (f"{kind}admissionpolicies.{GROUP}" for kind in ("validating", "mutating")),
        "To compare the rules with the policies.",
    ),
    "namespaces": "To find namespaces, also those created later.",
    "events": "To post Kubernetes Events about handlers.",
    "secrets": (
        "The certificate of the webhooks, which all replicas share. RBAC cannot limit create to a "
        "name."
    ),
    "leases.coordination.k8s.io": (
        "The Lease of the leader, or the Leases of the shards. RBAC cannot limit create to a name. "
        "With list and watch, replicas take over faster."
    ),
    "kopfpeerings.kopf.dev": "To register and to see other operators.",
    "clusterkopfpeerings.kopf.dev": "To register and to see other operators.",
    **dict.fromkeys(
        (f"{kind}webhookconfigurations.{GROUP}" for kind in ("validating", "mutating")),
        "The operator enables webhooks while a replica serves them. RBAC cannot limit create to a "
        "name, so this right is wide: the account can create webhooks for any objects. They stay "
        "when you delete the operator: remove them with 'webop uninstall'.",
    ),
}


def split_rules(texts: Iterable[str]) -> tuple[list[str], str]:
    """Return the rights in the short form, and the text of the files with rules.

    Raises:
        ConfigurationError: a text is neither; see :func:`parse_right` for the form.
    """
    rights, files = list[str](), list[str]()
    for text in texts:
        path = Path(text)
        if path.exists() or path.suffix in {".yaml", ".yml"}:
            files.append(_read_rules(path))
            continue
        try:
            parse_right(text)
        except ValueError as exc:
            raise ConfigurationError(f"--rbac: {exc}; or name a YAML file.") from exc
        rights.append(text)
    return rights, "\n".join(files)


def _read_rules(path: Path) -> str:
    """Return the text of a file with a list of rules, comments included."""
    try:
        text = path.read_text()
        rules = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as exc:
        raise ConfigurationError(f"Cannot read RBAC rules from '{path}': {exc}") from exc
    is_list = isinstance(rules, list) and all(
        isinstance(rule, dict) and rule.get("verbs") and rule.keys() <= _RULE for rule in rules
    )
    if not is_list or not all(line[:1] in ("", "-", " ", "#") for line in text.splitlines()):
        raise ConfigurationError(
            f"'{path}' must be a YAML list of RBAC rules, such as: "
            '- {apiGroups: [""], resources: [configmaps], verbs: [get, create]}'
        )
    return text


_RULE: Final = {"apiGroups", "resources", "resourceNames", "nonResourceURLs", "verbs"}


def build_rights(
    plan: Plan, needs: Iterable[Need], handled: Iterable[Resource], own: str
) -> Iterator[str]:
    """Yield the roles that the service account needs, and their bindings, as YAML.

    ``own`` are rules as YAML text, to add in all namespaces of the operator.
    """
    served = plan.request.namespaces or ("",)
    places: dict[str, list[Need]] = {place: [] for place in ("", *served)}
    for need in needs:
        for place in need.namespaces or ("",):
            places.setdefault(place, []).append(need)
    kinds = {(resource.group, resource.plural) for resource in handled}
    for place, found in places.items():
        is_served = place in served
        rules = _build_rules(found, kinds if is_served else ())
        if own and is_served:
            rules += f"{_comment(_OWN)}\n{own.rstrip()}\n"
        suffix = (
            ""
            if is_served or not place
            else "-replicas"
            if place == plan.request.home
            else "-events"
        )
        if rules.strip():
            yield from _build_role(plan, place, f"{plan.request.name}{suffix}", rules)


def _build_rules(needs: Iterable[Need], handled: Collection[tuple[str, str]]) -> str:
    """Return the rules for needs, merged and with comments."""
    granted: dict[tuple[bool, str, str, tuple[str, ...]], set[str]] = {}
    for need in sorted(needs, key=lambda need: need.is_declared):
        for rule in need.build_rules():
            key = need.group, need.resource, tuple(rule.get("resourceNames", ()))
            # Do not repeat verbs of derived rules.
            known = granted.get((False, *key), set()) if need.is_declared else set[str]()
            granted.setdefault((need.is_declared, *key), set()).update({*rule["verbs"]} - known)
    rules: dict[tuple[Any, ...], list[str]] = {}
    for (is_declared, group, resource, names), verbs in granted.items():
        everything = granted.get((False, group, "*", ()), set())
        everything = everything | granted.get((False, "*", "*", ()), set())
        if resource == "*" or not verbs <= everything:
            ordered = tuple(verb for verb in VERBS if verb in verbs)
            is_handled = (group, resource) in handled and not names
            why = _HANDLED if is_handled else _WHY.get(f"{resource}.{group}".rstrip("."), _HANDLED)
            why = _OWNING if resource.endswith("/finalizers") else why
            why = _CONVERSION if resource == CRDS.plural and names else why
            why = _COMPARED if names and group == GROUP and "patch" not in verbs else why
            why = _DECLARED if is_declared else why
            rules.setdefault((why, group, names, ordered), []).append(resource)
    lines, last = [], ""
    for (why, group, names, verbs), resources in rules.items():
        if why != last:
            lines.append(_comment(why))
        last = why
        rule = {"apiGroups": [group], "resources": resources}
        rule |= {"resourceNames": list(names)} if names else {}
        lines.append(dump([{**rule, "verbs": list(verbs)}]))
    return "\n".join(lines) + "\n"


def _build_role(plan: Plan, place: str, name: str, rules: str) -> Iterator[str]:
    kind = "Role" if place else "ClusterRole"
    where = {"namespace": place} if place else {}
    api = "rbac.authorization.k8s.io"
    metadata = {"name": name, **where, "labels": plan.labels}
    head = {"apiVersion": f"{api}/v1", "kind": kind, "metadata": metadata}
    yield f"{dump(head)}\nrules:\n{textwrap.indent(rules, '  ')}".rstrip()
    subject = {"kind": "ServiceAccount", "name": plan.request.name, "namespace": plan.request.home}
    yield dump(
        {
            **head,
            "kind": f"{kind}Binding",
            "roleRef": {"apiGroup": api, "kind": kind, "name": name},
            "subjects": [subject],
        }
    )


def build_dry_run_policy(plan: Plan) -> Iterator[str]:
    """Yield the policy, and its binding, that denies an account all writes but dry runs.

    Reviews, such as SelfSubjectAccessReviews, store nothing.
    """
    account = f"system:serviceaccount:{plan.request.home}:{plan.request.name}"
    api, name = {"apiVersion": f"{GROUP}/v1"}, f"dry-runs-only.{plan.request.name}"
    metadata = {"name": name, "labels": plan.labels}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [_match_all(["*"])],
            "excludeResourceRules": [_match_all(["authentication.k8s.io", "authorization.k8s.io"])],
        },
        "matchConditions": [
            {"name": "account", "expression": f"request.userInfo.username == '{account}'"}
        ],
        "validations": [
            {"expression": "request.dryRun", "message": f"{account} can only do dry runs."}
        ],
    }
    kind = "ValidatingAdmissionPolicy"
    yield dump({**api, "kind": kind, "metadata": metadata, "spec": spec})
    binding = {"policyName": name, "validationActions": ["Deny"]}
    yield dump({**api, "kind": f"{kind}Binding", "metadata": metadata, "spec": binding})


def _match_all(groups: list[str]) -> dict[str, list[str]]:
    rule = {"apiGroups": groups, "apiVersions": ["*"]}
    return {**rule, "operations": ["*"], "resources": ["*/*"]}


def _comment(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 94, initial_indent="# ", subsequent_indent="# "))
