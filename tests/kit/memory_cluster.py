"""The API server in memory, with late caches, a lost history, and kinds that tests define."""

from __future__ import annotations

import orjson

from tests.kit.operators import Kind
from webop.testing.apiserver import Cluster, Request


class MemoryCluster(Cluster):
    def set_lag(self, count: int) -> None:
        """Have the watch caches so many changes late."""
        self.store.lag = count
        for table in list(self.store.tables.values()):
            table.advance(len(table.log) - count)

    def compact(self) -> None:
        """Forget what the watch caches have taken: older versions are answered with 410."""
        for table in self.store.tables.values():
            table.compact(table.cached, table.get_cached_version(self.store.version))

    def add_kind(self, group: str, plural: str, kind: str, *, has_status: bool = False) -> None:
        """Define a kind by a CRD that keeps everything in spec and status."""
        crd = Kind(group, plural, kind, has_status=has_status).build_crd()
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        headers = {"content-type": "application/json"}
        request = Request("POST", path, {}, headers, orjson.dumps(crd), "system:scenario")
        assert self.handle(request).status == 201
