"""The API server in memory, with late caches, a lost history, and kinds that tests define."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import orjson

from tests.kit.operators import Kind as CustomKind
from webop.testing.apiserver import Cluster, Request
from webop.testing.apiserver.kinds import Kind
from webop.testing.apiserver.writing import Steps


class MemoryCluster(Cluster):
    """The cluster.

    Attributes:
        discovery_lag: for how many seconds discovery does not know that something has changed.
    """

    discovery_lag = 0.0

    def __init__(self, now: Callable[[], datetime], rng: random.Random, **options: Any) -> None:
        self._told: list[tuple[datetime, list[Kind]]] = []
        super().__init__(now, rng, **options)

    def perform(self, request: Request) -> Steps:
        response = yield from super().perform(request)
        if not self._told or self._told[-1][1] != self.kinds.list_served():
            self._told.append((self._now(), self.kinds.list_served()))
        return response

    def list_discovered(self) -> list[Kind]:
        latest = self._now() - timedelta(seconds=self.discovery_lag)
        while len(self._told) > 1 and self._told[1][0] <= latest:
            del self._told[0]
        return self._told[0][1]

    def set_lag(self, count: int) -> None:
        """Have the watch caches so many changes late."""
        self.store.lag = count
        for table in list(self.store.tables.values()):
            table.advance(len(table.log) - count)

    def compact(self) -> None:
        """Forget what the watch caches have taken: older versions are answered with 410."""
        for table in self.store.tables.values():
            is_late = table.cached < len(table.log)
            version = table.log[table.cached].version - 1 if is_late else self.store.version
            table.compact(table.cached, version)

    def add_kind(self, group: str, plural: str, kind: str, *, has_status: bool = False) -> None:
        """Define a kind by a CRD that keeps everything in spec and status."""
        crd = CustomKind(group, plural, kind, has_status=has_status).build_crd()
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        headers = {"content-type": "application/json"}
        request = Request("POST", path, {}, headers, orjson.dumps(crd), "system:scenario")
        assert self.handle(request).status == 201
