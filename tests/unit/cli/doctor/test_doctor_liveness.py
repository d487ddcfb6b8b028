"""What the records of replicas tell."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tests.kit.doctor_runs import build_record
from webop.admission.configurations.replica_agreement import PREFIX, ReplicaRecord
from webop.admission.configurations.stored_configurations import Configuration
from webop.cli.doctor.findings import Finding
from webop.cli.doctor.records import check_replicas
from webop.handlers.model import WebhookType

Json = dict[str, Any]


def build_webhook(name: str, **more: Any) -> Json:
    return {"name": name, "rules": [], "clientConfig": {"url": f"{HERE}/{name}"}, **more}


HERE = "https://localhost:1"
ONE, TWO = build_webhook("one"), build_webhook("two")
LENIENT = build_webhook("one", failurePolicy="Ignore")
NOW = dt.datetime.now(dt.UTC)
THERE = {"url": "https://laptop:1"}


def age_record(webhooks: list[Json], age: float = 0.0, **fields: Any) -> ReplicaRecord:
    """Return the record of a replica that was heard of so many seconds before NOW."""
    renewed = (NOW - dt.timedelta(seconds=age)).isoformat()
    return build_record(webhooks, **{"renewed": renewed, **fields})


def check(webhooks: list[Json], records: list[ReplicaRecord]) -> list[Finding]:
    texts = {f"{PREFIX}{n}": record.encode() for n, record in enumerate(records)}
    found = {
        WebhookType.VALIDATING: Configuration("1", webhooks, texts),
        WebhookType.MUTATING: Configuration(),
    }
    return list(check_replicas(found, "webop uninstall --managed it", NOW))


@pytest.mark.parametrize(
    ("webhooks", "records", "levels"),
    [
        ([], [], ["note"]),
        ([ONE], [age_record([ONE])], ["ok"]),
        ([ONE], [age_record([ONE]), age_record([ONE], identity="pod-2")], ["ok"]),
        ([ONE], [age_record([ONE]), age_record([ONE], age=999)], ["ok"]),
        ([ONE], [age_record([ONE], age=999)], ["failure"]),
        ([LENIENT], [age_record([LENIENT], age=999)], ["warning"]),
        ([ONE], [], ["failure"]),
        ([ONE], [age_record([ONE], renewed="x")], ["failure"]),
        ([LENIENT], [], ["warning"]),
        ([], [age_record([], age=999)], ["note"]),
        ([ONE], [age_record([ONE], age=61)], ["ok"]),
        ([ONE], [age_record([ONE]), age_record([ONE], age=61, address={})], ["ok"]),
        ([ONE], [age_record([ONE]), age_record([ONE, TWO])], ["note"]),
        ([ONE, TWO], [age_record([ONE])], ["ok", "warning"]),
        ([ONE], [age_record([ONE]), age_record([ONE], address=THERE)], ["ok", "warning"]),
    ],
)
def test_records_are_judged(
    webhooks: list[Json], records: list[ReplicaRecord], levels: list[str]
) -> None:
    findings = check(webhooks, records)
    assert [finding.level for finding in findings] == levels
    for finding in findings:
        assert finding.remedy or finding.level in ("ok", "note")


def test_a_replica_that_was_probably_killed_is_told_with_what_helps() -> None:
    killed = age_record([ONE], age=130, identity="vm/1352")
    stopped = age_record([ONE], age=130, identity="vm/1", address={})
    finding, *_ = check([ONE], [killed, stopped])
    assert finding.level == "warning"
    assert finding.text.endswith("probably killed: vm/1352")
    assert "--take-over" in finding.remedy
