"""The pages of the documentation, and what is in them: blocks of code, commands, settings."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_BLOCK = re.compile(
    r"^(?: *<!-- snippet: (?P<directive>[\w ./]+) -->\n)?"
    r"(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_DIRECTIVES = frozenset({None, "webop only", "continues"})
_EXCERPT = "excerpt of "
_SHELLS = frozenset({"bash", "sh", "shell", "console"})


@dataclass(frozen=True)
class Block:
    name: str
    language: str
    code: str
    directive: str | None = None

    @property
    def is_common(self) -> bool:
        """Whether it shows only what the manual's model has, and the peer as well."""
        return self.directive != "webop only" and "webop.testing" not in self.code

    @property
    def source(self) -> Path | None:
        """The file of which the block shows a part; None if the block stands for itself."""
        if self.directive is None or not self.directive.startswith(_EXCERPT):
            return None
        return ROOT / self.directive.removeprefix(_EXCERPT)


def find_pages() -> list[Path]:
    """Return the pages of the site, and those for contributors, which are beside the code."""
    beside = [path for folder in ("bench", "tools") for path in (ROOT / folder).rglob("README.md")]
    pages = [*DOCS.rglob("*.md"), *beside]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(pages)]


def find_blocks(page: Path) -> list[Block]:
    """Return the blocks of a page."""
    text = page.read_text(encoding="utf-8")
    blocks = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        name = f"{page.relative_to(ROOT).with_suffix('')}:{line}"
        code = textwrap.dedent(match["code"])  # blocks in tabs and lists are indented
        block = Block(name, match["language"], code, match["directive"])
        if block.directive not in _DIRECTIVES and block.source is None:
            raise ValueError(f"{name}: there is no directive {block.directive!r}.")
        blocks.append(block)
    return blocks


def find_snippets() -> list[Block]:
    """Return all blocks of Python that can run, with what they continue put in front of them."""
    snippets = []
    for page in find_pages():
        previous, directive = "", None
        for block in find_blocks(page):
            if block.language == "python" and block.source is None:
                if block.directive == "continues":
                    previous += block.code
                else:
                    previous, directive = block.code, block.directive
                snippets.append(Block(block.name, block.language, previous, directive))
    return snippets


def find_commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of shell blocks as lists of words, with the names of their blocks."""
    for page in find_pages():
        for block in find_blocks(page):
            if block.language in _SHELLS:
                for line in block.code.replace("\\\n", " ").splitlines():
                    yield from ((block.name, words) for words in _split(block, line))


def _split(block: Block, line: str) -> Iterator[list[str]]:
    if block.language == "console":
        if not line.startswith("$ "):
            return  # what the command has printed
        line = line.removeprefix("$ ")
    for inner in re.findall(r"\$\((.*?)\)", line):
        yield from _split(Block(block.name, "shell", ""), inner)
    lexer = shlex.shlex(re.sub(r"\$\(.*?\)", "_", line), posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;"):
            if words:
                yield words
            words = []
        elif words or not re.fullmatch(r"\w+=.*", word, re.DOTALL):
            words.append(word)
