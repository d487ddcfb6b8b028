"""The comparison of public operators, where it decides something; and the files about them."""

from __future__ import annotations

from typing import Any

import pytest

from bench.wild.compare import Difference, find_differences, normalise
from bench.wild.model import NAMES, load

UID = "0b3d3a3e-7b0c-4f8e-9d58-0f4d4b1f2c3d"


def build(name: str = "x", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, **fields}


@pytest.mark.parametrize("name", NAMES)
def test_each_operator_is_pinned_and_has_steps(name: str) -> None:
    wild = load(name)
    assert wild.commit or "==" in wild.requirements[0]
    assert len(wild.steps) >= 4
    assert any(step.restart for step in wild.steps)


def test_a_field_that_differs_is_named_even_within_a_state_in_json() -> None:
    one, other = (
        normalise([build(status={"state": f'{{"retries": {number}}}', "ready": [1, number]})])
        for number in (1, 2)
    )
    assert find_differences(one, other) == [
        Difference("Deployment.apps x: status.ready.1", 1, 2),
        Difference("Deployment.apps x: status.state.retries", 1, 2),
    ]
