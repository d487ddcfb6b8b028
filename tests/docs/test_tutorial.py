"""Runs the tutorial: its handlers pass its tests, and its manifests are those that it shows."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.kit.cli_runner import invoke
from tests.kit.pages import DOCS, Block, find_blocks
from webop.testing import AdmissionClient, OperatorRunner

if TYPE_CHECKING:
    from webop.testing import LocalCluster


@pytest.fixture
def blocks() -> list[Block]:
    return find_blocks(DOCS / "tutorial.md")


@pytest.fixture
def folder(blocks: list[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the files of the tutorial."""
    python = [block.code for block in blocks if block.language == "python"]
    (tmp_path / "handlers.py").write_text("\n".join(python))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "handlers", raising=False)  # of another test
    return tmp_path


@pytest.fixture
def printed(blocks: list[Block], folder: Path) -> Iterator[dict[str, Any]]:
    """The tests that the page shows, by their names."""
    (code,) = (block.code for block in blocks if block.language == "py")
    names: dict[str, Any] = {}
    exec(code, names)
    yield names
    sys.modules.pop("handlers", None)


def test_the_page_of_the_tutorial_is_published(
    printed: dict[str, Any],
    webop_cluster: LocalCluster,
    webop_namespace: str,
    webop_operator: Callable[..., OperatorRunner],
) -> None:
    printed["test_a_page_is_published"](webop_cluster, webop_namespace, webop_operator)


async def test_a_page_of_the_tutorial_has_known_placeholders(
    printed: dict[str, Any], webop_admission: Callable[..., AdmissionClient]
) -> None:
    await printed["test_a_text_has_known_placeholders"](webop_admission)


def test_the_tutorial_lists_the_objects_of_its_manifests(blocks: list[Block], folder: Path) -> None:
    rights = next(b.code for b in blocks if b.code.lstrip().startswith("settings.networking"))
    handlers = folder / "handlers.py"
    before, after = handlers.read_text().split("\n@webop.on.validate")
    handlers.write_text(f"{before.rstrip()}\n{rights}\n\n@webop.on.validate{after}")
    command = next(b.code for b in blocks if b.code.startswith("webop manifests"))
    words = shlex.split(command.replace("\\\n", "").partition("|")[0])
    result = invoke(*words[1:])
    assert result.exit_code == 0, result.output
    made = [body["metadata"]["name"] for body in yaml.safe_load_all(result.stdout)]
    shown = next(b.code for b in blocks if b.code.startswith("customresourcedefinition"))
    assert made == re.findall(r"/(\S+) serverside-applied", shown)
    assert "pages/finalizers" in result.stdout
    assert "configmaps" in result.stdout
