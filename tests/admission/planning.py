"""A configuration and the replicas that act on it, without an API server: for tests of planning."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Mapping
from typing import Any

from webop.admission.managed.replica_records import (
    ReplicaRecord,
    build_bundle,
    build_key,
    parse_bundle,
)
from webop.admission.managed.replicas import (
    Configuration,
    Plan,
    build_annotations,
    build_patch,
    build_record,
    parse_configuration,
    plan_exit,
    plan_presence,
)

Json = dict[str, Any]
NOW = dt.datetime(2026, 11, 21, 12, 30, tzinfo=dt.UTC)
SERVICE = "https://service"


def build_pem(name: str) -> str:
    return f"-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----"


def build_webhook(name: str, targets: str = "a", **fields: Any) -> Json:
    """Return a webhook for the resources of some letters."""
    rules = [
        {"apiGroups": ["g"], "apiVersions": ["v1"], "resources": [t], "operations": ["*"]}
        for t in targets
    ]
    return {"name": f"{name}.x", "rules": rules, "sideEffects": "None", **fields}


class Cluster:
    """One configuration, and replicas that act on it, one after another, each at a later time."""

    def __init__(self) -> None:
        self.body: Json | None = None
        self.now = NOW
        self._versions = itertools.count(1)
        self.writes = 0

    def find(self) -> Configuration:
        return parse_configuration(self.body, lambda record: record.is_alive(self.now))

    def apply(self, found: Configuration, plan: Plan) -> Plan:
        """Do what the API server does with the patch."""
        self.now += dt.timedelta(seconds=1)
        body = self.body
        if body is None:
            version = str(next(self._versions))
            annotations = build_annotations(plan.records)
            self.body = {"metadata": {"annotations": annotations, "resourceVersion": version}}
            self.body["webhooks"] = list(plan.webhooks)
            return plan
        patch = build_patch(found, plan)
        if patch is not None:
            assert patch["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"]
            self.merge(patch)
        return plan

    def merge(self, patch: Json) -> None:
        """Merge a patch into the object, which is there."""
        assert self.body is not None
        metadata = self.body["metadata"]
        merged = {**metadata.get("annotations", {}), **patch["metadata"]["annotations"]}
        metadata["annotations"] = {key: text for key, text in merged.items() if text}
        metadata["resourceVersion"] = str(next(self._versions))
        self.body["webhooks"] = list({**self.body, **patch}["webhooks"])
        self.writes += 1

    @property
    def webhooks(self) -> dict[str, Json]:
        found: list[Json] = (self.body or {}).get("webhooks", [])
        return {webhook["name"].removesuffix(".x"): webhook for webhook in found}

    @property
    def names(self) -> str:
        return " ".join(self.webhooks)

    @property
    def urls(self) -> dict[str, str]:
        return {name: webhook["clientConfig"]["url"] for name, webhook in self.webhooks.items()}

    @property
    def trusted(self) -> set[tuple[str, ...]]:
        """The CAs of the webhooks, which must all be the same."""
        return {
            tuple(pem.split()[2] for pem in parse_bundle(w["clientConfig"].get("caBundle")))
            for w in self.webhooks.values()
        }

    def get_targets(self, name: str) -> str:
        return "".join(r for rule in self.webhooks[name]["rules"] for r in rule["resources"])


class Actor:
    """A replica: what it serves, and what it does to the configuration."""

    def __init__(self, cluster: Cluster, name: str, *webhooks: Json, **options: Any) -> None:
        self.cluster = cluster
        self.address: str = options.get("url", SERVICE)
        self.ca: str = options.get("ca", "")
        self.elsewhere: Mapping[str, ReplicaRecord] = {}
        self.persistent: tuple[str, ...] = options.get("persistent", ())
        self.webhooks = webhooks
        self.name, self.key, self.since = name, build_key(name), cluster.now

    @property
    def persistent_names(self) -> list[str]:
        return [f"{name}.x" for name in self.persistent]

    @property
    def record(self) -> ReplicaRecord:
        config = {"url": self.address, **build_bundle([build_pem(self.ca)])}
        if not self.ca:
            del config["caBundle"]
        webhooks = [
            {
                **webhook,
                "clientConfig": {
                    **config,
                    "url": f"{self.address}/{webhook['name'].removesuffix('.x')}",
                },
            }
            for webhook in self.webhooks
        ]
        who: Json = {"identity": self.name, "since": self.since, "renewed": self.since}
        return build_record(webhooks, config, lifetime=180.0, **who)

    def look(self) -> Plan:
        found = self.cluster.find()
        now = self.cluster.now
        plan = plan_presence(found, self.elsewhere, self.key, self.record, now)
        return self.cluster.apply(found, plan)

    def retire(self) -> Plan:
        found = self.cluster.find()
        record, now = self.record.retire(), self.cluster.now
        plan = plan_presence(found, self.elsewhere, self.key, record, now)
        return self.cluster.apply(found, plan)

    def leave(self) -> Plan:
        found = self.cluster.find()
        plan = plan_exit(found, self.elsewhere, self.key, self.persistent_names)
        return self.cluster.apply(found, plan)
