"""What the marks of replicas tell."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tests.doctor.consulting import build_mark
from webop.admission.managed.replica_records import ReplicaRecord
from webop.admission.managed.replicas import Configuration
from webop.doctor.records import check_replicas

Json = dict[str, Any]


def build_webhook(name: str, **more: Any) -> Json:
    return {"name": name, "rules": [], **more}


ONE, TWO = build_webhook("one"), build_webhook("two")
LENIENT = build_webhook("one", failurePolicy="Ignore")
NOW = dt.datetime.now(dt.UTC)


def age_mark(webhooks: list[Json], age: float = 0.0, **fields: Any) -> ReplicaRecord:
    """Return the mark of a replica that was heard of so many seconds before NOW."""
    return build_mark(webhooks, renewed=NOW - dt.timedelta(seconds=age), **fields)


@pytest.mark.parametrize(
    ("webhooks", "marks", "levels"),
    [
        ([], [], []),
        ([ONE], [age_mark([ONE])], ["ok"]),
        ([ONE], [age_mark([ONE]), age_mark([ONE], identity="pod-2")], ["ok"]),
        ([ONE], [age_mark([ONE]), age_mark([ONE], age=999)], ["ok"]),
        ([ONE], [age_mark([ONE], age=999)], ["failure"]),
        ([LENIENT], [age_mark([LENIENT], age=999)], ["warning"]),
        ([ONE], [], ["warning"]),
        ([], [age_mark([], age=999)], ["note"]),
        ([ONE, TWO], [age_mark([ONE]), age_mark([ONE, TWO])], ["note"]),
        ([ONE], [age_mark([ONE]), age_mark([ONE, TWO])], ["note", "note"]),
        ([ONE, TWO], [age_mark([ONE])], ["ok", "failure"]),
        ([LENIENT, TWO], [age_mark([TWO])], ["ok", "warning"]),
    ],
)
def test_marks_are_judged(
    webhooks: list[Json], marks: list[ReplicaRecord], levels: list[str]
) -> None:
    found = Configuration("1", {str(n): mark for n, mark in enumerate(marks)}, webhooks=webhooks)
    findings = list(check_replicas(found, "kubectl delete it", NOW))
    assert [finding.level for finding in findings] == levels
    for finding in findings:
        assert finding.remedy or finding.level in ("ok", "note")
