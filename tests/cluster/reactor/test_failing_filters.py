"""Filters that raise errors: what the log says of them."""

from __future__ import annotations

from typing import Any

import pytest

import webop
from tests.kit.causes import FailedTest
from tests.kit.operators import Objects, RunOperator, do_nothing
from tests.kit.waiting import eventually


@pytest.mark.feature("FLT-19")
@pytest.mark.parametrize("exc", [KeyError("x"), FailedTest("x")], ids=repr)
async def test_the_handler_whose_filter_fails_is_named_in_the_log(
    run_operator: RunOperator,
    objects: Objects,
    caplog: pytest.LogCaptureFixture,
    exc: BaseException,
) -> None:
    def choose(spec: webop.Spec, **_: Any) -> bool:
        if "x" not in spec:
            raise exc
        return True

    webop.on.create("widgets", id="fine")(do_nothing)
    webop.on.create("widgets", id="fragile", when=choose)(do_nothing)

    def find_complaints() -> list[str]:
        messages = [r.getMessage() for r in caplog.records if hasattr(r, "k8s_ref")]
        return [text for text in messages if "Retrying in" in text]

    async with run_operator():
        await objects.create("one")
        await eventually(find_complaints)
        await objects.change("one", {"spec": {"x": 1}})
    assert repr(exc) in find_complaints()[0]
    assert "filter of Handler 'fragile'" in find_complaints()[0]
