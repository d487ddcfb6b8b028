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
from tests.kit.operators import build_settings
from tests.kit.reviews import Site, serve
from tests.kit.versioned_shops import (
    GROUP,
    NewSpec,
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


async def test_a_converter_that_goes_on_after_its_cancellation_is_answered_in_time() -> None:
    async def swallow(old: ShopV1) -> ShopV2:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return await hang(old)

    async with convert_by(swallow, review_timeout=0.5) as site:
        answer = await site.post(build(V1), "/convert")
    assert answer.status_code == 504


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


async def test_a_converter_that_blocks_the_event_loop_is_answered_afterwards() -> None:
    async def block(old: ShopV1) -> ShopV2:
        time.sleep(0.7)  # noqa: ASYNC251 - that is the mistake
        return upgrade(old)

    async with convert_by(block, review_timeout=0.5) as site:
        answer = await site.post(build(V1), "/convert")
        assert answer.status_code in (200, 504)
        await check_alive(site)


CANNOT_CONVERT = "Cannot convert Shop ns/one from v1 to v2"


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__


class BareError(BaseException):
    pass


ERRORS = [
    *(SystemExit(3), GeneratorExit(), StopIteration(), asyncio.CancelledError(), BareError("x")),
    *(UnreadableError(), MemoryError(), RecursionError(), ExceptionGroup("x", [ValueError()])),
]


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


async def test_a_converter_that_cancels_itself_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def cancel(old: ShopV1) -> ShopV2:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return upgrade(old)

    async with convert_by(cancel) as site:
        assert "failed" in await show(site, caplog, V1)


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
        ({"spec__count": 2**70}, "it returned an object that is not JSON"),
        ({"spec__tags": {"a": object()}}, "Unable to serialize unknown type"),
        ({"metadata__labels": {"a": "b c"}}, "API servers refuse the labels 'a': 'b c'"),
        ({"metadata__labels": {"a/b/c": "d"}}, "API servers refuse the labels 'a/b/c'"),
        ({"metadata__labels": {f"{'a' * 254}/b": "c"}}, "API servers refuse the labels"),
        ({"metadata__annotations": {"-": "a"}}, "API servers refuse the annotations '-'"),
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


async def test_the_kind_and_the_version_of_a_result_are_those_that_were_asked_for() -> None:
    def convert(old: ShopV1) -> ShopV2:
        return ShopV2(api_version="other/v9", kind="Other", spec=NewSpec(host=old.spec.address))

    async with convert_by(convert) as site:
        response = await post(site, build(V1))
    (found,) = response["convertedObjects"]
    assert (found["apiVersion"], found["kind"]) == (f"{GROUP}/v2", "Shop")
    assert found["metadata"] == V1["metadata"]


async def test_a_huge_result_is_an_answer() -> None:
    tags = {str(number): "x" * 1000 for number in range(10_000)}
    async with convert_by(change(spec__tags=tags)) as site:
        response = await post(site, build(V1))
    assert response["convertedObjects"][0]["spec"]["tags"] == tags


@pytest.mark.parametrize("position", [0, 150, 199])
async def test_of_two_hundred_objects_the_one_that_fails_is_named(
    position: int, caplog: pytest.LogCaptureFixture
) -> None:
    objects: list[Any] = [{**V1, "metadata": {"name": f"shop-{n}"}} for n in range(200)]
    objects[position]["spec"] = {"address": 5}
    async with convert_by(upgrade) as site:
        message = await show(site, caplog, *objects)
    assert message.startswith(f"Cannot convert Shop shop-{position} from v1 to v2: the object does")


async def test_a_review_of_seven_mebibytes_is_converted_and_a_larger_one_refused() -> None:
    async with convert_by(upgrade) as site:
        for count, status in ((90_000, 200), (120_000, 413)):
            tags = {f"{number:06}": "y" * 60 for number in range(count)}
            review = build({**V1, "spec": {"address": "host:81", "tags": tags}})
            answer = await site.post(review, "/convert")
            assert answer.status_code == status, answer.text[:999]
            await check_alive(site)


async def test_a_deep_review_is_answered() -> None:
    review = json.dumps(build({**V1, "other": "deep"}))
    async with convert_by(upgrade) as site:
        for left, right in (("[", "]"), ('{"a":', "}")):
            for depth in (1000, 240):
                deep = left * depth + "1" + right * depth
                content = review.replace('"deep"', deep)
                answer = await site.http.post("/convert", content=content)
                assert answer.status_code == 200, answer.text[:999]
                await check_alive(site)


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
