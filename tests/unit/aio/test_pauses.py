"""Pauses in messages."""

from __future__ import annotations

import re
from pathlib import Path

import webop
from tests.kit.rows import rows
from webop.aio.backoff import format_pause


@rows(
    ("seconds", "text"),
    [
        (1.96414, "1.96"),
        (0.0123456, "0.0123"),
        (15, "15"),
        (300.0, "300"),
        (287.43, "287"),
        (3600, "3600"),
        (1987.4, "1990"),
        (86400.0, "86400"),
        (1234567, "1230000"),
        (0, "0"),
        (float("inf"), "inf"),
    ],
)
def test_a_pause_with_jitter_is_printed_with_three_digits(seconds: float, text: str) -> None:
    assert format_pause(seconds) == text


def test_all_messages_print_pauses_in_one_way() -> None:
    root = Path(webop.__file__).parent
    number = r"(%[.0-9]*[gfd]|:[.0-9]*[gfd]\}) s"
    wrong = re.compile(rf"([Rr]etry|[Rr]etrying|again|another one)\b[^\"]* in .*{number}")
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in root.rglob("*.py")
        for line in path.read_text().splitlines()
        if wrong.search(line)
    ]
    assert found == []
