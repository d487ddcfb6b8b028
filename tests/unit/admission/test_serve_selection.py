"""Reviews posted to the app: which handlers are for them, and what is refused before any."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import webop
from tests.kit.causes import FailedTest, UnreadableError
from tests.kit.reviews import UID, build_object, build_review, read_patch, send_review, serve
from tests.kit.webhook_configurations import find_path

Json = dict[str, Any]
POD: Json = {"resource": ("", "v1", "pods"), "kind": "Pod"}


class Called(list[str]):
    """The ids of handlers in the order of their calls."""

    def build(self, name: str) -> Callable[..., None]:
        """Return a handler that takes note of its call."""

        def fn(**_: Any) -> None:
            self.append(name)

        return fn


@pytest.fixture
def called() -> Called:
    return Called()


@pytest.mark.feature("ADM-30", "D-52")
async def test_the_root_is_for_all_handlers_that_match_in_order(called: Called) -> None:
    webop.on.mutate("kopfexamples", id="a")(called.build("a"))
    webop.on.validate("kopfexamples", id="b")(called.build("b"))
    webop.on.validate("pods", id="c")(called.build("c"))
    webop.on.validate("kopfexamples", id="d", labels={"x": "y"})(called.build("d"))
    await send_review()
    assert called == ["a", "b"]


@pytest.mark.feature("ADM-10", "ADM-45", "HND-05")
async def test_the_path_names_the_handler(called: Called) -> None:
    paths = {
        "check/spec.x": "/check/spec.x",
        "Prüfung": "/Pr%C3%BCfung",
        "healthz": "/healthz",
        "check_it": find_path("check_it"),  # what stands for it behind a service
        "check-it": find_path("check-it"),
    }
    for handler_id in paths:
        webop.on.validate("kopfexamples", id=handler_id)(called.build(handler_id))
    async with serve() as site:
        for path in paths.values():
            await site.review(path=path)
    assert called == [*paths]


@pytest.mark.feature("ADM-10")
async def test_a_function_that_validates_and_mutates_has_a_path_for_either() -> None:
    @webop.on.validate("kopfexamples", id="fn", operation="UPDATE")
    @webop.on.mutate("kopfexamples", id="fn", operation="CREATE")
    def fn(patch: webop.Patch, **_: Any) -> None:
        patch.spec["x"] = 1

    async with serve() as site:
        assert read_patch(await site.review(path="/mutate/fn"))
        assert not read_patch(await site.review(path="/validate/fn"))  # only for updates
        assert read_patch(await site.review(path="/fn"))


@pytest.mark.feature("ADM-31")
@pytest.mark.parametrize(
    ("names", "path", "message"),
    [
        (["kopfexamples"], "/unknown", "There is no webhook 'unknown'; known: kopfexamples."),
        (["kopfexamples"], "/kopfexamples/x", "There is no webhook 'kopfexamples/x'; known: "),
        (["kopfexamples"], "/Kopfexamples", "There is no webhook 'Kopfexamples'; known: "),
        (["pods", "kopfexamples"], "/pods", "Webhook 'pods' is for pods, not for kopfexamples.v1."),
        (["pods"], "/", "There are no webhooks for kopfexamples.v1.kopf.dev."),
        (["kex"], "/kex", "resources are known by their plurals and kinds only."),
    ],
)
async def test_what_no_handler_is_for_is_not_found_and_nothing_is_allowed(
    called: Called, names: list[str], path: str, message: str
) -> None:
    for name in names:
        webop.on.validate(name, id=name)(called.build(name))
    async with serve() as site:
        answer = await site.post(build_review(), path)
    assert answer.status_code == 404
    assert answer.json()["kind"] == "Status"
    assert message in answer.json()["message"]
    assert not called


@pytest.mark.parametrize(
    "selector",
    [
        ("kopfexamples",),
        ("KopfExample",),
        ("kopfexamples.kopf.dev",),
        ("kopfexamples.v1.kopf.dev",),
        ("kopf.dev", "v1", "kopfexamples"),
        ("kopf.dev/v1", "kopfexamples"),
        ("kopf.dev", webop.EVERYTHING),
        (webop.EVERYTHING,),
        (lambda resource: resource.group == "kopf.dev",),
    ],
)
async def test_with_no_cluster_resources_are_known_by_their_plurals_and_kinds(
    called: Called, selector: tuple[Any, ...]
) -> None:
    webop.on.validate(*selector)(called.build("check"))
    async with serve() as site:
        assert (await site.review())["allowed"]
        answer = await site.post(build_review(**POD))
    assert called[:1] == ["check"]
    assert answer.status_code == (200 if selector == (webop.EVERYTHING,) else 404)


BODY = build_object()
OPERATIONS: list[tuple[Any, Any, str]] = [
    (webop.on.validate, {}, "CREATE UPDATE DELETE CONNECT"),
    (webop.on.mutate, {}, "CREATE UPDATE CONNECT"),
    (webop.on.validate, {"operation": "CREATE"}, "CREATE"),
    (webop.on.validate, {"operation": "DELETE"}, "DELETE"),
    (webop.on.mutate, {"operation": "DELETE"}, "DELETE"),
    (webop.on.mutate, {"operations": ["UPDATE", "DELETE"]}, "UPDATE"),
    (webop.on.validate, {"operations": ["UPDATE", "DELETE"]}, "UPDATE DELETE"),
    (webop.on.mutate, {"operations": ["CREATE", "CONNECT"]}, "CREATE CONNECT"),
]
REQUESTS: dict[str, tuple[Json | None, Json | None]] = {
    "CREATE": (BODY, None),
    "UPDATE": (BODY, BODY),
    "DELETE": (None, BODY),
    "CONNECT": (BODY, None),
}


@pytest.mark.feature("ADM-13", "ADM-14", "ADM-28", "D-17", "D-53")
async def test_handlers_are_for_their_operations(called: Called) -> None:
    for number, (decorator, options, _) in enumerate(OPERATIONS):
        fn = called.build("check")
        decorator("kopfexamples", id=f"check{number}", **options)(fn)
    async with serve() as site:
        for number, (_, options, expected) in enumerate(OPERATIONS):
            found = []
            for operation, (new, old) in REQUESTS.items():
                called.clear()
                path = f"/check{number}"
                assert (await site.review(new, old, operation=operation, path=path))["allowed"]
                found += [operation] * len(called)
            assert found == expected.split(), options


@pytest.mark.feature("ADM-13", "HND-07")
async def test_a_function_with_several_decorators_is_for_all_of_them_and_called_once(
    called: Called,
) -> None:
    fn = called.build("check")
    for operation in ("CREATE", "UPDATE"):
        webop.on.validate("kopfexamples", id="check", operation=operation)(fn)
    webop.on.validate("pods", id="check")(fn)
    webop.on.validate("kopfexamples", id="check", labels={"x": "y"})(fn)
    async with serve() as site:
        for new, old in ((BODY, None), (BODY, BODY), (None, BODY)):
            await site.review(new, old, path="/check")
        assert called == ["check", "check"]
        await site.review(BODY, **POD)
        assert called == ["check", "check", "check"]
        await site.review(build_object(labels={"x": "y"}))
        assert called == ["check", "check", "check", "check"]


@pytest.mark.feature("ADM-15", "D-18", "D-53")
async def test_handlers_are_for_their_subresource(called: Called) -> None:
    for subresource in (None, "status", "scale", "*"):
        fn = called.build(str(subresource))
        webop.on.validate("kopfexamples", id=f"of-{subresource}", subresource=subresource)(fn)
    async with serve() as site:
        for name in (None, "status", "scale"):
            called.clear()
            assert (await site.review(subResource=name))["allowed"]
            assert called == [str(name), "*"]


X: Json = {"spec": {"f": "x"}}


def is_x(value: Any, **_: Any) -> bool:
    return bool(value == "x")


@pytest.mark.feature("ADM-19", "ADM-20", "FLT-02", "FLT-08", "FLT-11", "FLT-18", "FLT-19")
@pytest.mark.parametrize(
    ("options", "matching", "other"),
    [
        ({"labels": {"a": "x"}}, {"labels": {"a": "x"}}, {"labels": {"a": "y"}}),
        ({"labels": {"a": webop.ABSENT}}, {}, {"labels": {"a": "x"}}),
        ({"labels": {"a": is_x}}, {"labels": {"a": "x"}}, {}),
        ({"annotations": {"a": "x"}}, {"annotations": {"a": "x"}}, {"annotations": {"b": "x"}}),
        ({"field": "spec.f", "value": "x"}, X, {"spec": {"f": "y"}}),
        ({"when": lambda spec, **_: spec.get("f") == "x"}, X, {}),
        ({"when": lambda userinfo, **_: "admin" in userinfo["username"]}, {}, None),
        ({"when": lambda operation, dryrun, **_: operation == "CREATE" and not dryrun}, {}, None),
        ({"labels": {"a": "x"}, "field": "spec.f"}, {"labels": {"a": "x"}, **X}, X),
    ],
)
async def test_what_is_filtered_out_is_allowed_without_the_handler(
    options: dict[str, Any], matching: Json, other: Json | None
) -> None:
    @webop.on.validate("kopfexamples", **options)
    def check(**_: Any) -> None:
        raise webop.AdmissionError("No.")

    async with serve() as site:
        assert not (await site.review(build_object(**matching)))["allowed"]
        if other is not None:
            assert (await site.review(build_object(**other)))["allowed"]


@pytest.mark.feature("KWA-17", "HND-08")
async def test_a_handler_of_a_field_gets_the_values_of_the_field() -> None:
    seen: list[Any] = []

    @webop.on.validate("kopfexamples", field="spec.f", value=is_x)
    def check(old: Any, new: Any, diff: Any, **_: Any) -> None:
        seen.append((old, new, [tuple(item) for item in diff]))

    x, y = build_object({"f": "x"}), build_object({"f": "y"})
    async with serve() as site:
        await site.review(x, y)
        await site.review(y, x)
        await site.review(x)
    assert seen == [("y", "x", [("change", (), "y", "x")]), (None, "x", [("add", (), None, "x")])]


async def test_a_filter_that_fails_is_a_refusal_with_the_reason(called: Called) -> None:
    webop.on.validate("kopfexamples", when=lambda **kw: kw["no-such"])(called.build("check"))
    response = await send_review()
    assert not response["allowed"]
    assert response["status"] == {"message": "KeyError: 'no-such'", "code": 500}


@pytest.mark.parametrize("exc", [UnreadableError(5), SystemExit(3), FailedTest("boo")], ids=repr)
@pytest.mark.parametrize("is_in_patch", [False, True])
async def test_a_filter_or_a_patch_function_with_an_odd_error_is_a_refusal(
    called: Called, exc: BaseException, is_in_patch: bool
) -> None:
    def fail(*_: Any, **__: Any) -> bool:
        raise exc

    @webop.on.mutate("kopfexamples", when=lambda **_: is_in_patch)
    def fill(patch: webop.Patch, **_: Any) -> None:
        patch.fns.append(fail)  # type: ignore[arg-type]

    when = (lambda **_: True) if is_in_patch else fail
    webop.on.validate("kopfexamples", when=when)(called.build("check"))
    response = await send_review()
    assert not response["allowed"]
    assert type(exc).__name__ in response["status"]["message"]


LISTS = "[" + "[]," * 250_000 + "0]"


def nest(depth: int) -> str:
    return '{"x":' * depth + "1" + "}" * depth


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (nest(260), "The review is nested deeper than 254 levels."),
        (nest(9_000), "The review is nested deeper than 254 levels."),
        (LISTS, "The object takes about "),
        (f"[{LISTS},{LISTS},{LISTS}]", "The review takes about "),
        (f'"{"x" * 8_000_000}"', "The review is too large: "),
        ("tru", "The review is not valid JSON: "),
    ],
)
async def test_padding_does_not_get_a_bad_object_past_a_policy_of_ignore(
    called: Called, value: str, reason: str
) -> None:
    """For an API server, anything but 200 is a failed call, which is ignored then."""
    webop.on.validate("kopfexamples", failure_policy="Ignore")(called.build("check"))
    text = json.dumps(build_review(build_object({"bad": True, "x": "<>"}))).replace('"<>"', value)
    async with serve() as site:
        answer = await site.http.post("/", content=text)
    assert answer.status_code == 200
    response = answer.json()["response"]
    assert response["allowed"] is False
    assert response["uid"] == UID
    assert response["status"]["message"].startswith(reason)
    assert 400 <= response["status"]["code"] < 500
    assert called == []


AB: Json = {"labels": {"a": "b"}}


@pytest.mark.feature("ADM-19", "ADM-20")
@pytest.mark.parametrize(
    ("options", "old", "new", "is_called"),
    [
        ({"labels": {"a": "b"}}, {"labels": {"a": "b"}}, {}, True),
        ({"labels": {"a": "b"}}, {}, {"labels": {"a": "b"}}, True),
        ({"labels": {"a": "b"}}, {"labels": {"a": "c"}}, {"labels": {"a": "d"}}, False),
        ({"labels": {"a": webop.PRESENT}}, {"labels": {"a": ""}}, {}, True),
        ({"labels": {"a": webop.ABSENT}}, {}, {"labels": {"a": ""}}, True),
        ({"labels": {"a": lambda value, **_: value == "b"}}, {"labels": {"a": "b"}}, {}, True),
        ({"annotations": {"a": "b"}}, {"annotations": {"a": "b"}}, {}, True),
        # An API server looks at one state at a time.
        ({"labels": {"a": "b", "c": "d"}}, AB, {"labels": {"c": "d"}}, False),
        ({**AB, "annotations": {"a": "b"}}, AB, {"annotations": {"a": "b"}}, False),
    ],
)
async def test_a_handler_is_for_what_has_its_labels_before_or_after_the_request(
    called: Called, options: Any, old: Json, new: Json, is_called: bool
) -> None:
    webop.on.validate("kopfexamples", **options)(called.build("check"))
    assert (await send_review(build_object(**new), build_object(**old)))["allowed"]
    assert called == ["check"] * is_called
