"""The mended bugs that can be put back fit the source as it is now."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.simulation.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mended_bug_can_be_put_back_and_there_is_a_test_that_finds_it(mutant: Mutant) -> None:
    source = (ROOT / mutant.module.replace(".", "/")).with_suffix(".py").read_text()
    assert ast.dump(ast.parse(mutant.change(source))) != ast.dump(ast.parse(source))
    path, _, name = mutant.test.partition("::")
    assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text()
