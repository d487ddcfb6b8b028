"""The page ``docs/parity.md``: built of the checklist, the marks, and the outcomes of a run.

Flow: :mod:`tools.parity.plugin` records what became of the tests and writes the page;
``test_parity.py`` reads it back and compares it with the marks.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tools.parity.checklist import Feature, get_test

INTRODUCTION = """\
---
search:
  exclude: true
---
# Parity

<!-- Written by `make parity`; do not edit. -->

webop has the programming model of Kopf's manual. Each row of this page is one statement of that
manual that a test can check. A row is **green** if tests name it and all of them passed in the
last `make parity`. See [how](../tools/parity/README.md).

"""

LEGENDS = {
    "Reference of the package": (
        "In the signatures, SEL stands for the parameters that select resources; RTR for `errors`,"
        " `timeout`, `retries`, `backoff`; META for `labels`, `annotations`, `when`; FV for `field`"
        " and `value`; OPR for the parameters of an operator; WSRV for those of a webhook server."
    )
}


class State(StrEnum):
    """What can be said of a row."""

    GREEN = "green"
    FAILING = "failing"
    PENDING = "not run"
    EXPLAINED = "no test"
    MISSING = "no test yet"


@dataclass(frozen=True)
class Row:
    """A row of the page; ``tests`` are told by name, with what became of them."""

    feature: Feature
    tests: Mapping[str, str]
    reason: str | None = None

    @property
    def state(self) -> State:
        outcomes = set(self.tests.values())
        if not outcomes:
            return State.EXPLAINED if self.reason else State.MISSING
        if "failed" in outcomes:
            return State.FAILING
        return State.GREEN if outcomes == {"passed"} else State.PENDING


def fold(outcomes: Mapping[str, Mapping[str, object]]) -> dict[tuple[str, str], str]:
    """Return the outcome of each test for each of its ids: the worst of its parameter sets.

    ``outcomes`` holds by node id ``{"ids": [...], "outcome": "passed" | "failed" | "skipped"}``.
    """
    found: dict[tuple[str, str], set[object]] = defaultdict(set)
    for node, record in outcomes.items():
        ids = record["ids"]
        assert isinstance(ids, list)
        for feature in ids:
            found[feature, get_test(node)].add(record["outcome"])
    ranking = ("failed", "skipped", "passed")
    return {key: next(word for word in ranking if word in seen) for key, seen in found.items()}


def build_page(rows: Iterable[Row]) -> str:
    """Return the text of the page: no date, no commit, so that equal results are equal texts."""
    rows = list(rows)
    groups = list(dict.fromkeys(row.feature.group for row in rows))
    lines = [INTRODUCTION + _count(rows) + "\n\n| group | green | of |\n|---|---|---|"]
    for group in groups:
        own = [row for row in rows if row.feature.group == group]
        lines.append(f"| {group} | {_count_green(own)} | {len(own)} |")
    for group in groups:
        lines += _build_group(group, [row for row in rows if row.feature.group == group])
    return "\n".join(lines) + "\n"


def _count_green(rows: Iterable[Row]) -> int:
    return sum(row.state is State.GREEN for row in rows)


def _count(rows: list[Row]) -> str:
    counts = Counter(row.state for row in rows)
    rest = ", ".join(f"{counts[state]} {state}" for state in list(State)[1:] if counts[state])
    return f"**{counts[State.GREEN]} of {len(rows)} rows are green**" + (f"; {rest}." * bool(rest))


def _build_group(group: str, rows: list[Row]) -> Iterator[str]:
    yield f"\n## {group}: {_count_green(rows)} of {len(rows)}\n"
    if group in LEGENDS:
        yield LEGENDS[group] + "\n"
    yield "| id | behaviour | state | tests |\n|---|---|---|---|"
    for row in rows:
        tests = "<br>".join(
            f"`{name}`" + ("" if outcome == "passed" else f" ({outcome})")
            for name, outcome in sorted(row.tests.items())
        )
        text = row.feature.text.replace("|", r"\|")
        yield f"| {row.feature.id} | {text} | {row.state} | {tests or row.reason or ''} |"


_ROW = re.compile(r"^\| ([A-Z]+-\d+) \| (.*) \| ([a-z ]+) \| (.*) \|$", re.MULTILINE)
_TEST = re.compile(r"`([\w/]+\.py::[\w:]+)`(?: \(([a-z ]+)\))?")


def parse_page(text: str, features: Mapping[str, Feature]) -> list[Row]:
    """Return the rows that a page shows; the inverse of :func:`build_page`."""
    rows = []
    for match in _ROW.finditer(text):
        tests = {name: outcome or "passed" for name, outcome in _TEST.findall(match[4])}
        rows.append(Row(features[match[1]], tests, None if tests else match[4] or None))
    return rows
