"""Conversion by the functions of users in the fake client."""

from __future__ import annotations

import pytest

import webop
from tests.kit.versioned_shops import (
    GROUP,
    NewSpec,
    OldSpec,
    ShopAlpha,
    ShopV1,
    ShopV2,
    declare,
)
from webop.testing import FakeClient


async def test_the_fake_client_converts_by_the_functions_of_the_default_registry() -> None:
    declare()
    given = ShopV1(metadata=webop.Metadata(name="one"), spec=OldSpec(address="a:81"))
    client = FakeClient(ShopV1, given)
    shop = await client.get(ShopV2, "one", namespace="default")
    assert shop.spec == NewSpec(host="a", port=81)
    await client.patch(ShopV2, "one", {"spec": {"port": 82}}, namespace="default")
    assert [each.spec.address for each in await client.list(ShopV1)] == ["a:82"]
    alpha = client.sync.get(ShopAlpha, "one", namespace="default")
    assert alpha.spec.url == "http://a:82"


async def test_the_fake_client_keeps_what_a_function_cannot_convert(
    caplog: pytest.LogCaptureFixture,
) -> None:
    declare()
    client = FakeClient(ShopV1)
    spec = OldSpec(address="a:b")
    made = ShopV1(metadata=webop.Metadata(name="one", namespace="default"), spec=spec)
    assert (await client.create(made)).spec == spec
    assert "Cannot convert Shop one from v1 to v2" in caplog.text
    shown = await client.get(f"shops.v2.{GROUP}", "one", namespace="default")
    assert "kept.webop.dev/v1" in shown["metadata"]["annotations"]
