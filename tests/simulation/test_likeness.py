"""The API server in memory answers as the real one does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.simulation.likeness import Likeness

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

# A fixed one, so that whoever breaks something sees it at once; others by the command line.
_SEED = int(os.environ.get("WEBOP_TEST_LIKENESS_SEED", "20"))
_REQUESTS = int(os.environ.get("WEBOP_TEST_LIKENESS_REQUESTS", "400"))


@pytest.fixture
def likeness(webop_cluster: LocalCluster) -> Iterator[Likeness]:
    made = Likeness(webop_cluster, _SEED)
    yield made
    made.close()


def test_random_requests_are_answered_by_both_servers_alike(likeness: Likeness) -> None:
    differences = likeness.run(_REQUESTS)
    assert not differences, "\n".join(str(difference) for difference in differences)
    assert likeness.watches > 5
    assert likeness.events > 20
