"""The public names: what is promised to users, and what importing them costs."""

from __future__ import annotations

import asyncio
import inspect
import json
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


HEAVY = ("httpx", "aiohttp", "starlette", "uvicorn", "cryptography", "click", "yaml", "pyngrok")
MEASURE = """
import json, resource, sys
import {modules}
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({{"cpu": usage.ru_utime + usage.ru_stime, "modules": sorted(sys.modules)}}))
"""


def measure_import(modules: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE.format(modules=modules)],
        capture_output=True,
        text=True,
        check=True,
    )
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def test_importing_is_fast_and_brings_no_http_and_no_cryptography() -> None:
    samples = [measure_import(modules) for modules in ("webop", "asyncio, pydantic") * 2]
    assert set(samples[0]["modules"]).isdisjoint(HEAVY)
    cpu, least = (min(sample["cpu"] for sample in samples[at::2]) for at in (0, 1))
    # On a busy machine everything takes longer: then what cannot be helped is the measure.
    assert cpu < 0.35 or cpu < 5 * least


def test_tools_for_tests_are_imported_at_first_use() -> None:
    modules = measure_import("webop.testing")["modules"]
    assert not [name for name in modules if name.startswith(("webop.testing.", "time_machine"))]
