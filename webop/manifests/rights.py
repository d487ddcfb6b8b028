"""RBAC for an operator: what it needs (:mod:`webop.doctor.permissions`), as roles and bindings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from webop.doctor.permissions import Need
from webop.errors import ConfigurationError
from webop.manifests.objects import Plan
from webop.manifests.yaml_text import dump

Json = dict[str, Any]

_VERBS: Final = ("get", "list", "watch", "create", "update", "patch", "delete")
_HANDLED: Final = "The objects that the handlers are for."
_OWN: Final = "What the handlers do, as in the file of --rules."
_WHY: Final = {
    ("apiextensions.k8s.io", "customresourcedefinitions"): "Which kinds there are, now and later.",
    ("", "namespaces"): "Which of the namespaces there are, now and later.",
    ("", "events"): "Kubernetes Events about what handlers do.",
    ("", "secrets"): (
        "The certificate of the webhooks, which all replicas share. Kubernetes cannot limit "
        "creation to a name."
    ),
    ("coordination.k8s.io", "leases"): (
        "Which of the replicas acts. Kubernetes cannot limit creation to a name. With list and "
        "watch, replicas take over more quickly."
    ),
    ("kopf.dev", "kopfpeerings"): "Which other operators there are.",
    ("kopf.dev", "clusterkopfpeerings"): "Which other operators there are.",
    **dict.fromkeys(
        (
            ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
            ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
        ),
        "The webhooks are in force as long as a replica serves them. Kubernetes cannot limit "
        "creation to a name, so this remains wide: whoever has this account can create webhooks "
        "for any objects.",
    ),
}


def read_rules(path: Path) -> str:
    """Return the text of a file with a list of rules, comments included.

    Raises:
        ConfigurationError: it cannot be read, or is something else.
    """
    try:
        text = path.read_text()
        rules = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as exc:
        raise ConfigurationError(f"Cannot read rules from '{path}': {exc}") from exc
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
    plan: Plan, needs: Iterable[Need], namespaces: tuple[str, ...], own: str = ""
) -> Iterator[str]:
    """Yield the roles that the service account needs, and bindings to them, as YAML.

    Args:
        plan: what is deployed.
        needs: what the operator must be permitted to do.
        namespaces: where the operator works; empty for everywhere.
        own: rules for what the handlers do, where they are called: the text of a file.
    """
    served = namespaces or ("",)
    places: dict[str, list[Need]] = {place: [] for place in ("", *served)}
    for need in needs:
        for place in need.namespaces or ("",):
            places.setdefault(place, []).append(need)
    for place, found in places.items():
        is_served = place in served
        rules = _build_rules(found)
        if own and is_served:
            rules += f"{_comment(_OWN)}\n{own.rstrip()}\n"
        suffix = "" if is_served or not place else "-replicas" if place == plan.home else "-events"
        if rules.strip():
            yield from _build_role(plan, place, f"{plan.name}{suffix}", rules)


def _build_rules(needs: Iterable[Need]) -> str:
    """Return the rules for needs: as few as say the same, with comments."""
    granted: dict[tuple[str, str, tuple[str, ...]], set[str]] = {}
    for need in needs:
        for rule in need.build_rules():
            names = tuple(rule.get("resourceNames", ()))
            granted.setdefault((need.group, need.resource, names), set()).update(rule["verbs"])
    rules: dict[tuple[Any, ...], list[str]] = {}
    for (group, resource, names), verbs in granted.items():
        everything = granted.get((group, "*", ()), set()) | granted.get(("*", "*", ()), set())
        if resource == "*" or not verbs <= everything:
            ordered = tuple(verb for verb in _VERBS if verb in verbs)
            why = _WHY.get((group, resource), _HANDLED)
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
    subject = {"kind": "ServiceAccount", "name": plan.name, "namespace": plan.home}
    yield dump(
        {
            **head,
            "kind": f"{kind}Binding",
            "roleRef": {"apiGroup": api, "kind": kind, "name": name},
            "subjects": [subject],
        }
    )


def _comment(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 94, initial_indent="# ", subsequent_indent="# "))
