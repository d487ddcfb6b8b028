"""How users' functions are called: in the loop or in threads, with what, for how long."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import webop
from tests.kit.causes import Unhashable, build_body, build_change
from webop.calls.error_policy import Outcome
from webop.calls.execution import attempt
from webop.calls.progress import HandlerState
from webop.calls.shared_options import CallOptions
from webop.handlers.causes import Cause
from webop.handlers.model import ChangeHandler

BODY = build_body({"a": 2}, labels={"l": "1"})


async def call(
    fn: Callable[..., Any],
    *,
    cause: Cause | None = None,
    state: HandlerState | None = None,
    **options: Any,
) -> Outcome:
    handler = ChangeHandler(id="fn", fn=fn, selector=None, **options)
    return await attempt(
        handler,
        cause or build_change(BODY),
        state or HandlerState(datetime.now(UTC), "create"),
        CallOptions(webop.OperatorSettings()),
    )


def sync(**_: Any) -> str:
    return threading.current_thread().name


async def coroutine(**_: Any) -> str:
    return threading.current_thread().name


@functools.wraps(coroutine)
def wrapping(**kwargs: Any) -> Any:
    return coroutine(**kwargs)


class Callables:
    async def method(self, **_: Any) -> str:
        return threading.current_thread().name

    async def __call__(self, **_: Any) -> str:
        return threading.current_thread().name


@pytest.mark.feature("ASY-01", "ASY-02", "ASY-04", "HND-04")
@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (sync, False),
        (functools.partial(sync, x=1), False),
        (lambda **_: threading.current_thread().name, False),
        (coroutine, True),
        (functools.partial(coroutine, x=1), True),
        (functools.partial(functools.partial(coroutine, x=1), y=2), True),
        (wrapping, True),
        (Callables().method, True),
        (functools.partial(Callables().method, x=1), True),
        (Callables(), True),
        (Unhashable(), False),
    ],
)
async def test_async_functions_run_in_the_loop_and_others_in_threads(
    fn: Callable[..., Any], expected: bool
) -> None:
    assert ChangeHandler(id="fn", fn=fn, selector=None).is_async is expected
    outcome = await call(fn)
    assert (outcome.result == threading.current_thread().name) is expected
    assert outcome.exception is None


@pytest.mark.feature("ASY-03", "HIE-09")
@pytest.mark.parametrize("is_sync", [True, False])
async def test_the_owner_of_the_moment_is_known_in_handlers_only(is_sync: bool) -> None:
    def adopt(**_: Any) -> Any:
        child: dict[str, Any] = {}
        webop.label(child)
        return child

    async def adopt_async(**kwargs: Any) -> Any:
        return adopt(**kwargs)

    outcome = await call(adopt if is_sync else adopt_async)
    assert outcome.result == {"metadata": {"labels": {"l": "1"}}}
    with pytest.raises(LookupError):
        adopt()


@pytest.mark.feature("KWA-01", "KWA-02", "KWA-03", "KWA-04", "HND-11")
async def test_a_handler_gets_its_param_and_its_standing() -> None:
    started = datetime.now(UTC) - timedelta(seconds=100)
    outcome = await call(
        lambda **kwargs: kwargs, state=HandlerState(started, retries=3), param={"any": "thing"}
    )
    kwargs = outcome.result
    assert kwargs["param"] == {"any": "thing"}
    assert kwargs["retry"] == 3
    assert kwargs["started"] == started
    assert 100 <= kwargs["runtime"].total_seconds() < 110
    assert (await call(lambda param, **_: param is None)).result is True


@pytest.mark.feature("HND-28", "KWA-19", "ERR-01")
async def test_a_handler_without_room_for_other_arguments_fails_as_any_other() -> None:
    outcome = await call(lambda spec: spec)
    assert isinstance(outcome.exception, TypeError)
    assert not outcome.final


@pytest.mark.feature("ERR-09")
async def test_the_time_of_earlier_attempts_counts() -> None:
    async def hang(**_: Any) -> None:
        await asyncio.Event().wait()

    state = HandlerState(datetime.now(UTC) - timedelta(seconds=99.95), retries=1)
    outcome = await call(hang, state=state, timeout=100)
    assert isinstance(outcome.exception, webop.HandlerTimeoutError)


@pytest.mark.feature("ERR-06", "D-08")
async def test_a_time_out_of_the_handlers_own_is_an_error_as_any_other() -> None:
    async def give_up(**_: Any) -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    outcome = await call(give_up, timeout=100)
    assert isinstance(outcome.exception, TimeoutError)
    assert not outcome.final


@pytest.mark.feature("ERR-01")
async def test_the_cancellation_of_the_caller_reaches_an_async_handler() -> None:
    seen: list[str] = []

    async def handle(**_: Any) -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            seen.append("cancelled")
            raise

    calling = asyncio.create_task(call(handle))
    for _ in range(5):
        await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert seen == ["begun", "cancelled"]


@pytest.mark.parametrize("count", [1, 2])
async def test_a_cancelled_call_waits_for_its_thread_once(count: int) -> None:
    begun, released = threading.Event(), threading.Event()

    def handle(**_: Any) -> None:
        begun.set()
        released.wait(10)
        raise ValueError("nobody hears of it")

    calling = asyncio.create_task(call(handle))
    while not begun.is_set():
        await asyncio.sleep(0.01)
    for _ in range(count):
        calling.cancel()
        await asyncio.sleep(0.02)
    assert calling.done() == (count == 2)
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
