"""Internal links lead to files and headings that exist; external ones: ``tools.site.links``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.pages import ROOT
from tools.site import links

SOURCES = links.find_sources()


@pytest.mark.parametrize("page", SOURCES, ids=lambda page: str(page.relative_to(ROOT)))
def test_internal_links_lead_somewhere(page: Path) -> None:
    assert list(links.find_broken(page)) == []


def test_broken_links_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# A `title`, twice\n\n## A title, twice\n\n`[code](none.md)`\n\n"
        "```md\n# Not a heading\n[code](none.md)\n```\n\n"
        "[a](#a-title-twice) [b](page.md#a-title-twice_1) [c](#not-a-heading)\n"
        "[d](none.md) ![e](none.svg)\n",
        encoding="utf-8",
    )
    assert [problem.partition(": ")[2] for problem in links.find_broken(page)] == [
        "#not-a-heading: there is no such heading",
        "none.md: there is no such file",
        "none.svg: there is no such file",
    ]
