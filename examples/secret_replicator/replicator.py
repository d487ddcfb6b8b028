"""Copies Secrets into other namespaces, and keeps the copies as their sources are.

A Secret with the annotation ``replicator.example.com/to: "team-*, tier=gold"`` is copied to the
namespaces whose names or labels match one of these words.

Indexes know all Secrets and namespaces. So what must be done is seen in memory, and the API server
is asked only to do it: at once, when something has changed. A timer repeats what has failed, and
says so in an Event of the source.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from copying import FROM, TO, Secret, build_copy, choose_source, read_secret

import webop

Namespaces = webop.Index[str, dict[str, str]]
Secrets = webop.Index[str, Secret]


class InTheWayError(Exception):
    """Somebody else has a Secret where a copy should be."""


@webop.on.startup()
def configure(settings: webop.OperatorSettings, **_: Any) -> None:
    """Say what the handlers may do; keep what is secret out of annotations and Events."""
    settings.networking.rights = ["secrets:create,patch,delete"]
    # webop remembers in an annotation how a source was. Its data is nothing for annotations.
    storage = webop.AnnotationsDiffBaseStorage(ignored_fields=["data"])
    settings.persistence.diffbase_storage = storage
    settings.posting.level = logging.WARNING  # a success each minute is no Event


# ---- what there is


@webop.index("namespaces")
def namespaces(name: str, meta: webop.Meta, **_: Any) -> dict[str, dict[str, str]]:
    """The labels of the namespaces, as long as something can be created there."""
    return {} if meta.deletion_timestamp else {name: dict(meta.labels)}


@webop.index("secrets")
def secrets(body: webop.Body, **_: Any) -> dict[str, Secret]:
    """All Secrets by path."""
    secret = read_secret(body)
    return {secret.path: secret}


@webop.index("secrets", annotations={TO: webop.PRESENT, FROM: webop.ABSENT})
def sources(name: str, meta: webop.Meta, body: webop.Body, **_: Any) -> dict[str, Secret]:
    """The Secrets that must be copied, by name: the copies have it, too."""
    return {} if meta.deletion_timestamp else {name: read_secret(body)}


@webop.index("secrets", annotations={FROM: webop.PRESENT})
def copies(namespace: str, annotations: webop.Annotations, **_: Any) -> dict[str, str]:
    """The namespaces with copies, by the paths of the sources."""
    return {annotations[FROM]: namespace}


# ---- when there is something to do


@webop.on.event("secrets")
async def follow_secret(name: str, **kwargs: Any) -> None:
    """A source has changed, or a copy, or a Secret in the way of one."""
    await settle(list_places(**kwargs), name, **kwargs)


@webop.on.event("namespaces")
async def follow_namespace(name: str, sources: Secrets, **kwargs: Any) -> None:
    """A namespace has come, or its labels have changed."""
    for secret in list(sources):
        await settle([name], secret, sources=sources, **kwargs)


@webop.timer("secrets", annotations={TO: webop.PRESENT}, interval=60)
@webop.on.delete("secrets", annotations={TO: webop.PRESENT})
async def make_sure(name: str, **kwargs: Any) -> None:
    """Repeat what has failed. A source goes when its copies are gone."""
    if problems := await settle(list_places(**kwargs), name, **kwargs):
        raise webop.TemporaryError("; ".join(problems), delay=60)


def list_places(
    body: webop.Body, namespaces: Namespaces, copies: webop.Index[str, str], **_: Any
) -> set[str]:
    """Return the namespaces that a Secret matters to."""
    secret = read_secret(body)
    everywhere = namespaces if secret.targets and not body.meta.deletion_timestamp else ()
    return {secret.namespace, *copies.get(secret.path, ()), *everywhere}


# ---- what is done


async def settle(
    places: Iterable[str],
    name: str,
    *,
    client: webop.AsyncClient,
    namespaces: Namespaces,
    secrets: Secrets,
    sources: Secrets,
    **_: Any,
) -> list[str]:
    """Make the Secrets of a name what they should be; return what does not work."""
    problems = []
    for place in places:
        present = next(iter(secrets.get(f"{place}/{name}", ())), None)
        source = None
        for labels in namespaces.get(place, ()):
            source = choose_source(sources.get(name, ()), present, place, labels)
        try:
            await settle_one(client, place, present, source)
        except webop.APIConflictError:
            pass  # somebody else was faster; what that has made of it is another event
        except (webop.APIStatusError, InTheWayError) as exc:
            problems.append(f"Namespace {place}: {exc}")
    return problems


async def settle_one(
    client: webop.AsyncClient, place: str, present: Secret | None, source: Secret | None
) -> None:
    """Create, change or delete the Secret in a namespace, if need be; never one of others."""
    if present is None:
        if source is not None:
            await client.create(build_copy(source, place))
    elif not present.origin:
        if source is not None:
            raise InTheWayError(f"somebody else has a Secret '{source.name}' there.")
    elif source is None or (source.path, source.type) != (present.origin, present.type):
        # If another one is to follow, it is created at the event of this deletion.
        await client.delete(
            "secrets", present.name, namespace=place, uid=present.uid, missing_ok=True
        )
    elif source.data != present.data:
        same = {"op": "test", "path": "/metadata/uid", "value": present.uid}
        data = {"op": "add", "path": "/data", "value": source.data}
        await client.patch("secrets", present.name, [same, data], namespace=place)
