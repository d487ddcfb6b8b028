"""A policy for pods: where their images come from, which labels they have, how much they use.

Admission only: nothing is watched, nothing is stored, and any number of replicas can serve it.
The policy is in a ConfigMap, which is read for each review: a change counts from the next pod on.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pydantic
from pods import Policy, fill_in_limits, find_doubts, find_problems, parse_policy

import webop

HOME = "policy-server"  # the namespace of this operator, and of its ConfigMap
CONFIG_MAP = "policy"

# What keeps the cluster alive, and this operator in it, must never wait for this operator.
VITAL = ["kube-system", HOME]
SCOPE: webop.LabelSelector = {
    "matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": VITAL},
        {"key": "policy.example.com/exempt", "operator": "DoesNotExist"},
    ]
}


@webop.on.startup()
def configure(settings: webop.OperatorSettings, **_: Any) -> None:
    """Serve the webhooks: behind a Service in a cluster, on a free port of this host elsewhere."""
    settings.admission.managed = "policy.example.com"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        settings.admission.server = webop.WebhookServiceServer(service="policy-server")
    else:
        settings.admission.server = webop.WebhookServer(port=0)
    # Kinds of others do not matter, and there are no objects to post Events about.
    settings.scanning.disabled = True
    settings.posting.enabled = False


# A convenience must not keep a pod from starting: without this webhook, it starts without limits.
@webop.on.mutate(
    "pods",
    id="default-limits",
    operation="CREATE",
    namespace_selector=SCOPE,
    failure_policy="Ignore",
    timeout_seconds=5,
)
async def set_default_limits(patch: webop.Patch, client: webop.AsyncClient, **_: Any) -> None:
    """Limit the containers that do not say how much they use."""
    policy = await read_policy(client)
    patch.fns.append(partial(fill_in_limits, limits=policy.defaultLimits))


# A policy must not be evaded: these webhooks stay when the last replica ends, and refuse all pods
# until there is one again.
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
    id="check-debugging",  # by "kubectl debug"
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
    """Refuse pods that break the policy. What was wrong before does not stop an update."""
    policy = await read_policy(client)
    former = () if old is None else set(find_problems(old, policy))
    problems = [problem for problem in find_problems(body, policy) if problem not in former]
    if problems:
        raise webop.AdmissionError(" ".join(problems), code=403)
    warnings.extend(find_doubts(body))


# When pods of a Deployment are refused, nobody looks. So tell those who apply the Deployment.
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
    """Warn of Deployments whose pods will be refused."""
    policy = await read_policy(client)
    warnings.extend(f"Its pods: {problem}" for problem in find_problems(spec["template"], policy))


@webop.on.validate(
    "configmaps",
    id="check-policy",
    operations=["CREATE", "UPDATE"],
    match_conditions={"policy": f"request.namespace == '{HOME}' && request.name == '{CONFIG_MAP}'"},
    failure_policy="Ignore",
    timeout_seconds=5,
)
def check_policy(body: webop.Body, **_: Any) -> None:
    """Refuse to store a policy that cannot be understood."""
    try:
        parse_policy(body)
    except pydantic.ValidationError as exc:
        raise webop.AdmissionError.from_validation(exc, path="policy.yaml") from exc
    except ValueError as exc:
        raise webop.AdmissionError(f"policy.yaml: {exc}", code=422) from exc


async def read_policy(client: webop.AsyncClient) -> Policy:
    """Return the policy.

    Raises:
        AdmissionError: there is none that can be understood, so nothing is allowed.
    """
    try:
        return parse_policy(await client.get("configmaps", CONFIG_MAP, namespace=HOME))
    except (webop.APINotFoundError, ValueError) as exc:
        text = f"ConfigMap '{CONFIG_MAP}' in namespace '{HOME}' is no policy: {exc}"
        raise webop.AdmissionError(text, code=500) from exc
