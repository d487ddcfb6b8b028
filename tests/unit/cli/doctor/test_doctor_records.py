"""What the records of replicas and the selectors tell, and how a report is printed."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import webop
from tests.kit.doctor_runs import build_record
from tests.kit.rows import rows
from webop.admission.configurations.replica_agreement import PREFIX, ReplicaRecord
from webop.admission.configurations.stored_configurations import Configuration
from webop.cli.doctor.findings import build_text, warn
from webop.cli.doctor.records import check_replicas
from webop.cli.doctor.selector_checks import find_contradictions
from webop.handlers.model import WebhookType

Json = dict[str, Any]

PODS = webop.Resource("", "v1", "pods", kind="Pod", namespaced=True)
NOW = dt.datetime.now(dt.UTC)


def build_webhook(name: str, **more: Any) -> Json:
    url = f"https://localhost:1/{name}"
    return {"name": name, "rules": [], "clientConfig": {"url": url}, **more}


ONE, TWO = build_webhook("one"), build_webhook("two")
LENIENT = build_webhook("one", failurePolicy="Ignore")


def age_record(webhooks: list[Json], age: float = 0.0, **fields: Any) -> ReplicaRecord:
    """Return the record of a replica that was heard of so many seconds before NOW."""
    renewed = (NOW - dt.timedelta(seconds=age)).isoformat()
    return build_record(webhooks, **{"renewed": renewed, **fields})


ABROAD = {"url": "https://laptop:1"}


@rows(
    ("webhooks", "records", "levels"),
    [
        ([], [], ["note"]),
        ([ONE], [age_record([ONE])], ["ok"]),
        ([ONE], [age_record([ONE], age=999)], ["failure"]),
        ([LENIENT], [age_record([LENIENT], age=999)], ["warning"]),
        ([ONE], [], ["failure"]),
        ([ONE], [age_record([ONE], age=61)], ["ok"]),
        ([ONE], [age_record([ONE]), age_record([ONE, TWO])], ["note"]),
        ([ONE, TWO], [age_record([ONE])], ["ok", "warning"]),
        ([ONE], [age_record([ONE]), age_record([ONE], address=ABROAD)], ["ok", "warning"]),
    ],
)
def test_records_are_judged(
    webhooks: list[Json], records: list[ReplicaRecord], levels: list[str]
) -> None:
    texts = {f"{PREFIX}{n}": record.encode() for n, record in enumerate(records)}
    stored = Configuration("1", webhooks, texts)
    found = {WebhookType.VALIDATING: stored, WebhookType.MUTATING: Configuration()}
    findings = list(check_replicas(found, "webop uninstall --managed it", NOW))
    assert [finding.level for finding in findings] == levels
    for finding in findings:
        assert finding.remedy or finding.level in ("ok", "note")


@pytest.mark.feature("FLT-28")
@rows(
    ("labels", "selector", "excluded"),
    [
        ({"a": "b"}, "a=b", False),
        ({"a": "b"}, "a=c", True),
        ({"a": "b"}, "a!=b", True),
        ({"a": "b"}, "a notin (b, c)", True),
        ({"a": "b"}, "!a", True),
        ({"a": webop.PRESENT}, "!a", True),
        ({"a": webop.ABSENT}, "a", True),
        ({"a": lambda value, **_: value == "b"}, "a=c", False),
        ({"x": "y"}, "a=c", False),
    ],
)
def test_a_filter_that_contradicts_the_selector_is_found(
    labels: Any, selector: str, excluded: bool
) -> None:
    registry = webop.OperatorRegistry()
    webop.on.create("pods", registry=registry, labels=labels, id="fn")(lambda **_: None)
    found = list(find_contradictions(PODS, selector, registry.select_resource_handlers()))
    assert [finding.level for finding in found] == ["warning"] * excluded
    assert all("'fn' is never called: labels={'a': " in finding.text for finding in found)


def test_words_of_strangers_forge_no_lines_and_do_not_reach_the_terminal() -> None:
    forged = "paused by x\n1 ok.\x1b[2J"
    text = build_text({"a": [warn(forged, forged, forged)]}, lambda text, _: text)
    assert "\x1b" not in text
    assert len(text.splitlines()) == 5
