"""Objects that are nested as deeply as API servers take them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import webop
from tests.kit.operators import Calls, Objects, RunOperator, build_settings
from webop.client.auth.vault import ConnectionInfo


async def create_deep(info: ConnectionInfo, objects: Objects, name: str, depth: int) -> None:
    """Create an object of so many levels, which is more than Python's own JSON can write."""
    head = f'{{"apiVersion":"{objects.resource.api_version}","kind":"{objects.kind.kind}"'
    levels = '{"[":[' * (depth // 2) + "1" + "]}" * (depth // 2)
    text = f'{head},"metadata":{{"name":"{name}"}},"spec":{{"deep":{levels},"a":"}}{{\\""}}}}'
    headers = {**info.as_http_headers(), "content-type": "application/json"}
    url = objects.resource.get_url(server=info.server, namespace=objects.namespace)
    async with httpx.AsyncClient(verify=info.as_ssl_context(), headers=headers) as http:
        (await http.post(url, content=text)).raise_for_status()


@pytest.mark.parametrize("streams", [True, False], ids=["watch", "list"])
async def test_a_deep_object_keeps_no_other_from_being_handled_and_can_be_deleted(
    run_operator: RunOperator,
    objects: Objects,
    info: ConnectionInfo,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
    streams: bool,
) -> None:
    @webop.on.startup()
    async def configure(settings: webop.OperatorSettings, **_: Any) -> None:
        settings.watching.streaming_list = streams

    @webop.on.create("widgets", id="created")
    @webop.on.update("widgets", id="updated")
    @webop.on.delete("widgets", id="deleted")
    async def handle(**kwargs: Any) -> None:
        calls.note(kwargs["reason"], kwargs)

    caplog.set_level("DEBUG", "webop.client.deep_json")  # it is a warning once a minute only
    depths = {"deep": 600, "deeper": 5000}
    for name, depth in depths.items():
        await create_deep(info, objects, name, depth)
    async with run_operator():
        await objects.create("one", {"a": 1})
        for name in ("one", *depths):
            await objects.wait_handled(name)
            await objects.patch(name, {"spec": {"a": 2}})
            await calls.wait(name, count=2)
            await objects.delete(name)
        for name in ("one", *depths):
            await objects.wait_gone(name)
    for name in ("one", *depths):
        assert calls.handlers(name) == ["create", "update", "delete"]
    assert calls.of("deep")[0]["spec"]["a"] == '}{"'
    assert "an object that is nested deeper than 200 levels" in caplog.text
    assert "Traceback" not in caplog.text


async def test_an_object_is_not_updated_because_a_deeper_one_is_listed_beside_it(
    run_operator: RunOperator, objects: Objects, info: ConnectionInfo, calls: Calls
) -> None:
    @webop.on.create("widgets")
    @webop.on.update("widgets")
    async def handle(**kwargs: Any) -> None:
        calls.note(kwargs["reason"], kwargs)

    settings = build_settings(watching={"streaming_list": False})
    await create_deep(info, objects, "a", 230)
    async with run_operator(settings):
        await objects.wait_handled("a")
    await create_deep(info, objects, "b", 600)
    async with run_operator(settings):
        await objects.wait_handled("b")
    assert calls.handlers("a") == ["create"]
