"""What the marks of replicas tell."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tests.doctor.consulting import build_mark
from webop.admission.managed.marks import Mark
from webop.doctor.records import (
    Configuration,
    Record,
    check_replicas,
    parse_configuration,
)
from webop.handling.handlers import WebhookType

Json = dict[str, Any]


def build_webhook(name: str, **more: Any) -> Json:
    return {"name": name, "rules": [], **more}


ONE, TWO = build_webhook("one"), build_webhook("two")
LENIENT = build_webhook("one", failurePolicy="Ignore")
NOW = dt.datetime.now(dt.UTC)


def age_mark(webhooks: list[Json], age: float = 0.0, **fields: Any) -> Mark:
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
def test_marks_are_judged(webhooks: list[Json], marks: list[Mark], levels: list[str]) -> None:
    reason = WebhookType.VALIDATING
    records = [Record(reason, webhook) for webhook in webhooks]
    found = Configuration(reason, "auto", records, marks, is_there=True)
    findings = list(check_replicas(found, NOW))
    assert [finding.level for finding in findings] == levels
    for finding in findings:
        assert finding.remedy or finding.level in ("ok", "note")


def test_a_configuration_is_read_from_an_object() -> None:
    mark = age_mark([ONE])
    annotations = {
        "replica.webop.dev/1": mark.encode(),
        "replica.webop.dev/2": "nonsense",
        "other": "",
    }
    body = {"metadata": {"name": "auto", "annotations": annotations}, "webhooks": [ONE]}
    found = parse_configuration(WebhookType.MUTATING, "auto", body)
    assert (found.is_there, [record.name for record in found.records]) == (True, ["one"])
    assert [item.identity for item in found.marks] == ["pod-1"]
    assert found.title == "MutatingWebhookConfiguration auto"
    assert not parse_configuration(WebhookType.MUTATING, "auto", None).is_there
