"""Models and objects: what is written of a model, what fits, and which arguments are models."""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

import pydantic
import pytest
from pydantic import Field

import webop
from tests.kit.rows import rows
from webop.models.arguments import parse_arguments
from webop.models.crd_comparison import compare
from webop.models.crds import build_crds
from webop.models.fitting import dump, dump_set, dump_status, fit
from webop.models.schema import build_schema


class PumpSpec(webop.Struct):
    engine: str = "diesel"
    names: set[str] = Field(default_factory=set)
    limits: dict[str, int] = Field(default_factory=dict)


class PumpStatus(webop.Struct):
    host: str | None = None
    conditions: webop.Conditions = Field(default_factory=webop.Conditions)


@webop.resource("fitting.webop.dev", "v1")
class Pump(webop.Model):
    spec: PumpSpec = Field(default_factory=PumpSpec)
    status: PumpStatus | None = None


def test_a_returned_status_says_only_what_was_set_or_changed() -> None:
    assert dump_status(PumpStatus(host="a")) == {"host": "a"}
    assert dump_status(PumpStatus(host=None)) == {"host": None}  # set: it removes the field
    status = PumpStatus()
    status.conditions.set("Ready", True, "Built")
    assert [*dump_status(status)] == ["conditions"]
    assert dump_status(Pump(status=PumpStatus(host="b"))) == {"host": "b"}


def test_what_was_changed_in_place_is_applied() -> None:
    pump = Pump(metadata=webop.Metadata(name="one"))
    assert dump_set(pump) == {
        "apiVersion": "fitting.webop.dev/v1",
        "kind": "Pump",
        "metadata": {"name": "one"},
    }
    pump.metadata.labels["a"] = "b"
    pump.spec.engine = "steam"
    pump.spec.limits["x"] = 1
    said = dump_set(pump)
    assert said["metadata"] == {"name": "one", "labels": {"a": "b"}}
    assert said["spec"] == {"engine": "steam", "limits": {"x": 1}}


def test_sets_are_written_in_one_order() -> None:
    names = {f"n{number}" for number in range(50)}
    assert dump(PumpSpec(names=names))["names"] == sorted(names)


class Sized(pydantic.BaseModel):
    size: int
    db_password: str = ""
    pin: pydantic.SecretStr = pydantic.Field(default="", min_length=5)  # type: ignore[assignment]
    color: Literal["red", "blue"] = "red"


@rows(
    ("content", "end"),
    [
        ({"size": "9"}, "valid integer, got '9'"),
        ({"size": "x" * 9_000_000}, f"valid integer, got '{'x' * 48}…"),
        ({"size": 1, "db_password": 5}, "valid string"),
        ({"size": 1, "pin": "4711"}, "after validation, not 4"),
        ({"size": 1, "color": "rot"}, "'red' or 'blue', got 'rot'"),
        ({}, "Field required"),
    ],
)
def test_a_misfit_names_the_value_but_no_secret(content: Any, end: str) -> None:
    with pytest.raises(webop.MisfitError) as caught:
        fit(Sized, content, "spec")
    assert str(caught.value).endswith(end)


@rows("failure", [KeyError("k"), AttributeError("a"), ZeroDivisionError("z")])
def test_a_validator_that_fails_in_any_way_is_a_misfit(failure: Exception) -> None:
    def check(value: int) -> int:
        raise failure

    checked = pydantic.create_model("Checked", size=Annotated[int, pydantic.AfterValidator(check)])
    text = f"spec: a validator failed: {type(failure).__name__}"
    with pytest.raises(webop.MisfitError, match=text):
        fit(checked, {"size": 1}, "spec")


async def handle(
    spec: PumpSpec,
    status: PumpStatus | None,
    old: Annotated[PumpSpec, "before"],
    pump: Annotated[Pump, "all"],
    **_: Any,
) -> None: ...


class Callable:
    async def __call__(self, spec: PumpSpec, **_: Any) -> None: ...


def test_annotations_are_found_through_partials_objects_and_annotated() -> None:
    names = [(one.name, one.source, one.part) for one in parse_arguments(handle, Pump)]
    assert names == [
        *(("spec", "spec", ""), ("status", "status", "")),
        *(("old", "old", "spec"), ("pump", "body", "")),
    ]
    partial = functools.partial(handle, extra=1)
    assert parse_arguments(partial, Pump) == parse_arguments(handle, Pump)
    assert [one.name for one in parse_arguments(Callable(), Pump)] == ["spec"]


@rows("model", [None, Pump])
def test_a_former_state_of_an_unknown_class_is_an_error_at_import(model: Any) -> None:
    class Other(pydantic.BaseModel): ...

    async def update(old: Other, **_: Any) -> None: ...

    update.__annotations__["old"] = Other
    text = r"old: Other of .*update\(\) is neither the model of the kind"
    with pytest.raises(TypeError, match=text):
        parse_arguments(update, model)
    assert len(parse_arguments(update, model, has_field=True)) == 1


@rows("model", [None, Pump])
@rows(
    ("name", "advice"),
    [("spec", "PumpSpec"), ("status", "PumpStatus"), ("meta", "webop.models.Metadata")],
)
def test_the_class_of_the_kind_as_spec_is_an_error_at_import(
    model: Any, name: str, advice: str
) -> None:
    async def build(spec: Any, status: Any, meta: Any, **_: Any) -> None: ...

    build.__annotations__[name] = Pump
    text = rf"{name}: Pump of .*build\(\) is the class of the whole object. Write {name}: {advice};"
    with pytest.raises(TypeError, match=text):
        parse_arguments(build, model)


def test_a_rule_of_one_class_of_a_union_is_not_for_the_others() -> None:
    @webop.CEL("self.size > 1")
    class Disk(pydantic.BaseModel):
        kind: Literal["disk"]
        size: int

    class Net(pydantic.BaseModel):
        kind: Literal["net"]
        path: str | None = None

    class Holder(pydantic.BaseModel):
        store: Annotated[Disk | Net, Field(discriminator="kind")]

    rules = build_schema(Holder)["properties"]["store"]["x-kubernetes-validations"]
    assert [rule["rule"] for rule in rules] == [
        '!(self.kind in ["disk"]) || (self.size > 1)',
        '!(self.kind in ["disk"]) || (has(self.size))',
    ]


def test_what_clients_lose_is_named_beside_the_schema() -> None:
    (present,), (wanted,) = build_crds([Pump]), build_crds([Pump])
    version = present["spec"]["versions"][0]
    version["subresources"] = {"scale": {}}
    version["selectableFields"] = [{"jsonPath": ".spec.engine"}]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    later = wanted["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["size"] = {"type": "integer", "minimum": 0}
    spec["map"] = {"type": "object", "additionalProperties": {"type": "integer"}}
    later["properties"]["size"] = {"type": "integer", "minimum": 0, "exclusiveMinimum": True}
    later["properties"]["map"] = {"type": "object", "properties": {}}
    version["schema"]["openAPIV3Schema"]["x-kubernetes-preserve-unknown-fields"] = True
    assert compare(present, wanted) == [
        "v1: the subresource scale goes: clients that use it fail",
        "v1: the subresource status comes: a status that is written with the object is ignored",
        "v1: .spec.engine can no longer be selected: clients that do so fail",
        "v1: spec.size: minimum becomes 0",
        "v1: spec.map[key] is removed: stored values are dropped",
        "v1: the object no longer keeps unknown fields: stored values are dropped",
    ]
