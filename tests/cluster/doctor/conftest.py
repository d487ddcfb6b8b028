"""Operators to be examined: each with a kind, a namespace and configurations of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.doctor_runs import Doctor
from tests.kit.operators import Kind, define_kinds
from tests.kit.processes import Workshop
from webop.testing import LocalCluster


@pytest.fixture(scope="session")
def kinds(webop_cluster: LocalCluster, worker_id: str) -> Iterator[Kind]:
    groups = (f"patient{number}.{worker_id}.webop.dev" for number in range(32))
    made = (Kind(group, "patients", "Patient") for group in groups)
    return define_kinds(webop_cluster, made)


@pytest.fixture
def doctor(workshop: Workshop, webop_cluster: LocalCluster) -> Doctor:
    return Doctor(workshop, webop_cluster)
