"""Finds words and sentences in pages that are hard to read: ``python -m tools.site.prose``.

It reads the pages, the README and the examples' Markdown, without code, quotes and generated parts.
Where a finding is wrong, put ``<!-- prose: ok -->`` on the line before the paragraph.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
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
_SKIPPED = re.compile(
    r"^ *(`{3,}|~{3,}).*?^ *\1 *$|^<!-- (?:settings|commands|metrics)\b.*?^<!-- end -->$"
    r"|^<!-- prose: ok -->\n(?:[^\n]+\n)*|^ *>[^\n]*$",
    re.MULTILINE | re.DOTALL,
)
_PASSAGE = re.compile(
    r"(?:^(?! *$)(?! *\|).*\n?)(?:^(?! *(?:[-*+] |\d+\. |#|\||!!!)| *$).*\n?)*", re.MULTILINE
)
_CELL = re.compile(r"^ *\|(.*)\|$", re.MULTILINE)


class Finding(NamedTuple):
    line: int  # with which the paragraph begins
    words: str
    advice: str


def check(text: str) -> list[Finding]:
    """Return what is hard to read in a text of Markdown."""
    text = _SKIPPED.sub(lambda match: re.sub(r"[^\n]", "", match[0]), text)
    findings: set[Finding] = set()
    for pattern in (_PASSAGE, _CELL):
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            for passage in match[0].split("|"):
                found = check_passage(_strip(passage), is_cell=pattern is _CELL)
                findings.update(Finding(line, words, advice) for words, advice in found)
    return sorted(findings)


def check_passage(text: str, *, is_cell: bool) -> Iterator[tuple[str, str]]:
    """Yield what is hard to read in a paragraph, an item or a cell, and the advice."""
    for pattern, advice in _PATTERNS:
        for match in pattern.finditer(text):
            yield match[0], advice
    if is_cell:
        return
    for match in _RIDDLE.finditer(text):
        yield _shorten(match[0]), "begin with the subject"
    for sentence in _SENTENCES.split(text):
        if (count := len(_WORD.findall(sentence))) > LONGEST:
            yield _shorten(sentence), f"split this sentence of {count} words"


def _strip(text: str) -> str:
    """Replace code by one word and links by their texts; remove comments and pictures."""
    text = re.sub(r"(?:``.+?``|`[^`]*`)", "…", " ".join(text.split()))
    text = re.sub(r"<!--.*?-->|!\[[^\]]*\]\([^)]*\)", "", text)
    return " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).split())


def _shorten(sentence: str) -> str:
    words = sentence.split()
    return " ".join(words[:8]) + (" …" if len(words) > 8 else "")


def find_files() -> list[Path]:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    return sorted(page for page in pages if page.name != "parity.md")


def find_all() -> Iterator[str]:
    """Yield the findings in all pages, with their places."""
    for page in find_files():
        for line, words, advice in check(page.read_text(encoding="utf-8")):
            yield f"{page.relative_to(ROOT)}:{line}: {words!r}: {advice}"


if __name__ == "__main__":
    sys.exit("\n".join(find_all()))
