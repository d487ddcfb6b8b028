"""What a webhook is tried with, and what the answers of the API server tell about it."""

from __future__ import annotations

import base64
import datetime as dt
import json
from typing import Any

import webop
from tests.kit.rows import rows
from webop.cli.doctor.reachability import (
    DryRun,
    Target,
    Webhook,
    build_creation,
    check_bundle,
    judge,
    list_targets,
    parse_error,
    parse_selector,
)
from webop.errors import APIConnectionError, APIError, APIStatusError
from webop.handlers.model import WebhookType
from webop.servers.certificates.certs import build_ca

Json = dict[str, Any]


def build_kind(group: str, plural: str, *parts: str, namespaced: bool = True) -> webop.Resource:
    verbs = frozenset({"list", "patch", "create"} if plural != "bindings" else {"create"})
    return webop.Resource(
        *(group, "v1", plural, plural[:-1].capitalize()),
        namespaced=namespaced,
        subresources=frozenset(parts),
        verbs=verbs,
    )


PODS = build_kind("", "pods", "status", "exec")
NODES = build_kind("", "nodes", namespaced=False)
DEPLOYMENTS = build_kind("apps", "deployments")
EVERYTHING = [build_kind("", "bindings"), PODS, NODES, DEPLOYMENTS]


@rows(
    ("rule", "targets"),
    [
        ({"resources": ["pods"]}, [(PODS, None, True, True)]),
        ({"resources": ["pods/status"]}, [(PODS, "status", True, False)]),
        (
            {"resources": ["*/*"]},
            [(NODES, None, True, True), (PODS, None, True, True), (PODS, "status", True, False)],
        ),
        ({"resources": ["pods", "pods/*"], "operations": ["CREATE"]}, [(PODS, None, False, True)]),
        ({"resources": ["*"]}, [(NODES, None, True, True), (PODS, None, True, True)]),
        ({"resources": ["*"], "scope": "Cluster"}, [(NODES, None, True, True)]),
        ({"resources": ["*"], "apiGroups": ["apps"]}, [(DEPLOYMENTS, None, True, True)]),
    ],
)
def test_rules_are_brought_to_what_is_in_the_cluster(rule: Json, targets: list[Target]) -> None:
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], **rule}]
    assert list(list_targets({"name": "x", "rules": rules}, EVERYTHING)) == targets


def test_a_new_object_is_made_like_one_that_is_there_with_the_labels_that_are_asked_for() -> None:
    own = {"uid": "u", "resourceVersion": "1", "finalizers": ["x"]}
    metadata = {"name": "one", "labels": {"a": "1"}, **own}
    model = {"kind": "Pod", "metadata": metadata, "spec": {"x": 1}, "status": {"y": 2}}
    method, path, made, _ = build_creation(PODS, "ns", {"b": "2"}, model)
    assert (method, path) == ("POST", "/api/v1/namespaces/ns/pods")
    labels = {"a": "1", "b": "2"}
    assert json.loads(made) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "webop-doctor-", "labels": labels, "annotations": {}},
        "spec": {"x": 1},
    }


def express(operator: str, *values: str) -> Json:
    return {"key": "a", "operator": operator, "values": list(values)}


@rows(
    ("selector", "query", "labels"),
    [
        (None, "", {}),
        ({"matchLabels": {"a": "1"}}, "a in (1)", {"a": "1"}),
        ({"matchExpressions": [express("In", "1", "2")]}, "a in (1,2)", {"a": "1"}),
        ({"matchExpressions": [express("DoesNotExist")]}, "!a", {}),
        (
            {"matchLabels": {"b": "1"}, "matchExpressions": [express("Exists")]},
            "b in (1),a",
            {"b": "1", "a": ""},
        ),
    ],
)
def test_a_selector_gives_a_query_and_labels_that_it_selects(
    selector: Json | None, query: str, labels: Json
) -> None:
    assert parse_selector(selector) == (query, labels)


def build_webhook(reason: WebhookType = WebhookType.VALIDATING, **body: Any) -> Webhook:
    return reason, {"name": "check.auto", **body}


def build_error(text: str, status: int = 500) -> APIStatusError:
    message = f"Cannot create patients: HTTP {status}: {text}"
    return APIStatusError.of(status)(message, status=status)


ALLOWED, DENIED = DryRun("a CREATE"), DryRun("a CREATE", "check.auto")
UNCALLED = 'failed calling webhook "check.auto": failed to call webhook: Post "https://h/x": EOF'
BUSY = (
    "Webhook 'check' is busy with 100 calls, which is the limit (settings.admission.max_calls); "
    "try again."
)
FORBIDDEN = "Cannot create patients: HTTP 403: it is forbidden"


@rows(
    ("error", "answer"),
    [
        (build_error('admission webhook "check.auto" denied the request: No.', 403), DENIED),
        (  # what a webhook says of others is not about them
            build_error('admission webhook "a.b" denied the request: webhook "c.d": EOF', 403),
            DryRun("a CREATE", "a.b"),
        ),
        (build_error(UNCALLED), DryRun("a CREATE", "check.auto", 'Post "https://h/x": EOF')),
        (build_error("it is forbidden", 403), DryRun("a CREATE", "", FORBIDDEN, 403)),
        (APIConnectionError("no answer in time"), DryRun("a CREATE", "", "no answer in time")),
    ],
)
def test_an_answer_is_read(error: APIError, answer: DryRun) -> None:
    assert parse_error("a CREATE", error) == answer


