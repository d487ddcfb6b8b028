"""An operator with something to show, and its report."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx

import webop
from tests.kit.operators import Json, Objects, RunOperator, build_settings
from tests.kit.waiting import eventually
from webop.controlplane.cluster_client import find_free_port


class Outage:
    """Handlers of a database that is away until it is back."""

    def __init__(self) -> None:
        self.is_over = False
        self.is_busy = False

        @webop.on.create("widgets", id="create_database")
        async def create(name: str, **_: Any) -> None:
            self.check(name)

        @webop.on.create("widgets", id="slow", labels={"slow": "yes"})
        async def sleep(**_: Any) -> None:
            while not self.is_over:
                await asyncio.sleep(0.01)

        @webop.timer("widgets", id="probe", labels={"timer": "yes"}, interval=60)
        def probe(name: str, **_: Any) -> None:
            self.check(name)

        @webop.on.create("widgets", id="parent", labels={"items": "yes"})
        async def create_items(name: str, **_: Any) -> None:
            webop.register(id="secret-item", fn=lambda **_: self.check(name))

        @webop.on.validate("widgets", id="check")
        async def check(spec: Any, **_: Any) -> None:
            if spec:
                raise webop.AdmissionError("secret-verdict")

    def check(self, name: str) -> None:
        """Fail as a driver does that quotes what it was given."""
        if not self.is_over and "fence" not in name:
            said = "secret-password is refused"
            raise webop.TemporaryError(said, delay=0.05) from ConnectionError(said)


@dataclass
class Shown:
    http: httpx.AsyncClient
    url: str
    hook: int

    async def report(self) -> Json:
        answer = await self.http.get(f"{self.url}/status.json")
        assert answer.status_code == 200, answer.text
        report: Json = answer.json()
        return report

    async def wait(self, condition: Callable[[Json], Any]) -> Json:
        report: Json = await eventually(
            self.report, "the report", check=condition, ignoring=httpx.ConnectError
        )
        return report


@contextlib.asynccontextmanager
async def operate_visibly(run_operator: RunOperator, objects: Objects) -> AsyncIterator[Shown]:
    """Run an operator with a webhook server, a Lease and a status page, and wait until it acts."""
    hook, url = find_free_port(), f"http://127.0.0.1:{find_free_port()}"
    settings = build_settings(
        leadership={"lease_name": "leader", "lease_namespace": objects.namespace},
        admission={"server": webop.WebhookServer(addr="127.0.0.1", port=hook)},
        batching={"exit_timeout": 0},
    )
    async with (
        run_operator(settings, liveness_endpoint=f"{url}/healthz", beside=True),
        httpx.AsyncClient(trust_env=False) as http,
    ):
        shown = Shown(http, url, hook)
        await shown.wait(lambda report: not report["not_ready"])
        yield shown


def find(rows: Json, **labels: Any) -> Json:
    """Return the row of a list that has these labels; nothing if there is none."""
    found = [row for row in rows["items"] if labels.items() <= row.items()]
    return found[0] if found else {}
