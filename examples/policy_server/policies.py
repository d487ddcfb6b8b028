"""A policy for the images, labels and limits of pods.

Admission only: the operator watches and stores nothing, and can have any number of replicas. It
reads the policy from a ConfigMap for each review, so a change applies to the next pod.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pydantic
from pods import Policy, fill_in_limits, find_problems, find_warnings, parse_policy

import webop
from webop.errors import APINotFoundError

HOME = "policy-server"  # the namespace of this operator, and of its ConfigMap
CONFIG_MAP = "policy"

# Pods of the cluster itself and of this operator must never depend on this operator.
VITAL = ["kube-system", HOME]
SCOPE: webop.LabelSelector = {
    "matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": VITAL},
        {"key": "policy.example.com/exempt", "operator": "DoesNotExist"},
    ]
}


@webop.on.startup()
def configure(settings: webop.OperatorSettings, **_: Any) -> None:
    """Serve the webhooks behind a Service in a cluster, otherwise on a free local port."""
    settings.admission.managed = "policy.example.com"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        settings.admission.server = webop.WebhookServiceServer(service="policy-server")
    else:
        settings.admission.server = webop.WebhookServer(port=0)


# Defaults must not block pods: if this webhook fails, a pod starts without limits.
@webop.on.mutate(
    "pods",
    id="default-limits",
    operation="CREATE",
    namespace_selector=SCOPE,
    failure_policy="Ignore",
    timeout_seconds=5,
)
async def set_default_limits(patch: webop.Patch, client: webop.AsyncClient, **_: Any) -> None:
    """Set default limits for containers without requests and limits."""
    policy = await read_policy(client)
    patch.fns.append(partial(fill_in_limits, limits=policy.defaultLimits))


# Users must not evade the policy: these webhooks stay when the last replica stops. The API server
# then refuses all pods until a replica runs again.
@webop.on.validate(
    "pods",
    id="check-pods",
    operations=["CREATE", "UPDATE"],
    namespace_selector=SCOPE,
    persistent=True,
    timeout_seconds=5,
)
@webop.on.validate(
    "pods",
    id="check-debugging",  # for "kubectl debug"
    operation="UPDATE",
    subresource="ephemeralcontainers",
    namespace_selector=SCOPE,
    persistent=True,
    timeout_seconds=5,
)
async def check_pod(
    body: webop.Body,
    old: webop.Body | None,
    warnings: list[str],
    client: webop.AsyncClient,
    **_: Any,
) -> None:
    """Deny pods that break the policy. Updates are denied only for new problems."""
    policy = await read_policy(client)
    former = () if old is None else set(find_problems(old, policy))
    problems = [problem for problem in find_problems(body, policy) if problem not in former]
    if problems:
        raise webop.AdmissionError(" ".join(problems), code=403)
    warnings.extend(find_warnings(body))


# Users do not see why pods of a Deployment are denied. So warn them when they apply it.
@webop.on.validate(
    "deployments.apps",
    id="warn-early",
    operations=["CREATE", "UPDATE"],
    namespace_selector=SCOPE,
    failure_policy="Ignore",
    timeout_seconds=5,
)
async def warn_early(
    spec: webop.Spec, warnings: list[str], client: webop.AsyncClient, **_: Any
) -> None:
    """Warn of Deployments whose pods will be denied."""
    policy = await read_policy(client)
    warnings.extend(
        f"Its pods will be denied: {problem}" for problem in find_problems(spec["template"], policy)
    )


@webop.on.validate(
    "configmaps",
    id="check-policy",
    operations=["CREATE", "UPDATE"],
    match_conditions={"policy": f"request.namespace == '{HOME}' && request.name == '{CONFIG_MAP}'"},
    failure_policy="Ignore",
    timeout_seconds=5,
)
def check_policy(body: webop.Body, **_: Any) -> None:
    """Deny invalid policies."""
    try:
        parse_policy(body)
    except pydantic.ValidationError as exc:
        raise webop.AdmissionError.from_validation(exc, path="policy.yaml") from exc
    except ValueError as exc:
        raise webop.AdmissionError(f"policy.yaml: {exc}", code=422) from exc


async def read_policy(client: webop.AsyncClient) -> Policy:
    """Return the policy.

    Raises:
        AdmissionError: there is no valid policy; the request is denied.
    """
    try:
        return parse_policy(await client.get("configmaps", CONFIG_MAP, namespace=HOME))
    except (APINotFoundError, ValueError) as exc:
        text = f"ConfigMap '{CONFIG_MAP}' in namespace '{HOME}' has no valid policy: {exc}"
        raise webop.AdmissionError(text, code=500) from exc
