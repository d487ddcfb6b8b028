"""EphemeralVolumeClaims: volumes that go when they are not needed any more.

For each EphemeralVolumeClaim (EVC), a PersistentVolumeClaim (PVC) of the same name is created,
resized and relabelled with it, and deleted with it. On their way into the cluster, EVCs without
a size get one, and those with a size that cannot be are refused.

Three ways to run it:

* ``webop run --all-namespaces handlers.py``: with webhooks of its own (see ``serving.py``);
* ``WEBOP_MODULES=handlers.py uvicorn webop.app:app --port 8080``: webhooks at the address of
  uvicorn, also with no cluster at hand: ``curl -d @review.json localhost:8080/check-size``;
* in a cluster: the Dockerfile and ``manifests/``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from pvc import CLAIMS, build_claim, create_claim
from quantities import parse_quantity
from serving import choose_managed, choose_server

import webop

EVC = ("kopf.dev", "v1", "ephemeralvolumeclaims")
DEFAULT_SIZE = "1G"
LARGEST_SIZE = "1Pi"
DOUBTFUL_SIZE = "1Ti"  # more than this is rarely meant
SMALLEST_SIZE = "1M"  # less than this is rarely meant, too


@webop.on.startup()
def configure(settings: webop.OperatorSettings, **_: Any) -> None:
    """Serve the webhooks, and keep the webhook configurations, unless told otherwise."""
    settings.admission.server = choose_server()
    settings.admission.managed = choose_managed(settings.admission.managed)


@webop.on.probe()
def now(**_: Any) -> str:
    """Show in ``/healthz`` that handlers are called."""
    return dt.datetime.now(dt.UTC).isoformat()


# ---- admission: before an EVC is stored


# The id is the path of the webhook. Kubernetes allows no underscores in paths behind a Service.
@webop.on.mutate(*EVC, id="default-size", operations=["CREATE", "UPDATE"])
def default_size(spec: webop.Spec, old: webop.Body | None, patch: webop.Patch, **_: Any) -> None:
    """Fill in the size: an EVC that has one keeps it, a new one gets the default."""
    if spec.get("size") is None:
        patch.spec["size"] = get_size(old) or DEFAULT_SIZE


@webop.on.validate(*EVC, id="check-size", operations=["CREATE", "UPDATE"])
def check_size(spec: webop.Spec, old: webop.Body | None, warnings: list[str], **_: Any) -> None:
    """Refuse sizes that cannot be; warn of those that are probably not meant."""
    size = spec.get("size")
    if size is None or size == get_size(old):
        return  # nothing new: labels can be changed, finalizers removed, whatever the size
    try:
        amount = parse_quantity(size)
    except ValueError as exc:
        raise webop.AdmissionError(f"spec.size: {exc}", code=422) from exc
    if not 0 < amount <= parse_quantity(LARGEST_SIZE):
        raise webop.AdmissionError(
            f"spec.size: {size!r} is impossible: more than nothing, {LARGEST_SIZE} at most.",
            code=422,
        )
    if amount > parse_quantity(DOUBTFUL_SIZE):
        warnings.append(f"spec.size: {size!r} is a lot. It will be paid for until it is deleted.")
    if amount < parse_quantity(SMALLEST_SIZE):
        hint = (
            " ('m' stands for thousandths; use 'M' for megabytes)" if str(size)[-1] == "m" else ""
        )
        warnings.append(f"spec.size: {size!r} is only {amount.normalize():f} bytes{hint}.")


@webop.on.validate(*EVC, id="refuse-shrinking", operations=["UPDATE"])
def refuse_shrinking(spec: webop.Spec, old: webop.Body, **_: Any) -> None:
    """Refuse sizes below the present one: volumes can only grow."""
    size, present = spec.get("size"), get_size(old)
    try:
        shrinks = parse_quantity(size) < parse_quantity(present)
    except ValueError:
        return  # check-size refuses the new one; an old one that is wrong may be corrected
    if shrinks:
        raise webop.AdmissionError(
            f"spec.size: volumes can only grow, not shrink from {present} to {size}.", code=422
        )


# ---- reconciliation: after an EVC is stored


@webop.on.create(*EVC)
async def create_fn(
    spec: webop.Spec, name: str, client: webop.AsyncClient, logger: webop.Logger, **_: Any
) -> dict[str, str]:
    """Create the PVC; with the EVC as its owner, it is deleted together with it."""
    claim = build_claim(name, spec.get("size", DEFAULT_SIZE))
    webop.adopt(claim)
    await create_claim(client, claim)
    logger.info("PVC %s is created.", name)
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
        raise webop.PermanentError("There is no PVC to be resized: its creation has failed.")
    patch = {"spec": {"resources": {"requests": {"storage": str(size)}}}}
    try:
        await client.patch(CLAIMS, name, patch, namespace=namespace)
    except webop.APIStatusError as exc:
        # Most likely, it is not bound yet: only bound PVCs can be resized.
        delay = min(5 * 2**retry, 300)
        raise webop.TemporaryError(f"PVC {name} is not resized: {exc}", delay=delay) from exc
    logger.info("PVC %s is resized to %s.", name, size)


@webop.on.field(*EVC, field="metadata.labels")
async def relabel(
    diff: webop.Diff,
    status: webop.Status,
    namespace: str,
    client: webop.AsyncClient,
    logger: webop.Logger,
    **_: Any,
) -> None:
    """Bring the labels of the PVC in line; labels that were put there by others stay."""
    name = get_claim_name(status)
    if name is None:
        return  # create_fn is yet to come, and adopts all labels
    labels: dict[str, str | None] = {}
    for _op, path, old, new in diff:
        if path:
            labels[path[0]] = new  # None for removed labels, which is what a patch needs
        else:  # the first labels have come, or the last ones have gone
            labels |= {**dict.fromkeys(old or ()), **(new or {})}
    await client.patch(CLAIMS, name, {"metadata": {"labels": labels}}, namespace=namespace)
    logger.info("PVC %s is relabelled: %s.", name, ", ".join(labels))


# ---- what they share


def get_size(body: Mapping[str, Any] | None) -> str | int | None:
    """Return the size of an EVC, if it has one."""
    size: str | int | None = ((body or {}).get("spec") or {}).get("size")
    return size


def get_claim_name(status: Mapping[str, Any]) -> str | None:
    """Return the name of the PVC, as create_fn has left it in the status."""
    name: str | None = (status.get("create_fn") or {}).get("pvc-name")
    return name
