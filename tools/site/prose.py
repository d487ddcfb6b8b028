"""Finds words and sentences that are hard to read: ``python -m tools.site.prose [PATH ...]``.

It reads the pages, the README, the examples' Markdown, and the docstrings, comments and texts in
``webop/``. Code, quotes and generated pages are skipped. Where a finding is wrong, exempt the
paragraph: ``<!-- prose: ok -->`` on the line before it, or ``prose: ok`` in a comment of the line.

Tools such as Vale read Markdown and comments, but neither f-strings nor docstrings apart from code,
and they bring a binary; the rules here are a table of patterns.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from tests.kit.pages import DOCS, ROOT

LONGEST = 40  # words of a sentence

_BE = r"(?:is|are|was|were|be|been)"
_GOAL = r"(?<!way )(?<!aim )(?<!goal )(?<!purpose )(?<!idea )(?<!task )(?<!next )(?<!out )"
_OTHER = r"(?!say\b|which\b|what\b|the\b|an?\b|\d)"
_END = r"[.,;:)]|\s*$| (?:and|or|in|that|which|for|with|to|if|is|are|when|on|by|at|as|but|from)\b"
_RULES = {
    rf"{_GOAL}\b(?:is|are|was|were) (?:not |never |only )?to {_OTHER}[a-z]+": (
        'write "must", "can" or "will"'
    ),
    r"\bha(?:s|ve) to be let\b": 'write "must"',
    r"\b(?:anew|afresh)\b": 'write "again"',
    r"\b(?:lest|[wt]?hence|thereof|[tw]herein|whereby|henceforth|hitherto|albeit)\b": (
        "use a plain conjunction"
    ),
    r"\b(?:whoever|whomever|whosoever)\b": "name the reader or the part of the system",
    rf"\b{_BE} told(?! to\b)|\btells (?:of|about)\b": 'write "logged", "reported" or "called for"',
    r"(?<!certificate )\bauthorit(?:y|ies)\b": 'write "CA" or "CA certificates"',
    r"\bfarewell\b": 'write "shutdown" or "withdrawal"',
    r"\b(?:until|as) nobody\b|\bnobody (?:comes|is (?:here|there)|waits|asks|hears|knows)\b": (
        "say what happens"
    ),
    r"\bsee(?:s|n)? to (?:it|that|this|them)\b": 'write "makes sure"',
    rf"\b(?:let|lets|letting) (?:\w+ ){{0,3}}go\b|\b{_BE} let\b": (
        'write "close", "release", "drop"'
    ),
    r"\b(?:stands?|is|are|be|being) in the way\b": 'write "blocks" or "prevents"',
    r"\bcom(?:e|es|ing) and go(?:es|ing)?\b": 'write "starts and stops", "appears and disappears"',
    r"\b(?:of|from) what(?:ever)? there was before\b|\bof before\b": 'write "old" or "previous"',
    rf"\bof (?:its|their) own(?={_END})": 'write "its own" or "separate"',
    rf"\b{_BE} left alone\b": 'write "skipped", "unchanged" or "ignored"',
    r"\b(?:not|are|is|be) alike\b": 'write "conflicting" or "equal"',
    r"\bwhat (?:it|they|this|that|he) (?:is|are) for\b": "name the purpose",
    r"\bsave for\b|(?<!, )\bbut for\b|\bsave (?:where|that|in)\b": 'write "except"',
    r"\b(?:nothing|none|nobody|no one|no other) but\b": 'write "only"',
    rf"\b{_BE} away\b": 'write "unreachable" or "unavailable"',
    r"\bshall\b": 'write "must" or "will"',
    r"\bverdicts?\b": 'write "outcome" or "decision"',
    r"\bin the course of\b": 'write "during"',
    r"\bin order to\b": 'write "to"',
    r"\bnot (?:un\w+ed|impossible|un(?:usual|common|likely|known))\b": "say it positively",
    r"\bputs? (?:\w+ ){0,3}right\b": 'write "repairs" or "restores"',
    r"\b(?:his|her|its|their|the) maker\b": 'write "owner"',
    r"\bas (?:\w+ )?would have it\b|\bso to speak\b|\bas it were\b": "say it directly",
}
_PATTERNS = [(re.compile(rule, re.IGNORECASE), advice) for rule, advice in _RULES.items()]
_RIDDLE = re.compile(r"(?:^|(?<=[.!?] ))What (?![^.!?]*\?)(?:\S+ ){3,}?[^.!?]*[.!]")

_SENTENCES = re.compile(r"(?<=[.!?;:])[)\"']* (?=[A-Z`*\[\"(…_<])|(?<=\w[.!?;]) ")
_WORD = re.compile(r"\w[\w'.-]*")
_GENERATED = frozenset({"parity.md", "messages.md"})
_FENCE = re.compile(r" *(`{3,}|~{3,})")
_BLOCK = re.compile(r"<!-- (?:settings|commands|options|metrics)\b.*-->")
_SEPARATE = re.compile(r" *(?:[-*+] |\d+\. |#|\||>|<|!!!)")
_EXEMPT = "prose: ok"


class Finding(NamedTuple):
    path: str
    line: int
    words: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.words!r}: {self.advice}"


class Passage(NamedTuple):
    """A paragraph, a cell, a docstring, a comment or a message: text by lines."""

    line: int
    lines: list[str]
    is_cell: bool = False  # cells may be phrases


def check(path: Path) -> list[Finding]:
    text = path.read_text(encoding="utf-8")
    passages = read_markdown(text) if path.suffix == ".md" else read_python(text)
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    return sorted(
        {
            Finding(name, line, words, advice)
            for passage in passages
            for line, words, advice in check_passage(passage)
        }
    )


def check_passage(passage: Passage) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the words and the advice of each finding."""
    starts, text = [], ""
    for line in passage.lines:
        starts.append(len(text))
        text += " ".join(line.split()) + " "
    for pattern, advice in _PATTERNS:
        for match in pattern.finditer(text):
            yield passage.line + bisect_right(starts, match.start()) - 1, match[0], advice
    for match in () if passage.is_cell else _RIDDLE.finditer(text):
        number = passage.line + bisect_right(starts, match.start()) - 1
        yield number, _shorten(match[0]), "begin with the subject"
    position = 0
    for sentence in _SENTENCES.split(text):
        position = text.index(sentence, position)
        count = len(_WORD.findall(sentence))
        if count > LONGEST:
            number = passage.line + bisect_right(starts, position) - 1
            yield number, _shorten(sentence), f"split this sentence of {count} words"
        position += len(sentence)


