"""Objects of namespaces and kinds that come while the operator is running: they are just new."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from tests.operating import Calls, Kind, Objects, eventually, operate
from webop.client.api import Client
from webop.client.credentials import ConnectionInfo
from webop.objects.resources import Resource

NAMESPACES = Resource("", "v1", "namespaces", kind="Namespace", namespaced=False)


def declare(registry: webop.OperatorRegistry, name: str, calls: Calls) -> None:
    @webop.on.create(name, registry=registry, id="created")
    async def created(**kwargs: Any) -> None:
        calls.note("created", kwargs)

    @webop.on.resume(name, registry=registry, id="resumed")
    async def resumed(**kwargs: Any) -> None:
        calls.note("resumed", kwargs)


@pytest.mark.feature("HND-20", "SCP-09", "D-44")
async def test_an_object_that_comes_together_with_its_namespace_is_created_and_not_resumed(
    registry: webop.OperatorRegistry, info: ConnectionInfo, objects: Objects, calls: Calls
) -> None:
    declare(registry, "widgets", calls)
    later = Objects(objects.client, objects.kind, f"{objects.namespace}-later")
    await objects.create("before")
    async with operate(info, registry, namespaces=[f"{objects.namespace}*"]):
        await objects.wait_handled("before")
        await later.client.create(NAMESPACES, None, {"metadata": {"name": later.namespace}})
        for name in ("one", "two"):
            await later.create(name)
        for name in ("one", "two"):
            await later.wait_handled(name)
    assert calls.handlers("before") == ["created", "resumed"]
    assert calls.handlers("one") == ["created"]
    assert calls.handlers("two") == ["created"]


@pytest.mark.feature("HND-20", "RES-18", "D-44")
async def test_an_object_that_comes_together_with_its_kind_is_created_and_not_resumed(
    registry: webop.OperatorRegistry,
    info: ConnectionInfo,
    client: Client,
    webop_namespace: str,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kind = Kind("latecomers.webop.dev", plural="latecomers", kind="Latecomer")
    declare(registry, kind.crd_name, calls)
    objects = Objects(client, kind, webop_namespace)
    try:
        async with operate(info, registry, namespaces=[webop_namespace]):
            # What is there at the first look for kinds would be resumed.
            await eventually(lambda: "is not in the cluster yet" in caplog.text)
            await kind.define(client)
            for name in ("one", "two"):
                await objects.create(name)
            for name in ("one", "two"):
                await objects.wait_handled(name)
    finally:
        await kind.undefine(client)
    assert calls.handlers("one") == ["created"]
    assert calls.handlers("two") == ["created"]
