"""Reads and writes in two versions of a kind: those in one of them need a conversion."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.kit.versioned_shops import GROUP
from tools.soak.rollout.story import Stage

Json = dict[str, Any]

_RETRIES = 20  # of a 429, which a changed definition causes for a moment: all clients repeat these


@dataclass
class Conversions:
    """Requests in both versions."""

    stage: Stage
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    repeated: int = 0
    slowest: float = 0.0
    _made: list[tuple[str, int]] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """What failed, or was wrong."""
        return self.failed + self.wrong

    def __str__(self) -> str:
        counts = ", ".join(f"{count} x {what}" for what, count in sorted(self.counts.items()))
        return (
            f"{counts}; {len(self.failed)} failed, {len(self.wrong)} wrong, "
            f"{self.repeated} repeated after 429, slowest {self.slowest:.2f} s"
        )

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
        self.slowest = max(self.slowest, time.monotonic() - begun)
        self.counts[f"{verb} {version}"] += 1
        if answer.status_code not in (200, 201):
            self.failed.append(f"{verb} {version}: {answer.status_code} {answer.text[:400]}")
            return
        found = answer.json()
        expected = _build_spec(version, port)
        if {key: found["spec"].get(key) for key in expected} != expected:
            self.wrong.append(f"{verb} {version}: {found}")

    async def _send(self, method: str, version: str, rest: str, **options: Any) -> httpx.Response:
        path = f"/apis/{GROUP}/{version}/namespaces/{self.stage.fleet.namespace}/shops{rest}"
        for _ in range(_RETRIES):
            answer = await self.stage.http.request(method, path, **options)
            if answer.status_code != 429:
                break
            self.repeated += 1
            await asyncio.sleep(float(answer.headers.get("retry-after", 1)))
        return answer


def _build_spec(version: str, port: int) -> Json:
    if version == "v1":
        return {"address": f"host:{port}"}
    return {"host": "host", "port": port}
