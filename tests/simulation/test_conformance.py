"""The API server in memory answers as the real one does."""

from __future__ import annotations

import contextlib
import gzip
import os
from typing import TYPE_CHECKING

import pytest

from tools.simulation.conformance import builtin_schemas, comparison, stories, strictness
from tools.simulation.conformance.sides import RealSide

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

# A fixed one, so that whoever breaks something sees it at once; others by the command line.
_SEED = int(os.environ.get("WEBOP_TEST_LIKENESS_SEED", "20"))
_REQUESTS = int(os.environ.get("WEBOP_TEST_LIKENESS_REQUESTS", "400"))


def test_random_requests_are_answered_by_both_servers_alike(webop_cluster: LocalCluster) -> None:
    result = comparison.compare(webop_cluster, _SEED, _REQUESTS)
    assert not result.differences, "\n".join(map(str, result.differences))
    assert result.watches > 5
    assert result.events > 20


@pytest.mark.journey
def test_invalid_requests_are_refused_by_both_servers(webop_cluster: LocalCluster) -> None:
    outcome = strictness.compare(webop_cluster, _SEED, _REQUESTS)
    stories = "\n".join(story for name, story in outcome.stories if name == "false green")
    assert not stories
    assert outcome.sent.total() == _REQUESTS


def test_the_schemas_of_built_in_kinds_are_those_of_the_real_server(
    webop_cluster: LocalCluster,
) -> None:
    with contextlib.closing(RealSide(webop_cluster)) as real:
        built, stored = builtin_schemas.build(real), builtin_schemas.FILE.read_bytes()
    assert gzip.decompress(built) == gzip.decompress(stored)


@pytest.mark.journey
def test_definitions_come_change_and_go_alike_on_both_servers(webop_cluster: LocalCluster) -> None:
    # The real server takes its time: 2 s until it creates objects, 5 s until a definition is gone.
    assert not stories.compare_definitions(webop_cluster)


@pytest.mark.journey
def test_objects_are_converted_by_both_servers_alike(webop_cluster: LocalCluster) -> None:
    differences = stories.compare_conversions(webop_cluster)
    assert not differences, "\n".join(map(str, differences))
