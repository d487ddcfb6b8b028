"""The comparison of public operators, where it decides something; and the files about them."""

from __future__ import annotations

from typing import Any

import pytest

from bench.wild.compare import Difference, explain, find_differences, normalise
from bench.wild.model import NAMES, Explanation, load

UID = "0b3d3a3e-7b0c-4f8e-9d58-0f4d4b1f2c3d"


def build(name: str = "x", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, **fields}


@pytest.mark.parametrize("name", NAMES)
def test_each_operator_is_pinned_and_has_steps(name: str) -> None:
    wild = load(name)
    assert wild.commit or "==" in wild.requirements[0]
    assert len(wild.steps) >= 4
    assert any(step.restart for step in wild.steps)


def test_what_differs_from_cluster_to_cluster_is_no_difference() -> None:
    one, other = (
        build(
            status={"since": time, "owner": uid, "at": seconds, "observedGeneration": seconds},
            spec={"clusterIP": address, "note": f'{{"of": "{uid}"}}'},
        )
        for time, uid, seconds, address in [
            ("2026-11-22T09:00:00Z", UID, 1795338000, "10.0.0.1"),
            ("2026-11-22 10:11:12.123+00:00", UID.replace("0b", "1c"), 1795338111.5, "10.0.0.2"),
        ]
    )
    assert find_differences(normalise([one]), normalise([other])) == []


def test_a_field_that_differs_is_named_even_within_a_state_in_json() -> None:
    one, other = (
        normalise([build(status={"state": f'{{"retries": {number}}}', "ready": [1, number]})])
        for number in (1, 2)
    )
    assert find_differences(one, other) == [
        Difference("Deployment.apps x: status.ready.1", 1, 2),
        Difference("Deployment.apps x: status.state.retries", 1, 2),
    ]


def test_an_object_of_one_side_only_is_a_difference() -> None:
    found = find_differences(normalise([build()]), {})
    assert [(item.place, item.webop) for item in found] == [
        ("Deployment.apps x: object", "(absent)")
    ]


def test_a_difference_is_explained_by_a_pattern_for_its_place() -> None:
    found = Difference("Deployment.apps x: status.phase", 1, 2)
    known = Explanation(differences="Deployment.apps *: status.*", because="it is so")
    assert explain(found, [known]) == "it is so"
    assert explain(found._replace(place="Deployment.apps x: spec"), [known]) is None
