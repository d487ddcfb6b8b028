"""Values of each type: what the API server stores, the class can read."""

from __future__ import annotations

import itertools

import pydantic
import pytest

import webop
from tools.values.__main__ import compare_values
from tools.values.value_types import SUBJECTS, compose
from webop.client.api import Client
from webop.testing import LocalCluster


@pytest.mark.journey
async def test_what_the_api_server_stores_the_class_can_read(client: Client) -> None:
    composed = dict(itertools.islice(compose(1), 20))
    for verdict in await compare_values(client, SUBJECTS | composed, 80, seed=1):
        assert not verdict.is_wrong, str(verdict)
        assert verdict.accepted, str(verdict)
        assert not ("Enum | None" in verdict.name and verdict.only_class), str(verdict)


def test_a_model_with_a_computed_field_can_be_applied(webop_cluster: LocalCluster) -> None:
    class PlotSpec(webop.Struct):
        width: int = 2

        @pydantic.computed_field
        def area(self) -> int:
            return self.width**2

    @webop.resource("values.webop.dev", "v1", scope="Cluster")
    class Plot(webop.Model):
        spec: PlotSpec = PlotSpec()

    webop_cluster.apply(Plot)
    plot = Plot(metadata=webop.Metadata(name="one"), spec=PlotSpec(width=3))
    (stored,) = webop_cluster.apply(plot)
    assert stored["spec"] == {"width": 3}
