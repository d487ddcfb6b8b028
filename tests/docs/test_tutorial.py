"""Runs the tutorial: its handlers pass its tests, and its manifests are those that it shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.docs.pages import DOCS, Block, find_blocks
from tests.kit.cli_runner import invoke
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
    definition = next(b.code for b in blocks if "kind: CustomResourceDefinition" in b.code)
    (tmp_path / "handlers.py").write_text("\n".join(python[:2]))
    (tmp_path / "crd.yaml").write_text(definition)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def printed(blocks: list[Block], folder: Path) -> dict[str, Any]:
    """The tests that the page shows, by their names."""
    python = [block.code for block in blocks if block.language == "python"]
    names: dict[str, Any] = {}
    exec(python[2], names)
    return names


def test_the_page_of_the_tutorial_is_published(
    printed: dict[str, Any],
    webop_cluster: LocalCluster,
    webop_namespace: str,
    webop_operator: Callable[..., OperatorRunner],
) -> None:
    printed["test_a_page_is_published"](webop_cluster, webop_namespace, webop_operator)


async def test_the_page_of_the_tutorial_needs_a_title(
    printed: dict[str, Any], webop_admission: Callable[..., AdmissionClient]
) -> None:
    await printed["test_a_page_needs_a_title"](webop_admission)


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
    shown = next(b.code for b in blocks if b.code.startswith("namespace/"))
    assert made == re.findall(r"/(\S+) created", shown)
    assert "pages/finalizers" in result.stdout
    assert "configmaps" in result.stdout
