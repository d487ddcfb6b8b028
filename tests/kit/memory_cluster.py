"""The API server in memory, with late caches, a lost history, and kinds that tests define."""

from __future__ import annotations

import orjson

from webop.testing.apiserver import Cluster, Json, Request


class MemoryCluster(Cluster):
    def set_lag(self, count: int) -> None:
        """Have the watch caches so many changes late."""
        self.store.lag = count
        for table in list(self.store.tables.values()):
            table.advance(len(table.log) - count)

    def compact(self) -> None:
        """Forget what the watch caches have taken: older versions are answered with 410."""
        for table in self.store.tables.values():
            table.oldest = table.compacted = table.get_cached_version(self.store.version)
            del table.log[: table.cached]
            table.cached = 0

    def add_kind(self, group: str, plural: str, kind: str, *, has_status: bool = False) -> None:
        """Define a kind by a CRD that keeps everything in spec and status."""
        free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        schema = {"type": "object", "properties": {"spec": free, "status": free}}
        version: Json = {"name": "v1", "served": True, "storage": True}
        version["schema"] = {"openAPIV3Schema": schema}
        if has_status:
            version["subresources"] = {"status": {}}
        body = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"plural": plural, "kind": kind},
                "versions": [version],
            },
        }
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        headers = {"content-type": "application/json"}
        request = Request("POST", path, {}, headers, orjson.dumps(body), "system:scenario")
        assert self.handle(request).status == 201
