"""What the answers of the API server tell about webhooks."""

from __future__ import annotations

from typing import Any

import pytest

from webop.cli.doctor.reachability import DryRun, Webhook, judge, parse_error
from webop.errors import APIConnectionError, APIError, APIStatusError
from webop.handlers.model import WebhookType

VALIDATING, MUTATING = WebhookType.VALIDATING, WebhookType.MUTATING


def build_webhook(reason: WebhookType = VALIDATING, **body: Any) -> Webhook:
    return reason, {"name": "check.auto", **body}


def build_error(text: str, status: int = 500) -> APIStatusError:
    message = f"Cannot create patients: HTTP {status}: {text}"
    return APIStatusError.of(status)(message, status=status)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (
            build_error('admission webhook "check.auto" denied the request: No.', 403),
            DryRun("a CREATE", "check.auto"),
        ),
        (  # what a webhook says of others is not about them
            build_error('admission webhook "a.b" denied the request: webhook "c.d": EOF', 403),
            DryRun("a CREATE", "a.b"),
        ),
        (
            build_error(
                'Internal error occurred: failed calling webhook "check.auto": failed to call '
                'webhook: Post "https://h/x": EOF'
            ),
            DryRun("a CREATE", "check.auto", 'Post "https://h/x": EOF'),
        ),
        (
            build_error("it is forbidden", 403),
            DryRun("a CREATE", "", "Cannot create patients: HTTP 403: it is forbidden", 403),
        ),
        (
            build_error("spec is required", 422),
            DryRun("a CREATE", "", "Cannot create patients: HTTP 422: spec is required", 422),
        ),
        (APIConnectionError("no answer in time"), DryRun("a CREATE", "", "no answer in time")),
    ],
)
def test_an_answer_is_read(error: APIError, answer: DryRun) -> None:
    assert parse_error("a CREATE", error) == answer


@pytest.mark.parametrize(
    ("reason", "what"),
    [
        ("dial tcp 10.0.0.1:443: connect: connection refused", "no server listens"),
        (
            "tls: failed to verify certificate: x509: certificate signed by unknown authority",
            "does not trust",
        ),
        ("x509: certificate has expired or is not yet valid: current time ...", "has expired"),
        ("x509: certificate is valid for a.ns.svc, not b.ns.svc", "for another name"),
        ("x509: cannot validate certificate for 127.0.0.1 because it doesn't contain any IP SANs",
         "for another name"),
        ("x509: certificate is not valid for any names, but wanted to match b", "another name"),
        ('no endpoints available for service "hooks"', "no pod"),
        ('service "hooks" not found', "does not exist"),
        ('no service port 443 found for service "hooks"', "no such port"),
        ("dial tcp: lookup nowhere on 10.0.0.10:53: no such host", "cannot resolve"),
        ('Post "https://h": context deadline exceeded', "in time"),
        ("dial tcp 10.0.0.1:443: i/o timeout", "in time"),
        ("the server could not find the requested resource", "404"),
        ("There is no webhook 'check'; known: none.", "does not serve"),
        ("The review is too large: 8000000 bytes or more; the limit is 7340032.", "too large"),
        ("The webhook check did not answer within 9 s of the 10 s given.", "too long"),
        ("The operator is stopping, and the review took too long.", "too long"),
        (("Webhook 'check' is busy with 100 calls, which is the limit "
         "(settings.admission.max_calls); try again."), "too many"),
        ("http: server gave HTTP response to HTTPS client", "does not use TLS"),
        ('Post "https://h": EOF', "was closed"),
        ("read: connection reset by peer", "was closed"),
        ("expected webhook response of admission.k8s.io/v1, got /v1", "not an"),
        ('an error on the server ("...") has prevented the request from succeeding', "an error"),
        ("Too many reviews at once.", "with an error"),
        ('Post "https://h": something unheard of', "cannot be called"),
    ],
)  # fmt: skip
def test_reasons_are_classified_with_a_remedy(reason: str, what: str) -> None:
    finding = judge(build_webhook(), "", [DryRun("a CREATE", "check.auto", reason)], None)
    assert finding.level == "failure"
    assert what in finding.text.removesuffix(reason)
    assert finding.remedy.endswith(".")


ALLOWED = DryRun("a CREATE")
EXEMPTION = {"name": "x", "expression": 'request.userInfo.username != "operator"'}


@pytest.mark.parametrize(
    ("webhook", "own", "level", "text"),
    [
        (build_webhook(), ALLOWED, "ok", "called by a CREATE"),
        (build_webhook(failurePolicy="Ignore"), ALLOWED, "note", "failurePolicy Ignore"),
        (build_webhook(matchConditions=[EXEMPTION]), ALLOWED, "ok", "called"),
        (
            build_webhook(matchConditions=[{"name": "x", "expression": "false"}]),
            ALLOWED,
            "note",
            "matchConditions",
        ),
        (build_webhook(), DryRun("a CREATE", "check.auto"), "ok", "denied"),
        (build_webhook(), DryRun("a CREATE", "other"), "note", "other denied"),
        (
            build_webhook(),
            DryRun("a CREATE", "check.auto", "connection refused"),
            "failure",
            "no server listens",
        ),
        (
            build_webhook(),
            DryRun("a CREATE", "other", "EOF"),
            "warning",
            "at another webhook, other",
        ),
        # The schema is checked after the mutating webhooks, and before the validating ones.
        (build_webhook(MUTATING), DryRun("a CREATE", "", "bad", 422), "ok", "called"),
        (build_webhook(), DryRun("a CREATE", "", "bad", 422), "warning", "bad"),
        (build_webhook(), DryRun("a CREATE", "", "no", 403), "warning", "no"),
        (build_webhook(), DryRun("a CREATE", "", "why", 409), "warning", "why"),
        (build_webhook(), "nothing to try", "note", "not called: nothing to try"),
    ],
)
def test_a_webhook_is_judged(webhook: Webhook, own: DryRun | str, level: str, text: str) -> None:
    answers = [own] if isinstance(own, DryRun) else []
    finding = judge(webhook, own, answers, "admin", {"other"})
    assert finding.level == level
    assert text in finding.text
    assert bool(finding.remedy) is (level in ("warning", "failure"))


def test_the_answer_to_another_request_counts_if_it_names_the_webhook() -> None:
    failed = DryRun("an UPDATE", "check.auto", "EOF")
    denied = DryRun("an UPDATE", "check.auto")
    assert judge(build_webhook(), ALLOWED, [ALLOWED, failed], None).level == "failure"
    assert judge(build_webhook(), "nothing", [denied], None).level == "ok"


def test_a_dead_webhook_of_another_operator_is_a_failure_for_the_kind() -> None:
    own = DryRun("a CREATE", "other", "dial tcp [::1]:443: connect: connection refused")
    finding = judge(build_webhook(), own, [own], "admin", {"check.auto"})
    assert finding.level == "failure"
    assert "at another webhook, other: no server listens" in finding.text
    assert "--take-over" in finding.remedy


def test_the_one_who_is_exempted_learns_nothing() -> None:
    webhook = build_webhook(matchConditions=[EXEMPTION])
    assert judge(webhook, ALLOWED, [ALLOWED], "operator").level == "note"
