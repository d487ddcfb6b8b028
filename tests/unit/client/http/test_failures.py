"""Messages about failed requests, and the classes of their exceptions."""

from __future__ import annotations

import orjson
import pytest

from webop.aio.backoff import Backoff
from webop.client.http.failed_requests import (
    build_event_error,
    build_status_error,
    choose_pause,
    is_policy,
    parse_attempt,
)
from webop.errors import APIGoneError, APIServerError, APIStatusError


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/version", "get /version"),
        ("GET", "/api/v1", "get /api/v1"),
        ("GET", "/apis/apps/v1", "get /apis/apps/v1"),
        ("GET", "/api/v1/pods", "list pods"),
        ("GET", "/api/v1/pods?limit=1", "list pods"),
        ("GET", "/api/v1/namespaces", "list namespaces"),
        ("GET", "/api/v1/namespaces/ns", "get namespaces 'ns'"),
        ("PATCH", "/api/v1/namespaces/ns/status", "patch namespaces/status 'ns'"),
        ("PUT", "/api/v1/namespaces/ns/finalize", "update namespaces/finalize 'ns'"),
        ("GET", "/api/v1/namespaces/ns/pods", "list pods in namespace 'ns'"),
        ("POST", "/api/v1/namespaces/ns/pods", "create pods in namespace 'ns'"),
        ("DELETE", "/api/v1/namespaces/ns/pods", "deletecollection pods in namespace 'ns'"),
        ("DELETE", "/api/v1/namespaces/ns/pods/x", "delete pods 'x' in namespace 'ns'"),
        (
            "PATCH",
            "/apis/kopf.dev/v1/namespaces/ns/kopfexamples/x/status",
            "patch kopfexamples.kopf.dev/status 'x' in namespace 'ns'",
        ),
        ("OPTIONS", "/api/v1/pods", "options pods"),
    ],
)
def test_a_request_is_told_in_the_words_of_rbac(method: str, path: str, expected: str) -> None:
    assert str(parse_attempt(method, path)) == expected


@pytest.mark.feature("D-56")
@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("if an ownerReference refers to a resource you can't set finalizers on", "Grant the verb"),
        ("in this case because cannot find RESTMapping for APIVersion a.dev/v1", "Try again"),
    ],
)
def test_a_new_kind_of_owner_is_not_told_as_a_missing_right(reason: str, advice: str) -> None:
    content = orjson.dumps({"kind": "Status", "message": f"cannot set blockOwnerDeletion {reason}"})
    attempt = parse_attempt("POST", "/api/v1/namespaces/ns/configmaps")
    assert advice in str(build_status_error(attempt, 403, "", content))


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("failed to create typed patch object (ns/a; v1): .spec.b: field not declared", 422),
        ("etcdserver: request is too large", 413),
        ("no endpoints available for service", 500),
    ],
)
def test_a_500_that_is_a_mistake_in_the_request_is_no_outage(text: str, status: int) -> None:
    content = orjson.dumps({"kind": "Status", "message": text, "code": 500})
    attempt = parse_attempt("PATCH", "/api/v1/namespaces/ns/configmaps/a")
    error = build_status_error(attempt, 500, "", content)
    assert (error.status, isinstance(error, APIServerError)) == (status, status == 500)
    assert f"HTTP 500: {text}" in str(error)


def test_an_apply_that_may_not_create_is_told_to_grant_create() -> None:
    text = 'configmaps "a" is forbidden: User "u" cannot create resource "configmaps" in API group'
    content = orjson.dumps({"kind": "Status", "message": text})
    attempt = parse_attempt("PATCH", "/api/v1/namespaces/ns/configmaps/a")
    assert "Grant the verb 'create'" in str(build_status_error(attempt, 403, "", content))


@pytest.mark.feature("D-56")
@pytest.mark.parametrize(
    ("method", "path", "advice"),
    [
        (
            "PATCH",
            "/apis/kopf.dev/v1/namespaces/ns/kopfexamples/x/status",
            (
                "Grant the verb 'patch' on 'kopfexamples/status' of the API group 'kopf.dev' to "
                "the operator's account, with a Role in 'ns' or a ClusterRole and a binding."
            ),
        ),
        (
            "GET",
            "/api/v1/pods",
            (
                "Grant the verb 'list' on 'pods' of the API group '' to the operator's account, "
                "with a ClusterRole and a binding."
            ),
        ),
        (
            "GET",
            "/version",
            (
                "Grant the verb 'get' on the URL '/version' to the operator's account, with a "
                "ClusterRole and a binding."
            ),
        ),
    ],
)
def test_a_forbidden_request_is_told_with_the_remedy(method: str, path: str, advice: str) -> None:
    content = orjson.dumps({"kind": "Status", "message": "user x cannot do it"})
    error = build_status_error(parse_attempt(method, path), 403, "", content)
    expected = f"Cannot {parse_attempt(method, path)}: HTTP 403: user x cannot do it. {advice}"
    assert str(error) == expected


