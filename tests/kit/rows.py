"""Tables whose rows are too cheap for test items of their own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Test = Callable[..., Any]


def rows(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[[Test], Test]:
    """Call a test with each row, as ``parametrize`` does, but as subtests of one item.

    The rows share the fixtures, so these must not keep what a row leaves.
    """
    keys = (names,) if isinstance(names, str) else names
    table = [_read(row, keys) for row in values]

    def decorate(fn: Test) -> Test:
        parameters = inspect.signature(fn).parameters
        passes_on = "subtests" in parameters  # of a table around this one

        def describe(row: dict[str, Any]) -> str:
            return ", ".join(f"{key}={value!r}" for key, value in row.items())

        def run(subtests: pytest.Subtests, **fixtures: Any) -> None:
            more = {"subtests": subtests, **fixtures} if passes_on else fixtures
            for row in table:
                with subtests.test(describe(row)):
                    fn(**row, **more)

        async def run_async(subtests: pytest.Subtests, **fixtures: Any) -> None:
            more = {"subtests": subtests, **fixtures} if passes_on else fixtures
            for row in table:
                with subtests.test(describe(row)):
                    await fn(**row, **more)

        test: Any = run_async if inspect.iscoroutinefunction(fn) else run
        functools.update_wrapper(test, fn)
        own = [one for name, one in parameters.items() if name not in (*keys, "subtests")]
        given = inspect.Parameter("subtests", inspect.Parameter.KEYWORD_ONLY)
        keyword = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
        test.__signature__ = inspect.Signature([*keyword, given])
        return test  # type: ignore[no-any-return]

    return decorate


def _read(row: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the arguments of a row, which can be a ``pytest.param``."""
    if hasattr(row, "marks"):
        row = row.values if len(keys) > 1 else row.values[0]
    return dict(zip(keys, row if len(keys) > 1 else (row,), strict=True))
