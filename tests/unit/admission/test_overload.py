"""Bounds on reviews: what hangs or comes in masses is refused, and harms nobody else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import webop
from tests.kit.operators import build_settings
from tests.kit.reviews import Site, build_review, serve
from tests.kit.waiting import eventually


class Gate:
    """Where calls are held until they are let go."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.held = 0

    def hold(self, **_: Any) -> None:
        """Block the thread."""
        self.held += 1
        self.event.wait(60)

    async def hold_async(self, **_: Any) -> None:
        self.held += 1
        while not self.event.is_set():
            await asyncio.sleep(0.01)

    async def wait_for_held(self, count: int) -> None:
        await eventually(lambda: self.held >= count, f"{count} held calls")


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate, and four handlers: two that hang, two that do not."""
    gate = Gate()
    webop.on.validate("kopfexamples", id="stuck")(gate.hold)
    webop.on.validate("kopfexamples", id="stuck-async")(gate.hold_async)
    webop.on.validate("kopfexamples", id="quick")(lambda **_: None)

    @webop.on.validate("kopfexamples", id="quick-async")
    async def quick_async(**_: Any) -> None:
        pass

    yield gate
    gate.event.set()


async def post_many(site: Site, path: str, count: int) -> list[asyncio.Task[httpx.Response]]:
    return [asyncio.create_task(site.post(build_review(), path)) for _ in range(count)]


async def is_allowed(site: Site, path: str) -> bool:
    async with asyncio.timeout(5):
        allowed: bool = (await site.review(path=path))["allowed"]
        return allowed


@pytest.mark.parametrize(
    ("limit", "path", "refused_path"),
    [
        ("max_calls", "/stuck", "/stuck"),
        ("max_calls", "/stuck-async", "/stuck-async"),
        ("max_reviews", "/stuck-async", "/quick"),
    ],
)
async def test_what_hangs_is_refused_quickly_and_leaves_the_others_alone(
    gate: Gate, limit: str, path: str, refused_path: str
) -> None:
    async with serve(settings=build_settings(admission={limit: 3})) as site:
        waiting = await post_many(site, path, 3)
        await gate.wait_for_held(3)
        async with asyncio.timeout(1):
            refused = await site.post(build_review(), refused_path)
        assert refused.status_code == 429
        assert refused.headers["Retry-After"] == "1"
        assert f"settings.admission.{limit}" in refused.json()["message"]
        if limit == "max_calls":
            assert repr(path.removeprefix("/")) in refused.json()["message"]
            assert await is_allowed(site, "/quick")
            assert await is_allowed(site, "/quick-async")
        gate.event.set()
        answers = await asyncio.gather(*waiting)
        assert [answer.json()["response"]["allowed"] for answer in answers] == [True] * 3
        assert await is_allowed(site, path)


async def test_threads_of_reviews_that_were_given_up_count_until_they_end(gate: Gate) -> None:
    async with serve(settings=build_settings(admission={"max_calls": 2})) as site:
        for count in (1, 2):
            given_up = await site.post(build_review(), "/stuck?timeout=200ms")
            assert given_up.status_code == 504
            await gate.wait_for_held(count)
        refused = await site.post(build_review(), "/stuck")
        assert refused.status_code == 429
        assert await is_allowed(site, "/quick")
        gate.event.set()
        async with asyncio.timeout(5):
            while (await site.post(build_review(), "/stuck")).status_code != 200:
                await asyncio.sleep(0.01)


async def test_threads_that_are_busy_with_other_work_do_not_hold_up_reviews(gate: Gate) -> None:
    settings = webop.OperatorSettings()
    settings.execution.max_workers = 2
    settings.background.max_workers = 2
    for pool in (settings.execution, settings.background):
        for _ in range(4):
            pool.executor.submit(gate.hold)
    async with serve(settings=settings) as site:
        await gate.wait_for_held(4)
        assert await is_allowed(site, "/quick")


async def test_a_review_that_is_refused_has_called_none_of_its_handlers(gate: Gate) -> None:
    called: list[str] = []
    webop.on.validate("pods", id="first")(lambda **_: called.append("first"))
    webop.on.validate("pods", id="second")(gate.hold)
    pod: Any = {"resource": ("", "v1", "pods"), "kind": "Pod"}
    async with serve(settings=build_settings(admission={"max_calls": 1})) as site:
        waiting = asyncio.create_task(site.review(path="/second", **pod))
        await gate.wait_for_held(1)
        refused = await site.post(build_review(**pod), "/")
        assert refused.status_code == 429
        assert called == []
        assert (await site.review(path="/first", **pod))["allowed"]
        gate.event.set()
        await waiting
        assert (await site.review(**pod))["allowed"]
    assert called == ["first", "first"]


async def test_reviews_that_fail_in_any_way_make_room_for_others() -> None:
    @webop.on.validate("kopfexamples", id="odd", when=lambda **_: 1 / 0)  # type: ignore[arg-type]
    @webop.on.validate("kopfexamples", id="failing")
    def fail(**_: Any) -> None:
        raise RuntimeError

    @webop.on.mutate("kopfexamples", id="renaming")
    def rename(patch: webop.Patch, **_: Any) -> None:
        patch.metadata["name"] = "other"

    @webop.on.validate("kopfexamples", id="slow")
    async def linger(**_: Any) -> None:
        await asyncio.Event().wait()

    limits = {"max_reviews": 1, "max_calls": 1}
    async with serve(settings=build_settings(admission=limits)) as site:
        for _ in range(2):
            for path in ("/odd", "/failing", "/renaming"):
                assert (await site.review(path=path))["allowed"] is False
            assert (await site.post(build_review(), "/unknown")).status_code == 404
            assert (await site.post(build_review(), "/slow?timeout=100ms")).status_code == 504
