"""Bugs that only some histories show are found, and shown again by the printed line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import webop.testing
from tests.unit.testing.simulated import operators
from tests.unit.testing.simulated.operators import Thing, build_thing, get_minute

Test = Callable[[Any], None]


def expect_the_config(cluster: webop.testing.SimulatedCluster) -> None:
    cluster.create(build_thing())
    cluster.settle()
    cluster.advance(minutes=10)
    assert cluster.list("configmaps", namespace="default")


def expect_one_config(cluster: webop.testing.SimulatedCluster) -> None:
    expect_the_config(cluster)
    cluster.settle()
    assert len(cluster.list("configmaps", namespace="default")) == 1


def expect_the_full_hour(cluster: webop.testing.SimulatedCluster) -> None:
    cluster.create(build_thing())
    cluster.advance(days=1, minutes=5)
    thing = cluster.get(Thing, "one", namespace="default")
    assert thing.status is not None
    assert get_minute(thing.status["at"]) < 2


def expect_an_end(cluster: webop.testing.SimulatedCluster) -> None:
    cluster.create(build_thing())
    cluster.settle(within=60)


@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (operators.lose_orders_at_a_kill, expect_the_config),
        (operators.create_a_second_one, expect_one_config),
        (operators.drift, expect_the_full_hour),
        (operators.never_settle, expect_an_end),
    ],
)
def test_a_planted_bug_is_found_within_200_seeds_and_the_line_shows_it_again(
    plant: Callable[[], None], test: Test, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = webop.testing.simulated(plant, given=[Thing], seeds=200)(test)
    with pytest.raises(AssertionError) as found:
        simulated()
    (note,) = found.value.__notes__
    match = re.search(r"WEBOP_SEED=(\d+) pytest '[^']+'", note)
    assert match, note
    monkeypatch.setenv("WEBOP_SEED", match[1])
    with pytest.raises(AssertionError) as again:
        simulated()
    (whole,) = again.value.__notes__
    assert whole.splitlines()[-20:] == note.splitlines()[-20:]
