"""The pictures of the documentation are legible everywhere."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.summary import PAGE, PICTURE, build_summary, read_rows
from tests.kit.pages import DOCS

PICTURES = sorted((DOCS / "images").glob("*.svg"))
_SVG = "{http://www.w3.org/2000/svg}"


def test_the_chart_of_the_benchmark_shows_the_figures_of_the_page() -> None:
    """``python -m bench.summary`` draws it again."""
    rows = read_rows(PAGE.read_text(encoding="utf-8"))
    assert len(rows) > 4
    assert PICTURE.read_text(encoding="utf-8") == build_summary(rows)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_pictures_are_legible(picture: Path) -> None:
    """In light and dark, on a phone, and for screen readers."""
    text = picture.read_text(encoding="utf-8")
    root = ET.fromstring(text)
    assert int(root.attrib["width"]) <= 480
    assert root.attrib["role"] == "img"
    for name in ("title", "desc"):
        element = root.find(f"{_SVG}{name}")
        assert element is not None
        assert element.text
    if picture.name != "icon.svg":  # the ground of the icon is that of the header
        assert "prefers-color-scheme: dark" in text
        assert 'class="ground"' in text
    assert not re.search(r"\b(href|src|url)\b=|@import|<script", text)
