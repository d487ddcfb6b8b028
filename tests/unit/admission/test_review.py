"""Reviews as values: what is refused and why, what the response holds."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import orjson
import pytest

from webop.admission.response import PatchError, build_response, encode_patch, rank_errors
from webop.admission.review import Review, parse_review
from webop.errors import AdmissionError, PermanentError, ReviewError, TemporaryError
from webop.objects.body import Body

PAYLOAD: dict[str, Any] = {
    "kind": "AdmissionReview",
    "apiVersion": "admission.k8s.io/v1",
    "request": {
        "uid": "1ca13837-ad60-4c9e-abb8-86f29d6c0e84",
        "kind": {"group": "kopf.dev", "version": "v1", "kind": "KopfExample"},
        "resource": {"group": "kopf.dev", "version": "v1", "resource": "kopfexamples"},
        "subResource": "status",
        "requestKind": {"group": "kopf.dev", "version": "v1", "kind": "KopfExample"},
        "requestResource": {"group": "kopf.dev", "version": "v1", "resource": "kopfexamples"},
        "name": "kopf-example-1",
        "namespace": "default",
        "operation": "UPDATE",
        "userInfo": {"username": "admin", "uid": "admin", "groups": ["system:masters"]},
        "object": {"metadata": {"name": "kopf-example-1"}, "spec": {"field": "new"}},
        "oldObject": {"metadata": {"name": "kopf-example-1"}, "spec": {"field": "old"}},
        "dryRun": True,
    },
}

REVIEW = parse_review(PAYLOAD)


def build(**changes: Any) -> dict[str, Any]:
    """Return the payload with some fields of its request replaced; ... removes a field."""
    payload = copy.deepcopy(PAYLOAD)
    for name, value in changes.items():
        if value is ...:
            del payload["request"][name]
        else:
            payload["request"][name] = value
    return payload


@pytest.mark.feature("ADM-22", "ADM-23", "ADM-24")
def test_a_review_has_all_that_handlers_are_told() -> None:
    review = parse_review(PAYLOAD)
    assert review._asdict() == {
        "api_version": "admission.k8s.io/v1",
        "uid": "1ca13837-ad60-4c9e-abb8-86f29d6c0e84",
        "group": "kopf.dev",
        "version": "v1",
        "plural": "kopfexamples",
        "kind": "KopfExample",
        "namespace": "default",
        "name": "kopf-example-1",
        "operation": "UPDATE",
        "subresource": "status",
        "object": PAYLOAD["request"]["object"],
        "old_object": PAYLOAD["request"]["oldObject"],
        "userinfo": PAYLOAD["request"]["userInfo"],
        "dryrun": True,
    }
    assert review.object is PAYLOAD["request"]["object"]  # nothing is copied


@pytest.mark.feature("ADM-22", "ADM-23")
@pytest.mark.parametrize("absence", [None, ...])
def test_optional_fields_can_be_absent_or_null(absence: Any) -> None:
    names = ("subResource", "name", "namespace", "dryRun", "oldObject")
    review = parse_review(build(**dict.fromkeys(names, absence)))
    assert (review.subresource, review.name, review.namespace) == (None, None, None)
    assert review.dryrun is False
    assert review.old_object is None


def test_empty_names_are_no_names() -> None:
    review = parse_review(build(subResource="", name="", namespace=""))
    assert (review.subresource, review.name, review.namespace) == (None, None, None)


def test_the_core_group_is_empty() -> None:
    for resource in ({"version": "v1", "resource": "pods"}, {"group": "", **_PODS}):
        assert parse_review(build(resource=resource)).group == ""


_PODS = {"version": "v1", "resource": "pods"}


@pytest.mark.parametrize(
    ("operation", "new", "old", "expected"),
    [
        ("CREATE", {"a": 1}, None, {"a": 1}),
        ("UPDATE", {"a": 2}, {"a": 1}, {"a": 2}),
        ("DELETE", None, {"a": 1}, {"a": 1}),
        ("CONNECT", {"a": 1}, None, {"a": 1}),
        ("CONNECT", None, None, {}),
    ],
)
def test_the_body_is_the_new_object_or_the_old_one_if_it_is_to_go(
    operation: str, new: Any, old: Any, expected: Any
) -> None:
    review = parse_review(build(operation=operation, object=new, oldObject=old))
    assert review.body == expected


@pytest.mark.feature("ADM-31")
@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, "kind must be 'AdmissionReview', not None"),
        ({"kind": "Pod", "apiVersion": "v1"}, "kind must be 'AdmissionReview', not 'Pod'"),
        ({**PAYLOAD, "kind": 1}, "kind must be"),
        ({**PAYLOAD, "kind": ["AdmissionReview"]}, "kind must be"),
        ({**PAYLOAD, "apiVersion": "admission.k8s.io/v2"}, "apiVersion must be .* not '.*/v2'"),
        ({**PAYLOAD, "apiVersion": None}, "apiVersion must be"),
        ({**PAYLOAD, "apiVersion": {"a": 1}}, "apiVersion must be"),
        ({"kind": "AdmissionReview"}, "apiVersion must be .*, not None"),
    ],
)
def test_another_document_is_refused(payload: dict[str, Any], message: str) -> None:
    with pytest.raises(ReviewError, match=message) as caught:
        parse_review(payload)
    assert caught.value.status == 400


def test_a_refusal_does_not_repeat_all_that_was_sent() -> None:
    for payload in ({**PAYLOAD, "kind": "x" * 1_000_000}, build(operation="x" * 1_000_000)):
        with pytest.raises(ReviewError) as caught:
            parse_review(payload)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("version", ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"])
@pytest.mark.feature("ADM-29")
def test_the_response_echoes_the_version_and_the_uid(version: str) -> None:
    review = parse_review({**PAYLOAD, "apiVersion": version})
    assert build_response(review) == {
        "apiVersion": version,
        "kind": "AdmissionReview",
        "response": {"uid": PAYLOAD["request"]["uid"], "allowed": True},
    }


def respond(review: Review = REVIEW, **options: Any) -> dict[str, Any]:
    """Build a response, send it through JSON, return what is in it."""
    response: dict[str, Any] = orjson.loads(orjson.dumps(build_response(review, **options)))
    return response["response"]  # type: ignore[no-any-return]


@pytest.mark.feature("ADM-07")
def test_warnings_are_strings() -> None:
    class Text:
        def __str__(self) -> str:
            return "text"

    assert respond(warnings=["one", Text(), 3])["warnings"] == ["one", "text", "3"]
    assert "warnings" not in respond(warnings=[])


@pytest.mark.feature("ADM-07")
@pytest.mark.parametrize(
    ("warning", "expected"),
    [("a\nb", "a b"), ("a\r\n\tb\n", "a b"), ("\x00a\x9f", "a"), ("ä → ö", "ä → ö"), ("", "")],
)
def test_warnings_are_single_lines_as_api_servers_drop_others(warning: str, expected: str) -> None:
    assert respond(warnings=[warning])["warnings"] == [expected]


@pytest.mark.feature("ADM-09")
def test_a_patch_is_a_json_patch_in_base64() -> None:
    ops: list[dict[str, Any]] = [
        {"op": "add", "path": "/spec/numbers", "value": [1, 2, 3]},
        {"op": "remove", "path": "/spec/é"},
    ]
    response = respond(patch=encode_patch(ops))
    assert response["patchType"] == "JSONPatch"
    text = base64.b64decode(response["patch"])
    assert json.loads(text) == ops
    assert b" " not in text
    assert response["allowed"] is True


@pytest.mark.feature("ADM-09")
def test_without_changes_there_is_no_patch() -> None:
    assert not {"patch", "patchType"} & set(respond(patch=encode_patch([])))


@pytest.mark.feature("ADM-09")
def test_a_patch_can_hold_views_of_the_object() -> None:
    spec = Body({"spec": {"a": {"b": [1]}}}).spec
    patch = encode_patch([{"op": "add", "path": "/x", "value": spec}])
    assert json.loads(base64.b64decode(patch or ""))[0]["value"] == {"a": {"b": [1]}}


@pytest.mark.parametrize("value", [{1, 2}, object(), {1: 2}, "\udc80"])
def test_a_patch_that_json_cannot_hold_is_a_refusal(value: object) -> None:
    with pytest.raises(PatchError, match="a value that JSON cannot represent"):
        encode_patch([{"op": "add", "path": "/x", "value": value}])


@pytest.mark.feature("ADM-02", "ADM-03", "ADM-04", "ADM-05")
@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (AdmissionError("Meh!", code=499), "Meh!", 499),
        (AdmissionError("Meh!"), "Meh!", 500),
        (AdmissionError("Meh!", code=None), "Meh!", 500),
        (AdmissionError(code=400), "AdmissionError()", 400),
        (AdmissionError("Meh!", code=200), "Meh!", 500),
        (AdmissionError("Meh!", code=1000), "Meh!", 500),
        (PermanentError("permanent"), "permanent", 500),
        (TemporaryError("temporary"), "temporary", 500),
        (ValueError("any"), "ValueError: any", 500),
        (ValueError(), "ValueError()", 500),
        (KeyError("key"), "KeyError: 'key'", 500),
        (ValueError("\udc80"), "ValueError: ?", 500),
    ],
)
def test_an_error_is_a_refusal_with_its_message_and_code(
    error: Exception, message: str, code: int
) -> None:
    response = respond(error=error)
    assert response["allowed"] is False
    assert response["status"] == {"message": message, "code": code}


@pytest.mark.feature("ADM-07", "ADM-09", "D-63")
def test_a_refusal_has_warnings_but_no_patch() -> None:
    ops = [{"op": "add", "path": "/x", "value": 1}]
    response = respond(error=ValueError("any"), warnings=["w"], patch=encode_patch(ops))
    assert response["warnings"] == ["w"]
    assert not {"patch", "patchType"} & set(response)


_ADMISSION, _PERMANENT = AdmissionError("a"), PermanentError("p")
_TEMPORARY, _ANY, _ANOTHER = TemporaryError("t"), ValueError("v"), KeyError("k")


@pytest.mark.feature("ADM-06")
@pytest.mark.parametrize(
    ("errors", "chosen"),
    [
        ([], None),
        ([_ANY, _TEMPORARY, _PERMANENT, _ADMISSION], _ADMISSION),
        ([_ANY, _TEMPORARY, _PERMANENT], _PERMANENT),
        ([_ANY, _TEMPORARY], _TEMPORARY),
        ([_ANY, _ANOTHER], _ANY),
        ([_ANOTHER, _ANY], _ANOTHER),
    ],
)
def test_of_several_errors_the_most_telling_one_is_reported(
    errors: list[Exception], chosen: Exception | None
) -> None:
    assert rank_errors(errors) is chosen
