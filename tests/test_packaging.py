"""What the package declares to pip, and what the image of the example runs."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path

import pytest

from tests.commands import HANDLERS, Workshop

_ROOT = Path(__file__).parents[1]


@pytest.mark.feature("DEP-01")
def test_the_extras_of_the_manual_are_there() -> None:
    metadata = importlib.metadata.metadata("webop")
    assert {"full-auth", "uvloop", "dev"} <= set(metadata.get_all("Provides-Extra") or ())
    required = importlib.metadata.requires("webop") or []
    extras = {
        extra: {re.split(r"[ \[<>=;]", text)[0] for text in required if _is_of(text, extra)}
        for extra in ("full-auth", "uvloop", "dev", "ngrok")
    }
    assert extras["full-auth"] == {"kubernetes", "pykube-ng"}
    assert extras["uvloop"] == {"uvloop"}
    assert extras["ngrok"] == {"pyngrok"}
    assert "pyngrok" in extras["dev"]


def _is_of(text: str, extra: str) -> bool:
    return re.search(rf"""extra == ['"]{extra}['"]""", text) is not None


@pytest.mark.feature("DEP-03")
async def test_the_command_of_the_manuals_image_runs_an_operator(workshop: Workshop) -> None:
    file = workshop.write(HANDLERS)
    output = await workshop.fail(str(file.resolve()), "--verbose")  # there is no cluster
    assert "no credentials for the API server" in output
    assert "DEBUG" in output or "debug" in output


@pytest.mark.feature("DEP-03")
def test_the_image_of_the_example_runs_the_command_and_gets_its_signals() -> None:
    text = (_ROOT / "Dockerfile").read_text()
    entrypoint, command = (
        json.loads(re.search(rf"^{word} (\[.*\])$", text, re.MULTILINE)[1])  # type: ignore[index]
        for word in ("ENTRYPOINT", "CMD")
    )
    assert entrypoint == ["webop"]
    assert (command[0], command[-1]) == ("run", "handlers.py")
