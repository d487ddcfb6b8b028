"""``type X = …`` means what X means, wherever a model or a handler names it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field
from typing_extensions import TypeAliasType

import webop
from webop.models.annotations import has_conditions
from webop.models.arguments import parse_arguments
from webop.models.crds import build_crds


class Part(webop.Struct):
    weight: int = 1


# As "type Parts = list[Part]" of Python 3.12.
Parts = TypeAliasType("Parts", list[Part])
Small = TypeAliasType("Small", Annotated[int, Field(ge=0, le=5)])
Color = TypeAliasType("Color", Literal["red", "green"])
Kept = TypeAliasType("Kept", webop.Conditions)


class Status(webop.Struct):
    conditions: Kept = Field(default_factory=webop.Conditions)


class Spec(webop.Struct):
    parts: Parts = Field(default_factory=list)
    more_parts: Parts | None = None
    small: Small = 3
    color: Color = "red"
    value: pydantic.JsonValue = None  # an alias that contains itself


class PlainSpec(webop.Struct):
    parts: list[Part] = Field(default_factory=list)
    more_parts: list[Part] | None = None
    small: int = Field(default=3, ge=0, le=5)
    color: Literal["red", "green"] = "red"
    value: Any = None


SpecAlias = TypeAliasType("SpecAlias", Spec)
StatusAlias = TypeAliasType("StatusAlias", Status | None)


@webop.resource("alias.webop.dev", "v1")
class Aliased(webop.Model):
    spec: SpecAlias
    status: StatusAlias = None


@webop.resource("plain.webop.dev", "v1", kind="Aliased")
class Plain(webop.Model):
    spec: PlainSpec
    status: Status | None = None


AliasedAlias = TypeAliasType("AliasedAlias", Aliased)


def test_the_definition_is_the_same_as_without_aliases() -> None:
    aliased, plain = (build_crds([each])[0]["spec"]["versions"] for each in (Aliased, Plain))
    assert aliased == plain


def test_arguments_are_found_behind_aliases() -> None:
    def handler(
        spec: SpecAlias, status: StatusAlias, old: SpecAlias, thing: AliasedAlias, **_: Any
    ) -> None: ...

    found = {each.name: each for each in parse_arguments(handler, Aliased)}
    raw = {"spec": {"parts": [{"weight": 2}]}}
    arguments = {**raw, "body": raw, "old": raw, "status": {}}
    values = {name: each.convert(arguments) for name, each in found.items()}
    spec = Spec(parts=[Part(weight=2)])
    assert (values["spec"], values["old"], values["status"]) == (spec, spec, None)
    assert values["thing"].spec == spec


def test_conditions_are_found_behind_aliases() -> None:
    assert has_conditions(Aliased)
    assert has_conditions(Plain)
