"""The API server in memory answers as the real one does."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from tests.kit.processes import run_module
from tools.simulation.conformance import builtin_schemas, conversions
from tools.simulation.conformance.comparison import Conformance
from tools.simulation.conformance.definitions import tell
from tools.simulation.conformance.sides import RealSide, SimulatedSide
from tools.simulation.conformance.strictness import compare

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

# A fixed one, so that whoever breaks something sees it at once; others by the command line.
_SEED = int(os.environ.get("WEBOP_TEST_LIKENESS_SEED", "20"))
_REQUESTS = int(os.environ.get("WEBOP_TEST_LIKENESS_REQUESTS", "400"))


def test_random_requests_are_answered_by_both_servers_alike(webop_cluster: LocalCluster) -> None:
    with contextlib.closing(Conformance(webop_cluster, _SEED)) as conformance:
        differences = conformance.run(_REQUESTS)
    assert not differences, "\n".join(map(str, differences))
    assert conformance.watches > 5
    assert conformance.events > 20


def test_both_servers_ask_the_same_of_webhooks_and_do_what_they_say(
    webop_cluster: LocalCluster,
) -> None:
    with contextlib.closing(Conformance(webop_cluster, _SEED, with_hooks=True)) as conformance:
        differences = conformance.run(_REQUESTS // 3)
    assert not differences, "\n".join(map(str, differences))
    assert conformance.reviews > 40


def test_invalid_requests_are_refused_by_both_servers(webop_cluster: LocalCluster) -> None:
    outcome = compare(webop_cluster, _SEED, _REQUESTS)
    stories = "\n".join(story for name, story in outcome.stories if name == "false green")
    assert not stories
    assert outcome.sent.total() == _REQUESTS


def test_the_schemas_of_built_in_kinds_are_those_of_the_real_server(
    webop_cluster: LocalCluster,
) -> None:
    with contextlib.closing(RealSide(webop_cluster)) as real:
        assert builtin_schemas.build(real) == builtin_schemas.FILE.read_bytes()


def test_definitions_come_change_and_go_alike_on_both_servers(webop_cluster: LocalCluster) -> None:
    # The real server takes its time: 2 s until it creates objects, 5 s until a definition is gone.
    with contextlib.closing(RealSide(webop_cluster)) as real:
        assert not tell(real, SimulatedSide(_SEED))


def test_objects_are_converted_by_both_servers_alike(webop_cluster: LocalCluster) -> None:
    differences = conversions.tell(webop_cluster)
    assert not differences, "\n".join(map(str, differences))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--requests", "0"], "--requests must be above 0, got 0"),
        (["--cluster", "nosuch"], "There is no cluster 'nosuch'. Start it: "),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_compared(
    arguments: list[str], message: str
) -> None:
    done = run_module("tools.simulation.conformance", *arguments)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
