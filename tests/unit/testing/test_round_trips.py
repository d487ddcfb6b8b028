"""Round trips of objects through the versions of their kind."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import Field

import webop
import webop.testing
from tests.kit.versioned_shops import ShopAlpha, ShopV1, ShopV2, declare
from webop.testing.object_strategies import generate


class V1Spec(webop.Struct):
    size: int = Field(ge=0, le=10)
    color: str | None = None


@webop.resource("trips.webop.dev", "v1", kind="Crate", stored=False)
class CrateV1(webop.Model):
    spec: V1Spec


class V2Spec(webop.Struct):
    length: int = Field(ge=0, le=10)
    color: str | None = None


@webop.resource("trips.webop.dev", "v2", kind="Crate")
class CrateV2(webop.Model):
    spec: V2Spec


def up(old: CrateV1) -> CrateV2:
    spec = V2Spec(length=old.spec.size, color=old.spec.color)
    return CrateV2(metadata=old.metadata, spec=spec)


async def down(new: CrateV2) -> CrateV1:
    return CrateV1(spec=V1Spec(size=new.spec.length, color=new.spec.color))


async def test_conversions_that_lose_nothing_pass_also_in_async_tests() -> None:
    webop.on.convert(CrateV1, to=CrateV2)(up)
    webop.on.convert(CrateV2, to=CrateV1)(down)
    webop.testing.check_round_trips(CrateV1, CrateV2, examples=20)


def test_a_lost_field_is_named_with_the_smallest_object() -> None:
    webop.on.convert(CrateV1, to=CrateV2)(up)

    @webop.on.convert(CrateV2, to=CrateV1)
    def forget(new: CrateV2) -> CrateV1:
        return CrateV1(metadata=new.metadata, spec=V1Spec(size=new.spec.length))

    text = '(?s)v1 → v2 → v1 changes the object:\n  spec.color: "" became null\n.*"name": "one"'
    with pytest.raises(AssertionError, match=text):
        webop.testing.check_round_trips(CrateV1, CrateV2)


def test_a_function_that_fails_is_named() -> None:
    webop.on.convert(CrateV2, to=CrateV1)(down)

    @webop.on.convert(CrateV1, to=CrateV2)
    def extend(old: CrateV1) -> CrateV2:
        return CrateV2(metadata=old.metadata, spec=V2Spec(length=11 + old.spec.size))

    with pytest.raises(AssertionError, match=r"(?s)extend\(\): .*less than or equal to 10"):
        webop.testing.check_round_trips(CrateV1, CrateV2)


def test_all_versions_can_be_checked_at_once() -> None:
    """Those of the kit lose something: v1alpha1 has less."""
    declare()
    with pytest.raises(AssertionError, match="v2 → v1alpha1 → v2 changes the object"):
        webop.testing.check_round_trips(ShopV2, ShopV1, ShopAlpha)


def test_versions_without_converters_are_an_error() -> None:
    with pytest.raises(
        webop.ConfigurationError, match=r"no converters of crates\.trips\.webop\.dev"
    ):
        webop.testing.check_round_trips(CrateV1, CrateV2)
    webop.on.convert(CrateV1, to=CrateV2)(up)
    text = r"from v2 to v1: decorate a function with @webop.on.convert\(CrateV2, to=CrateV1\)"
    with pytest.raises(webop.ConfigurationError, match=text):
        webop.testing.check_round_trips(CrateV1, CrateV2)
    with pytest.raises(webop.ConfigurationError, match="two or more"):
        webop.testing.check_round_trips(CrateV1)


class Git(webop.Struct):
    url: str


class Image(webop.Struct):
    name: str = "busybox"


class Source(webop.OneOf):
    git: Git | None = None
    image: Image | None = None


class S3(webop.Struct):
    kind: Literal["s3"]
    bucket: str


class Disk(webop.Struct):
    kind: Literal["disk"]
    path: str | None = None


class Port(webop.Struct):
    name: str
    port: int = Field(default=80, gt=0, lt=65536)


class EverySpec(webop.Struct):
    source: Source | None = None
    store: Annotated[S3 | Disk, Field(discriminator="kind")] | None = None
    ports: Annotated[list[Port], webop.ListKeys("name")] = Field(default_factory=list)
    names: Annotated[set[str], Field(max_length=2)] = Field(default_factory=set)
    code: Annotated[str, Field(pattern="^[a-z]{2}$")] | None = None
    even: Annotated[int, Field(multiple_of=2, ge=1, lt=9)] | None = None
    ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    moment: dt.datetime | None = None
    ip: ipaddress.IPv4Address | None = None
    percent: int | str | None = None
    free: Any = None
    more: dict[str, Any] = Field(default_factory=dict)
    limits: Annotated[dict[str, int], Field(max_length=2)] = Field(default_factory=dict)


@webop.resource("trips.webop.dev", "v1", kind="Everything", scope="Cluster")
class Everything(webop.Model):
    spec: EverySpec


def test_objects_with_fields_of_all_types_are_made() -> None:
    seen: set[str] = set()

    @settings(
        max_examples=150, derandomize=True, deadline=None, suppress_health_check=[*HealthCheck]
    )
    @given(generate(Everything))
    def look(body: dict[str, Any]) -> None:
        assert "namespace" not in body["metadata"]
        seen.update(name for name, value in body["spec"].items() if value)

    look()
    assert seen == {info.alias for info in EverySpec.model_fields.values()}
