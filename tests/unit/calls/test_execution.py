"""Who is called next, and when a chain of handlers takes a rest to store what it has done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import webop
from tests.kit.causes import build_body, build_change
from webop import lifecycles
from webop.calls.execution import attempt, execute
from webop.calls.progress import Progress
from webop.calls.shared_options import CallOptions
from webop.handlers.model import ChangeHandler

SETTINGS = webop.OperatorSettings()


class Chain:
    """Handlers a, b, c that note their calls; some fail for now."""

    def __init__(self, failing: str = "") -> None:
        self.called: list[str] = []
        self.handlers = [
            ChangeHandler(id=key, fn=self._build(key, failing), selector=None) for key in "abc"
        ]
        self.progress = Progress.start(self.handlers)

    def _build(self, key: str, failing: str) -> Callable[..., Any]:
        async def fn(**_: Any) -> str:
            self.called.append(key)
            if key in failing:
                raise webop.TemporaryError("not yet", delay=0)
            return key

        return fn

    async def execute(self, **options: Any) -> list[str]:
        """Execute once; return who was called."""
        self.called = []
        cause = build_change(build_body({}))
        await execute(self.handlers, cause, self.progress, CallOptions(SETTINGS, **options))
        return self.called


@pytest.mark.feature("HND-14", "REF-30")
@pytest.mark.parametrize(
    ("lifecycle", "batches"),
    [
        (lifecycles.all_at_once, ["abc"]),
        (lifecycles.one_by_one, ["abc", "bc", "c"]),
        (lifecycles.asap, ["abc", "bc", "c"]),
    ],
)
async def test_a_lifecycle_is_asked_until_all_are_called(
    lifecycle: Callable[..., Any], batches: list[str]
) -> None:
    asked: list[str] = []

    def ask(handlers: Any, **kwargs: Any) -> Any:
        asked.append("".join(handler.id for handler in handlers))
        return lifecycle(handlers, **kwargs)

    chain = Chain()
    assert await chain.execute(lifecycle=ask) == ["a", "b", "c"]
    assert asked == batches
    assert chain.progress.is_finished


@pytest.mark.feature("REF-30")
@pytest.mark.parametrize("lifecycle", [lifecycles.randomized, lifecycles.shuffled])
async def test_random_lifecycles_call_all_in_the_end(lifecycle: Callable[..., Any]) -> None:
    assert sorted(await Chain().execute(lifecycle=lifecycle)) == ["a", "b", "c"]


async def test_a_handler_that_fails_is_not_called_again_before_its_outcome_is_stored() -> None:
    chain = Chain(failing="ab")
    assert await chain.execute(lifecycle=lifecycles.asap) == ["a", "b", "c"]
    assert not chain.progress.is_finished
    assert await chain.execute(lifecycle=lifecycles.asap) == ["a", "b"]


@pytest.mark.feature("REF-30")
async def test_asap_prefers_those_with_the_fewest_attempts() -> None:
    chain = Chain(failing="a")
    assert await chain.execute(may_continue=lambda: False) == ["a"]
    assert await chain.execute(lifecycle=lifecycles.asap) == ["b", "c", "a"]


@pytest.mark.feature("RST-01", "RST-02", "RST-03", "RST-04", "RST-07", "PAT-10")
async def test_results_are_put_into_the_status() -> None:
    cause = build_change(build_body({}))
    cause.patch["status"] = {"merged": {"mine": 1}, "replaced": "text"}
    results = {
        "number": 5,
        "zero": 0,
        "text": "",
        "list": [1, {"a": 2}],
        "dict": {"a": {"b": 1}},
        "nothing": None,
        "merged": {"theirs": 2},
        "replaced": {"a": 1},
        "fn/spec.field": "x",
    }
    for key, value in results.items():

        async def fn(result: Any = value, **_: Any) -> Any:
            return result

        handler = ChangeHandler(id=key, fn=fn, selector=None)
        await attempt(handler, cause, None, CallOptions(SETTINGS))
    assert cause.patch["status"] == {
        "number": 5,
        "zero": 0,
        "text": "",
        "list": [1, {"a": 2}],
        "dict": {"a": {"b": 1}},
        "merged": {"mine": 1, "theirs": 2},
        "replaced": {"a": 1},
        "fn/spec.field": "x",
    }


async def test_each_call_that_takes_long_is_reported_once_and_in_its_time() -> None:
    loop = asyncio.get_running_loop()

    async def call(seconds: float, *, after: float) -> list[tuple[bool, float]]:
        async def fn(**_: Any) -> None:
            await asyncio.sleep(seconds)

        await asyncio.sleep(after)
        began, reports = loop.time(), list[tuple[bool, float]]()
        options = CallOptions(
            SETTINGS, on_late=lambda is_async: reports.append((is_async, loop.time() - began))
        )
        handler = ChangeHandler(id="fn", fn=fn, selector=None)
        await attempt(handler, build_change(build_body({})), None, options)
        return reports

    short, *long = await asyncio.gather(
        call(0.01, after=0), call(0.3, after=0.02), call(0.3, after=0.07)
    )
    assert short == []
    for ((is_async, seconds),) in long:
        assert is_async
        assert 0.099 < seconds < 0.3