def test_the_fields_of_a_status_are_kept() -> None:
    status = {
        "kind": "Status",
        "message": "x exists",
        "reason": "AlreadyExists",
        "details": {"name": "x", "retryAfterSeconds": 3},
    }
    error = build_status_error(parse_attempt("GET", "/x"), 409, "", orjson.dumps(status))
    assert (error.status, error.reason) == (409, "AlreadyExists")
    assert error.details["name"] == "x"
    assert error.retry_after == 3


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "HTTP 502"),
        (b"Bad Gateway\n", "HTTP 502: Bad Gateway"),
        (b"\xff", "HTTP 502: \N{REPLACEMENT CHARACTER}"),
        (b"[]", "HTTP 502: []"),
        (b'{"kind":"Status"}', 'HTTP 502: {"kind":"Status"}'),
        (b'{"kind":"Status","details":[],"message":"m"}', "HTTP 502: m"),
        (b"x" * 10_000, "HTTP 502: " + "x" * 500),
    ],
)
def test_any_other_text_is_told_as_it_is(content: bytes, text: str) -> None:
    error = build_status_error(parse_attempt("GET", "/x"), 502, "", content)
    assert str(error) == f"Cannot get /x: {text}"
    assert isinstance(error, APIServerError)
    assert error.details == {}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("5", 5),
        ("1.5", 1.5),
        ("-1", 0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("inf", None),
        ("nan", None),
        ("1e400", None),
        ("1" * 400, None),
        ("1" * 5000, None),
        ("", None),
    ],
)
def test_the_wish_for_a_pause_is_a_number_of_seconds(value: str, expected: float | None) -> None:
    error = build_status_error(parse_attempt("GET", "/x"), 429, value, b"")
    assert error.retry_after == expected


def test_messages_of_servers_are_limited_and_control_no_terminal() -> None:
    body = {"kind": "Status", "message": "a\x1b[31m\rb\nc" + "d" * 100_000}
    message = str(build_status_error(parse_attempt("GET", "/x"), 422, "", orjson.dumps(body)))
    assert r"a\u001b[31m\rb" + "\nc" in message
    assert len(message) < 11_000


@pytest.mark.feature("CFG-35")
@pytest.mark.parametrize(
    ("pauses", "wish", "is_enforced", "expected"),
    [
        ([5], None, False, 5),
        ([5], None, True, 5),
        ([5], 0, False, 5),
        ([5], 0, True, 5),
        ([5], 3, False, 5),
        ([5], 3, True, 3),
        ([5], 7, False, 7),
        ([5], 7, True, 7),
        ([5], 9999, False, 60),
        ([5], 9999, True, 9999),
        ([99], 9999, False, 99),
        ([], 7, False, None),
        ([], 7, True, None),
        ([], None, True, None),
    ],
)
def test_a_longer_retry_after_extends_a_pause_but_allows_no_further_attempt(
    pauses: list[float], wish: float | None, is_enforced: bool, expected: float | None
) -> None:
    error = APIStatusError("boo", status=503, retry_after=wish)
    assert choose_pause(Backoff(pauses), error, is_enforced=is_enforced) == expected


def test_an_expired_list_can_go_on_at_a_later_moment() -> None:
    status = {"kind": "Status", "code": 410, "metadata": {"continue": "token"}}
    attempt = parse_attempt("GET", "/api/v1/pods")
    error = build_status_error(attempt, 410, "", orjson.dumps(status))
    assert isinstance(error, APIGoneError)
    assert error.details == {"continue": "token"}


@pytest.mark.parametrize(
    ("body", "cls", "text"),
    [
        ({"code": 410, "message": "too old"}, APIGoneError, "HTTP 410: too old"),
        ({"reason": "Expired", "message": "too old"}, APIGoneError, "HTTP 410: too old"),
        ({"code": 500, "message": "m"}, APIServerError, "HTTP 500: m"),
        ({}, APIServerError, "HTTP 500: {}"),
        (None, APIServerError, "HTTP 500: None"),
        ({"code": "?"}, APIServerError, "HTTP 500: {'code': '?'}"),
    ],
)
def test_error_events_become_the_same_exceptions(
    body: object, cls: type[APIStatusError], text: str
) -> None:
    error = build_event_error(parse_attempt("GET", "/api/v1/pods", {"watch": "true"}), body)
    assert type(error) is cls
    assert str(error) == f"Cannot watch pods: {text}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('widgets is forbidden: User "me" cannot list resource "widgets" in API group ""', False),
        ('roles "a" is forbidden: user "me" is attempting to grant RBAC permissions', False),
        ('pods "a" is forbidden: cannot set blockOwnerDeletion if', False),
        ("Forbidden", False),
        ('pods "a" is forbidden: violates PodSecurity "restricted:latest"', True),
        ('persistentvolumeclaims "a" is forbidden: only dynamically provisioned pvc can', True),
        ('pods "a" is forbidden: exceeded quota: q', True),
        ('admission webhook "a.b" denied the request: no', True),
    ],
)
def test_a_refusal_of_a_policy_is_no_missing_permission(text: str, *, expected: bool) -> None:
    assert is_policy(f"Cannot patch widgets: HTTP 403: {text}") is expected
