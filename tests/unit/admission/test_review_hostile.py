"""Reviews that no API server would send: what is refused, and what does no harm."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest

import webop
from tests.kit.causes import UnreadableError
from tests.kit.reviews import build_object, build_review, read_patch, send_review, serve
from webop.admission.response import build_response
from webop.admission.review import parse_review
from webop.errors import AdmissionError, ReviewError

Json = dict[str, Any]

STRINGS = "must be an object of strings"
CONTROL = "must not have control characters"
LONG = "has more than 1024 characters"
_ABSENT: Any = object()


def replace(path: str, value: Any) -> Json:
    """Return a review with another value at a path, such as "request.object.metadata"."""
    review = copy.deepcopy(build_review(build_object({"x": 1}, labels={}, uid="u")))
    review["request"]["oldObject"] = copy.deepcopy(review["request"]["object"])
    *parents, last = path.split(".")
    target = review
    for parent in parents:
        target = target[parent]
    if value is _ABSENT:
        target.pop(last, None)
    else:
        target[last] = value
    return review


REFUSED = [
    ("request", _ABSENT, "is missing"),
    ("request", None, "is missing"),
    ("request", [], "must be an object"),
    ("request.uid", _ABSENT, "is missing"),
    ("request.uid", None, "is missing"),
    ("request.uid", "", "is empty"),
    ("request.uid", 1, "must be a string"),
    ("request.resource", _ABSENT, "is missing"),
    ("request.resource", "pods", "must be an object"),
    ("request.resource.version", _ABSENT, "is missing"),
    ("request.resource.resource", _ABSENT, "is missing"),
    ("request.resource.resource", "", "is empty"),
    ("request.resource.group", 1, "must be a string"),
    ("request.resource.version", 1, "must be a string"),
    ("request.kind", _ABSENT, "is missing"),
    ("request.kind.kind", None, "is missing"),
    ("request.operation", _ABSENT, "is missing"),
    ("request.operation", "create", "must be one of CREATE, UPDATE, DELETE, CONNECT, not 'create'"),
    ("request.operation", "*", "must be one of CREATE, UPDATE, DELETE, CONNECT, not '*'"),
    ("request.operation", ["CREATE"], "must be a string"),
    ("request.userInfo", _ABSENT, "is missing"),
    ("request.userInfo", "admin", "must be an object"),
    ("request.namespace", {}, "must be a string"),
    ("request.name", 1, "must be a string"),
    ("request.subResource", 1, "must be a string"),
    ("request.dryRun", "true", "must be true or false"),
    ("request.dryRun", 1, "must be true or false"),
    ("request.object", [], "must be an object"),
    ("request.object", "text", "must be an object"),
    ("request.oldObject", 0, "must be an object"),
    ("request.object.metadata.labels", [], "must be an object"),
    ("request.object.metadata.uid", [], "must be a string"),
    ("request.object.metadata.name", {}, "must be a string"),
    ("request.oldObject.metadata.namespace", 5, "must be a string"),
    ("request.oldObject.metadata.annotations", "x", "must be an object"),
    ("request.options", [], "must be an object"),
    ("request.options", "x", "must be an object"),
    ("request.requestKind", "Pod", "must be an object"),
    ("request.requestResource", 1, "must be an object"),
    ("request.requestSubResource", {}, "must be a string"),
    ("request.userInfo.username", 1, "must be a string"),
    ("request.userInfo.username", "a\nb", CONTROL),
    ("request.userInfo.uid", [], "must be a string"),
    ("request.userInfo.groups", "admins", "must be a list"),
    ("request.userInfo.groups", {}, "must be a list"),
    ("request.userInfo.extra", [], "must be an object"),
    ("request.uid", "a\nb", CONTROL),
    ("request.name", "a\x00b", CONTROL),
    ("request.name", "a\x9bb", CONTROL),
    ("request.namespace", "\x7f", CONTROL),
    ("request.subResource", "\r", CONTROL),
    ("request.operation", "CREATE\n", CONTROL),
    ("request.kind.kind", "Pod\n", CONTROL),
    ("request.resource.group", "a\nb", CONTROL),
    ("request.resource.version", "\t", CONTROL),
    ("request.resource.resource", "\r", CONTROL),
    ("request.uid", "x" * 1025, LONG),
    ("request.resource.resource", "x" * 1025, LONG),
    ("request.kind.kind", "x" * 1025, LONG),
    ("request.userInfo.username", "x" * 1_000_000, LONG),
    ("request.object.metadata.uid", "x" * 1025, LONG),
    ("request.object.kind", 1, "must be a string"),
    ("request.object.apiVersion", {}, "must be a string"),
    ("request.object.metadata", 0, "must be an object"),
    ("request.object.metadata", False, "must be an object"),
    ("request.object.metadata.name", "a\nb", CONTROL),
    ("request.object.metadata.namespace", "a\x1bb", CONTROL),
    ("request.object.metadata.generateName", ["a"], "must be a string"),
    ("request.object.metadata.labels", {"a": 1}, STRINGS),
    ("request.object.metadata.labels", {"a": "b", "c": None}, STRINGS),
    ("request.object.metadata.labels", {"a": {}}, STRINGS),
    ("request.object.metadata.annotations", {"a": True}, STRINGS),
    ("request.oldObject.metadata.labels", {"a": []}, STRINGS),
    ("request.oldObject.metadata.annotations", {"a": 1.5}, STRINGS),
]


@pytest.mark.feature("ADM-31", "ADM-24", "D-68")
@pytest.mark.parametrize(("path", "value", "message"), REFUSED)
def test_what_breaks_the_rules_is_refused_with_the_name_of_the_field(
    path: str, value: Any, message: str
) -> None:
    with pytest.raises(ReviewError) as caught:
        parse_review(replace(path, value))
    assert str(caught.value) == f"{path} {message}."
    assert caught.value.status == 400


def test_an_update_needs_an_object() -> None:
    review = build_review(operation="UPDATE", object=None)
    with pytest.raises(ReviewError, match=r"^UPDATE needs request\.object or request\.oldObject"):
        parse_review(review)


@pytest.mark.parametrize("payload", [[], "AdmissionReview", None])
def test_what_is_not_an_object_is_refused(payload: Any) -> None:
    with pytest.raises(ReviewError, match="An AdmissionReview must be an object, not"):
        parse_review(payload)


TAKEN = [
    *(("request.dryRun", _ABSENT), ("request.oldObject", _ABSENT), ("request.resource.group", "")),
    *(("request.name", absence) for absence in (_ABSENT, None, "")),
    *(("request.options", absence) for absence in (_ABSENT, None)),
    ("request.options", {"kind": 5, "x": [[]]}),
    ("request.requestKind", None),
    ("request.requestKind", {"kind": 5}),
    ("request.requestResource", {}),
    ("request.requestSubResource", ""),
    ("request.userInfo", {}),
    ("request.userInfo.groups", None),
    ("request.userInfo.groups", [1, None, {}]),
    ("request.userInfo.username", "zoë\u200b\u00a0"),
    ("request.name", "é\u2028\u202e\ufeff"),
    ("request.name", "a/../b"),
    ("request.name", "x" * 1024),
    ("request.unknown", [[[]]]),
    ("request.object.metadata", None),
    ("request.object.metadata", {}),
    ("request.object.metadata.labels", None),
    ("request.object.metadata.ownerReferences", 5),
    ("request.object.metadata.finalizers", "x"),
    ("request.object.metadata.deletionTimestamp", {}),
    ("request.object.metadata.creationTimestamp", []),
    ("request.object.metadata.managedFields", "x"),
    ("request.object.spec", None),
    ("request.object.spec", 5),
    ("request.object.spec", "text"),
    ("request.object.spec", [1, 2]),
    ("request.object.spec", {"x": {"y": [{}]}}),
    ("request.object.spec", {"": {"": 1}, "a.b/c": 2}),
    ("request.object.spec", {"number": 10**300}),
    ("request.object.spec", {"number": -(2**63) - 1}),
    ("request.object.spec", {"number": 1e308}),
    ("request.object.status", "ready"),
    ("request.oldObject.spec", []),
    ("request.oldObject", {"spec": {"x": "y" * 1_000_000}}),
    ("request.oldObject", {"metadata": {}}),
]


@pytest.mark.feature("ADM-31", "ADM-19")
@pytest.mark.parametrize(("path", "value"), TAKEN)
async def test_what_the_api_server_checks_does_no_harm_here(path: str, value: Any) -> None:
    @webop.on.validate(
        "kopfexamples",
        id="check",
        labels={"absent": webop.ABSENT, "y": lambda value, **_: value is None},
        annotations={"absent": webop.ABSENT},
        when=lambda meta, labels, **_: not labels.get("a") and meta.get("name") != "no",
    )
    @webop.on.validate("kopfexamples", id="of-field", field="spec.x.y")
    def check(logger: webop.Logger, **_: Any) -> None:
        logger.info("Called.")

    @webop.on.mutate("kopfexamples", id="fill", operations=["DELETE"])
    @webop.on.mutate("kopfexamples", id="fill")
    def fill(patch: webop.Patch, **_: Any) -> None:
        patch.spec["filled"] = True
        patch.status["filled"] = None
        patch.meta.labels["filled"] = "yes"
        patch.meta.annotations["a.b/filled"] = None

    review = replace(path, value)
    async with serve() as site:
        for operation in ("CREATE", "UPDATE", "DELETE", "CONNECT"):
            review["request"]["operation"] = operation
            answer = await site.post(review)
            assert answer.status_code == 200, answer.text
            response = answer.json()["response"]
            assert response["allowed"] is True
            assert "filled" in str(read_patch(response))


def test_a_response_can_be_put_into_json_whatever_is_in_it() -> None:
    review = parse_review(build_review())
    causes: Any = [webop.AdmissionCause("\ud800", "\udfff")]
    response = build_response(
        review,
        warnings=["\ud800\n"],
        audit_annotations={"a": "\ud800"},
        error=AdmissionError("\ud800", reason="\udfff", causes=causes),
    )
    assert orjson.dumps(response)


@pytest.mark.parametrize("where", ["warnings", "values", "keys", "reason", "nothing"])
async def test_a_denial_is_not_lost_because_other_values_have_no_text(where: str) -> None:
    unreadable: Any = UnreadableError(5)

    @webop.on.validate("kopfexamples")
    def check(warnings: list[str], audit_annotations: dict[Any, Any], **_: Any) -> None:
        warnings.extend([unreadable] if where == "warnings" else [])
        audit_annotations.update({"key": unreadable} if where == "values" else {})
        audit_annotations.update({unreadable: "value"} if where == "keys" else {})
        raise AdmissionError("No.", 422, reason=unreadable if where == "reason" else None)

    response = await send_review()
    assert (response["allowed"], response["status"]["message"]) == (False, "No.")
