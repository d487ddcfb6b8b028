"""Converters that misbehave, and conversion reviews that are wrong or huge."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import webop
from tests.kit.causes import FailedTest
from tests.kit.operators import build_settings
from tests.kit.reviews import Site, serve
from tests.kit.versioned_shops import (
    GROUP,
    ShopV1,
    ShopV2,
    declare,
    downgrade,
    upgrade,
)
from tests.unit.admission.test_conversions import V1, V2, build

SAME = build(V2)
released = threading.Event()


@contextlib.asynccontextmanager
async def convert_by(
    fn: Callable[[ShopV1], Any], down: Any = downgrade, **admission: Any
) -> AsyncIterator[Site]:
    registry = webop.OperatorRegistry()
    declare(registry, fn, down)
    async with serve(registry=registry, settings=build_settings(admission=admission)) as site:
        yield site


async def post(site: Site, review: Any) -> Any:
    answer = await site.post(review, "/convert")
    assert answer.status_code == 200, answer.text
    return answer.json()["response"]


async def check_alive(site: Site) -> None:
    assert (await post(site, SAME))["result"] == {"status": "Success"}


async def show(site: Site, caplog: pytest.LogCaptureFixture, *objects: Any) -> str:
    """Return the logged reason why one of the objects is shown without the function."""
    caplog.clear()
    response = await post(site, build(*objects))
    assert response["result"] == {"status": "Success"}
    converted = response["convertedObjects"]
    assert [each["metadata"]["name"] for each in converted] == [
        each["metadata"]["name"] for each in objects
    ]
    (content,) = filter(None, map(find_kept, converted))
    assert content in [{"spec": each["spec"]} for each in objects]
    (record,) = (each for each in caplog.records if each.levelno == logging.ERROR)
    return record.getMessage()


def find_kept(body: Any) -> Any:
    annotations = body["metadata"].get("annotations") or {}
    return json.loads(annotations.get("kept.webop.dev/v1", "null"))


async def hang(old: ShopV1) -> ShopV2:
    await asyncio.sleep(60)
    return upgrade(old)


def hang_in_thread(old: ShopV1) -> ShopV2:
    released.wait(10)
    return upgrade(old)


@pytest.mark.parametrize("fn", [hang, hang_in_thread])
async def test_a_converter_that_hangs_is_ended_and_named(fn: Callable[[ShopV1], Any]) -> None:
    released.clear()
    began = time.monotonic()
    try:
        async with convert_by(fn, review_timeout=0.5) as site:
            result = (await post(site, build(V1)))["result"]
            await check_alive(site)
    finally:
        released.set()
    assert time.monotonic() - began < 5
    assert result["status"] == "Failure"
    message = result["message"]
    assert message.startswith("Cannot convert Shop ns/one from v1 to v2: Converter hang")
    assert message.endswith("did not end within 0.35 s, and was cancelled."), message


async def test_a_converter_that_blocks_its_thread_holds_no_other_conversion() -> None:
    released.clear()
    try:
        async with convert_by(hang_in_thread) as site:
            slow = asyncio.create_task(post(site, build(V1)))
            async with asyncio.timeout(5):
                await check_alive(site)
            assert not slow.done()
            released.set()
            assert (await slow)["result"] == {"status": "Success"}
    finally:
        released.set()


CANNOT_CONVERT = "Cannot convert Shop ns/one from v1 to v2"


ERRORS = [SystemExit(3), StopIteration(), asyncio.CancelledError(), FailedTest(), RecursionError()]


@pytest.mark.parametrize("is_async", [True, False])
async def test_whatever_a_converter_raises_the_object_is_shown(
    is_async: bool, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    def throw(_: ShopV1) -> ShopV2:
        raise error

    async def throw_in_loop(_: ShopV1) -> ShopV2:
        raise error

    for error in ERRORS:
        async with convert_by(throw_in_loop if is_async else throw) as site:
            with subtests.test(type(error).__name__):
                message = await show(site, caplog, V1)
                assert message.startswith(f"{CANNOT_CONVERT}: Converter ")


def change(**changes: Any) -> Callable[[ShopV1], ShopV2]:
    def convert(old: ShopV1) -> ShopV2:
        found = upgrade(old)
        for path, value in changes.items():
            part, _, name = path.partition("__")
            setattr(getattr(found, part), name, value)
        return found

    return convert


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"metadata__name": "other"}, "it must not change metadata.name"),
        ({"spec__host": "\ud800"}, "it returned an object that is not JSON"),
        ({"spec__tags": {"a": object()}}, "Unable to serialize unknown type"),
        ({"metadata__labels": {"a": "b c"}}, "API servers refuse the labels 'a': 'b c'"),
        ({"metadata__labels": {f"{'a' * 254}/b": "c"}}, "API servers refuse the labels"),
        ({"metadata__annotations": {"a": "b" * 262_144}}, "annotations of 262145 bytes"),
    ],
)
async def test_a_result_that_cannot_be_an_answer_is_named(
    changes: dict[str, Any], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with convert_by(change(**changes)) as site:
        message = await show(site, caplog, V1)
    assert message.startswith(f"{CANNOT_CONVERT}: Converter ")
    assert text in message


async def test_of_two_hundred_objects_the_one_that_fails_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    objects: list[Any] = [{**V1, "metadata": {"name": f"shop-{n}"}} for n in range(200)]
    objects[150]["spec"] = {"address": 5}
    async with convert_by(upgrade) as site:
        message = await show(site, caplog, *objects)
    assert message.startswith("Cannot convert Shop shop-150 from v1 to v2: the object does")


async def test_a_change_that_was_accepted_survives_the_repair_in_the_other_version() -> None:
    def refuse(old: ShopV1) -> ShopV2:
        if old.spec.address == "odd:80":
            raise ValueError("odd")
        return upgrade(old)

    async def refuse_host(new: ShopV2) -> ShopV1:
        if new.spec.host == "odd":
            raise ValueError("odd")
        return await downgrade(new)

    async def convert(site: Site, body: Any, version: str) -> Any:
        response = await post(site, build(body, version=f"{GROUP}/{version}"))
        return response["convertedObjects"][0]

    spec = {"host": "odd", "port": 80, "count": 3, "tags": {}}
    odd = {**V1, "apiVersion": f"{GROUP}/v2", "spec": spec}
    async with convert_by(refuse, refuse_host) as site:
        shown = await convert(site, odd, "v1")
        changed = {**shown, "spec": {"address": "odd:80", "replicas": 5}}
        stored = await convert(site, changed, "v2")
        assert stored["spec"] == spec
        stored["spec"] = {**spec, "host": "even"}
        assert (await convert(site, stored, "v1"))["spec"]["replicas"] == 5
