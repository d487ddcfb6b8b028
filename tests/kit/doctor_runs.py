"""``webop doctor`` in a thread, and what it has found."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kit.cli_runner import invoke
from tests.kit.managed_webhooks import KINDS, Site
from tests.kit.processes import Workshop
from tests.kit.waiting import eventually
from webop.admission.configurations.replica_agreement import ReplicaRecord, build_digest, build_key
from webop.handlers.model import WebhookType

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

Json = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """A finding in the report, with the title that it is under."""

    title: str
    level: str
    subject: str
    text: str
    remedy: str = ""


@dataclass
class Report:
    code: int
    output: str
    errors: str
    lines: list[Line] = field(default_factory=list)

    def of(self, level: str, title: str = "") -> list[Line]:
        """Return the findings of a level, below some titles maybe."""
        return [line for line in self.lines if line.level == level and title in line.title]

    def find(self, subject: str, title: str = "") -> Line:
        found = [line for line in self.lines if line.subject == subject and title in line.title]
        assert len(found) == 1, f"{len(found)} findings about {subject!r} in {self.output}"
        return found[0]


class Doctor:
    def __init__(self, workshop: Workshop, cluster: LocalCluster | None) -> None:
        self.workshop = workshop
        self._variables = {} if cluster is None else {"KUBECONFIG": str(cluster.kubeconfig)}

    async def speak(self, *args: str | Path, **variables: str) -> Report:
        """Run it with arguments, for its text."""
        foreign = {key: None for key in os.environ if key.startswith(("WEBOP_", "KUBE"))}
        environment = {**foreign, "HOME": str(self.workshop.folder), **self._variables, **variables}
        arguments = ("doctor", *map(str, args))
        result = await asyncio.to_thread(invoke, *arguments, env=environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        report = Report(result.exit_code, result.stdout, result.stderr)
        assert "Traceback" not in report.output + report.errors, report
        return report

    async def examine(self, *args: str | Path, **variables: str) -> Report:
        """Run it with arguments, for its findings."""
        report = await self.speak("-o", "json", *args, **variables)
        document = json.loads(report.output)
        report.lines = [
            Line(section["title"], **finding)
            for section in document["sections"]
            for finding in section["findings"]
        ]
        assert document["healthy"] is (report.code == 0)
        for line in (*report.of("warning"), *report.of("failure")):
            assert line.remedy, line
        return report


def build_record(webhooks: list[Json], age: float = 0.0, **fields: Any) -> ReplicaRecord:
    """Return the record of a replica that serves webhooks, heard of so many seconds ago."""
    renewed = (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=age)).isoformat()
    values: Json = {
        "identity": "pod-1",
        "since": renewed,
        "renewed": renewed,
        "lifetime": 180.0,
        "address": {"url": "https://localhost:1"},
        "digest": build_digest({WebhookType.VALIDATING: webhooks, WebhookType.MUTATING: ()}),
    }
    return ReplicaRecord(**{**values, **fields})


async def configure(
    site: Site, config: Json, records: Iterable[ReplicaRecord] | None = None, **webhook: Any
) -> Json:
    """Put a validating configuration into the cluster, with one webhook for the site's objects.

    Args:
        site: whose it is.
        config: the ``clientConfig``.
        records: the replicas; by default, one that is alive and serves the webhook.
        webhook: more about the webhook.
    """
    group, version, plural = site.names
    rule = {"apiGroups": [group], "apiVersions": [version]}
    made: Json = {
        "name": f"check.{site.name}",
        "clientConfig": config,
        "rules": [{**rule, "resources": [plural], "operations": ["*"]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 2,
        **webhook,
    }
    replicas = [build_record([made])] if records is None else records
    annotations = {build_key(record.identity): record.encode() for record in replicas}
    return await site.client.create(
        KINDS[WebhookType.VALIDATING],
        None,
        {"metadata": {"name": site.name, "annotations": annotations}, "webhooks": [made]},
    )


async def wait_in_force(site: Site) -> str:
    """Wait until the API server goes by a webhook that refuses all; return what it says."""
    answer = await eventually(
        lambda: site.create("one", {}, "?dryRun=All"),
        f"the webhook of {site.name} in force",
        check=lambda answer: answer.status_code >= 400,
    )
    return str(answer.text)
