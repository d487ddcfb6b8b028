"""The prose of pages and code is easy to read, as far as ``tools.site.prose`` can check it."""

from __future__ import annotations

import pytest

from tools.site.prose import check, check_passage, find_files, read_markdown, read_python


def find(text: str, *, is_code: bool = False) -> list[tuple[int, str]]:
    passages = read_python(text) if is_code else read_markdown(text)
    return sorted((line, words) for p in passages for line, words, _ in check_passage(p))


def test_the_prose_is_easy_to_read() -> None:
    """``python -m tools.site.prose FILE`` shows the findings of one file."""
    findings = [str(finding) for file in find_files() for finding in check(file)]
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The port is to be\nfree.", [(1, "is to be")]),
        ("Stop it\nlest it fail.", [(2, "lest")]),
        ("The easiest way is to use a pod.", []),
        ("The operator was told to stop.", []),
        ("The certificate authority signs.", []),
        ("Its authorities sign.", [(1, "authorities")]),
        ("What waits in the queue is lost.", [(1, "What waits in the queue is lost.")]),
        ("What waits in the queue?", []),
        ("`is to be`, ``anew``, [anew](anew.md)", [(1, "anew")]),
        ("```\nis to be\n```\n\n> is to be\n\nanew", [(7, "anew")]),
        ("| What it holds | is to be |", [(1, "is to be")]),
        ("<!-- prose: ok -->\nanew\nagain\n\nanew", [(5, "anew")]),
        ("<!-- metrics -->\n| anew |\n<!-- end -->\nanew", [(4, "anew")]),
        ("word " * 41 + "end.", [(1, "word word word word word word word word …")]),
        ("word " * 30 + "end. " + "Word " * 30 + "end.", []),
        ("- " + "word " * 30 + "\n- " + "word " * 30, []),
    ],
)
def test_findings_in_pages(text: str, expected: list[tuple[int, str]]) -> None:
    assert find(text) == expected


def test_findings_in_code() -> None:
    source = '''\
"""Read the file anew.

Args:
    lest: it is not a word here::

        whoever = "calls it"
"""

anew = "anew"  # is to be so
# The rest is
# to be done.
message = f"The {anew} is told by {anew}."
other = "it is to be"  # prose: ok
'''
    assert find(source, is_code=True) == [
        (1, "anew"),
        (4, "lest"),
        (9, "is to be"),
        (10, "is to be"),
        (12, "is told"),
    ]
