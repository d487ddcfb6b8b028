"""The page of parity says what the marks say; the marks name rows that exist."""

from __future__ import annotations

import pytest

from tests.kit.collected import COLLECTED
from tools.parity.checklist import (
    FOLDER,
    TESTS,
    Feature,
    collect_marks,
    load_features,
    load_reasons,
    read_marks,
)
from tools.parity.page import Row, build_page, parse_page

PAGE = TESTS.parent / "docs" / "parity.md"
REMEDY = "Run `make parity`, or `make parity ARGS=<files>` for the tests that have changed."


@pytest.fixture(scope="module")
def marks(request: pytest.FixtureRequest) -> dict[str, set[str]]:
    """The marks of all tests: of this run if it has found them all, else by a collection."""
    found = request.config.stash[COLLECTED]
    items = [item for item in found if item.path.is_relative_to(TESTS)]
    there = set(TESTS.rglob("test_*.py"))
    is_whole = {item.path for item in items} == there and not request.config.option.keyword
    return read_marks(items) if is_whole else collect_marks()


@pytest.fixture(scope="module")
def features() -> dict[str, Feature]:
    return {feature.id: feature for feature in load_features()}


@pytest.fixture(scope="module")
def rows(features: dict[str, Feature], pytestconfig: pytest.Config) -> list[Row]:
    """The rows of the page, unless it is only about to be written by this run."""
    if pytestconfig.getoption("parity", default=None):
        pytest.skip("The page is written at the end of this run.")
    return parse_page(PAGE.read_text(encoding="utf-8"), features)


def test_each_row_of_the_checklist_is_listed_once() -> None:
    ids = [feature.id for feature in load_features()]
    assert len(ids) == len(set(ids)) == 776


def test_marks_name_rows_of_the_checklist(
    marks: dict[str, set[str]], features: dict[str, Feature]
) -> None:
    unknown = {feature: tests for feature, tests in marks.items() if feature not in features}
    assert not unknown, f"No such rows in {FOLDER.name}/features.tsv: {unknown}"


def test_reasons_are_given_only_for_rows_without_tests(
    marks: dict[str, set[str]], features: dict[str, Feature]
) -> None:
    reasons = load_reasons()
    assert set(reasons) <= set(features)
    assert not set(reasons) & set(marks), "These rows have tests; remove their reasons."
    assert all(reason.endswith(".") for reason in reasons.values())


def test_the_page_lists_exactly_the_tests_that_carry_marks(
    rows: list[Row], marks: dict[str, set[str]], features: dict[str, Feature]
) -> None:
    assert [row.feature.id for row in rows] == list(features), REMEDY
    for row in rows:
        assert set(row.tests) == marks.get(row.feature.id, set()), f"{row.feature.id}: {REMEDY}"


def test_the_page_is_what_would_be_written_of_its_rows(rows: list[Row]) -> None:
    reasons = load_reasons()
    fresh = [Row(row.feature, row.tests, reasons.get(row.feature.id)) for row in rows]
    assert PAGE.read_text(encoding="utf-8") == build_page(fresh), REMEDY
