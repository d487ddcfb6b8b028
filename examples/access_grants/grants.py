"""Access for a while: an AccessGrant lets a user into its namespace, and out again in time.

Admission: a grant gets a duration if it has none, and the name of whoever has made it; nobody
grants anything to themselves, and nothing for longer than a working day. After that, the operator
keeps a RoleBinding for as long as the grant lasts.

What guards access must not have gaps. The webhooks are persistent: while no replica is there,
grants are refused. The schema has the rules that it can express. And whatever got into the cluster
in spite of both (before the first start, or while somebody had deleted the webhooks) is checked
again before access is opened.
"""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

import webop

from durations import parse_duration

GRANTS = ("access.example.com", "v1", "accessgrants")
BINDINGS = "rolebindings.rbac.authorization.k8s.io"
DEFAULT_DURATION = "1h"


@webop.on.startup()
def configure(settings: webop.OperatorSettings, **_: Any) -> None:
    """Serve the webhooks: behind a Service in a cluster, on a free port of this host elsewhere."""
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
    """Fill in the duration, and who has made the grant, whatever the request says about it."""
    if old is None:
        patch.spec["duration"] = spec.get("duration", DEFAULT_DURATION)
        patch.spec["grantedBy"] = userinfo["username"]
    else:  # whoever replaces a grant as a whole need not repeat them
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
    """Refuse what is not to be granted."""
    if old is not None and old["spec"] == spec:
        return  # finalizers and annotations are not our business
    if spec["user"] == userinfo["username"]:
        text = "spec.user: nobody grants access to themselves; ask somebody else."
        raise webop.AdmissionError(text, 403)
    for field in ("user", "role", "grantedBy"):
        if old is not None and old["spec"].get(field) != spec.get(field):
            raise webop.AdmissionError(f"spec.{field}: it stays as it is; make a new grant.", 422)
    if (objection := find_objection(spec)) is not None:
        raise webop.AdmissionError(objection, 422)
    if spec["role"] == "edit" and not spec.get("reason"):
        warnings.append("spec.reason: say why, those who look at it later will be grateful.")


def find_objection(spec: webop.Spec) -> str | None:
    """Return what is wrong with a grant, whoever has stored it."""
    if not spec.get("grantedBy"):
        return "spec.grantedBy: nobody knows who has made the grant."
    if spec["grantedBy"] == spec["user"]:
        return "spec.user: nobody grants access to themselves."
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
    """Let the user in, and note until when."""
    try:
        present = await find_binding(client, meta)
        if (objection := find_objection(spec)) is not None:
            await lock_out(client, meta)
            raise webop.PermanentError(objection)
    except webop.PermanentError:
        patch.status["phase"] = "Refused"
        raise
    end = compute_end(meta, spec)
    if end <= dt.datetime.now(dt.UTC):  # while the operator was away
        await lock_out(client, meta)
        patch.status["phase"] = "Over"
        return
    if present is None:
        binding = build_binding(meta, spec)
        # It goes with the grant, even if somebody takes the finalizer off.
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
    """Lock the user out when the time is over, or the grant is not what it was."""
    if status.get("phase") != "Open":
        return
    if find_objection(spec) is not None or compute_end(meta, spec) <= dt.datetime.now(dt.UTC):
        await lock_out(client, meta)
        patch.status["phase"] = "Over"
        logger.info("The time of %s is over.", spec["user"])


@webop.on.delete(*GRANTS)
async def close_access(meta: webop.Meta, client: webop.AsyncClient, **_: Any) -> None:
    """Lock the user out at once; the grant goes when that is done."""
    await lock_out(client, meta)


def compute_end(meta: webop.Meta, spec: webop.Spec) -> dt.datetime:
    """Return when a grant is over."""
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
    """Return the RoleBinding of a grant; None if it is not in the cluster.

    Raises:
        PermanentError: somebody else has made a RoleBinding of this name.
    """
    name = f"grant-{meta['name']}"
    try:
        binding = await client.get(BINDINGS, name, namespace=meta["namespace"])
    except webop.APINotFoundError:
        return None
    owners = binding["metadata"].get("ownerReferences", ())
    if meta["uid"] not in [owner["uid"] for owner in owners]:
        text = f"The RoleBinding {name} is not of this grant; delete it, or rename one."
        raise webop.PermanentError(text)
    return binding


async def lock_out(client: webop.AsyncClient, meta: webop.Meta) -> None:
    """Delete the RoleBinding of a grant, if there is one."""
    if (binding := await find_binding(client, meta)) is not None:
        name, uid = binding["metadata"]["name"], binding["metadata"]["uid"]
        await client.delete(BINDINGS, name, namespace=meta["namespace"], uid=uid, missing_ok=True)
