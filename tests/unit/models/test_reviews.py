"""Webhooks with models: arguments, denials that name the field, deletions."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field

import webop
from webop.testing import AdmissionClient


class BarrelSpec(webop.Struct):
    size: int = Field(default=1, ge=0)
    hoop_count: int = 2


@webop.resource("reviews.webop.dev", "v1")
class Barrel(webop.Model):
    spec: BarrelSpec = Field(default_factory=BarrelSpec)


def build(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "reviews.webop.dev/v1",
        "kind": "Barrel",
        "metadata": {"name": "one", "namespace": "default"},
        "spec": spec,
    }


@pytest.fixture
def seen() -> list[Any]:
    """What a handler is called with."""
    seen: list[Any] = []

    @webop.on.validate(Barrel)
    async def check(spec: BarrelSpec, old: BarrelSpec | None, barrel: Barrel, **_: Any) -> None:
        seen.append((spec, old, getattr(barrel, "api_version", None)))
        if getattr(spec, "size", 0) > 9:
            raise webop.AdmissionError("too large")

    return seen


async def test_webhooks_get_models(seen: list[Any]) -> None:
    async with AdmissionClient() as client:
        first = Barrel(metadata=webop.Metadata(name="one", namespace="default"))
        assert (await client.create(first)).allowed
        assert (await client.update(build(size=1), build(size=2, hoopCount=3))).allowed
        assert not (await client.create(build(size=10))).allowed
    assert seen[:2] == [
        (BarrelSpec(), None, "reviews.webop.dev/v1"),
        (BarrelSpec(size=2, hoop_count=3), BarrelSpec(size=1), "reviews.webop.dev/v1"),
    ]


async def test_an_object_that_does_not_fit_is_denied_with_the_field(seen: list[Any]) -> None:
    async with AdmissionClient() as client:
        result = await client.create(build(size=-1, hoopCount="many"))
    assert not result.allowed
    assert result.code == 422
    assert "spec.size" in result.message
    assert "spec.hoopCount" in result.message
    assert not seen


async def test_an_object_that_does_not_fit_can_be_deleted(seen: list[Any]) -> None:
    async with AdmissionClient() as client:
        assert (await client.delete(build(size="large"))).allowed
    assert seen[0][0] == {"size": "large"}


async def test_an_older_state_that_does_not_fit_does_not_prevent_its_correction(
    seen: list[Any],
) -> None:
    async with AdmissionClient() as client:
        assert (await client.update(build(size="large"), build(size=1))).allowed
    assert seen[0][:2] == (BarrelSpec(size=1), {"size": "large"})
