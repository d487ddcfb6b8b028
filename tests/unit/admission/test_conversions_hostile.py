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
    ShopAlpha,
    ShopV1,
    ShopV2,
    downgrade,
    downgrade_alpha,
    upgrade,
    upgrade_alpha,
)
from tests.unit.admission.test_conversions import V1, build

SAME = build({**V1, "apiVersion": f"{GROUP}/v2"})
released = threading.Event()


@contextlib.asynccontextmanager
async def convert_by(
    fn: Callable[[ShopV1], Any], down: Any = downgrade, **admission: Any
) -> AsyncIterator[Site]:
    registry = webop.OperatorRegistry()
    webop.on.convert(ShopV1, to=ShopV2, registry=registry)(fn)
    webop.on.convert(ShopV2, to=ShopV1, registry=registry)(down)
    webop.on.convert(ShopAlpha, to=ShopV2, registry=registry)(upgrade_alpha)
    webop.on.convert(ShopV2, to=ShopAlpha, registry=registry)(downgrade_alpha)
    settings = build_settings()
    for name, value in admission.items():
        setattr(settings.admission, name, value)
    async with serve(registry=registry, settings=settings) as site:
        yield site


async def post(site: Site, review: Any) -> Any:
    answer = await site.post(review, "/convert")
    assert answer.status_code == 200, answer.text
    return answer.json()["response"]


async def fail(fn: Callable[[ShopV1], Any], review: Any = None, **admission: Any) -> str:
    """Return the message of a review that fails; the operator must go on."""
    async with convert_by(fn, **admission) as site:
        response = await post(site, build(V1) if review is None else review)
        after = await post(site, SAME)
    assert after["result"] == {"status": "Success"}
    assert response["result"]["status"] == "Failure"
    assert "convertedObjects" not in response
    message: str = response["result"]["message"]
    return message


async def show(
    fn: Callable[[ShopV1], Any], caplog: pytest.LogCaptureFixture, *objects: Any, kept: Any
) -> str:
    """Return the logged reason why one of the objects is shown without the function."""
    async with convert_by(fn) as site:
        response = await post(site, build(*objects))
    assert response["result"] == {"status": "Success"}
    contents = [*filter(None, map(find_kept, response["convertedObjects"]))]
    assert contents == [{"spec": kept}]
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


async def swallow(old: ShopV1) -> ShopV2:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    await asyncio.sleep(60)
    return upgrade(old)


@pytest.mark.parametrize("fn", [hang, hang_in_thread])
async def test_a_converter_that_hangs_is_ended_and_named(fn: Callable[[ShopV1], Any]) -> None:
    released.clear()
    began = time.monotonic()
    try:
        message = await fail(fn, review_timeout=0.5)
    finally:
        released.set()
    assert time.monotonic() - began < 5
    assert message.startswith("Cannot convert Shop ns/one from v1 to v2: Converter hang")
    assert message.endswith("did not end within 0.35 s, and was cancelled."), message


async def test_a_converter_that_goes_on_after_its_cancellation_is_answered_in_time() -> None:
    async with convert_by(swallow, review_timeout=0.5) as site:
        answer = await site.post(build(V1), "/convert")
    assert answer.status_code == 504


async def test_a_converter_that_blocks_its_thread_holds_no_other_conversion() -> None:
    released.clear()
    try:
        async with convert_by(hang_in_thread) as site:
            slow = asyncio.create_task(post(site, build(V1)))
            async with asyncio.timeout(5):
                assert (await post(site, SAME))["result"] == {"status": "Success"}
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
        assert (await post(site, SAME))["result"] == {"status": "Success"}


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__


class BareError(BaseException):
    pass


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        GeneratorExit(),
        StopIteration(),
        asyncio.CancelledError(),
        BareError("x"),
        UnreadableError(),
        MemoryError(),
        RecursionError(),
        ExceptionGroup("x", [ValueError()]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_converter_raises_the_object_is_shown(
    error: BaseException, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def throw(_: ShopV1) -> ShopV2:
        raise error

    async def throw_in_loop(_: ShopV1) -> ShopV2:
        raise error

    message = await show(throw_in_loop if is_async else throw, caplog, V1, kept=V1["spec"])
    assert message.startswith("Cannot convert Shop ns/one from v1 to v2: Converter ")


async def test_a_converter_that_cancels_itself_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def cancel(old: ShopV1) -> ShopV2:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return upgrade(old)

    assert "failed" in await show(cancel, caplog, V1, kept=V1["spec"])


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
        ({"metadata__namespace": "other"}, "it must not change metadata.namespace"),
        ({"metadata__uid": "other"}, "it must not change metadata.uid"),
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
    message = await show(change(**changes), caplog, V1, kept=V1["spec"])
    assert message.startswith("Cannot convert Shop ns/one from v1 to v2: Converter ")
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
    async with convert_by(upgrade) as site:
        response = await post(site, build(*objects))
        names = [each["metadata"]["name"] for each in response["convertedObjects"]]
        assert names == [each["metadata"]["name"] for each in objects]
    objects[position]["spec"] = {"address": 5}
    message = await show(upgrade, caplog, *objects, kept={"address": 5})
    assert message.startswith(f"Cannot convert Shop shop-{position} from v1 to v2: the object does")


@pytest.mark.parametrize(("count", "status"), [(90_000, 200), (120_000, 413)])
async def test_a_review_of_seven_mebibytes_is_converted_and_a_larger_one_refused(
    count: int, status: int
) -> None:
    tags = {f"{number:06}": "y" * 60 for number in range(count)}
    review = build({**V1, "spec": {"address": "host:81", "tags": tags}})
    async with convert_by(upgrade) as site:
        answer = await site.post(review, "/convert")
        assert answer.status_code == status, answer.text[:999]
        assert (await post(site, SAME))["result"] == {"status": "Success"}


@pytest.mark.parametrize(("left", "right"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("depth", [1000, 240])
async def test_a_deep_review_is_answered(left: str, right: str, depth: int) -> None:
    review = json.dumps(build({**V1, "other": "deep"}))
    review = review.replace('"deep"', left * depth + "1" + right * depth)
    async with convert_by(upgrade) as site:
        answer = await site.http.post("/convert", content=review)
        assert answer.status_code == 200, answer.text[:999]
        assert (await post(site, SAME))["result"] == {"status": "Success"}


@pytest.mark.parametrize(
    ("version", "status"),
    [(f"{GROUP}/v9", 200), (f"{GROUP}/", 200), ("v1", 400), ("/", 400), ("x" * 5000, 400)],
)
async def test_an_unknown_version_is_a_failure_with_a_reason(version: str, status: int) -> None:
    async with convert_by(upgrade) as site:
        answer = await site.post(build(V1, version=version), "/convert")
    assert answer.status_code == status
    assert "no function for it" in answer.text or "must be of the group" in answer.text
    assert len(answer.text) < 1000


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
