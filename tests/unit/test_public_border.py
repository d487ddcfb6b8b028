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
@pytest.mark.parametrize("fn", ["run", "operator", "spawn_tasks"])
def test_an_unknown_option_of_an_operator_is_told_of(fn: str) -> None:
    with pytest.raises(TypeError, match=r"clusterwise.*clusterwide"):
        asyncio.run(getattr(webop, fn)(clusterwise=True))


HEAVY = {
    *("httpx", "aiohttp", "starlette", "uvicorn", "cryptography", "click", "yaml", "pyngrok"),
    *("prometheus_client", "pydantic", "pydantic_core", "typing_extensions", "annotated_types"),
}


def list_imported(code: str) -> set[str]:
    """Return the modules of a new process that has run some code."""
    code = f"import sys\n{code}\nprint(*sys.modules)"
    command = [sys.executable, "-c", code]
    return {*subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()}


def test_importing_webop_brings_nothing_that_takes_long_to_import() -> None:
    assert not HEAVY & list_imported("import webop as kopf")


def test_handlers_without_models_do_not_import_pydantic() -> None:
    code = """
import webop
@webop.on.update("widgets", labels={"a": webop.PRESENT}, field="spec.a", retries=3)
@webop.on.validate("widgets", operations=["CREATE"], namespace_selector={"a": "b"})
def fn(spec: webop.Spec, **_): ...
"""
    assert not HEAVY & list_imported(code)


@pytest.mark.feature("TST-06")
def test_tools_for_tests_are_imported_at_first_use() -> None:
    modules = list_imported("import webop.testing")
    assert "click" not in modules
    assert not [name for name in modules if name.startswith(("webop.testing.", "time_machine"))]
