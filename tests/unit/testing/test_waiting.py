"""Waiting for conditions: what holds, what does not yet, and what is told when it does not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import webop
from tests.kit.rows import rows
from webop.testing import OperatorRunner, eventually

NOT_YET: list[Any] = [None, False, 0, "", {}, []]


def build_condition(*results: Any) -> Callable[[], Any]:
    """Return a function that returns or raises one after another."""
    left = iter(results)

    def condition() -> Any:
        result = next(left)
        if isinstance(result, Exception):
            raise result
        return result

    return condition


@rows("value", NOT_YET)
def test_the_first_true_value_is_returned(value: Any) -> None:
    assert eventually(build_condition(value, "yes", "no")) == "yes"


@rows("error", [KeyError("status"), AssertionError("x"), OSError("refused")])
def test_exceptions_mean_not_yet(error: Exception) -> None:
    assert eventually(build_condition(error, 5)) == 5


PREFIX = "Not true after 0 s: the pod is up. The last attempt"


@rows(
    ("result", "message"),
    [
        (None, f"{PREFIX} returned None."),
        ({}, f"{PREFIX} returned {{}}."),
        (KeyError("status"), f"{PREFIX} raised KeyError: 'status'"),
    ],
)
@rows("is_async", [True, False])
async def test_the_failure_tells_what_it_was_at_last(
    is_async: bool, result: Any, message: str
) -> None:
    condition = build_condition(*[result] * 9)

    async def look() -> Any:
        return condition()

    failing: Any = look if is_async else condition
    with pytest.raises(AssertionError, match=re.escape(message)) as caught:
        await eventually(failing, "the pod is up", timeout=0)
    assert caught.value.__cause__ is (result if isinstance(result, Exception) else None)


async def test_conditions_can_be_async() -> None:
    condition = build_condition(None, KeyError("status"), {"a": 1})

    async def look() -> Any:
        return condition()

    assert await eventually(look) == {"a": 1}


async def test_an_async_condition_that_hangs_does_not_hang_the_test() -> None:
    with pytest.raises(AssertionError, match=r"Not true after 0\.1 s: An answer\. .*TimeoutError"):
        await eventually(asyncio.Event().wait, "An answer", timeout=0.1)


@pytest.fixture
def failing() -> Iterator[OperatorRunner]:
    """An operator whose startup fails."""
    registry = webop.OperatorRegistry()

    @webop.on.startup(registry=registry)
    async def start(**_: Any) -> None:
        raise webop.PermanentError("No database.")

    with OperatorRunner(["run", "-A"], registry=registry, reraise=False) as runner:
        yield runner


@pytest.mark.feature("TST-05")
def test_nobody_waits_for_an_operator_that_has_failed(failing: OperatorRunner) -> None:
    assert eventually(failing.future.done)
    with pytest.raises(
        AssertionError, match=r"operator failed before .*: It is up\. .*No database"
    ):
        eventually(lambda: None, "It is up", timeout=60)
