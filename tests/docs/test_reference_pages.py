"""The pages of settings and of commands say what the code has."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("kopf")  # which settings are webop's own is told by the peer

from tools.site.reference import PAGES, fill


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_as_the_code_has_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert fill(text) == text, "Write it again: make reference"
    assert "<!-- end -->" in text
