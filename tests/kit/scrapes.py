"""Scrapes as Prometheus makes them, and what is in them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client import parser
from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser

import webop
from tests.kit.waiting import eventually

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


@dataclass
class Scrape:
    text: str
    families: dict[str, Metric]

    def get(self, name: str, /, **labels: str) -> float:
        """Return the sum of the samples of a name with these labels, and any others; 0 for none."""
        return sum(
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    @property
    def names(self) -> set[str]:
        return {sample.name for family in self.families.values() for sample in family.samples}


async def scrape(http: httpx.AsyncClient, url: str = "/metrics", accept: str = "") -> Scrape:
    """Scrape once, and parse what comes as what it claims to be."""
    answer = await http.get(url, headers={"accept": accept} if accept else None)
    assert answer.status_code == 200, answer.text
    kind = answer.headers["content-type"]
    parse = openmetrics_parser if kind.startswith("application/openmetrics-text") else parser
    families = parse.text_string_to_metric_families(answer.text)
    return Scrape(answer.text, {family.name: family for family in families})


async def scrape_until(
    condition: Callable[[Scrape], object], http: httpx.AsyncClient, url: str = "/metrics"
) -> Scrape:
    """Scrape until a condition holds; also while nobody listens yet."""
    found: Scrape = await eventually(
        lambda: scrape(http, url),
        "The expected metrics",
        check=condition,
        ignoring=httpx.ConnectError,
    )
    return found


@contextlib.asynccontextmanager
async def operate(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Run an operator that needs no cluster, and give a client."""
    registry = webop.OperatorRegistry()
    webop.on.probe(id="x", registry=registry)(lambda **_: "fine")
    ready = asyncio.Event()
    task = asyncio.create_task(
        webop.operator(registry=registry, clusterwide=True, ready_flag=ready, **options)
    )
    async with httpx.AsyncClient(trust_env=False) as http:
        await eventually(lambda: ready.is_set() or task.done())
        try:
            yield http
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def wait_listening(http: httpx.AsyncClient, url: str) -> None:
    await eventually(lambda: http.get(url), f"Somebody at {url}", ignoring=httpx.ConnectError)
