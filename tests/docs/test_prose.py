"""The prose of the pages is easy to read, as far as ``tools.site.prose`` can check it."""

from __future__ import annotations

import pytest

from tools.site.prose import check, find_all


def test_the_prose_is_easy_to_read() -> None:
    assert [*find_all()] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What waits in the queue is lost.", [(1, "What waits in the queue is lost.")]),
        ("`is to be`, ``anew``, [anew](anew.md)", [(1, "anew")]),
        ("```\nis to be\n```\n\n> is to be\n\nanew", [(7, "anew")]),
        ("| What it holds | is to be |", [(1, "is to be")]),
        ("<!-- prose: ok -->\nanew\nagain\n\nanew", [(5, "anew")]),
        ("- " + "word " * 30 + "\n- " + "word " * 30, []),
    ],
)
def test_findings(text: str, expected: list[tuple[int, str]]) -> None:
    assert [(line, words) for line, words, _ in check(text)] == expected
