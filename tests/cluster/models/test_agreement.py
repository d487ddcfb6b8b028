"""Random models: pydantic and the API server accept and refuse the same objects."""

from __future__ import annotations

import pytest

from tools.values.agreement import compare_many
from webop.client.api import Client


@pytest.mark.timeout(300)
async def test_pydantic_and_the_api_server_agree_on_random_objects(
    client: Client, webop_namespace: str
) -> None:
    report = await compare_many(client, webop_namespace, range(20, 32), 40)
    assert not report.differences, "\n".join(report.differences)
    assert report.accepted > 80
    assert report.refused > 80
