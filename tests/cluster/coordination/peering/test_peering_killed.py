"""Operators in processes that are killed and started again."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.kit.operators import Objects
from tests.kit.peering_objects import PeeringObject
from tests.kit.processes import HANDLERS, Workshop

if TYPE_CHECKING:
    from webop.controlplane.cluster import LocalCluster

_HANDLERS = f"""{HANDLERS}
@webop.on.startup()
def live_long(settings, **_):
    settings.peering.lifetime = 600
"""


@pytest.mark.feature("PEE-14", "PEE-18")
async def test_a_container_that_restarts_goes_on_with_the_record_of_its_killed_predecessor(
    webop_cluster: LocalCluster, workshop: Workshop, shared: PeeringObject, objects: Objects
) -> None:
    args = (workshop.write(_HANDLERS), "-n", str(shared.namespace), "--peering=default")
    variables = {"KUBECONFIG": str(webop_cluster.kubeconfig), "POD_ID": "operator-0"}
    await shared.create()
    async with workshop.start(*args, **variables) as command:
        await objects.create("first")
        await command.wait_for("created first")
        (killed,) = await shared.read()
        await command.stop(signal.SIGKILL)
    assert list(await shared.read()) == [killed]
    async with workshop.start(*args, **variables) as command:
        await objects.create("second")
        await command.wait_for("created second")
        assert list(await shared.read()) == [killed]
        assert "Pausing" not in command.output
        assert await command.stop() == 0
    assert await shared.read() == {}
