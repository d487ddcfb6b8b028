"""An API server that has just started refuses writes by 403 for some seconds: nothing is lost."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import webop
from tests.kit.http_relay import Relay, fail
from tests.kit.operators import Calls, Objects, RunOperator, build_settings

_NAME = 'widgets.example.com "one" is forbidden: '


@pytest.mark.parametrize(
    "reason",
    [
        # apiserver, admission.Handler.WaitForReady: of webhooks, policies, namespaces, quotas
        pytest.param("not yet ready to handle request", id="plugins"),
        # ResourceQuota: the controller has not counted yet
        pytest.param("status unknown for quota: q, resources: count/widgets", id="new quota"),
    ],
)
async def test_changes_of_handlers_survive_an_admission_plugin_that_is_not_ready_yet(
    run_relayed: RunOperator, relayed: Relay, objects: Objects, calls: Calls, reason: str
) -> None:
    refused = list[httpx.Request]()

    @webop.on.create("widgets", id="fn")
    async def fn(patch: webop.Patch, **kwargs: Any) -> None:
        calls.note("fn", kwargs)
        patch.spec["address"] = "10.0.0.1"

    async def meddle(request: httpx.Request) -> httpx.Response | None:
        if request.method != "PATCH" or b"10.0.0.1" not in request.content or len(refused) > 1:
            return None
        refused.append(request)
        answer = fail(403, name="one", kind="widgets")
        body = {**answer.json(), "reason": "Forbidden", "message": f"{_NAME}{reason}"}
        return httpx.Response(403, json=body)

    settings = build_settings(networking={"error_backoffs": [0.1]})
    async with run_relayed(settings, meddle=meddle):
        await objects.create("one")
        await calls.wait("one", "fn")
        body = await objects.wait_handled("one")
    assert refused
    assert body["spec"] == {"address": "10.0.0.1"}
