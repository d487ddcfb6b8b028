"""The fixture ``webop_admission`` in the test suites of users."""

from __future__ import annotations

from pathlib import Path

from tests.kit.suites import run_suite

HANDLERS = """
import webop

@webop.on.validate("parcels", id="check")
def check(spec, **_):
    if not spec:
        raise webop.AdmissionError("Empty.", code=422)
"""
ASYNC_TESTS = """
PARCEL = {"apiVersion": "example.com/v1", "kind": "Parcel", "metadata": {"name": "x"}}

async def test_one(webop_admission):
    async with webop_admission(modules=["handlers.py"]) as client:
        assert (await client.create(PARCEL)).message == "Empty."
        assert (await client.create({**PARCEL, "spec": {"x": 1}})).webhooks == ("check",)

async def test_another(webop_admission):
    async with webop_admission() as client:
        assert (await client.create(PARCEL)).webhooks == ()
"""
SYNC_TESTS = """
import asyncio

def test_it(webop_admission):
    async def call():
        async with webop_admission(modules="handlers.py") as client:
            return await client.create({"apiVersion": "a.b/v1", "kind": "Parcel", "metadata": {}})

    assert asyncio.run(call()).code == 422
"""


def test_files_are_found_from_the_folder_of_the_test_upwards(tmp_path: Path) -> None:
    files = {"handlers.py": HANDLERS, "tests/test_parcels.py": ASYNC_TESTS}
    arguments = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
    assert "2 passed" in run_suite(tmp_path, files, *arguments, "tests")


def test_no_plugin_for_async_tests_is_needed(tmp_path: Path) -> None:
    files = {"handlers.py": HANDLERS, "tests/test_parcels.py": SYNC_TESTS}
    assert "1 passed" in run_suite(tmp_path, files, "-p", "no:asyncio")