@rows(
    ("reason", "what"),
    [
        ("dial tcp 10.0.0.1:443: connect: connection refused", "no server listens"),
        ("tls: x509: certificate signed by unknown authority", "does not trust"),
        ("x509: certificate has expired or is not yet valid: current time ...", "has expired"),
        ("x509: certificate is valid for a.ns.svc, not b.ns.svc", "for another name"),
        ('no endpoints available for service "hooks"', "no pod"),
        ('service "hooks" not found', "does not exist"),
        ('no service port 443 found for service "hooks"', "no such port"),
        ("dial tcp: lookup nowhere on 10.0.0.10:53: no such host", "cannot resolve"),
        ('Post "https://h": context deadline exceeded', "in time"),
        ("the server could not find the requested resource", "404"),
        ("There is no webhook 'check'; known: none.", "does not serve"),
        ("The review is too large: 8000000 bytes or more; the limit is 7340032.", "too large"),
        ("The webhook check did not answer within 9 s of the 10 s given.", "too long"),
        ("The operator is stopping, and the review took too long.", "too long"),
        (BUSY, "too many"),
        ("http: server gave HTTP response to HTTPS client", "does not use TLS"),
        ('Post "https://h": EOF', "was closed"),
        ("expected webhook response of admission.k8s.io/v1, got /v1", "not an"),
        ('an error on the server ("...") has prevented the request from succeeding', "an error"),
        ("Too many reviews at once.", "with an error"),
        ('Post "https://h": something unheard of', "cannot be called"),
    ],
)
def test_reasons_are_classified_with_a_remedy(reason: str, what: str) -> None:
    finding = judge(build_webhook(), "", [DryRun("a CREATE", "check.auto", reason)], None)
    assert finding.level == "failure"
    assert what in finding.text.removesuffix(reason)
    assert finding.remedy.endswith(".")


EXEMPTION = {"name": "x", "expression": 'request.userInfo.username != "operator"'}
NEVER = {"name": "x", "expression": "false"}
MUTATING = build_webhook(WebhookType.MUTATING)
FOREIGN = "at another webhook, other: no server listens"
REFUSED = "dial tcp [::1]:443: connect: connection refused"


@rows(
    ("webhook", "own", "level", "text"),
    [
        (build_webhook(), ALLOWED, "ok", "called by a CREATE"),
        (build_webhook(failurePolicy="Ignore"), ALLOWED, "note", "failurePolicy Ignore"),
        (build_webhook(matchConditions=[EXEMPTION]), ALLOWED, "ok", "called"),
        (build_webhook(matchConditions=[NEVER]), ALLOWED, "note", "matchConditions"),
        (build_webhook(), DENIED, "ok", "denied"),
        (build_webhook(), DENIED._replace(reason=REFUSED), "failure", "no server listens"),
        (build_webhook(), DryRun("a CREATE", "other", "EOF"), "warning", "at another webhook"),
        (build_webhook(), DryRun("a CREATE", "other", REFUSED), "failure", FOREIGN),
        # The schema is checked after the mutating webhooks, and before the validating ones.
        (MUTATING, DryRun("a CREATE", "", "bad", 422), "ok", "called"),
        (build_webhook(), DryRun("a CREATE", "", "no", 403), "warning", "no"),
        (build_webhook(), "nothing to try", "note", "not called: nothing to try"),
    ],
)
def test_a_webhook_is_judged(webhook: Webhook, own: DryRun | str, level: str, text: str) -> None:
    answers = [own] if isinstance(own, DryRun) else []
    served = {"check.auto" if text == FOREIGN else "other"}
    finding = judge(webhook, own, answers, "admin", served)
    assert finding.level == level
    assert text in finding.text
    assert bool(finding.remedy) is (level in ("warning", "failure"))
    assert ("--take-over" in finding.remedy) is ("no server listens" in text)


def test_the_answer_to_another_request_counts_if_it_names_the_webhook() -> None:
    failed = DryRun("an UPDATE", "check.auto", "EOF")
    denied = DryRun("an UPDATE", "check.auto")
    assert judge(build_webhook(), ALLOWED, [ALLOWED, failed], None).level == "failure"
    assert judge(build_webhook(), "nothing", [denied], None).level == "ok"
    exempting = build_webhook(matchConditions=[EXEMPTION])
    assert judge(exempting, ALLOWED, [ALLOWED], "operator").level == "note"


def make_bundle(*days: int) -> str:
    pems = (build_ca(f"authority-{each}", days=each).cert for each in days)
    return base64.b64encode(b"".join(pems)).decode()


@rows(
    ("days", "age", "level"),
    [
        ((3650,), 3642, "ok"),
        ((3650,), 3644, "warning"),
        ((3650,), 3651, "failure"),
        ((1,), 0.5, "ok"),  # short lives end soon from the beginning on
        ((1, 90), 2, "ok"),  # old CAs beside a new one are no trouble
        ((), 0, "note"),
    ],
)
def test_a_bundle_is_judged_by_what_is_left_of_its_life(
    days: tuple[int, ...], age: float, level: str
) -> None:
    now = dt.datetime.now(dt.UTC) + dt.timedelta(days=age)
    assert check_bundle(make_bundle(*days), now).level == level


@rows("bundle", ["no base64!", base64.b64encode(b"no PEM").decode()])
def test_a_bundle_that_cannot_be_read_is_a_failure(bundle: str) -> None:
    finding = check_bundle(bundle, dt.datetime.now(dt.UTC))
    assert (finding.level, "cannot be read" in finding.text) == ("failure", True)
