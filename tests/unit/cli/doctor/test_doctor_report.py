"""The report as a text and as JSON."""

from __future__ import annotations

import json

import pytest

from webop.cli.doctor.findings import approve, build_json, build_text, describe_seconds, fail, warn

REPORT = {
    "API server": [approve("server", "is there")],
    "Permissions": [fail("a", "is not", "Do it."), warn("long one", "may", "See.")],
}

TEXT = """\
API server
  ok       server    is there

Permissions
  failure  a         is not
                     -> Do it.
  warning  long one  may
                     -> See.

1 failure, 1 warning, 1 ok."""


def test_the_text_is_grouped_and_aligned() -> None:
    assert build_text(REPORT, lambda text, _: text) == TEXT


def test_words_of_strangers_forge_no_lines_and_do_not_reach_the_terminal() -> None:
    forged = "paused by x\n1 ok.\x1b[2J"
    text = build_text({"a": [warn(forged, forged, forged)]}, lambda text, _: text)
    assert "\x1b" not in text
    assert len(text.splitlines()) == 5


def test_the_json_has_all_of_it() -> None:
    document = json.loads(build_json(REPORT))
    assert document["healthy"] is False
    assert document["counts"] == {"ok": 1, "note": 0, "warning": 1, "failure": 1}
    assert document["sections"][1]["findings"][0] == {
        "level": "failure",
        "subject": "a",
        "text": "is not",
        "remedy": "Do it.",
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (86400 * 3, "3 d"), (-5, "0 s")],
)
def test_time_spans_have_fitting_units(seconds: float, text: str) -> None:
    assert describe_seconds(seconds) == text
