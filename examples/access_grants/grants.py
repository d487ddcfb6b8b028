"""AccessGrants: give a user access to a namespace for a limited time.

The webhooks fill in the duration and the name of the creator. They deny grants to oneself, and
grants of more than eight hours. The operator keeps a RoleBinding until the grant expires.

Access control must not have gaps. The webhooks are persistent: while no replica runs, the API
server refuses grants. The schema has every rule that it can express. The handlers check each stored
grant again, as it can be older than the webhooks, or somebody can have deleted them.
"""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

import webop
from webop.errors import APINotFoundError

from durations import parse_duration

GRANTS = ("access.example.com", "v1", "accessgrants")
BINDINGS = "rolebindings.rbac.authorization.k8s.io"
DEFAULT_DURATION = "1h"


@webop.on.startup()
def configure(settings: webop.OperatorSettings, **_: Any) -> None:
    """Serve the webhooks behind a Service in a cluster, otherwise on a free local port."""
    settings.admission.managed = "access.example.com"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        settings.admission.server = webop.WebhookServiceServer(service="access-grants")
    else:
        settings.admission.server = webop.WebhookServer(port=0)


# ---- before a grant is stored


@webop.on.mutate(*GRANTS, id="complete", operations=["CREATE", "UPDATE"], persistent=True)
def complete(
    spec: webop.Spec,
    old: webop.Body | None,
    userinfo: webop.UserInfo,
    patch: webop.Patch,
    **_: Any,
) -> None:
    """Fill in the duration, and set the creator regardless of the request."""
    if old is None:
        patch.spec["duration"] = spec.get("duration", DEFAULT_DURATION)
        patch.spec["grantedBy"] = userinfo["username"]
    else:  # keep them if an update omits them
        for field in {"duration", "grantedBy"} & old["spec"].keys() - spec.keys():
            patch.spec[field] = old["spec"][field]


@webop.on.validate(*GRANTS, id="check", operations=["CREATE", "UPDATE"], persistent=True)
def check(
    spec: webop.Spec,
    old: webop.Body | None,
    userinfo: webop.UserInfo,
    warnings: list[str],
    **_: Any,
) -> None:
    """Deny invalid grants."""
    if old is not None and old["spec"] == spec:
        return  # only metadata has changed
    if spec["user"] == userinfo["username"]:
        text = "spec.user: you cannot grant access to yourself. Ask somebody else."
        raise webop.AdmissionError(text, 403)
    for field in ("user", "role", "grantedBy"):
        if old is not None and old["spec"].get(field) != spec.get(field):
            raise webop.AdmissionError(f"spec.{field} cannot be changed. Create a new grant.", 422)
    if (objection := find_objection(spec)) is not None:
        raise webop.AdmissionError(objection, 422)
    if spec["role"] == "edit" and not spec.get("reason"):
        warnings.append("spec.reason: give a reason for a grant to edit.")


def find_objection(spec: webop.Spec) -> str | None:
    """Return why a grant is invalid; None if it is valid."""
    if not spec.get("grantedBy"):
        return "spec.grantedBy is missing: the webhook did not see this grant."
    if spec["grantedBy"] == spec["user"]:
        return "spec.user: users cannot grant access to themselves."
    try:
        parse_duration(spec.get("duration", ""))
    except ValueError as exc:
        return f"spec.duration: {exc}"
    return None


# ---- after a grant is stored


@webop.on.create(*GRANTS)
@webop.on.update(*GRANTS, field="spec.duration")
async def open_access(
    spec: webop.Spec,
    meta: webop.Meta,
    patch: webop.Patch,
    client: webop.AsyncClient,
    logger: webop.Logger,
    **_: Any,
) -> None:
    """Create the RoleBinding, and store in the status when it ends."""
    try:
        binding = await find_binding(client, meta)
        if (objection := find_objection(spec)) is not None:
            await delete_binding(client, meta)
            raise webop.PermanentError(objection)
    except webop.PermanentError:
        patch.status["phase"] = "Refused"
        raise
    end = compute_end(meta, spec)
    if end <= webop.now():  # it expired while the operator was stopped
        await delete_binding(client, meta)
        patch.status["phase"] = "Over"
        return
    if binding is None:
        binding = build_binding(meta, spec)
        # Kubernetes deletes it with the grant, even if somebody removes the finalizer.
        webop.append_owner_reference(binding, block_owner_deletion=False)
        await client.create(binding)
    patch.status["phase"] = "Open"
    patch.status["until"] = end.isoformat()
    logger.info("%s can %s until %s.", spec["user"], spec["role"], end)


@webop.timer(*GRANTS, interval=float(os.environ.get("CHECK_INTERVAL", "10")))
async def close_in_time(
    spec: webop.Spec,
    meta: webop.Meta,
    status: webop.Status,
    patch: webop.Patch,
    client: webop.AsyncClient,
    logger: webop.Logger,
    **_: Any,
) -> None:
    """Delete the RoleBinding when the grant has expired or has become invalid."""
    if status.get("phase") != "Open":
        return
    if find_objection(spec) is not None or compute_end(meta, spec) <= webop.now():
        await delete_binding(client, meta)
        patch.status["phase"] = "Over"
        logger.info("The access of %s has ended.", spec["user"])


@webop.on.delete(*GRANTS)
async def close_access(meta: webop.Meta, client: webop.AsyncClient, **_: Any) -> None:
    """Delete the RoleBinding; the grant is deleted afterwards."""
    await delete_binding(client, meta)


def compute_end(meta: webop.Meta, spec: webop.Spec) -> dt.datetime:
    """Return when a grant expires."""
    created = dt.datetime.fromisoformat(meta["creationTimestamp"])
    return created + parse_duration(spec["duration"])


def build_binding(meta: webop.Meta, spec: webop.Spec) -> dict[str, Any]:
    """Return the RoleBinding of a grant."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"grant-{meta['name']}", "namespace": meta["namespace"]},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": spec["role"]},
        "subjects": [{"apiGroup": group, "kind": "User", "name": spec["user"]}],
    }


async def find_binding(client: webop.AsyncClient, meta: webop.Meta) -> dict[str, Any] | None:
    """Return the RoleBinding of a grant; None if there is none.

    Raises:
        PermanentError: there is a RoleBinding of this name that belongs to somebody else.
    """
    name = f"grant-{meta['name']}"
    try:
        binding = await client.get(BINDINGS, name, namespace=meta["namespace"])
    except APINotFoundError:
        return None
    owners = binding["metadata"].get("ownerReferences", ())
    if meta["uid"] not in [owner["uid"] for owner in owners]:
        text = (
            f"The RoleBinding {name} exists and does not belong to this grant. Delete or rename it."
        )
        raise webop.PermanentError(text)
    return binding


async def delete_binding(client: webop.AsyncClient, meta: webop.Meta) -> None:
    """Delete the RoleBinding of a grant, if there is one."""
    if (binding := await find_binding(client, meta)) is not None:
        name, uid = binding["metadata"]["name"], binding["metadata"]["uid"]
        await client.delete(BINDINGS, name, namespace=meta["namespace"], uid=uid, missing_ok=True)
