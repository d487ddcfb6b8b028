"""Operators with planted bugs, and the objects that they are for."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import webop


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
