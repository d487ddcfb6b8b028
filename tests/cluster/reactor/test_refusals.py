"""Patches that the API server refuses: told once, never repeated for ever."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

import webop
from tests.kit.operators import (
    CRDS,
    DIFFBASE,
    Calls,
    Kind,
    Objects,
    RunOperator,
    get_annotations,
    get_progress,
)
from tests.kit.waiting import eventually
from webop.client.api import Client

LIMIT = 262144  # bytes; of all annotations of an object (Kubernetes API, meta/v1 ObjectMeta)


@pytest.fixture
async def strict(client: Client, webop_namespace: str) -> AsyncIterator[Objects]:
    """Objects of a kind whose status has a schema."""
    kind = Kind("strict.webop.dev", "stricts", "Strict")
    crd = kind.build_crd()
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["status"] = {"type": "object", "properties": {"fn": {"type": "integer"}}}
    await client.create(CRDS, None, crd)
    await kind.wait_served(client)
    yield Objects(client, kind, webop_namespace)
    await kind.undefine(client)


@pytest.mark.feature("RST-01", "ERR-01", "CFG-57")
async def test_a_refused_result_is_left_out_and_the_handler_is_not_repeated(
    strict: Objects, run_operator: RunOperator, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    @webop.on.create("stricts", id="fn")
    async def fn(**kwargs: Any) -> str:
        calls.note("fn", kwargs)
        return "not a number"

    @webop.on.update("stricts", id="fn")
    async def updated(**kwargs: Any) -> int:
        calls.note("updated", kwargs)
        return 5

    async with run_operator():
        raw = await strict.make("a")
        assert "status" not in raw
        raw = await strict.change("a", {"spec": {"x": 1}})
        assert raw["status"] == {"fn": 5}
    assert calls.handlers("a") == ["fn", "updated"]
    assert "They are lost, without a retry" in caplog.text


@pytest.mark.feature("CFG-38", "CFG-65", "CON-02")
@pytest.mark.parametrize("size", [150_000, 300_000])
async def test_a_state_that_does_not_fit_into_annotations_is_handled_once(
    objects: Objects, run_operator: RunOperator, calls: Calls, size: int
) -> None:
    @webop.on.create("widgets", id="created")
    async def created(**kwargs: Any) -> None:
        calls.note("created", {"name": kwargs["name"]})

    @webop.on.update("widgets", id="updated")
    async def updated(**kwargs: Any) -> None:
        calls.note("updated", {"name": kwargs["name"]})

    noise = "".join(f"{number * 7919 % 1_000_003:x}" for number in range(size // 5))
    manual = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 100_000}
    async with run_operator():
        await objects.create("a", {"data": noise}, annotations=manual)
        await objects.wait("a", lambda raw: DIFFBASE in get_annotations(raw))
        await objects.pass_fence()
    async with run_operator():
        await objects.pass_fence()
        await objects.patch("a", {"spec": {"data": noise[:-1]}})
        await calls.wait("a", "updated")
        await objects.pass_fence()
    assert calls.handlers("a") == ["created", "updated"]


@pytest.mark.feature("CFG-38")
async def test_an_object_with_no_room_left_is_handled_on_as_if_it_had(
    objects: Objects, run_operator: RunOperator, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    webop.on.create("widgets", id="created")(calls.noting("created"))
    webop.on.update("widgets", id="updated")(calls.noting("updated"))
    async with run_operator():
        await objects.create("a", annotations={"full": "x" * (LIMIT - len("full") - 10)})
        await eventually(lambda: "Retrying in" in caplog.text)
        await objects.patch("a", {"spec": {"x": 1}})
        await calls.wait("a", "updated")
        await objects.change("a", {"metadata": {"annotations": {"full": None}}})
        await objects.pass_fence()
    assert calls.handlers("a") == ["created", "updated", "updated"]


@pytest.mark.feature("CFG-38", "SUB-06", "ERR-01")
async def test_no_retry_is_lost_when_the_errors_of_many_subhandlers_do_not_fit(
    objects: Objects, run_operator: RunOperator, caplog: pytest.LogCaptureFixture
) -> None:
    retries: Counter[str] = Counter()

    @webop.on.create("widgets", id="parent")
    async def parent(**_: Any) -> None:
        async def fail_once(param: str, retry: int, **_: Any) -> None:
            retries[param] += 1
            if not retry:
                raise webop.TemporaryError("ж" * 1000, delay=2)

        for number in range(200):
            webop.subhandler(id=f"{'s' * 60}-{number}", param=f"{number}")(fail_once)

    async with run_operator():
        await objects.create("a", annotations={"other": "x" * 50_000})
        raw = await objects.wait("a", lambda raw: len(get_progress(raw)) > 200)
        records = [json.loads(text) for text in get_progress(raw).values()]
        await objects.wait_handled("a")
    assert "Retrying in" not in caplog.text
    assert set(retries.values()) == {2}
    assert len(retries) == 200
    messages = [text for record in records if (text := record.get("message") or "")]
    # On a busy machine, some are written before the others are there, and fit as they are.
    assert any(len(text) < 1000 for text in messages if text[0] == "ж")
