"""Handlers beside the webhooks of the cluster."""

from __future__ import annotations

from typing import Any

import webop
from tests.doctor.consulting import build_mark
from webop.doctor.findings import Finding
from webop.doctor.matching import build_expected, check_handlers
from webop.doctor.records import Configuration, Record
from webop.handling.handlers import WebhookType

Json = dict[str, Any]

VALIDATING = WebhookType.VALIDATING
PODS = webop.Resource("", "v1", "pods", kind="Pod", singular="pod", namespaced=True)
ONE = webop.Resource("one.dev", "v1", "things", kind="Thing", namespaced=True)
TWO = webop.Resource("two.dev", "v1", "things", kind="Thing", namespaced=True)
KINDS = [PODS, ONE, TWO]


def declare(resource: str, **options: Any) -> webop.OperatorRegistry:
    registry = webop.OperatorRegistry()

    def check(**_: Any) -> None: ...

    options = {"id": "check", "labels": {"a": "1"}, **options}
    webop.on.validate(resource, registry=registry, **options)(check)
    return registry


def compare(registry: webop.OperatorRegistry, found: Configuration) -> list[Finding]:
    return list(check_handlers(registry.select_webhooks(), "auto.kopf.dev", [found], KINDS))


def configure(
    registry: webop.OperatorRegistry, marks: bool = False, **changes: Any
) -> Configuration:
    expected = build_expected(registry.select_webhooks(), VALIDATING, "auto.kopf.dev", KINDS)
    webhooks = [webhook for _, webhook in expected.values()]
    for webhook in webhooks:
        webhook["rules"][0].update(changes)
    records = [Record(VALIDATING, webhook) for webhook in webhooks]
    kept = [build_mark(webhooks)] if marks else []
    return Configuration(VALIDATING, "auto.kopf.dev", [] if marks else records, kept)


def get_levels(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.level, finding.subject) for finding in findings]


def test_what_is_as_it_should_be_is_approved() -> None:
    registry = declare("pods")
    assert get_levels(compare(registry, configure(registry))) == [("ok", "check")]


def test_other_rules_are_told() -> None:
    registry = declare("pods")
    (finding,) = compare(registry, configure(registry, resources=["nodes"]))
    assert finding.level == "warning"
    assert "/v1/pods" in finding.text
    assert "/v1/nodes" in finding.text
    (finding,) = compare(registry, configure(registry, operations=["CREATE"]))
    assert finding.level == "warning"


def test_a_handler_without_a_webhook_is_a_failure_unless_it_has_to_wait() -> None:
    registry = declare("pods")
    empty = Configuration(VALIDATING, "auto.kopf.dev")
    assert get_levels(compare(registry, empty)) == [("failure", "check")]
    assert get_levels(compare(registry, configure(registry, marks=True))) == [("note", "check")]


def test_a_webhook_without_a_handler_is_told() -> None:
    found = configure(declare("pods"))
    findings = compare(webop.OperatorRegistry(), found)
    assert get_levels(findings) == [("note", "handlers"), ("warning", "unknown")]


def test_resources_that_are_absent_or_ambiguous_are_told() -> None:
    empty = Configuration(VALIDATING, "auto.kopf.dev")
    (absent,) = compare(declare("nowhere"), empty)
    assert "not in the cluster" in absent.text
    (ambiguous,) = compare(declare("things"), empty)
    assert "things.v1.one.dev, things.v1.two.dev" in ambiguous.text


def test_a_webhook_that_can_stop_the_cluster_is_told() -> None:
    registry = declare("pods", labels=None)
    found = configure(registry)
    danger, _ = compare(registry, found)
    assert (danger.level, danger.subject) == ("warning", "check")
    assert "the cluster stops" in danger.text
    assert "labels=" in danger.remedy
