"""The cookbook shows all examples, with code and commands that are in their files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.pages import DOCS, ROOT, Block, find_blocks

PAGE = DOCS / "howto" / "cookbook.md"
EXCERPTS = [block for page in DOCS.rglob("*.md") for block in find_blocks(page) if block.source]
LEFT_OUT = re.compile(r"^ *# …\n", re.MULTILINE)


def read_commands(text: str) -> list[str]:
    lines = (line.partition(" #")[0].strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("cd ")]


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


@pytest.mark.parametrize(
    "block",
    [block for block in find_blocks(PAGE) if block.code.startswith("cd ")],
    ids=lambda block: block.name,
)
def test_commands_are_those_of_the_example(block: Block) -> None:
    folder = ROOT / block.code.partition("\n")[0].removeprefix("cd ")
    known = read_commands((folder / "README.md").read_text(encoding="utf-8"))
    assert [command for command in read_commands(block.code) if command not in known] == []
