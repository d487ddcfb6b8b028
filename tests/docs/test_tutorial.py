"""The operator of the tutorial passes the tests of the tutorial, as they are printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.pages import DOCS, find_blocks
from webop.testing import AdmissionClient, OperatorRunner

if TYPE_CHECKING:
    from webop.testing import LocalCluster


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page defines as tests, in a folder with the files of the page."""
    blocks = find_blocks(DOCS / "tutorial.md")
    python = [block.code for block in blocks if block.language == "python"]
    definition = next(b.code for b in blocks if "kind: CustomResourceDefinition" in b.code)
    (tmp_path / "handlers.py").write_text("\n".join(python[:2]))
    (tmp_path / "crd.yaml").write_text(definition)
    monkeypatch.chdir(tmp_path)
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
