"""Reviews that no API server would send: what is refused, and what does no harm."""

from __future__ import annotations

import copy
from typing import Any

import httpx
import pytest

import webop
from tests.kit.causes import UnreadableError
from tests.kit.reviews import build_object, build_review, read_patch, send_review, serve

Json = dict[str, Any]

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


ONE_OF = "must be one of CREATE, UPDATE, DELETE, CONNECT, not"
NAMES = [
    *("uid", "name", "namespace", "subResource", "operation", "kind.kind", "userInfo.username"),
    *(f"resource.{name}" for name in ("group", "version", "resource")),
    *(f"object.metadata.{name}" for name in ("name", "namespace", "uid")),
]
TEXTS = [
    *(*NAMES, "userInfo.uid", "oldObject.metadata.namespace"),
    *("object.kind", "object.apiVersion", "object.metadata.generateName"),
]
OBJECTS = [
    *("resource", "userInfo", "userInfo.extra", "object", "oldObject", "object.metadata"),
    "oldObject.metadata.annotations",
]
NEEDED = [
    *("uid", "resource", "resource.version", "resource.resource", "kind", "kind.kind"),
    *("operation", "userInfo"),
]
DRY: list[Any] = ["true", 1]
ODD_GROUPS: list[Any] = ["admins", {}]
NO_STRINGS: list[Any] = [{"a": 1}, {"a": "b", "c": None}, {"a": {}}, {"a": True}, {"a": []}]

REFUSED: list[tuple[str, Any, str]] = [
    ("kind", _ABSENT, "must be 'AdmissionReview', not None"),
    ("kind", ["AdmissionReview"], "must be 'AdmissionReview', not ['AdmissionReview']"),
    ("request", [], "must be an object"),
    ("request.operation", "create", f"{ONE_OF} 'create'"),
    ("request.operation", "*", f"{ONE_OF} '*'"),
    *(("request.dryRun", value, "must be true or false") for value in DRY),
    *(("request.userInfo.groups", value, "must be a list") for value in ODD_GROUPS),
    *((f"request{name}", _ABSENT, "is missing") for name in ("", *(f".{n}" for n in NEEDED))),
    *((f"request.{name}", None, "is missing") for name in ("uid", "kind.kind")),
    *((f"request.{name}", "", "is empty") for name in ("uid", "resource.resource")),
    *((f"request.{name}", [], "must be a string") for name in TEXTS),
    *((f"request.{name}", 0, "must be an object") for name in OBJECTS),
    *((f"request.{name}", "a\nb", "must not have control characters") for name in NAMES),
    *(
        ("request.name", text, "must not have control characters")
        for text in ("a\x00b", "a\x9bb", "\x7f", "\r", "\t", "CREATE\n", "a\x1bb")
    ),
    *((f"request.{name}", "x" * 1025, "has more than 1024 characters") for name in NAMES),
    ("request.userInfo.username", "x" * 1_000_000, "has more than 1024 characters"),
    *(
        (f"request.{state}.metadata.{name}", value, "must be an object of strings")
        for state in ("object", "oldObject")
        for name in ("labels", "annotations")
        for value in NO_STRINGS
    ),
]


def read_refusal(answer: httpx.Response) -> tuple[int, str]:
    """Return the code and the message: of a denial if the review has a uid, of a Status if not."""
    body = answer.json()
    if answer.status_code == 200:
        assert body["response"]["allowed"] is False
        body = body["response"]["status"]
    return body["code"], body["message"]


@pytest.mark.feature("ADM-31", "ADM-24", "D-68")
async def test_what_breaks_the_rules_is_refused_with_the_name_of_the_field(
    subtests: pytest.Subtests,
) -> None:
    webop.on.validate("kopfexamples")(lambda **_: None)
    async with serve() as site:
        for path, value, message in REFUSED:
            with subtests.test(path=path, value=ascii(value)[:50]):
                answer = await site.post(replace(path, value))
                assert read_refusal(answer) == (400, f"{path} {message}.")


