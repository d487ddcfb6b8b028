"""Ids of handlers: they are names of state on the objects, and must never change by themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.rows import rows
from webop.errors import ConfigurationError
from webop.handlers.model import build_id, detect_name


def plain(**_: Any) -> None: ...


@functools.wraps(plain)
def wrapping(**kwargs: Any) -> None:
    plain(**kwargs)


class Reconciler:
    def method(self, **_: Any) -> None: ...

    @staticmethod
    def static(**_: Any) -> None: ...

    def __call__(self, **_: Any) -> None: ...


def build_nested() -> Callable[..., None]:
    def nested(**_: Any) -> None: ...

    return nested


lambda_ = lambda **_: None  # noqa: E731  line 45


@pytest.mark.feature("HND-02", "HND-03", "HND-05", "HND-06", "D-65")
@rows(
    ("fn", "expected"),
    [
        (plain, "plain"),
        (functools.partial(plain, x=1), "plain"),
        (wrapping, "plain"),
        (Reconciler().method, "Reconciler.method"),
        (Reconciler.static, "Reconciler.static"),
        (build_nested(), "build_nested.<locals>.nested"),
        (lambda_, f"lambda:{Path(__file__)}:{lambda_.__code__.co_firstlineno}"),
    ],
)
def test_the_id_is_the_name_of_the_function(fn: Callable[..., Any], expected: str) -> None:
    assert detect_name(fn) == expected


@pytest.mark.feature("HND-06")
@rows("fn", [Reconciler(), print])
def test_what_has_no_stable_name_needs_an_id(fn: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="id="):
        detect_name(fn)
    assert build_id(fn, id="given") == "given"
