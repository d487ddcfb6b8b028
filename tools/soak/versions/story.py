"""Reads and writes of two versions while all replicas that convert are replaced; a migration.

Objects are stored in one version, and created, changed and read in two, at a steady rate. So each
request in the other version needs a conversion. At the same time, all replicas are replaced one
after another, and the Secret with their certificates is deleted, which causes a new CA.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.kit.operators import CRDS
from tests.kit.versioned_shops import GROUP, NAME, Shops
from tools.long_runs import Say
from tools.soak.rollout.replicas import HANDLERS
from tools.soak.rollout.story import Stage
from tools.soak.steady_load import SteadyLoad

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

Json = dict[str, Any]

CONVERTING = HANDLERS[: HANDLERS.index("@webop.on.mutate")] + (
    "from tests.kit.versioned_shops import declare\n\ndeclare(webop.get_default_registry())\n"
)
_RETRIES = 20  # of a 429, which a changed definition causes for a moment: all clients repeat these


@dataclass
class Tally:
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    repeated: int = 0
    slowest: float = 0.0

    def __str__(self) -> str:
        counts = ", ".join(f"{count} x {what}" for what, count in sorted(self.counts.items()))
        return (
            f"{counts}; {len(self.failed)} failed, {len(self.wrong)} wrong, "
            f"{self.repeated} repeated after 429, slowest {self.slowest:.2f} s"
        )


class Load(SteadyLoad[Tally]):
    def __init__(self, stage: Stage, rate: float) -> None:
        super().__init__(Tally(), rate)
        self._http, self._namespace = stage.http, stage.namespace
        self._made: list[tuple[str, int]] = []

    async def act(self, number: int) -> None:
        """Send one request, and count its result."""
        version = ("v1", "v2")[number % 2]
        port = number % 60000 + 1
        verb = ("create", "read", "patch", "read")[number // 2 % 4]
        begun = time.monotonic()
        if verb == "create" or not self._made:
            body = {
                "apiVersion": f"{GROUP}/{version}",
                "kind": "Shop",
                "metadata": {"name": f"shop-{number}"},
                "spec": _build_spec(version, port),
            }
            answer = await self._send("POST", version, "", json=body)
            if answer.status_code == 201:
                self._made.append((f"shop-{number}", port))
        else:
            name, port = self._made[number * 7919 % len(self._made)]
            if verb == "read":
                answer = await self._send("GET", version, f"/{name}")
            else:
                patch = {"metadata": {"labels": {"number": str(number)}}}
                headers = {"content-type": "application/merge-patch+json"}
                answer = await self._send("PATCH", version, f"/{name}", json=patch, headers=headers)
        self.tally.slowest = max(self.tally.slowest, time.monotonic() - begun)
        self.tally.counts[f"{verb} {version}"] += 1
        if answer.status_code not in (200, 201):
            self.tally.failed.append(f"{verb} {version}: {answer.status_code} {answer.text[:400]}")
            return
        found = answer.json()
        expected = _build_spec(version, port)
        if {key: found["spec"].get(key) for key in expected} != expected:
            self.tally.wrong.append(f"{verb} {version}: {found}")

    async def _send(self, method: str, version: str, rest: str, **options: Any) -> httpx.Response:
        path = f"/apis/{GROUP}/{version}/namespaces/{self._namespace}/shops{rest}"
        for _ in range(_RETRIES):
            answer = await self._http.request(method, path, **options)
            if answer.status_code != 429:
                break
            self.tally.repeated += 1
            await asyncio.sleep(float(answer.headers.get("retry-after", 1)))
        return answer


def _build_spec(version: str, port: int) -> Json:
    if version == "v1":
        return {"address": f"host:{port}"}
    return {"host": "host", "port": port}


async def fill(shops: Shops, count: int) -> None:
    """Store objects as v1, and change the storage version to v2."""
    await _store_as(shops, "v1")
    slots = asyncio.Semaphore(16)

    async def create(number: int) -> None:
        async with slots:
            spec = {"address": f"host:{number % 60000 + 1}"}
            await shops.create("v1", f"old-{number}", spec)

    await asyncio.gather(*map(create, range(count)))
    await _store_as(shops, "v2")


async def _store_as(shops: Shops, version: str) -> None:
    definition = await shops.client.get(CRDS, None, NAME)
    versions = definition["spec"]["versions"]
    for each in versions:
        each["storage"] = each["name"] == version
    await shops.change_definition({"spec": {"versions": versions}})
    await asyncio.sleep(3)


async def migrate(cluster: LocalCluster, folder: Path, stops: list[float], say: Say) -> str:
    """Run ``webop crd migrate``, interrupted after some seconds each time; return the last line."""
    command = (sys.executable, "-m", "webop", "crd", "migrate", "--name", NAME)
    last = ""
    for stop in (*stops, None):
        begun = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=folder,
            env={"KUBECONFIG": str(cluster.kubeconfig), "HOME": str(folder), "PATH": "/usr/bin"},
        )
        if stop is not None:
            await asyncio.sleep(stop)
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
        output, _ = await process.communicate()
        last = output.decode().strip().splitlines()[-1]
        say(f"Exit code {process.returncode} after {time.monotonic() - begun:.1f} s: {last}")
    return last
