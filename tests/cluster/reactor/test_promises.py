"""Many objects, many changes, slow and failing handlers, broken connections: what is promised."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

import webop
from tests.kit.forwarder import Forwarder
from tests.kit.operators import Objects, build_settings, get_connection, operate

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

OBJECTS = 20
CHANGES = 6
SETTINGS: dict[str, dict[str, Any]] = {
    "execution": {"commit_window": 0.01},
    "networking": {"error_backoffs": [0.05] * 100},
    "batching": {"error_delays": [0.05]},
}


class Recorder:
    """Two handlers of creations and updates; they are slow, and fail now and then."""

    def __init__(self, registry: webop.OperatorRegistry, seed: int) -> None:
        self.random = random.Random(seed)
        self.last: dict[tuple[str, str], int] = {}
        self.successes: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.inside: set[str] = set()
        self.violations: list[str] = []
        for key in ("a", "b"):
            webop.on.create("widgets", registry=registry, id=key)(self._build(key))
            webop.on.update("widgets", registry=registry, id=key)(self._build(key))

    def _build(self, key: str) -> Any:
        async def fn(name: str, spec: webop.Spec, **_: Any) -> None:
            if name in self.inside:
                self.violations.append(name)
            self.inside.add(name)
            try:
                await asyncio.sleep(self.random.choice([0, 0, 0.005, 0.02]))
                if self.random.random() < 0.1:
                    raise webop.TemporaryError("not now", delay=0.02)
                self.successes[name, key].append(spec["value"])
            finally:
                self.inside.discard(name)

        return fn


@pytest.mark.feature("EVT-11", "EVT-12", "D-67", "CON-04")
@pytest.mark.parametrize("seed", [1, 2])
async def test_one_object_is_never_handled_twice_at_once_and_its_last_state_is_always_handled(
    registry: webop.OperatorRegistry, objects: Objects, webop_cluster: LocalCluster, seed: int
) -> None:
    recorder = Recorder(registry, seed)
    dice = random.Random(seed)

    async def live(number: int) -> None:
        name = f"o{number}"
        await objects.create(name, {"value": 0})
        for value in range(1, CHANGES + 1):
            await asyncio.sleep(dice.choice([0, 0.01, 0.05]))
            await objects.patch(name, {"spec": {"value": value}})

    async with Forwarder(webop_cluster.server).listen() as proxy:
        info = get_connection(webop_cluster, proxy.url)
        settings = build_settings(**SETTINGS)
        namespaces = [objects.namespace]
        async with operate(info, registry, settings, beside=True, namespaces=namespaces):
            living = asyncio.gather(*(live(number) for number in range(OBJECTS)))
            await asyncio.sleep(0.1)
            proxy.cut()
            await living
            for number in range(OBJECTS):
                await objects.wait_handled(f"o{number}")
    assert recorder.violations == []
    names = [f"o{number}" for number in range(OBJECTS)]
    last = {(name, key): recorder.successes[name, key][-1] for name in names for key in "ab"}
    assert last == dict.fromkeys(last, CHANGES)
    for values in recorder.successes.values():
        assert values == sorted(values)
