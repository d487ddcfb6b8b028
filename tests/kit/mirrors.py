"""Consumers of watches, whose memory must equal the cluster in the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.kit.client_options import Watching
from tests.kit.faulty_cluster import RESOURCE, FaultyCluster
from tests.kit.waiting import eventually
from webop import Resource
from webop.client.api import Client
from webop.client.auth.vault import Vault
from webop.client.watch import ListingFinished, ListingStarted, State, WatchItem, WatchStatus, watch


class Mirror:
    """A consumer of a watch, as the controller is one."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.deleted: list[str] = []
        self.items: list[WatchItem] = []
        self.status = WatchStatus()
        self._seen: set[str] = set()
        self._changed = asyncio.Condition()

    async def follow(
        self,
        client: Client,
        options: Watching | None = None,
        resource: Resource = RESOURCE,
        namespace: str | None = None,
    ) -> None:
        async for item in watch(client, resource, namespace, options or Watching(), self.status):
            self.items.append(item)
            self._accept(item)
            async with self._changed:
                self._changed.notify_all()

    def _accept(self, item: WatchItem) -> None:
        match item:
            case ListingStarted():
                self._seen.clear()
            case ListingFinished():
                for name in self.objects.keys() - self._seen:
                    self._forget(name)
            case ("DELETED", raw):
                self._forget(raw["metadata"]["name"])
            case (_, raw):
                self._seen.add(raw["metadata"]["name"])
                self.objects[raw["metadata"]["name"]] = raw

    def _forget(self, name: str) -> None:
        del self.objects[name]
        self.deleted.append(name)

    @property
    def versions(self) -> dict[str, str]:
        return get_versions(self.objects)

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)

    async def catch_up(self, cluster: FaultyCluster) -> None:
        await self.wait_for(lambda: self.versions == get_versions(cluster.objects))


def get_versions(objects: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: raw["metadata"]["resourceVersion"] for name, raw in objects.items()}


@contextlib.asynccontextmanager
async def mirroring(
    client: Client,
    options: Watching | None = None,
    resource: Resource = RESOURCE,
    namespace: str | None = None,
) -> AsyncIterator[Mirror]:
    """Follow a cluster in a task of its own."""
    mirror = Mirror()
    async with client, asyncio.TaskGroup() as group:
        task = group.create_task(mirror.follow(client, options, resource, namespace))
        yield mirror
        task.cancel()


@contextlib.asynccontextmanager
async def following(
    cluster: FaultyCluster, options: Watching | None = None, vault: Vault | None = None
) -> AsyncIterator[Mirror]:
    """Follow a cluster, and wait until it is watched."""
    async with mirroring(cluster.connect(vault=vault), options) as mirror:
        await mirror.wait_for(lambda: mirror.status.state is State.WATCHING)
        await eventually(lambda: bool(cluster.feeds))
        yield mirror
