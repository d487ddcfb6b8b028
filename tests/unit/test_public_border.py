"""The public names: what is promised to users, and what importing them costs."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from typing import Any

import pytest

import webop
import webop.lifecycles
import webop.on
from tests.kit.rows import rows

kopf = webop  # as in the manual


def test_all_public_names_are_there() -> None:
    for name in webop.__all__:
        assert getattr(webop, name) is not None
    namespace: dict[str, Any] = {}
    exec("from webop import *", namespace)
    assert namespace.keys() >= set(webop.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'nonexistent'"):
        webop.nonexistent  # noqa: B018


@pytest.mark.feature("REF-75", "EVT-04")
def test_names_in_annotations_of_the_manual_can_be_evaluated() -> None:
    def fn(
        spec: kopf.Spec, body: kopf.Body, patch: kopf.Patch, diff: kopf.Diff, logger: kopf.Logger
    ) -> None: ...

    assert inspect.get_annotations(fn, eval_str=True)["spec"] is webop.Spec


@pytest.mark.feature("EMB-06", "EMB-07", "REF-21", "REF-23", "REF-24")
@rows("fn", ["run", "operator", "spawn_tasks"])
def test_an_unknown_option_of_an_operator_is_told_of(fn: str) -> None:
    with pytest.raises(TypeError, match=r"clusterwise.*clusterwide"):
        asyncio.run(getattr(webop, fn)(clusterwise=True))


HEAVY = {
    *("httpx", "aiohttp", "starlette", "uvicorn", "cryptography", "click", "yaml", "pyngrok"),
    *("prometheus_client", "pydantic", "pydantic_core", "typing_extensions", "annotated_types"),
}
HANDLERS = """
import sys
import webop as kopf
import webop.testing
@kopf.on.update("widgets", labels={"a": kopf.PRESENT}, field="spec.a", retries=3)
@kopf.on.validate("widgets", operations=["CREATE"], namespace_selector={"a": "b"})
def fn(spec: kopf.Spec, **_): ...
print(*sys.modules)
"""


@pytest.mark.feature("TST-06")
def test_webop_its_handlers_and_its_tools_for_tests_import_nothing_that_takes_long() -> None:
    command = [sys.executable, "-c", HANDLERS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = {*done.stdout.split()}
    assert not HEAVY & modules
    assert not [name for name in modules if name.startswith(("webop.testing.", "time_machine"))]
