"""EphemeralVolumeClaims: volumes that Kubernetes deletes together with their claims.

For each EphemeralVolumeClaim (EVC), the operator keeps a PersistentVolumeClaim (PVC) of the same
name with the same size and labels. Webhooks fill in a missing size and deny impossible ones.

You can run it in three ways:

* ``webop run --all-namespaces handlers.py``: with its own webhook server (see ``serving.py``);
* ``WEBOP_MODULES=handlers.py uvicorn webop.app:app --port 8080``: uvicorn serves the webhooks, also
  without a cluster: ``curl -d @review.json localhost:8080/check-size``;
* in a cluster: with the Dockerfile and ``manifests/``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from pvc import CLAIMS, build_claim, create_claim
from quantities import parse_quantity
from serving import choose_managed, choose_server

import webop
from webop.errors import APIStatusError

EVC = ("kopf.dev", "v1", "ephemeralvolumeclaims")
DEFAULT_SIZE = "1G"
LARGEST_SIZE = "1Pi"
LARGE_SIZE = "1Ti"  # above this, users get a warning
SMALL_SIZE = "1M"  # below this, too


@webop.on.startup()
def configure(settings: webop.OperatorSettings, **_: Any) -> None:
    """Choose the webhook server and the name of the webhook configurations."""
    settings.admission.server = choose_server()
    settings.admission.managed = choose_managed(settings.admission.managed)


@webop.on.probe()
def now(**_: Any) -> str:
    """Show the time in ``/healthz``."""
    return dt.datetime.now(dt.UTC).isoformat()


# ---- admission: before an EVC is stored


# The id is the path of the webhook. Kubernetes allows no underscores in paths behind a Service.
@webop.on.mutate(*EVC, id="default-size", operations=["CREATE", "UPDATE"])
def default_size(spec: webop.Spec, old: webop.Body | None, patch: webop.Patch, **_: Any) -> None:
    """Fill in a missing size: the previous one, or the default for new EVCs."""
    if spec.get("size") is None:
        patch.spec["size"] = get_size(old) or DEFAULT_SIZE


@webop.on.validate(*EVC, id="check-size", operations=["CREATE", "UPDATE"])
def check_size(spec: webop.Spec, old: webop.Body | None, warnings: list[str], **_: Any) -> None:
    """Deny impossible sizes; warn of unusual ones."""
    size = spec.get("size")
    if size is None or size == get_size(old):
        return  # unchanged: users can still change labels of an EVC with an old, wrong size
    try:
        amount = parse_quantity(size)
    except ValueError as exc:
        raise webop.AdmissionError(f"spec.size: {exc}", code=422) from exc
    if not 0 < amount <= parse_quantity(LARGEST_SIZE):
        raise webop.AdmissionError(
            f"spec.size: {size!r} is out of range: above 0, {LARGEST_SIZE} at most.",
            code=422,
        )
    if amount > parse_quantity(LARGE_SIZE):
        warnings.append(f"spec.size: {size!r} is large. You pay for it until you delete it.")
    if amount < parse_quantity(SMALL_SIZE):
        hint = (
            " ('m' stands for thousandths; use 'M' for megabytes)" if str(size)[-1] == "m" else ""
        )
        warnings.append(f"spec.size: {size!r} is only {amount.normalize():f} bytes{hint}.")


@webop.on.validate(*EVC, id="refuse-shrinking", operations=["UPDATE"])
def refuse_shrinking(spec: webop.Spec, old: webop.Body, **_: Any) -> None:
    """Deny sizes below the current one: volumes can only grow."""
    size, current = spec.get("size"), get_size(old)
    try:
        shrinks = parse_quantity(size) < parse_quantity(current)
    except ValueError:
        return  # check-size denies a wrong new size; users may correct a wrong old one
    if shrinks:
        raise webop.AdmissionError(
            f"spec.size: volumes can only grow, not shrink from {current} to {size}.", code=422
        )


# ---- reconciliation: after an EVC is stored


@webop.on.create(*EVC)
async def create_fn(
    spec: webop.Spec, name: str, client: webop.AsyncClient, logger: webop.Logger, **_: Any
) -> dict[str, str]:
    """Create the PVC. The EVC is its owner, so Kubernetes deletes both together."""
    claim = build_claim(name, spec.get("size", DEFAULT_SIZE))
    webop.adopt(claim)
    await create_claim(client, claim)
    logger.info("Created PVC %s.", name)
    return {"pvc-name": name}


@webop.on.update(*EVC, timeout=3600)
async def update_fn(  # noqa: PLR0913 - handlers take what they need
    spec: webop.Spec,
    old: Mapping[str, Any],
    status: webop.Status,
    namespace: str,
    client: webop.AsyncClient,
    logger: webop.Logger,
    retry: int,
    **_: Any,
) -> None:
    """Resize the PVC."""
    size = spec.get("size", DEFAULT_SIZE)
    if size == get_size(old):
        return
    name = get_claim_name(status)
    if name is None:
        raise webop.PermanentError("There is no PVC to resize: its creation failed.")
    patch = {"spec": {"resources": {"requests": {"storage": str(size)}}}}
    try:
        await client.patch(CLAIMS, name, patch, namespace=namespace)
    except APIStatusError as exc:
        # Most likely, the PVC is not bound yet: Kubernetes resizes only bound PVCs.
        delay = min(5 * 2**retry, 300)
        raise webop.TemporaryError(f"Cannot resize PVC {name}: {exc}", delay=delay) from exc
    logger.info("Resized PVC %s to %s.", name, size)


@webop.on.field(*EVC, field="metadata.labels")
async def relabel(
    diff: webop.Diff,
    status: webop.Status,
    namespace: str,
    client: webop.AsyncClient,
    logger: webop.Logger,
    **_: Any,
) -> None:
    """Copy changes of labels to the PVC; keep labels that others set there."""
    name = get_claim_name(status)
    if name is None:
        return  # create_fn has not run yet; it will copy all labels
    labels: dict[str, str | None] = {}
    for _op, path, old, new in diff:
        if path:
            labels[path[0]] = new  # None removes the label
        else:  # the first labels were added, or the last ones removed
            labels |= {**dict.fromkeys(old or ()), **(new or {})}
    await client.patch(CLAIMS, name, {"metadata": {"labels": labels}}, namespace=namespace)
    logger.info("Changed labels of PVC %s: %s.", name, ", ".join(labels))


# ---- helpers


def get_size(body: Mapping[str, Any] | None) -> str | int | None:
    """Return the size of an EVC, if it has one."""
    size: str | int | None = ((body or {}).get("spec") or {}).get("size")
    return size


def get_claim_name(status: Mapping[str, Any]) -> str | None:
    """Return the name of the PVC, which create_fn stored in the status."""
    name: str | None = (status.get("create_fn") or {}).get("pvc-name")
    return name
