"""Each rule of the simulation complains of what it is for, and of nothing beside it.

That no rule complains of what is right, or excused, is shown by the histories themselves.
"""

from pathlib import Path

import pytest

from tests.simulation.scenes import Scene, read_stories
from webop.testing.apiserver import Json

_STORIES = [*read_stories(Path(__file__).with_name("stories.yaml").read_text())]


@pytest.mark.parametrize(("name", "plan", "lines"), _STORIES, ids=[each[0] for each in _STORIES])
def test_a_rule_is_broken_by_its_fault(name: str, plan: Json, lines: list[str]) -> None:
    complaints = Scene(plan).play(lines)
    rules = {complaint.partition(":")[0] for complaint in complaints}
    assert rules == {name.partition(",")[0]}, complaints
