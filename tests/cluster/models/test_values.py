"""Values of each type: what the API server stores, the class can read."""

from __future__ import annotations

import itertools

from tools.values.__main__ import compare_values
from tools.values.value_types import SUBJECTS, compose
from webop.client.api import Client


async def test_what_the_api_server_stores_the_class_can_read(client: Client) -> None:
    composed = dict(itertools.islice(compose(1), 20))
    for verdict in await compare_values(client, SUBJECTS | composed, 80, seed=1):
        assert not verdict.is_wrong, str(verdict)
        assert verdict.accepted, str(verdict)
        assert not ("Enum | None" in verdict.name and verdict.only_class), str(verdict)
