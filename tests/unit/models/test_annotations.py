"""Mistakes in classes are errors at import that name the class and the field."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pydantic
import pytest
from pydantic import AliasChoices, Field, create_model

import webop
from tests.kit.cli_runner import invoke
from webop.models.crds import build_crds
from webop.models.fitting import dump, fit

HEAD = """
    from __future__ import annotations
    from typing import Any, Callable, Literal
    import pydantic
    import webop

    class Thing: ...
    class A(webop.Struct):
        type: str
    class B(webop.Struct):
        type: Literal["b"]
    class Pod(pydantic.BaseModel):
        apiVersion: str = "v1"
        kind: str = "Pod"
        spec: dict[str, Any]
"""
KIND = """
    class Spec({base}):
        size: int = 1
        {field}

    @webop.resource(f"a{{abs(hash(__file__))}}.webop.dev", "v1")  # each test has another one
    class Widget(webop.Model):
        inner: list[Spec]
"""
ARGUMENT = """
    class Spec(webop.Struct):
        {field}

    @webop.on.create(Pod)
    def create(spec: Spec, **_): ...
"""


def run(path: Path, *texts: str, command: str = "crd print") -> str:
    file = path / f"broken_{path.name}.py"
    file.write_text("".join(map(textwrap.dedent, texts)))
    result = invoke(*command.split(), str(file))
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    assert "errors.pydantic.dev" not in result.output
    assert "site-packages" not in result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("thing: Thing", "Spec.thing: Unable to generate .* Use a type with a form in JSON"),
        ("thing: Nowhere", "Spec.thing: name 'Nowhere' is not defined. Define or import it"),
        ("thing = pydantic.Field(1)", "'thing' requires a type annotation"),
    ],
)
def test_an_error_of_pydantic_names_the_field_and_the_line(
    field: str, text: str, tmp_path: Path
) -> None:
    found = run(tmp_path, HEAD, KIND.format(base="webop.Struct", field=field))
    assert re.search(rf"{text}.*broken_\w+\.py, line \d+", found), found


def test_a_class_that_cannot_be_built_is_named_by_its_own_line(tmp_path: Path) -> None:
    found = run(tmp_path, HEAD, KIND.format(base="pydantic.BaseModel", field="thing: Thing"))
    assert re.search(r"Thing'.*broken_\w+\.py, line \d+: class Spec\(", found), found


@pytest.mark.parametrize("command", ["crd print", "run"])
@pytest.mark.parametrize("field", ["thing: Thing", "thing: list[Nowhere]"])
def test_an_argument_that_cannot_be_built_is_an_error_at_import(
    field: str, command: str, tmp_path: Path
) -> None:
    found = run(tmp_path, HEAD, ARGUMENT.format(field=field), command=command)
    text = r"spec: Spec of create\(\): Spec\.thing: .*broken_\w+\.py, line \d+"
    assert re.search(text, found), found


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("thing: int = 'x'", "the default does not fit the type"),
        ("thing: Callable[[], int]", "JSON has no form for this type"),
    ],
)
def test_what_no_definition_can_say_is_named_with_the_field(
    field: str, text: str, tmp_path: Path
) -> None:
    found = run(tmp_path, HEAD, KIND.format(base="webop.Struct", field=field))
    assert re.search(rf"Widget\.inner\[\]\.thing: .*{text}", found), found


def declare(inner: type[pydantic.BaseModel]) -> type[pydantic.BaseModel]:
    class Widget(webop.Model):
        inner: dict[str, inner | None]  # type: ignore[valid-type]

    Widget.model_fields["inner"].annotation = dict[str, inner | None]  # type: ignore[valid-type]
    return webop.resource("checks.webop.dev", "v1", kind=inner.__name__)(Widget)


def build(name: str, **options: Any) -> type[webop.Struct]:
    """Build a class of one field."""
    return create_model(name, __base__=webop.Struct, field=(str, Field("", **options)))


@pytest.mark.parametrize(
    ("inner", "text"),
    [
        (build("A", validation_alias="x"), "A.field is read as 'x', but written as 'field'"),
        (build("B", serialization_alias="x"), "B.field is read as 'field', but written as 'x'"),
        (build("C", exclude=True), "C.field has exclude=True"),
    ],
)
def test_a_field_that_would_be_lost_when_it_is_written_is_refused(
    inner: type[pydantic.BaseModel], text: str
) -> None:
    with pytest.raises(webop.ConfigurationError, match=re.escape(text)):
        declare(inner)


class Same(webop.Struct):
    generated_name: int
    given: int = Field(alias="gi-ven")
    both: int = Field(validation_alias="b", serialization_alias="b")
    former: int = Field(validation_alias=AliasChoices("now", "before"), serialization_alias="now")


def test_names_that_are_the_same_both_ways_are_written_as_they_were_read() -> None:
    raw: dict[str, Any] = {"inner": {"x": {"generatedName": 1, "gi-ven": 2, "b": 3, "now": 4}}}
    model = declare(Same)
    version = build_crds([model])[0]["spec"]["versions"][0]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    assert (
        properties["inner"]["additionalProperties"]["properties"].keys() == raw["inner"]["x"].keys()
    )
    assert dump(fit(model, raw))["inner"] == raw["inner"]


class Linked(webop.Struct):
    link: pydantic.AnyUrl
    links: list[pydantic.HttpUrl]


def test_an_address_without_a_path_is_written_as_it_was_read() -> None:
    raw = {"inner": {"x": {"link": "https://x.example", "links": ["https://x.example?a"]}}}
    assert dump(fit(declare(Linked), raw))["inner"] == raw["inner"]
