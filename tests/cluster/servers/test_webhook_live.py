"""The webhook server and the built configurations against a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest

import webop
from tests.kit.operators import open_http
from webop.admission.configurations.building import build_configuration
from webop.admission.response import build_response
from webop.admission.review import parse_review
from webop.errors import ReviewError
from webop.handlers.model import WebhookHandler, WebhookType
from webop.objects.resources import Resource, parse_selector
from webop.testing import LocalCluster

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
CONFIG_MAPS = Resource("", "v1", "configmaps", kind="ConfigMap")
HANDLER = WebhookHandler(
    id="check_numbers",
    fn=lambda **_: None,
    reason=WebhookType.VALIDATING,
    selector=parse_selector("configmaps"),
)


@pytest.fixture
async def api(webop_cluster: LocalCluster) -> AsyncIterator[httpx.AsyncClient]:
    async with open_http(webop_cluster) as client:
        yield client


class Judge:
    """A ``WebhookFn`` that allows everything, but not always at once."""

    def __init__(self) -> None:
        self.webhooks: list[str | None] = []
        self.is_overloaded = False
        self.status = 503

    async def __call__(
        self,
        request: Mapping[str, Any],
        *,
        webhook: str | None = None,
        headers: Mapping[str, str] | None = None,
        sslpeer: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        self.webhooks.append(webhook)
        review = parse_review(request)
        if review.name == "late" and self.is_overloaded:
            self.is_overloaded = False
            raise ReviewError("Not now.", status=self.status, retry_after=1)
        return build_response(review)


@contextlib.asynccontextmanager
async def manage(
    api: httpx.AsyncClient,
    judge: Judge,
    namespace: str,
    *,
    timeout: int = 10,
) -> AsyncIterator[None]:
    """Serve, and register the handler in the cluster for one namespace."""
    name = f"{namespace}.webop.test"
    async with webop.WebhookServer(port=0) as server:
        async for config in server(judge):
            body = build_configuration(
                reason=HANDLER.reason,
                name=name,
                handlers=[HANDLER],
                resources=[CONFIG_MAPS],
                client_config=config,
            )
            labels = {"kubernetes.io/metadata.name": namespace}
            body["webhooks"][0]["namespaceSelector"] = {"matchLabels": labels}
            body["webhooks"][0]["timeoutSeconds"] = timeout
            (await api.post(CONFIGURATIONS, json=body)).raise_for_status()
            try:
                while not judge.webhooks:  # the API server takes it over after a while
                    await create(api, namespace, "probe", dry=True)
                yield
            finally:
                await api.delete(f"{CONFIGURATIONS}/{name}")
            break


async def create(
    api: httpx.AsyncClient, namespace: str, name: str, *, dry: bool = False
) -> httpx.Response:
    return await api.post(
        f"/api/v1/namespaces/{namespace}/configmaps",
        params={"dryRun": "All"} if dry else {},
        json={"metadata": {"name": name}},
    )


@pytest.mark.parametrize("status", [429, 503])
async def test_the_api_server_tries_again_when_it_is_told_to(
    api: httpx.AsyncClient, webop_namespace: str, status: int
) -> None:
    judge = Judge()
    async with manage(api, judge, webop_namespace):
        judge.is_overloaded, judge.status = True, status
        judge.webhooks.clear()
        start = time.monotonic()
        response = await create(api, webop_namespace, "late")
        assert response.status_code == 201, response.text
        assert 0.9 < time.monotonic() - start < 5
    assert len(judge.webhooks) == 2


async def test_a_deadline_leaves_the_decision_to_the_failure_policy(
    api: httpx.AsyncClient, webop_namespace: str
) -> None:
    class Sleeper(Judge):
        async def __call__(self, request: Mapping[str, Any], **options: Any) -> dict[str, Any]:
            if parse_review(request).name == "slow":
                await asyncio.sleep(30)
            return await super().__call__(request, **options)

    async with manage(api, Sleeper(), webop_namespace, timeout=1):
        start = time.monotonic()
        response = await create(api, webop_namespace, "slow")
        assert time.monotonic() - start < 5
    assert response.status_code == 500
    assert "did not answer within 0.9 s of the 1 s given" in response.json()["message"]
