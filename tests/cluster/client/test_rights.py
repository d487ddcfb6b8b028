"""The table of rights in docs: each method with exactly its verbs, and without each of them."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

import webop
from tests.cluster.client.test_objects import build_map
from tests.kit.client_options import Networking
from tests.kit.kubelet import build_pod
from tests.kit.rights import grant, read_vault
from tests.kit.waiting import eventually
from webop.client.api import Client
from webop.client.objects import AsyncClient
from webop.testing import LocalCluster

Call = Callable[[AsyncClient, str], Awaitable[Any]]


async def watch(client: AsyncClient, namespace: str) -> Any:
    new = ""
    async with aclosing(client.watch("configmaps", namespace=namespace)) as changes:
        async for change in changes:
            if change.object["metadata"]["name"] == new:
                return change
            if not new:
                new = f"new-{secrets.token_hex(4)}"
                await client.create(build_map(new, namespace))
    return None


async def page(client: AsyncClient, namespace: str) -> Any:
    return [one async for one in client.list("configmaps", namespace=namespace)]


async def replace(client: AsyncClient, namespace: str) -> Any:
    one = await client.get("configmaps", "one", namespace=namespace)
    return await client.replace({**one, "data": {"b": "2"}})


async def log(client: AsyncClient, namespace: str) -> Any:
    return await client.logs("web-0", namespace=namespace)


# What each one is allowed, and what it needs of that.
CALLS: dict[str, tuple[Call, str, str, tuple[str, ...]]] = {
    "watch": (watch, "configmaps", "create,list,watch", ("watch",)),
    "list": (page, "configmaps", "list", ("list",)),
    "replace": (replace, "configmaps", "get,update", ("update",)),
    "logs": (log, "pods/log", "get", ("get",)),
}


def _has(text: str, found: object) -> bool:
    return text in str(found)


@pytest.mark.parametrize("name", CALLS)
async def test_a_method_needs_the_verbs_of_its_row_and_names_the_one_that_is_missing(
    webop_cluster: LocalCluster, client: Client, webop_namespace: str, name: str
) -> None:
    call, kind, allowed, needed = CALLS[name]
    here, admin = webop_namespace, AsyncClient(client)
    await admin.create(build_map("one", here))
    await admin.create(build_pod("web-0"), namespace=here)
    for lacking in (None, *needed):
        user = f"{name}-{lacking}-{here}".lower()
        verbs = ",".join(verb for verb in allowed.split(",") if verb != lacking)
        if verbs:
            await grant(client, user, kind, verbs, here)
        async with Client(read_vault(webop_cluster, user), Networking()) as requests:
            poor = AsyncClient(requests)

            async def attempt(poor: AsyncClient = poor) -> object:
                try:
                    return await call(poor, here)
                except webop.APIForbiddenError as exc:
                    return str(exc)

            if lacking is None:  # the role takes a moment
                await eventually(attempt, name, check=lambda found: not isinstance(found, str))
            else:
                wanted = f"Grant the verb '{lacking}' on '{kind}' of the API group ''"
                await eventually(attempt, name, check=partial(_has, wanted))
