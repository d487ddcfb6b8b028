"""What the records of replicas tell."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tests.doctor.consulting import build_record
from webop.admission.managed.replica_records import ReplicaRecord
from webop.admission.managed.replicas import Configuration
from webop.doctor.records import check_replicas

Json = dict[str, Any]


def build_webhook(name: str, **more: Any) -> Json:
    return {"name": name, "rules": [], **more}


ONE, TWO = build_webhook("one"), build_webhook("two")
LENIENT = build_webhook("one", failurePolicy="Ignore")
NOW = dt.datetime.now(dt.UTC)


def age_record(webhooks: list[Json], age: float = 0.0, **fields: Any) -> ReplicaRecord:
    """Return the record of a replica that was heard of so many seconds before NOW."""
    return build_record(webhooks, renewed=NOW - dt.timedelta(seconds=age), **fields)


@pytest.mark.parametrize(
    ("webhooks", "records", "levels"),
    [
        ([], [], []),
        ([ONE], [age_record([ONE])], ["ok"]),
        ([ONE], [age_record([ONE]), age_record([ONE], identity="pod-2")], ["ok"]),
        ([ONE], [age_record([ONE]), age_record([ONE], age=999)], ["ok"]),
        ([ONE], [age_record([ONE], age=999)], ["failure"]),
        ([LENIENT], [age_record([LENIENT], age=999)], ["warning"]),
        ([ONE], [], ["warning"]),
        ([], [age_record([], age=999)], ["note"]),
        ([ONE, TWO], [age_record([ONE]), age_record([ONE, TWO])], ["note"]),
        ([ONE], [age_record([ONE]), age_record([ONE, TWO])], ["note", "note"]),
        ([ONE, TWO], [age_record([ONE])], ["ok", "failure"]),
        ([LENIENT, TWO], [age_record([TWO])], ["ok", "warning"]),
    ],
)
def test_marks_are_judged(
    webhooks: list[Json], records: list[ReplicaRecord], levels: list[str]
) -> None:
    found = Configuration(
        "1", {str(n): record for n, record in enumerate(records)}, webhooks=webhooks
    )
    findings = list(check_replicas(found, "kubectl delete it", NOW))
    assert [finding.level for finding in findings] == levels
    for finding in findings:
        assert finding.remedy or finding.level in ("ok", "note")
