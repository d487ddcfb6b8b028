"""Messages about failed requests, the classes of their exceptions, and the pauses after them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson
import pytest

from tests.kit.client_options import Networking
from tests.kit.httpx_client import connect
from tests.kit.rows import rows
from tests.kit.virtual_time import in_virtual_time
from webop.errors import APIServerError, APIStatusError

NO_CREATE = 'configmaps "a" is forbidden: User "u" cannot create resource "configmaps" in API group'
MAPS = "/api/v1/namespaces/ns/configmaps"
EXAMPLE = "/apis/kopf.dev/v1/namespaces/ns/kopfexamples/x/status"
OWNER = "cannot set blockOwnerDeletion"
ROLES = "Role in 'ns' or a ClusterRole"


async def fail(
    method: str = "GET",
    path: str = "/x",
    content: bytes | dict[str, Any] = b"",
    *,
    status: int = 409,
    retry_after: str = "",
) -> APIStatusError:
    """Send a request that is answered so, and return its error."""
    body = orjson.dumps({"kind": "Status", **content}) if isinstance(content, dict) else content
    answer = httpx.Response(status, content=body, headers={"Retry-After": retry_after})
    async with connect(lambda _: answer, Networking(error_backoffs=())) as client:
        with pytest.raises(APIStatusError) as caught:
            await client.request(method, path)
    return caught.value


@rows(
    ("method", "path", "expected"),
    [
        ("GET", "/apis/apps/v1", "get /apis/apps/v1"),
        ("GET", "/api/v1/pods?limit=1", "list pods"),
        ("GET", "/api/v1/namespaces", "list namespaces"),
        ("GET", "/api/v1/namespaces/ns", "get namespaces 'ns'"),
        ("PATCH", "/api/v1/namespaces/ns/status", "patch namespaces/status 'ns'"),
        ("PUT", "/api/v1/namespaces/ns/finalize", "update namespaces/finalize 'ns'"),
        ("POST", "/api/v1/namespaces/ns/pods", "create pods in namespace 'ns'"),
        ("DELETE", "/api/v1/namespaces/ns/pods", "deletecollection pods in namespace 'ns'"),
        ("DELETE", "/api/v1/namespaces/ns/pods/x", "delete pods 'x' in namespace 'ns'"),
        ("PATCH", EXAMPLE, "patch kopfexamples.kopf.dev/status 'x' in namespace 'ns'"),
        ("OPTIONS", "/api/v1/pods", "options pods"),
    ],
)
async def test_a_request_is_told_in_the_words_of_rbac(
    method: str, path: str, expected: str
) -> None:
    assert str(await fail(method, path)) == f"Cannot {expected}: HTTP 409"


@pytest.mark.feature("D-56")
@rows(
    ("method", "path", "right", "role"),
    [
        ("PATCH", EXAMPLE, "'patch' on 'kopfexamples/status' of the API group 'kopf.dev'", ROLES),
        ("GET", "/api/v1/pods", "'list' on 'pods' of the API group ''", "ClusterRole"),
        ("GET", "/version", "'get' on the URL '/version'", "ClusterRole"),
    ],
)
async def test_a_forbidden_request_is_told_with_the_remedy(
    method: str, path: str, right: str, role: str
) -> None:
    error = await fail(method, path, {"message": "user x cannot do it"}, status=403)
    advice = f"Grant the verb {right} to the operator's account, with a {role} and a binding."
    assert str(error).endswith(f": HTTP 403: user x cannot do it. {advice}")


@pytest.mark.feature("D-56")
@rows(
    ("method", "path", "text", "advice"),
    [
        ("PATCH", f"{MAPS}/a", NO_CREATE, "Grant the verb 'create' on 'configmaps'"),
        (
            "POST",
            MAPS,
            f"{OWNER} if you can't set finalizers",
            "Grant the verb 'update' on",
        ),
        ("POST", MAPS, f"{OWNER}: cannot find RESTMapping for a.dev/v1", "The API server does not"),
    ],
)
async def test_another_right_than_that_of_the_request_is_told(
    method: str, path: str, text: str, advice: str
) -> None:
    assert f"{text}. {advice}" in str(await fail(method, path, {"message": text}, status=403))


@rows(
    "text",
    [
        'pods "a" is forbidden: violates PodSecurity "restricted:latest"',
        'persistentvolumeclaims "a" is forbidden: only dynamically provisioned pvc can',
        'pods "a" is forbidden: exceeded quota: q',
        'admission webhook "a.b" denied the request: no',
    ],
)
async def test_a_refusal_of_a_policy_is_no_missing_permission(text: str) -> None:
    error = await fail("POST", MAPS, {"message": text}, status=403)
    assert str(error).endswith(f": HTTP 403: {text}")


@rows(
    ("text", "status"),
    [
        ("failed to create typed patch object (ns/a; v1): .spec.b: field not declared", 422),
        ("etcdserver: request is too large", 413),
        ("no endpoints available for service", 500),
    ],
)
async def test_a_500_that_is_a_mistake_in_the_request_is_no_outage(text: str, status: int) -> None:
    error = await fail("PATCH", f"{MAPS}/a", {"message": text, "code": 500}, status=500)
    assert (error.status, isinstance(error, APIServerError)) == (status, status == 500)
    assert f"HTTP 500: {text}" in str(error)


async def test_the_fields_of_a_status_are_kept() -> None:
    details = {"name": "x", "retryAfterSeconds": 3}
    error = await fail(content={"message": "m", "reason": "AlreadyExists", "details": details})
    assert (error.status, error.reason) == (409, "AlreadyExists")
    assert error.details["name"] == "x"
    assert error.retry_after == 3


@rows(
    ("content", "text"),
    [
        (b"", "HTTP 502"),
        (b"Bad Gateway\n", "HTTP 502: Bad Gateway"),
        (b"\xff", "HTTP 502: \N{REPLACEMENT CHARACTER}"),
        (b"[]", "HTTP 502: []"),
        (b'{"kind":"Status","details":[],"message":"m"}', "HTTP 502: m"),
        (b"x" * 10_000, "HTTP 502: " + "x" * 500),
    ],
)
async def test_any_other_text_is_told_as_it_is(content: bytes, text: str) -> None:
    error = await fail(content=content, status=502)
    assert str(error) == f"Cannot get /x: {text}"
    assert isinstance(error, APIServerError)
    assert error.details == {}


@rows(
    ("value", "expected"),
    [
        *(("1.5", 1.5), ("-1", 0), ("Wed, 21 Oct 2026 07:28:00 GMT", None)),
        *(("inf", None), ("nan", None), ("1" * 5000, None), ("", None)),
    ],
)
async def test_the_wish_for_a_pause_is_a_number_of_seconds(
    value: str, expected: float | None
) -> None:
    assert (await fail(retry_after=value)).retry_after == expected


async def test_messages_of_servers_are_limited_and_control_no_terminal() -> None:
    text = "a\x1b[31m\rb\nc" + "d" * 100_000
    message = str(await fail(content={"message": text}, status=422))
    assert r"a\u001b[31m\rb" + "\nc" in message
    assert len(message) < 11_000


@pytest.mark.feature("CFG-35")
@rows(
    ("pauses", "wish", "is_enforced", "expected"),
    [
        ([5], None, True, 5),
        ([5], 0, True, 5),
        ([5], 3, False, 5),
        ([5], 3, True, 3),
        ([5], 7, False, 7),
        ([5], 9999, False, 60),
        ([5], 9999, True, 9999),
        ([99], 9999, False, 99),
        ([], 7, True, None),
    ],
)
@in_virtual_time
async def test_a_longer_retry_after_extends_a_pause_but_allows_no_further_attempt(
    pauses: list[float], wish: float | None, is_enforced: bool, expected: float | None
) -> None:
    headers = {} if wish is None else {"Retry-After": f"{wish}"}
    answers = [httpx.Response(503, headers=headers), httpx.Response(200, content=b"{}")]
    networking = Networking(error_backoffs=pauses, enforce_retry_after=is_enforced)
    clock = asyncio.get_running_loop().time
    begin = clock()
    async with connect(lambda _: answers.pop(0), networking) as client:
        try:
            await client.request("GET", "/x")
        except APIServerError:
            assert expected is None
        else:
            assert clock() - begin == pytest.approx(expected, abs=0.1)
