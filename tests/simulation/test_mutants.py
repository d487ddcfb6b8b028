"""The mended bugs that can be put back fit the source as it is now."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.simulation.mutants import MUTANTS, Mutant, read

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mended_bug_can_be_put_back_and_there_is_a_test_that_finds_it(mutant: Mutant) -> None:
    source = mutant.path.read_text()
    assert ast.dump(ast.parse(mutant.change(source))) != ast.dump(ast.parse(source))
    path, _, name = mutant.test.partition("::")
    assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("webop.nosuch", "there is no module webop.nosuch"),
        ("webop.errors", "This is 0 times in webop.errors, not once: nosuch text"),
    ],
)
def test_a_bug_that_cannot_be_put_back_says_why(module: str, message: str) -> None:
    assert Mutant("", "", module, "nosuch text", "", "").find_mistake() == message


def test_a_mutant_with_wrong_keys_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"^mine in mutants\.toml must have the keys story, needs,"
    ):
        read('[mine]\nstory = "a bug"')
