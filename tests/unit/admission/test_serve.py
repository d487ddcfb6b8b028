"""Reviews posted to the app: who is called with what, and what is answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import webop
from tests.kit.operators import build_settings
from tests.kit.reviews import UID, USER, build_object, build_review, read_patch, send_review, serve

Json = dict[str, Any]
FORM = "application/x-www-form-urlencoded"


class ForgetfulDenialError(webop.AdmissionError):
    def __init__(self, number: str) -> None:  # it does not call that of the base class
        self.number = number


@dataclass
class QuotaDenialError(webop.AdmissionError):
    code: int
    quota: str  # a field without a default, after one that the base class has, too


@pytest.mark.feature("ADM-01", "ADM-02", "ADM-10", "ADM-29", "ADM-88")
@pytest.mark.parametrize("decorator", [webop.on.validate, webop.on.mutate])
async def test_a_handler_that_returns_allows_the_request(decorator: Any) -> None:
    decorator("kopfexamples", id="check")(lambda **_: None)
    async with serve() as site:
        for path in ("/", "/check", "/check/"):
            for version in ("admission.k8s.io/v1", "admission.k8s.io/v1beta1"):
                review = {**build_review(), "apiVersion": version}
                answer = await site.post(review, path, **{"Content-Type": FORM})
                assert answer.status_code == 200
                assert answer.json() == {
                    "apiVersion": version,
                    "kind": "AdmissionReview",
                    "response": {"uid": UID, "allowed": True},
                }


REFUSALS: list[tuple[BaseException, str, int]] = [
    (webop.AdmissionError("Meh!"), "Meh!", 500),
    (webop.AdmissionError("Meh!", code=422), "Meh!", 422),
    (webop.AdmissionError("Meh!", code=None), "Meh!", 500),
    (webop.AdmissionError("Meh!", code=200), "Meh!", 500),
    (webop.AdmissionError("Meh!", code=1000), "Meh!", 500),
    (webop.AdmissionError(code=400), "AdmissionError()", 400),
    (ForgetfulDenialError("Meh!"), "Meh!", 500),
    (QuotaDenialError(403, "pods"), "(403, 'pods')", 403),
    (webop.PermanentError("permanent"), "permanent", 500),
    (webop.TemporaryError("temporary"), "temporary", 500),
    (ValueError("any"), "ValueError: any", 500),
    (ValueError(), "ValueError()", 500),
    (KeyError("key"), "KeyError: 'key'", 500),
    (SystemExit(3), "RuntimeError: The handler raised SystemExit(3)", 500),
    (StopIteration(), "RuntimeError: ", 500),
]


@pytest.mark.feature("ADM-02", "ADM-03", "ADM-04", "ADM-05", "HND-04")
@pytest.mark.parametrize("decorator", [webop.on.validate, webop.on.mutate])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_that_raises_refuses_the_request(
    decorator: Any, is_async: bool, subtests: pytest.Subtests
) -> None:
    def check_at_once(**_: Any) -> None:
        raise error

    async def check(**_: Any) -> None:
        raise error

    decorator("kopfexamples", id="x")(check if is_async else check_at_once)
    async with serve() as site:
        for error, message, code in REFUSALS:
            with subtests.test(repr(error)):
                response = await site.review(path="/x")
                assert not response["allowed"]
                assert response["status"]["code"] == code
                assert response["status"]["message"].startswith(message)


async def test_a_refusal_can_be_written_whatever_its_text_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "webop.objects")  # xdist cannot carry the text

    @webop.on.validate("kopfexamples")
    def check(**_: Any) -> None:
        raise webop.AdmissionError("\udc80")

    assert (await send_review())["status"] == {"message": "?", "code": 500}


ADMISSION, PERMANENT = webop.AdmissionError("a"), webop.PermanentError("p")
TEMPORARY, ANY, ANOTHER = webop.TemporaryError("t"), ValueError("v"), KeyError("k")


@pytest.mark.feature("ADM-06")
@pytest.mark.parametrize(
    ("errors", "message"),
    [
        ([ANY, TEMPORARY, PERMANENT, ADMISSION], "a"),
        ([ANY, TEMPORARY, PERMANENT], "p"),
        ([ANY, TEMPORARY], "t"),
        ([ANY, ANOTHER], "ValueError: v"),
        ([ANOTHER, ANY], "KeyError: 'k'"),
    ],
)
async def test_of_several_errors_the_most_telling_one_is_reported(
    errors: list[Exception], message: str
) -> None:
    for number, error in enumerate(errors):

        @webop.on.validate("kopfexamples", id=f"check{number}")
        def check(error: Exception = error, **_: Any) -> None:
            raise error

    assert (await send_review())["status"]["message"] == message


async def test_a_handler_that_is_cancelled_by_its_own_doing_refuses_the_request() -> None:
    @webop.on.validate("kopfexamples")
    async def check(**_: Any) -> None:
        raise asyncio.CancelledError

    async with serve() as site:
        assert not (await site.review())["allowed"]
        assert not (await site.review())["allowed"]


async def test_handlers_of_one_id_are_all_called_and_one_refusal_is_enough() -> None:
    """As with functions of one name in several modules."""

    async def refuse(**_: Any) -> None:
        raise webop.AdmissionError("No.")

    async def allow(**_: Any) -> None: ...

    for fn in (allow, refuse, allow):
        webop.on.validate("kopfexamples", id="check")(fn)
    async with serve() as site:
        assert not (await site.review(path="/check"))["allowed"]
        assert not (await site.review(path="/"))["allowed"]


@pytest.mark.feature("ADM-07", "ADM-09", "KWA-17", "D-63")
@pytest.mark.parametrize("error", [None, webop.AdmissionError("Meh!")])
async def test_warnings_are_handed_on_with_any_verdict_but_patches_are_not(
    error: Exception | None,
) -> None:
    @webop.on.mutate("kopfexamples")
    async def check(warnings: list[Any], patch: webop.Patch, **_: Any) -> None:
        patch.spec["x"] = 1
        warnings.append("Careful.")
        warnings += ["ä → ö", "", 3, "a\nb", "a\r\n\tb\n", "\x00a\x9f"]
        if error:
            raise error

    response = await send_review()
    # API servers drop warnings of several lines.
    assert response["warnings"] == ["Careful.", "ä → ö", "", "3", "a b", "a b", "a"]
    assert response["allowed"] is (error is None)
    assert bool(read_patch(response)) is (error is None)


async def test_warnings_of_one_request_are_not_those_of_another() -> None:
    @webop.on.validate("kopfexamples")
    def check(warnings: list[str], spec: Json, **_: Any) -> None:
        warnings.append(spec["x"])

    async with serve() as site:
        responses = await asyncio.gather(
            *(site.review(build_object({"x": str(number)})) for number in range(20))
        )
    assert [response["warnings"] for response in responses] == [[str(n)] for n in range(20)]


@pytest.mark.feature("ADM-08", "ADM-09")
async def test_the_patch_of_a_handler_is_a_json_patch() -> None:
    @webop.on.mutate("kopfexamples")
    def fill_in(patch: webop.Patch, spec: webop.Spec, **_: Any) -> None:
        patch.spec["numbers"] = [1, 2]
        patch.spec["view"] = spec
        patch.spec["removed"] = None
        patch.spec["absent"] = None
        patch.spec["same"] = "same"
        patch.meta.labels["a/b~c"] = "x"
        patch.fns.append(lambda body: body["spec"].update(more=True))

    spec = {"removed": 1, "same": "same", "numbers": []}
    response = await send_review(build_object(spec))
    assert response["allowed"]
    assert sorted(read_patch(response), key=lambda operation: str(operation["path"])) == [
        {"op": "add", "path": "/metadata/labels", "value": {"a/b~c": "x"}},
        {"op": "add", "path": "/spec/more", "value": True},
        {"op": "replace", "path": "/spec/numbers", "value": [1, 2]},
        {"op": "remove", "path": "/spec/removed"},
        {"op": "add", "path": "/spec/view", "value": spec},
    ]


def put(value: Any) -> Callable[[webop.Patch], None]:
    return lambda patch: patch.update(spec={"x": value})


@pytest.mark.feature("ADM-09")
@pytest.mark.parametrize(
    ("breaker", "reason"),
    [
        (lambda patch: patch.fns.append(lambda body: body["no-such"]), "KeyError: 'no-such'"),
        (put(object()), "The patch has a value that JSON cannot represent"),
        (put({1, 2}), "The patch has a value that JSON cannot represent"),
        (put("\udc80"), "The patch has a value that JSON cannot represent"),
        (put(float("nan")), "JSON has no NaN and no infinity"),
        (put([{"a": (1.0, -float("inf"))}]), "JSON has no NaN and no infinity"),
        (put([-(2**70)]), "64-bit"),
        (lambda patch: patch.update({"spec": {5: 6}}), ""),
    ],
)
async def test_a_patch_that_cannot_be_applied_is_a_refusal_with_the_reason(
    breaker: Any, reason: str
) -> None:
    @webop.on.mutate("kopfexamples")
    def fill_in(patch: webop.Patch, **_: Any) -> None:
        breaker(patch)

    response = await send_review()
    assert not response["allowed"]
    assert "patch" not in response
    assert response["status"]["code"] == 500
    assert reason in response["status"]["message"]


@pytest.mark.feature("ADM-17")
async def test_a_handler_whose_failures_are_ignored_warns_where_it_would_refuse() -> None:
    @webop.on.mutate("kopfexamples")
    def fill_in(patch: webop.Patch, **_: Any) -> None:
        patch.spec["x"] = 1

    @webop.on.mutate("kopfexamples", id="strive", ignore_failures=True)
    def strive(patch: webop.Patch, **_: Any) -> None:
        patch.spec["x"] = 2
        patch.spec["y"] = 2
        patch.fns.append(lambda body: body["spec"].update(z=2))
        raise webop.AdmissionError("Meh!")

    async with serve() as site:
        response = await site.review(path="/")
        assert response["allowed"]
        assert response["warnings"] == ["strive: Meh!"]
        assert read_patch(response) == [{"op": "add", "path": "/spec/x", "value": 1}]
        response = await site.review(path="/strive")
        assert response["allowed"]
        assert not read_patch(response)


@pytest.mark.feature(
    "ADM-22", "ADM-23", "ADM-24", "ADM-25", "ADM-26", "ADM-89", "KWA-05", "KWA-17", "D-15"
)
async def test_handlers_get_all_that_the_manual_promises() -> None:
    seen: Json = {}

    @webop.on.validate("kopfexamples", id="check", subresource="*", param="p")
    def check(**kwargs: Any) -> None:
        seen.update(kwargs)

    new = build_object({"x": 2}, uid="u1", labels={"a": "b"})
    old = build_object({"x": 1}, uid="u1")
    review = build_review(new, old, subResource="status", dryRun=True)
    async with serve() as site:
        await site.post(review, "/check", Authorization="Basic dXNlcjpwYXNz")
    assert seen["dryrun"] is True
    assert seen["subresource"] == "status"
    assert seen["operation"] == "UPDATE"
    assert seen["userinfo"] == USER
    assert seen["warnings"] == []
    assert seen["headers"]["Authorization"] == "Basic dXNlcjpwYXNz"
    assert seen["sslpeer"] is None
    assert seen["patch"] == {}
    assert seen["param"] == "p"
    assert (seen["body"], seen["spec"], seen["status"]) == (new, {"x": 2}, {})
    assert (seen["old"], seen["new"]) == (old, new)
    assert ("change", ("spec", "x"), 1, 2) in seen["diff"]
    assert (seen["uid"], seen["name"], seen["namespace"]) == ("u1", "kex", "ns")
    assert (seen["labels"], seen["annotations"]) == ({"a": "b"}, {})
    assert seen["resource"] == webop.Resource("kopf.dev", "v1", "kopfexamples")
    assert seen["retry"] == 0
    assert {"memo", "logger", "meta", "started", "runtime"} <= seen.keys()
    assert "settings" not in seen


@pytest.mark.feature("ADM-22", "ADM-23")
async def test_handlers_of_a_creation_get_no_old_state_and_those_of_a_deletion_no_new_one() -> None:
    seen: dict[str, Any] = {}

    @webop.on.validate("kopfexamples")
    def check(operation: str, **kwargs: Any) -> None:
        seen[operation] = {
            key: kwargs[key] for key in ("old", "new", "spec", "dryrun", "subresource")
        }

    body = build_object({"x": 1})
    async with serve() as site:
        await site.review(body, subResource="", dryRun=None)
        await site.review(None, body)
        await site.review(operation="CONNECT", object=None)
    rest: Json = {"dryrun": False, "subresource": None}
    assert seen == {
        "CREATE": {"old": None, "new": body, "spec": {"x": 1}, **rest},
        "DELETE": {"old": body, "new": None, "spec": {"x": 1}, **rest},
        "CONNECT": {"old": None, "new": None, "spec": {}, **rest},
    }


async def test_for_an_object_without_metadata_the_name_is_that_of_the_request() -> None:
    seen: list[Any] = []

    @webop.on.validate("pods", operation="CONNECT", subresource="exec")
    def check(name: str, namespace: str, body: webop.Body, **_: Any) -> None:
        seen.extend([name, namespace, body["command"]])

    options = {"apiVersion": "v1", "kind": "PodExecOptions", "command": ["ls"]}
    async with serve() as site:
        await site.review(
            options,
            resource=("", "v1", "pods"),
            kind="PodExecOptions",
            operation="CONNECT",
            subResource="exec",
        )
    assert seen == ["kex", "ns", ["ls"]]


@pytest.mark.feature("ADM-27", "MEM-13")
async def test_the_memo_of_an_object_is_kept_between_reviews_but_not_from_its_creation() -> None:
    operator_memo = webop.Memo(shared="yes")
    seen: list[Any] = []

    @webop.on.validate("kopfexamples")
    def check(memo: webop.Memo, **_: Any) -> None:
        seen.append(dict(memo))
        memo.mine = True

    body = build_object(uid="u1")
    async with serve(memo=operator_memo) as site:
        await site.review(body)
        await site.review(body, body)
        await site.review(None, body)
    assert seen == [{"shared": "yes"}, {"shared": "yes"}, {"shared": "yes", "mine": True}]
    assert operator_memo == {"shared": "yes"}


async def test_memos_of_objects_that_are_only_seen_in_reviews_are_bounded() -> None:
    settings = build_settings(admission={"memo_limit": 2})
    counts: list[int] = []

    @webop.on.validate("kopfexamples")
    def check(memo: webop.Memo, **_: Any) -> None:
        memo.count = memo.get("count", 0) + 1
        counts.append(memo.count)

    async with serve(settings=settings) as site:
        for uid in ("u1", "u2", "u1", "u3", "u1", "u2"):  # u2 is the one not used for longest
            body = build_object(uid=uid)
            await site.review(body, body)
    assert counts == [1, 1, 2, 1, 3, 1]


async def test_what_a_handler_does_wrong_in_each_review_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @webop.on.validate("kopfexamples", id="check")
    def check(patch: webop.Patch, **_: Any) -> bool:
        patch.spec["checked"] = True
        return False

    @webop.on.mutate("kopfexamples", id="fill")
    def fill(patch: webop.Patch, **_: Any) -> webop.Patch:
        patch.spec["filled"] = True
        return patch

    async with serve() as site:
        for _ in range(3):
            changes = read_patch(await site.review())
            assert changes == [{"op": "add", "path": "/spec/filled", "value": True}]
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    texts = [text.removeprefix("Webhook ").partition(":")[0] for text in sorted(warnings)]
    assert texts == [
        "'check' only validates, so its patch is ignored. To change objects, use @webop.on.mutate.",
        "'check' returned a bool, which is ignored",
        "'fill' returned a Patch, which is ignored",
    ]


@pytest.mark.feature("ADM-08")
async def test_a_mutation_that_makes_another_object_of_it_is_refused_with_words() -> None:
    @webop.on.mutate("kopfexamples", id="patch")
    def fill(patch: webop.Patch, **_: Any) -> None:
        patch.metadata[field] = "other"

    def rename(body: Any) -> None:
        body["metadata"][field] = "other"

    webop.on.mutate("kopfexamples", id="function")(lambda patch, **_: patch.fns.append(rename))

    old, new = build_object(uid="u1"), build_object()
    async with serve() as site:
        for field in ("name", "namespace", "uid"):
            for states in ((new, None), (old, old)):
                for path in ("/patch", "/function"):
                    response = await site.review(*states, path=path)
                    assert response["allowed"] is False
                    assert response["status"] == {
                        "message": f"A mutating handler cannot change metadata.{field}: "
                        "its patch would set it to 'other'.",
                        "code": 500,
                    }


async def test_a_mutation_may_repeat_the_name_and_choose_one_that_would_be_generated() -> None:
    @webop.on.mutate("kopfexamples", id="fill")
    def fill(patch: webop.Patch, **_: Any) -> None:
        patch.metadata["name"] = "kex"

    nameless = build_object(generateName="kex-")
    del nameless["metadata"]["name"]
    async with serve() as site:
        assert read_patch(await site.review()) == []
        changes = read_patch(await site.review(nameless))
    assert changes == [{"op": "add", "path": "/metadata/name", "value": "kex"}]


async def test_what_is_to_go_is_not_changed_as_api_servers_fail_otherwise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @webop.on.mutate("kopfexamples", operation="DELETE")
    def change(patch: webop.Patch, **_: Any) -> None:
        patch.spec["changed"] = True

    response = await send_review(None, build_object())
    assert response["allowed"] is True
    assert "patch" not in response
    assert "The patch is ignored: a DELETE cannot change the object." in caplog.text


@pytest.mark.feature("ADM-08")
async def test_what_is_changed_in_place_is_warned_of_once_and_spoils_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[Any] = []

    @webop.on.mutate("kopfexamples", id="fill")
    def fill_in(body: webop.Body, patch: webop.Patch, **_: Any) -> None:
        body["metadata"]["labels"] = {"a": object()}
        body["spec"]["list"] = patch.spec["list"] = ["a", "b"]

    @webop.on.validate("kopfexamples", id="spoil")
    def spoil(spec: webop.Spec, old: webop.Body, **_: Any) -> None:
        spec["list"].append("b")
        old["spec"]["list"].append("c")

    @webop.on.mutate("kopfexamples", id="look")
    @webop.on.validate("kopfexamples", id="look")
    def look(body: webop.Body, spec: webop.Spec, old: Any, new: Any, **_: Any) -> None:
        seen.append((body.meta.labels, spec, old, new))

    before, after = build_object({"list": ["z"]}), build_object({"list": ["a"]})
    async with serve() as site:
        for _ in range(2):
            response = await site.review(after, before)
    assert read_patch(response) == [{"op": "replace", "path": "/spec/list", "value": ["a", "b"]}]
    assert seen == [({}, {"list": ["a"]}, before, after)] * 2
    warnings = [r.getMessage() for r in caplog.records if "in place" in r.getMessage()]
    assert [text.partition(":")[0] for text in warnings] == [
        f"Webhook '{name}' changed the object in place, which has no effect"
        for name in ("fill", "spoil")
    ]
