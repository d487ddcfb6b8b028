"""Copy Secrets to other namespaces, and keep the copies equal to their sources.

A Secret with the annotation ``replicator.example.com/to: "team-*, tier=gold"`` is copied to the
namespaces whose names or labels match one of these words.

Indexes contain all Secrets and namespaces, so the operator finds differences in memory and sends
requests only to remove them. A timer repeats failed requests; errors become Events of the source.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from copying import FROM, TO, Secret, build_copy, choose_source, read_secret

import webop
from webop.errors import APIConflictError, APIStatusError

Namespaces = webop.Index[str, dict[str, str]]
Secrets = webop.Index[str, Secret]


class NameTakenError(Exception):
    """The namespace has a Secret of this name that belongs to somebody else."""


@webop.on.startup()
def configure(settings: webop.OperatorSettings, **_: Any) -> None:
    """Declare the rights of the handlers; keep secret data out of annotations."""
    settings.networking.rights = ["secrets:create,patch,delete"]
    # webop stores the handled state of a source in an annotation: exclude its data.
    storage = webop.AnnotationsDiffBaseStorage(ignored_fields=["data"])
    settings.persistence.diffbase_storage = storage
    settings.posting.level = logging.WARNING  # no Event for each success of the timer


# ---- indexes


@webop.index("namespaces")
def namespaces(name: str, meta: webop.Meta, **_: Any) -> dict[str, dict[str, str]]:
    """The labels of the namespaces, except those in deletion."""
    return {} if meta.deletion_timestamp else {name: dict(meta.labels)}


@webop.index("secrets")
def secrets(body: webop.Body, **_: Any) -> dict[str, Secret]:
    """All Secrets by path."""
    secret = read_secret(body)
    return {secret.path: secret}


@webop.index("secrets", annotations={TO: webop.PRESENT, FROM: webop.ABSENT})
def sources(name: str, meta: webop.Meta, body: webop.Body, **_: Any) -> dict[str, Secret]:
    """The sources by name, which is also the name of their copies."""
    return {} if meta.deletion_timestamp else {name: read_secret(body)}


@webop.index("secrets", annotations={FROM: webop.PRESENT})
def copies(namespace: str, annotations: webop.Annotations, **_: Any) -> dict[str, str]:
    """The namespaces with copies, by the paths of the sources."""
    return {annotations[FROM]: namespace}


# ---- handlers


@webop.on.event("secrets")
async def follow_secret(name: str, **kwargs: Any) -> None:
    """Handle a change of a source, a copy, or another Secret of the same name."""
    await settle(list_targets(**kwargs), name, **kwargs)


@webop.on.event("namespaces")
async def follow_namespace(name: str, sources: Secrets, **kwargs: Any) -> None:
    """Handle a new namespace, or a change of its labels."""
    for secret in list(sources):
        await settle([name], secret, sources=sources, **kwargs)


@webop.timer("secrets", annotations={TO: webop.PRESENT}, interval=60)
@webop.on.delete("secrets", annotations={TO: webop.PRESENT})
async def reconcile(name: str, **kwargs: Any) -> None:
    """Repeat what failed. Before a source is deleted, delete its copies.

    A copy that is created at the same moment is deleted by its own event.
    """
    if problems := await settle(list_targets(**kwargs), name, **kwargs):
        raise webop.TemporaryError("; ".join(problems), delay=60)


def list_targets(
    body: webop.Body, namespaces: Namespaces, copies: webop.Index[str, str], **_: Any
) -> set[str]:
    """Return the namespaces that a change of a Secret affects."""
    secret = read_secret(body)
    everywhere = namespaces if secret.targets and not body.meta.deletion_timestamp else ()
    return {secret.namespace, *copies.get(secret.path, ()), *everywhere}


# ---- changes


async def settle(
    targets: Iterable[str],
    name: str,
    *,
    client: webop.AsyncClient,
    namespaces: Namespaces,
    secrets: Secrets,
    sources: Secrets,
    **_: Any,
) -> list[str]:
    """Create, change or delete the Secrets of a name in namespaces; return the problems."""
    problems = []
    for namespace in targets:
        existing = next(iter(secrets.get(f"{namespace}/{name}", ())), None)
        source = None
        for labels in namespaces.get(namespace, ()):
            source = choose_source(sources.get(name, ()), existing, namespace, labels)
        try:
            await settle_one(client, namespace, existing, source)
        except APIConflictError:
            pass  # somebody else changed it at the same time; this causes another event
        except (APIStatusError, NameTakenError) as exc:
            problems.append(f"Namespace {namespace}: {exc}")
    return problems


async def settle_one(
    client: webop.AsyncClient, namespace: str, existing: Secret | None, source: Secret | None
) -> None:
    """Create, change or delete the Secret in a namespace, but never one of others."""
    if existing is None:
        if source is not None:
            await client.create(build_copy(source, namespace))
    elif not existing.origin:
        if source is not None:
            raise NameTakenError(f"the Secret '{source.name}' there belongs to somebody else.")
    elif source is None or (source.path, source.type) != (existing.origin, existing.type):
        # If another source matches, the event of this deletion creates its copy.
        await client.delete(
            "secrets", existing.name, namespace=namespace, uid=existing.uid, missing_ok=True
        )
    elif source.data != existing.data:
        same = {"op": "test", "path": "/metadata/uid", "value": existing.uid}
        data = {"op": "add", "path": "/data", "value": source.data}
        await client.patch("secrets", existing.name, [same, data], namespace=namespace)
