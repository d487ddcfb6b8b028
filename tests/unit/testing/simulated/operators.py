"""Operators with planted bugs, and the objects that they are for."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import Any

import webop
from webop.testing import SimulatedCluster, simulated

HERE: Any = {"namespace": "default"}


@webop.resource("simulated.webop.dev", "v1")
class Thing(webop.Model):
    """A kind that keeps everything."""

    spec: dict[str, Any]
    status: dict[str, Any] | None = None


def build_thing(name: str = "one", **spec: Any) -> dict[str, Any]:
    head = {"apiVersion": "simulated.webop.dev/v1", "kind": "Thing"}
    return {**head, "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def build_config(name: str, **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def lose_orders_at_a_kill() -> None:
    """Keep the orders in memory only."""
    orders: list[str] = []

    @webop.on.create(Thing)
    async def accept(name: str, **_: Any) -> None:
        orders.append(name)

    @webop.timer(Thing, interval=10, initial_delay=5)
    async def work(name: str, client: webop.AsyncClient, **_: Any) -> None:
        if name in orders:
            await client.create(build_config(name))
            orders.remove(name)


def create_a_second_one() -> None:
    """Create something under a new name each time."""

    @webop.on.create(Thing)
    async def create(client: webop.AsyncClient, patch: webop.Patch, **_: Any) -> None:
        body = build_config("")
        body["metadata"] = {"generateName": "of-one-", "namespace": "default"}
        made = await client.create(body)
        patch.status["made"] = made["metadata"]["name"]


def drift() -> None:
    """Do something each hour, and some seconds later each time."""

    @webop.daemon(Thing)
    async def act(stopped: Any, patch: webop.Patch, **_: Any) -> None:
        while not stopped:
            patch.status["at"] = webop.now().isoformat()
            await asyncio.sleep(7)
            await stopped.wait(3600)


def never_settle() -> None:
    """Write something new each time, and be called for it."""

    @webop.reconcile(Thing, own_writes=True)
    async def count(patch: webop.Patch, status: Any, **_: Any) -> None:
        patch.status["count"] = status.get("count", 0) + 1


def get_minute(text: str) -> float:
    """Return the minutes after the full hour."""
    moment = dt.datetime.fromisoformat(text)
    return moment.minute + moment.second / 60


def get_status(cluster: SimulatedCluster, name: str = "one") -> dict[str, Any]:
    return cluster.get(Thing, name, **HERE).status or {}


def create_and_settle(cluster: SimulatedCluster, name: str = "one") -> dict[str, Any]:
    cluster.create(build_thing(name))
    cluster.settle(within=300)
    return get_status(cluster, name)


def run(
    *handlers: Any, test: Callable[[SimulatedCluster], Any] = create_and_settle, **options: Any
) -> Any:
    """Return what a test returns in its last run."""
    results: list[Any] = []

    def collect(cluster: SimulatedCluster) -> None:
        results.append(test(cluster))

    simulated(*handlers, **{"given": [Thing], **options})(collect)()
    return results[-1]
