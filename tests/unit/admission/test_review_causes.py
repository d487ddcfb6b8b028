"""What a refusal says besides its message: reasons and fields; and what goes to the audit log."""

from __future__ import annotations

import enum
import logging
from typing import Any, Literal

import pydantic
import pydantic_core
import pytest

import webop
from tests.kit.reviews import build_object, send_review, serve
from tests.kit.rows import rows

Json = dict[str, Any]


class Item(pydantic.BaseModel, extra="forbid"):
    size: int
    colour: Literal["red", "green"] = "red"


class Level(enum.Enum):
    HIGH = "high"


class Widget(pydantic.BaseModel, extra="forbid"):
    items: list[Item]
    labels: dict[str, int] = {}
    level: Level = Level.HIGH
    name: str = pydantic.Field(default="", max_length=5)


def validate(
    document: object, model: type[pydantic.BaseModel] = Widget
) -> pydantic.ValidationError:
    """Return the error of a document."""
    with pytest.raises(pydantic.ValidationError) as caught:
        model.model_validate(document)
    return caught.value


async def refuse(error: Exception, **request: Any) -> Json:
    """Return the response to a review whose handler raises the error."""

    @webop.on.validate("kopfexamples")
    def check(**_: Any) -> None:
        raise error

    return await send_review(**request)


@pytest.mark.feature("ADM-03")
async def test_a_refusal_has_a_reason_and_causes() -> None:
    causes: list[Any] = [
        webop.AdmissionCause("spec.a", "must be even"),
        {"field": "spec.b[0]", "message": "is needed", "reason": "FieldValueRequired"},
    ]
    error = webop.AdmissionError("Meh!", code=422, reason="Invalid", causes=causes)
    response = await refuse(error)
    assert response["status"] == {
        "message": "Meh!",
        "code": 422,
        "reason": "Invalid",
        "details": {
            "name": "kex",
            "group": "kopf.dev",
            "kind": "KopfExample",
            "causes": [
                {"reason": "FieldValueInvalid", "message": "must be even", "field": "spec.a"},
                {"reason": "FieldValueRequired", "message": "is needed", "field": "spec.b[0]"},
            ],
        },
    }


@pytest.mark.parametrize(
    ("metadata", "names"),
    [({"name": "kex"}, {"name": "kex"}), ({"generateName": "kex-"}, {"name": "kex-"}), (None, {})],
)
async def test_the_details_name_the_object_as_far_as_it_has_a_name(
    metadata: Json | None, names: Json
) -> None:
    new = {"spec": {}} if metadata is None else {**build_object(), "metadata": metadata}
    error = webop.AdmissionError("Meh!", causes=[webop.AdmissionCause("spec", "no")])
    details = (await refuse(error, name=None, new=new))["status"]["details"]
    del details["causes"]
    assert details == {"group": "kopf.dev", "kind": "KopfExample", **names}


