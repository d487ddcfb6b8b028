"""Webhooks that can stop a cluster: which handlers deserve a warning at the start.

Pure. A webhook that cannot be reached refuses all requests that it is for (failure policy
"Fail"). On pods and nodes these include the ones that would bring it back (Kubernetes,
"Admission Webhook Good Practices").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from webop.handling.handlers import WebhookHandler
from webop.handling.webhook_options import build_expressions
from webop.objects.resources import EVERYTHING, Resource

_ADVICE = (
    "Narrow it down by labels=, namespace_selector= or match_conditions=, "
    "or set failure_policy='Ignore'."
)

# What a cluster cannot do without, and whether it belongs to namespaces.
_VITAL = {
    ("", "pods"): True,
    ("", "nodes"): False,
    ("", "namespaces"): False,
    ("", "events"): True,
    ("events.k8s.io", "events"): True,
    ("coordination.k8s.io", "leases"): True,
}
_GROUP_OF_WEBHOOKS = "admissionregistration.k8s.io"


def list_dangers(handlers: Iterable[WebhookHandler], resources: Iterable[Resource]) -> list[str]:
    """Return a line for each handler whose webhook can stop the cluster, or is for nothing.

    Args:
        handlers: of reviews, all of them.
        resources: those of the cluster.
    """
    known = list(resources)
    dangers = []
    for handler in handlers:
        found = [] if handler.selector is None else handler.selector.select(known)
        if not _is_harmless(handler) and (what := _describe_vital(handler, found)):
            dangers.append(
                f"{handler} is asked about all {what}: while it cannot answer, the cluster stops. "
                f"{_ADVICE}"
            )
        if found and all(resource.group == _GROUP_OF_WEBHOOKS for resource in found):
            names = " and ".join(sorted(resource.plural for resource in found))
            dangers.append(f"{handler} is for {names}: API servers ask no webhook about these.")
    return dangers


def _is_harmless(handler: WebhookHandler) -> bool:
    """Tell whether the API server lets requests pass without it, or sends only some of them."""
    return bool(
        handler.is_optional
        or handler.namespace_selector
        or handler.match_conditions
        or build_expressions(handler.labels)
    )


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
