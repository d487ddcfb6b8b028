"""The pytest plugin behind ``make parity``: ``pytest -p tools.parity.plugin --parity FILE``.

Each test tells its rows along with its report, which works through pytest-xdist as well. At the
end the outcomes are merged into those of earlier runs (kept in pytest's cache), so that a run of
some tests refreshes what these show and leaves the rest; then the page is written.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.parity.checklist import (
    collect_marks,
    get_ids,
    get_test,
    load_features,
    load_reasons,
    read_marks,
)
from tools.parity.page import Row, build_page, fold

_PROPERTY = "feature"
_CACHE = "parity/outcomes"
_RANKS = {"passed": 0, "skipped": 1, "failed": 2}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("parity")
    group.addoption("--parity", metavar="FILE", type=Path, help="write the page of parity there")
    group.addoption(
        "--parity-marks", metavar="FILE", type=Path, help="write which tests name which rows there"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Record outcomes if a page is wanted; write the marks if they are."""
    if config.getoption("parity"):
        config.pluginmanager.register(Recorder(config), "parity-recorder")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write which tests name which rows, for :func:`tools.parity.checklist.collect_marks`."""
    target = session.config.getoption("parity_marks")
    if target:
        marks = {feature: sorted(tests) for feature, tests in read_marks(session.items).items()}
        target.write_text(json.dumps(marks), encoding="utf-8")


class Recorder:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.outcomes: dict[str, dict[str, object]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Attach the rows to the tests (in a worker of xdist: for its controller)."""
        for item in items:
            item.user_properties.append((_PROPERTY, get_ids(item)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst of setup, call and teardown."""
        ids = dict(report.user_properties).get(_PROPERTY)
        if not ids:
            return
        known = self.outcomes.setdefault(report.nodeid, {"ids": ids, "outcome": "passed"})
        known["outcome"] = max(str(known["outcome"]), report.outcome, key=_RANKS.__getitem__)

    def pytest_sessionfinish(self) -> None:
        """Merge, remember, and write the page."""
        if hasattr(self.config, "workerinput"):
            return
        cache = self.config.cache
        assert cache is not None
        kept = cache.get(_CACHE, {})
        if not self.config.option.keyword and not any("::" in arg for arg in self.config.args):
            ran = {get_test(node) for node in self.outcomes}
            kept = {node: record for node, record in kept.items() if get_test(node) not in ran}
        outcomes = {**kept, **self.outcomes}
        cache.set(_CACHE, outcomes)
        page = build_page(_build_rows(fold(outcomes)))
        self.config.getoption("parity").write_text(page, encoding="utf-8")


def _build_rows(outcomes: dict[tuple[str, str], str]) -> list[Row]:
    marks, reasons = collect_marks(), load_reasons()
    return [
        Row(
            feature,
            {
                name: outcomes.get((feature.id, name), "not run")
                for name in marks.get(feature.id, ())
            },
            reasons.get(feature.id),
        )
        for feature in load_features()
    ]
