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