def read_markdown(text: str) -> Iterator[Passage]:
    """Yield the paragraphs, items, cells; without code, quotes, generated blocks."""
    fence, is_generated, is_exempt = "", False, False
    begin, lines = 1, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        mark = _FENCE.match(line)
        is_code = bool(fence or mark)
        if fence:
            fence = "" if mark and mark[1] == fence else fence
        elif mark:
            fence = mark[1]
        is_generated = (is_generated or bool(_BLOCK.match(line))) and "<!-- end -->" not in line
        is_skipped = is_code or is_generated or line.lstrip().startswith(">")
        if lines and (is_skipped or not line.strip() or _SEPARATE.match(line)):
            if not is_exempt:
                yield Passage(begin, lines)
            lines, is_exempt = [], False
        if is_skipped or not line.strip():
            continue
        if _EXEMPT in line:
            is_exempt = True
        elif line.lstrip().startswith("|"):
            if not is_exempt:
                yield from (
                    Passage(number, [_strip(cell)], is_cell=True) for cell in line.split("|")
                )
            is_exempt = False
        else:
            begin = begin if lines else number
            lines.append(_strip(line))


def _strip(line: str) -> str:
    """Replace code by one word and links by their texts; remove comments and pictures."""
    line = re.sub(r"(?::\w+:)?(?:``.+?``|`[^`]*`)", "…", line)
    line = re.sub(r"<!--.*?-->|!\[[^\]]*\]\([^)]*\)", "", line)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line)


def read_python(text: str) -> Iterator[Passage]:
    """Yield the docstrings, the comments, and all other texts of more than two words."""
    exempt = {n for n, line in enumerate(text.splitlines(), 1) if _EXEMPT in line}
    for passage in (*_read_strings(ast.parse(text)), *_read_comments(text)):
        span = range(passage.line, passage.line + len(passage.lines))
        if not exempt.intersection(span):
            yield passage


def _read_strings(tree: ast.Module) -> Iterator[Passage]:
    inner = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            value = "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            value = "" if id(node) in inner else node.value
        else:
            continue
        if len(value.split()) > 2:
            for number, group in _split_paragraphs(value):
                yield Passage(node.lineno + number, [_strip(line) for line in group])


def _split_paragraphs(text: str) -> Iterator[tuple[int, list[str]]]:
    """Split a docstring at empty lines and at items; literal blocks are left out."""
    lines, number, is_literal = text.splitlines(), 0, False
    for is_text, group in groupby(lines, key=lambda line: bool(line.strip())):
        block = list(group)
        if is_text and not (is_literal and block[0].startswith(" ")):
            start = 0
            for index in range(1, len(block) + 1):
                if index == len(block) or re.match(r" *(?:[-*] |\w+: |\w.*:$)", block[index]):
                    yield number + start, block[start:index]
                    start = index
            is_literal = block[-1].rstrip().endswith("::")
        number += len(block)


def _read_comments(text: str) -> Iterator[Passage]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [(t.start[0], t.string.lstrip("# ")) for t in tokens if t.type == tokenize.COMMENT]
    lines = text.splitlines()
    own = [(n, c) for n, c in comments if lines[n - 1].lstrip().startswith("#")]
    for _, group in groupby(enumerate(own), key=lambda item: item[1][0] - item[0]):
        block = [comment for _, comment in group]
        yield Passage(block[0][0], [_strip(line) for _, line in block])
    for number, comment in comments:
        if not lines[number - 1].lstrip().startswith("#"):
            yield Passage(number, [_strip(comment)])


def _shorten(sentence: str) -> str:
    words = sentence.split()
    return " ".join(words[:8]) + (" …" if len(words) > 8 else "")


def find_files() -> list[Path]:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    pages = [page for page in pages if page.name not in _GENERATED]
    return [*sorted(pages), *sorted((ROOT / "webop").rglob("*.py"))]


def main(names: Iterable[str]) -> int:
    """Print the findings; return the exit code."""
    files = [
        file
        for name in names
        for file in (
            sorted(Path(name).rglob("*.[mp][dy]")) if Path(name).is_dir() else [Path(name)]
        )
    ]
    found = [finding for file in files or find_files() for finding in check(file.resolve())]
    print(*found, sep="\n")  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
