"""What operators written for Kopf set on its loggers, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

OPERATOR = """
import asyncio, logging, logging.config
import webop as kopf

logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")

@kopf.on.startup(id="one")
async def one(settings, **_):
    settings.posting.enabled = False
    {in_startup}

@kopf.on.cleanup(id="two")
async def two(logger, **_):
    logger.info("bye")

{in_module}

async def main():
    flag = asyncio.Event()
    flag.set()
    await kopf.operator(clusterwide=True, stop_flag=flag)

asyncio.run(main())
"""
CONFIG = "logging.config.dictConfig({'version': 1, 'loggers': {'kopf': {'level': 'INFO'}}})"


@pytest.mark.feature("AUT-20")
@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (
            {"in_module": "logging.getLogger('kopf.activities.startup').disabled = True"},
            ["bye", "two"],
        ),
        # logging.config switches off what it is not told of: by name, ours is no child of Kopf's.
        ({"in_module": CONFIG}, ["one", "bye", "two"]),
        # Kopf's is no child of ours either: a configuration of ours would switch it off.
        ({"in_module": CONFIG.replace("kopf", "webop")}, ["one", "bye", "two"]),
        ({"in_startup": CONFIG}, ["bye", "two"]),
    ],
)
def test_an_operator_configures_the_loggers_of_activities_by_kopfs_names(
    parts: dict[str, str], expected: list[str]
) -> None:
    places = {"in_startup": "pass", "in_module": ""}
    code = OPERATOR.format(**places | parts)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    texts = {"one": "'one' succeeded", "bye": "bye", "two": "'two' succeeded"}
    assert [key for key, text in texts.items() if text in done.stderr] == expected, done.stderr
