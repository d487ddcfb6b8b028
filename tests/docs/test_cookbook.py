"""The cookbook shows all examples, with code that is in their files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.pages import DOCS, ROOT, Block, find_blocks

EXCERPTS = [block for page in DOCS.rglob("*.md") for block in find_blocks(page) if block.source]
LEFT_OUT = re.compile(r"^ *# …\n", re.MULTILINE)


@pytest.mark.parametrize("excerpt", EXCERPTS, ids=lambda block: block.name)
def test_an_excerpt_is_in_its_file_as_it_is_printed(excerpt: Block) -> None:
    assert excerpt.source
    source = excerpt.source.read_text(encoding="utf-8")
    position = 0
    for part in LEFT_OUT.split(excerpt.code):
        assert part in source[position:], f"{excerpt.source} does not have, after the rest:\n{part}"
        position = source.index(part, position) + len(part)


def test_each_example_is_shown() -> None:
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/README.md")}
    assert {Path(block.source).parent.name for block in EXCERPTS if block.source} == folders
