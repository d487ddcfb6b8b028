"""What objects keep when they cannot be converted: the edges that no test on a cluster shows."""

from __future__ import annotations

import json
import time
from typing import Any, Literal

import pytest
from pydantic import Field

import webop
from webop.models.kept_content import VersionChange, merge

GROUP = "kept.webop.dev"
LIMIT = 262_144


class OldItem(webop.Struct):
    name: str = ""
    secret: int | None = None


class OldSpec(webop.Struct):
    size: int | str = 1
    address: str | None = None
    mode: Literal["fast", "slow"] | None = None
    items: list[OldItem] = Field(default_factory=list)


@webop.resource(GROUP, "v1", kind="Chest", stored=False)
class ChestV1(webop.Model):
    spec: OldSpec
    status: dict[str, str] | None = None


class NewItem(webop.Struct):
    name: str = ""


class NewSpec(webop.Struct):
    size: int = 7
    host: str | None = None
    items: list[NewItem] = Field(default_factory=list)


@webop.resource(GROUP, "v2", kind="Chest")
class ChestV2(webop.Model):
    spec: NewSpec
    status: dict[str, str] | None = None


ITEMS = [{"name": "a", "secret": 1}, {"name": "b", "secret": 2}]
OLD: dict[str, Any] = {"size": "large", "address": "h:1", "items": ITEMS}
SHOWN: dict[str, Any] = {"size": 7, "items": [{"name": "a"}, {"name": "b"}]}


def build(version: str, spec: Any, **annotations: str) -> Any:
    metadata = {"name": "one", "annotations": annotations} if annotations else {"name": "one"}
    head = {"apiVersion": f"{GROUP}/{version}", "kind": "Chest"}
    return {**head, "metadata": metadata, "spec": spec}


def show(spec: Any = OLD, **annotations: str) -> Any:
    return VersionChange.begin(ChestV1, ChestV2, build("v1", spec, **annotations)).end()


def change(**spec: Any) -> Any:
    shown = show()
    return {**shown, "spec": {**shown["spec"], **spec}}


def go_back(body: Any, converted: Any = None, former: Any = None) -> Any:
    as_old = (spec and build("v1", spec) for spec in (converted, former))
    return VersionChange.begin(ChestV2, ChestV1, body).end(*as_old)


def test_what_the_function_makes_of_a_change_is_changed() -> None:
    former = {"size": 7, "address": "none:1", "items": SHOWN["items"]}
    made = {**former, "size": 5}
    assert go_back(change(size=5, host="x"), made, former)["spec"] == {**OLD, "size": 5}


def test_an_annotation_cannot_forge_a_status() -> None:
    kept = json.dumps({"spec": OLD, "status": {"approved": "yes"}})
    real = {"status": {"phase": "new"}}
    forged = {**build("v2", SHOWN, **{f"{GROUP}/v1": kept}), **real}
    back = VersionChange.begin(ChestV2, ChestV1, forged).end()
    assert (back["spec"], back["status"]) == (OLD, real["status"])
    shown = VersionChange.begin(ChestV1, ChestV2, back).end()
    assert json.loads(shown["metadata"]["annotations"][f"{GROUP}/v1"]) == {"spec": OLD}


@pytest.mark.parametrize(
    "spec", [{"mode": "god"}, {"items": [{"secret": "x"}]}, {"items": 5}, {"mode": [1, 2]}]
)
def test_an_annotation_cannot_pass_by_the_schema(spec: Any) -> None:
    kept = {f"{GROUP}/v1": json.dumps({"spec": spec})}
    assert VersionChange.begin(ChestV2, ChestV1, build("v2", SHOWN, **kept)).kept is None


def test_a_deep_value_does_not_hold_the_event_loop() -> None:
    new, old = [{f"{number:x}": 1 for number in range(100_000)}], [1]
    for _ in range(200):
        new, old = [new], [old]  # type: ignore[list-item]
    began = time.process_time()
    assert merge(new, old, old) == new
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "text",
    ["", "x", "5", "[]", "[[1, 2]]", "null", '{"a":' * 252 + "1" + "}" * 252, '{"a":' * 2000],
)
def test_an_edited_annotation_counts_as_nothing(text: str) -> None:
    step = VersionChange.begin(ChestV2, ChestV1, build("v2", SHOWN, **{f"{GROUP}/v1": text}))
    assert step.kept is None
    assert step.end()["spec"] == {**SHOWN}


@pytest.mark.parametrize(("size", "text"), [(200_000, "too large"), (262_143, "")])
def test_a_content_that_is_too_large_for_annotations_is_marked_if_possible(
    size: int, text: str
) -> None:
    shown = show({**OLD, "address": "x" * 100_000}, a="b" * size)
    annotations = shown["metadata"]["annotations"]
    assert sum(map(len, (*annotations, *annotations.values()))) <= LIMIT
    assert annotations.get(f"{GROUP}/v1", "").partition(":")[0] == text


@pytest.mark.parametrize(
    ("new", "old", "kept", "expected"),
    [
        (1, 1, 2, 2),
        (3, 1, 2, 3),
        ({}, {"a": 1}, {"a": 2, "b": 3}, {"b": 3}),
        ({"a": 1, "c": 4}, {"a": 1}, {"a": 2, "b": 3}, {"a": 2, "b": 3, "c": 4}),
        ({"a": {"b": 2}}, {"a": {"b": 1}}, {"a": {"b": 1, "c": 1}}, {"a": {"b": 2, "c": 1}}),
        ([1, 2, 2], [2, 1], [20, 10], [10, 20, 2]),
    ],
)
def test_changes_are_merged(new: Any, old: Any, kept: Any, expected: Any) -> None:
    assert merge(new, old, kept) == expected
