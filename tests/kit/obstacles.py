"""What refuses or delays the writes of an operator: policies, and webhooks that do not answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tests.kit.operators import Json, Objects
from webop.errors import APIForbiddenError, APINotFoundError

_GROUP = "admissionregistration.k8s.io/v1"


def _build_rule(objects: Objects) -> Json:
    kind = {"apiGroups": [objects.resource.group], "resources": [objects.resource.plural]}
    return {**kind, "apiVersions": ["*"], "operations": ["UPDATE"]}


@contextlib.asynccontextmanager
async def _configured(
    objects: Objects, plural: str, kind: str, **content: Any
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Have an object of the admission API in the cluster; what is yielded removes it earlier."""
    path, name = f"/apis/{_GROUP}/{plural}", f"updates-{objects.namespace}"

    async def remove() -> None:
        with contextlib.suppress(APINotFoundError):
            await objects.client.request("DELETE", f"{path}/{name}")

    body = {"apiVersion": _GROUP, "kind": kind, "metadata": {"name": name}, **content}
    await objects.client.request("POST", path, body=body)
    try:
        yield remove
    finally:
        await remove()


@contextlib.asynccontextmanager
async def denying(objects: Objects, expression: str, probe: Json) -> AsyncIterator[None]:
    """Have updates of the objects denied by 403 if they do not fulfil a CEL expression."""
    denial = {"expression": expression, "message": "not in this house", "reason": "Forbidden"}
    policy = {
        "matchConstraints": {"resourceRules": [_build_rule(objects)]},
        "validations": [denial],
    }
    here = {"matchLabels": {"kubernetes.io/metadata.name": objects.namespace}}
    binding = {
        "policyName": f"updates-{objects.namespace}",
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": here},
    }
    policies, kind = "validatingadmissionpolicies", "ValidatingAdmissionPolicy"
    bindings = "validatingadmissionpolicybindings"
    async with (
        _configured(objects, policies, kind, spec=policy),
        _configured(objects, bindings, f"{kind}Binding", spec=binding),
    ):
        await objects.create("probe")
        async with asyncio.timeout(20):
            with contextlib.suppress(APIForbiddenError):
                while True:
                    await objects.patch("probe", probe)
                    await asyncio.sleep(0.01)
        await objects.delete("probe")
        yield


@contextlib.asynccontextmanager
async def webhook_on_updates(
    objects: Objects, url: str, **options: Any
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Have a webhook asked about all updates of the objects; what is yielded removes it."""
    webhook = {
        "name": "updates.webop.dev",
        "clientConfig": {"url": url},
        "rules": [_build_rule(objects)],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": objects.namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **options,
    }
    plural, kind = "validatingwebhookconfigurations", "ValidatingWebhookConfiguration"
    async with _configured(objects, plural, kind, webhooks=[webhook]) as remove:
        yield remove


@contextlib.asynccontextmanager
async def hang() -> AsyncIterator[str]:
    """Take connections, and never answer; what is yielded is the URL."""
    transports: list[asyncio.BaseTransport] = []

    class Silence(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transports.append(transport)

    server = await asyncio.get_running_loop().create_server(Silence, "127.0.0.1", 0)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()
        for transport in transports:
            transport.close()