@pytest.mark.parametrize(
    ("causes", "message"),
    [
        ([5], "causes= must be webop.AdmissionCause, or mappings .* got 5"),
        ("spec", "causes= must be webop.AdmissionCause"),
        ([{"field": "spec"}], "message"),
        ([{"field": "spec", "message": "no", "path": "x"}], "path"),
    ],
)
def test_causes_of_wrong_types_are_told(causes: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        webop.AdmissionError("Meh!", causes=causes)


WRONG: Json = {
    "items": [{"size": "big"}, {"size": [1], "colour": "blue", "extra": 1}, {}],
    "labels": {"example.com/a": "x"},
    "level": "low",
    "name": "too long",
    "other": 1,
}
CAUSES = {
    "spec.items[0].size": "FieldValueInvalid",
    "spec.items[1].size": "FieldValueTypeInvalid",
    "spec.items[1].colour": "FieldValueNotSupported",
    "spec.items[1].extra": "FieldValueForbidden",
    "spec.items[2].size": "FieldValueRequired",
    "spec.labels[example.com/a]": "FieldValueInvalid",
    "spec.level": "FieldValueNotSupported",
    "spec.name": "FieldValueInvalid",
    "spec.other": "FieldValueForbidden",
}


@pytest.mark.feature("ADM-04", "ADM-05")
async def test_a_validation_error_is_a_refusal_with_a_cause_for_each_field(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @webop.on.validate("kopfexamples")
    def check(spec: webop.Spec, **_: Any) -> None:
        pydantic.create_model("KopfExample", spec=Widget).model_validate({"spec": dict(spec)})

    with caplog.at_level(logging.DEBUG):
        response = await send_review(build_object(WRONG))
    status = response["status"]
    assert (response["allowed"], status["code"], status["reason"]) == (False, 422, "Invalid")
    causes = status["details"]["causes"]
    assert {cause["field"]: cause["reason"] for cause in causes} == CAUSES
    assert causes[4]["message"] == "Field required"
    parts = [f"{cause['field']}: {cause['message']}" for cause in causes]
    assert status["message"] == "; ".join(parts)
    lines = [record for record in caplog.records if "Denied" in record.message]
    assert [(line.levelno, line.exc_info) for line in lines] == [(logging.INFO, None)]
    assert "Traceback" not in caplog.text


@pytest.mark.feature("ADM-06")
async def test_a_validation_error_ranks_with_the_refusals() -> None:
    errors: list[Exception] = [
        webop.PermanentError("permanent"),
        validate(WRONG),
        webop.AdmissionError("the later refusal"),
    ]
    for number, error in enumerate(errors):

        @webop.on.validate("kopfexamples", id=f"check{number}")
        def check(error: Exception = error, **_: Any) -> None:
            raise error

    response = await send_review()
    assert response["status"]["message"].startswith("items[0].size: ")


def test_errors_of_the_whole_have_the_path_itself() -> None:
    class Range(pydantic.BaseModel):
        low: int
        high: int

        @pydantic.model_validator(mode="after")
        def check(self) -> Range:
            if self.low > self.high:
                raise ValueError("low is above high")
            return self

    exc = validate({"low": 2, "high": 1}, Range)
    (cause,) = webop.AdmissionError.from_validation(exc, path="spec").causes
    assert cause == webop.AdmissionCause("spec", "low is above high")
    error = webop.AdmissionError.from_validation(exc)
    assert (error.causes[0].field, str(error)) == ("", "low is above high")


def test_very_many_errors_are_counted() -> None:
    exc = validate({"items": [{}] * 500})
    error = webop.AdmissionError.from_validation(exc, path="spec")
    assert len(error.causes) == 100
    assert len(str(error)) < 1200
    shown = str(error).count("Field required")
    assert str(error).endswith(f"; and {500 - shown} more.")


def test_very_long_names_and_messages_are_cut() -> None:
    exc = validate({"items": [], "x" * 1_000_000: 1})
    error = webop.AdmissionError.from_validation(exc, path="spec")
    assert len(error.causes[0].field) < 300
    assert len(str(error)) < 1200


def test_names_of_fields_cannot_forge_lines_of_the_log() -> None:
    exc = validate({"items": [], "x\nERROR\x9b": 1})
    error = webop.AdmissionError.from_validation(exc)
    assert str(error) == "[x ERROR ]: Extra inputs are not permitted"
    assert error.causes[0].field == "[x ERROR ]"


@rows(
    ("location", "path", "expected"),
    [
        ((), "", ""),
        ((), "spec", "spec"),
        (("spec", "a"), "", "spec.a"),
        (("items", 0, "size"), "spec", "spec.items[0].size"),
        ((0, 1), "spec.matrix", "spec.matrix[0][1]"),
        ((0,), "", "[0]"),
        (("labels", "example.com/a"), "metadata", "metadata.labels[example.com/a]"),
        (("data", "a-b"), "", "data.a-b"),
        (("data", ""), "", "data[]"),
        (("data", "1"), "", "data[1]"),
        (("ports", "x", "[key]"), "", "ports.x"),
    ],
)
def test_paths_are_written_as_the_api_server_does(location: Any, path: str, expected: str) -> None:
    line: Any = {"type": "missing", "loc": location, "input": {}}
    exc = pydantic_core.ValidationError.from_exception_data("Widget", [line])
    (cause,) = webop.AdmissionError.from_validation(exc, path=path).causes
    assert cause.field == expected


@pytest.mark.parametrize("is_refused", [True, False])
async def test_handlers_can_leave_notes_for_the_audit_log(is_refused: bool) -> None:
    @webop.on.validate("kopfexamples", id="check")
    async def check(audit_annotations: dict[str, str], **_: Any) -> None:
        audit_annotations["checked"] = "yes"

    @webop.on.mutate("kopfexamples", id="fill")
    def fill(audit_annotations: dict[str, str], **_: Any) -> None:
        audit_annotations["filled.in_by-1"] = "ä"
        if is_refused:
            raise webop.AdmissionError("Meh!")

    async with serve() as site:
        response = await site.review()
        alone = await site.review(path="/check")
    assert response["allowed"] is not is_refused
    assert response["auditAnnotations"] == {"checked": "yes", "filled.in_by-1": "ä"}
    assert alone["auditAnnotations"] == {"checked": "yes"}


async def test_notes_that_the_api_server_would_not_take_are_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @webop.on.validate("kopfexamples")
    def check(audit_annotations: dict[Any, Any], **_: Any) -> None:
        wrong = ("a/b", "a b", "", "-a", "a-", "x" * 64, "ä", None, ("a",), "a\n")
        audit_annotations.update(dict.fromkeys(wrong, "x"))
        audit_annotations.update({5: 6, "b": None, "c": "\udc80"})

    response = await send_review()
    assert response["auditAnnotations"] == {"5": "6", "b": "None", "c": "?", "None": "x"}
    lines = [
        record.getMessage()
        for record in caplog.records
        if "Dropped the audit" in record.getMessage()
    ]
    assert len(lines) == 9
    assert "Dropped the audit annotation 'a/b': a key must have at most 63" in lines[0]
    assert not any("\n" in line for line in lines)
