"""Operators to be examined: each with a kind, a namespace and configurations of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.admission.managing import KINDS, Site
from tests.commands import Workshop
from tests.doctor.consulting import Doctor
from tests.operating import Kind, Objects, connect
from webop.client.api import Client
from webop.errors import APINotFoundError

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster


@pytest.fixture(scope="session")
def patients(local_cluster: LocalCluster) -> Iterator[Kind]:
    """Kinds for the tests, made all at once: the API server takes 2 s to serve new ones."""
    made = [Kind(f"patient{number}.webop.dev", "patients", "Patient") for number in range(18)]

    async def define() -> None:
        async with connect(local_cluster) as client:
            for kind in made:
                await kind.define(client)

    asyncio.run(define())
    return iter(made)


@pytest.fixture
async def site(
    local_cluster: LocalCluster, client: Client, local_namespace: str, patients: Iterator[Kind]
) -> AsyncIterator[Site]:
    """What an operator has to itself."""
    kind = next(patients)
    name = f"auto.{kind.group}"
    yield Site(local_cluster, client, Objects(client, kind, local_namespace), name)
    for resource in KINDS.values():
        with contextlib.suppress(APINotFoundError):
            await client.delete(resource, None, name)


@pytest.fixture
def doctor(workshop: Workshop, local_cluster: LocalCluster) -> Doctor:
    """The command, as the administrator of the cluster."""
    return Doctor(workshop, local_cluster)
