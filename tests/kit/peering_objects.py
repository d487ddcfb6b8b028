"""Peering objects, as operators and tests meet at them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.kit.operators import CRDS, Calls, Json, Objects, connect, undefine, wait_served
from tests.kit.waiting import eventually
from webop import Resource
from webop.client.api import Client
from webop.errors import APIConflictError

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

CLUSTER_PEERINGS = Resource("kopf.dev", "v1", "clusterkopfpeerings", kind="ClusterKopfPeering")
PEERINGS = Resource("kopf.dev", "v1", "kopfpeerings", kind="KopfPeering", namespaced=True)

_MANIFEST = Path(__file__).parents[2] / "manifests" / "peering.yaml"


def build_peering_crds(group: str = "kopf.dev", *, has_status: bool = False) -> list[Json]:
    """Return the definitions of the manifest, for another group, with a status endpoint maybe."""
    text = _MANIFEST.read_text(encoding="utf-8").replace("kopf.dev", group)
    documents = list(yaml.safe_load_all(text))
    if has_status:
        for document in documents:
            document["spec"]["versions"][0]["subresources"] = {"status": {}}
    return documents


async def define_peerings(
    client: Client, group: str = "kopf.dev", *, has_status: bool = False
) -> None:
    """Put the kinds into the cluster, if they are not there, and wait until they are served."""
    for document in build_peering_crds(group, has_status=has_status):
        with contextlib.suppress(APIConflictError):
            await client.create(CRDS, None, document)
    for resource in (CLUSTER_PEERINGS, PEERINGS):
        await wait_served(client, replace(resource, group=group))


async def undefine_peerings(client: Client) -> None:
    """Remove the kinds, if they are there, with all objects, and wait for the end of them."""
    for resource in (CLUSTER_PEERINGS, PEERINGS):
        await undefine(client, resource)


def provide_peerings(cluster: LocalCluster) -> None:
    """Define the kinds, from where there is no loop."""

    async def define() -> None:
        async with connect(cluster) as client:
            await define_peerings(client)

    asyncio.run(define())


@dataclass
class PeeringObject:
    """One peering object, by the word of the API server; cluster-wide without a namespace."""

    client: Client
    namespace: str | None
    name: str = "default"
    group: str = "kopf.dev"
    has_status: bool = False

    @property
    def resource(self) -> Resource:
        resource = CLUSTER_PEERINGS if self.namespace is None else PEERINGS
        return replace(resource, group=self.group)

    async def create(self, **records: Json) -> None:
        """Create it, with records maybe."""
        body = {
            "apiVersion": self.resource.api_version,
            "kind": self.resource.kind,
            "metadata": {"name": self.name},
            "status": records,
        }
        await self.client.create(self.resource, self.namespace, body)
        for identity, record in records.items() if self.has_status else ():
            await self.write(identity, record)

    async def delete(self) -> None:
        await self.client.delete(self.resource, self.namespace, self.name)

    async def read(self) -> Json:
        raw = await self.client.get(self.resource, self.namespace, self.name)
        records: Json = raw.get("status") or {}
        return records

    async def write(self, identity: str, record: Any) -> None:
        patch = {"status": {identity: record}}
        subresource = "status" if self.has_status else None
        await self.client.patch(self.resource, self.namespace, self.name, patch, subresource)

    async def wait(self, condition: Callable[[Json], Any], what: str = "the condition") -> Json:
        records: Json = await eventually(self.read, what, check=condition)
        return records


def build_record(priority: int, lifetime: float = 3600, **more: Any) -> Json:
    lastseen = datetime.now(UTC).isoformat()
    return {"priority": priority, "lifetime": int(lifetime), "lastseen": lastseen, **more}


@dataclass
class Seen:
    """What operators do and say."""

    calls: Calls
    log: pytest.LogCaptureFixture

    async def stay_out(self, objects: Objects) -> None:
        """See that nobody handles an object: another one, of somebody else, is passed by."""
        pauses = ("Pausing", "is paused")
        await eventually(lambda: any(text in self.log.text for text in pauses), "a pause")
        await objects.create("ignored", labels={"x": "y"})
        await asyncio.sleep(0.2)  # for what should not happen
        assert not len(self.calls)


class Boss:
    """Makes the operator pause, and resume."""

    def __init__(self, shared: PeeringObject, log: pytest.LogCaptureFixture) -> None:
        self.shared = shared
        self.log = log

    async def pause(self) -> None:
        before = self.log.text.count("Pausing")
        await self.shared.write("boss", build_record(100))
        await eventually(lambda: self.log.text.count("Pausing") > before, "the pause")

    async def resume(self) -> None:
        before = self.log.text.count("Resuming")
        await self.shared.write("boss", None)
        await eventually(lambda: self.log.text.count("Resuming") > before, "the end of it")