@pytest.mark.feature("ADM-31")
async def test_another_document_is_refused_with_few_words(subtests: pytest.Subtests) -> None:
    long = "x" * 1_000_000
    rows: list[tuple[Any, str]] = [
        (build_review(operation="UPDATE", object=None), "UPDATE needs request.object or request."),
        ([], "The review must be a JSON object, not list"),
        (None, "The review must be a JSON object, not NoneType"),
        (replace("apiVersion", "admission.k8s.io/v2"), "apiVersion must be "),
        (replace("apiVersion", {"a": 1}), "apiVersion must be "),
        (replace("apiVersion", None), "apiVersion must be "),
        (replace("kind", long), "kind must be 'AdmissionReview', not 'xxx"),
        (replace("request.operation", long), "request.operation "),
    ]
    webop.on.validate("kopfexamples")(lambda **_: None)
    async with serve() as site:
        for review, message in rows:
            with subtests.test(message):
                code, text = read_refusal(await site.post(review))
                assert (code, text.startswith(message)) == (400, True), text[:500]
                assert len(text) < 500


NESTED: Json = {"x": {"y": [{}]}}
NUMBERS = (10**300, -(2**63) - 1, 1e308)
TAKEN: list[tuple[str, Any]] = [
    *((f"request.{name}", _ABSENT) for name in ("name", "dryRun", "oldObject")),
    *((f"request.{name}", None) for name in ("name", "userInfo.groups")),
    *((f"request.{name}", "no handler sees it") for name in ("options", "requestKind")),
    *((f"request.{name}", "") for name in ("name", "resource.group")),
    *((f"request.{name}", {}) for name in ("userInfo", "object.metadata")),
    *(("request.name", name) for name in ("é\u2028\u202e\ufeff", "a/../b", "x" * 1024)),
    ("request.userInfo.groups", [1, None, {}]),
    ("request.userInfo.username", "zoë\u200b\u00a0"),
    ("request.unknown", [[[]]]),
    *((f"request.object.metadata{name}", None) for name in ("", ".labels")),
    ("request.object.metadata.ownerReferences", 5),
    *((f"request.object.metadata.{name}", "x") for name in ("finalizers", "managedFields")),
    *(
        (f"request.object.metadata.{name}", [])
        for name in ("deletionTimestamp", "creationTimestamp")
    ),
    *(("request.object.spec", spec) for spec in (None, 5, "text", [1, 2], NESTED)),
    ("request.object.spec", {"": {"": 1}, "a.b/c": 2}),
    *(("request.object.spec", {"number": number}) for number in NUMBERS),
    ("request.object.status", "ready"),
    ("request.oldObject.spec", []),
    ("request.oldObject", {"spec": {"x": "y" * 1_000_000}}),
    ("request.oldObject", {"metadata": {}}),
]


@pytest.mark.feature("ADM-31", "ADM-19")
async def test_what_the_api_server_checks_does_no_harm_here(subtests: pytest.Subtests) -> None:
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

    async with serve() as site:
        for path, value in TAKEN:
            review = replace(path, value)
            for operation in ("CREATE", "UPDATE", "DELETE", "CONNECT"):
                review["request"]["operation"] = operation
                with subtests.test(path=path, value=ascii(value)[:50], operation=operation):
                    answer = await site.post(review)
                    assert answer.status_code == 200, answer.text
                    response = answer.json()["response"]
                    assert response["allowed"] is True
                    assert "filled" in str(read_patch(response))


@pytest.mark.parametrize("where", ["warnings", "values", "keys", "reason", "nothing"])
@pytest.mark.parametrize("unreadable", [UnreadableError(5), "\ud800"])
async def test_a_denial_is_not_lost_because_other_values_have_no_text(
    where: str, unreadable: Any
) -> None:
    causes: Any = [webop.AdmissionCause("\ud800", "\udfff")]

    @webop.on.validate("kopfexamples")
    def check(warnings: list[str], audit_annotations: dict[Any, Any], **_: Any) -> None:
        warnings.extend([unreadable] if where == "warnings" else [])
        audit_annotations.update({"key": unreadable} if where == "values" else {})
        audit_annotations.update({unreadable: "value"} if where == "keys" else {})
        reason = unreadable if where == "reason" else None
        raise webop.AdmissionError("No.", 422, reason=reason, causes=causes)

    response = await send_review()
    assert (response["allowed"], response["status"]["message"]) == (False, "No.")
