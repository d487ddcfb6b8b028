"""Conversion reviews without a cluster, and the address at which API servers send them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import webop
from tests.kit.operators import build_settings
from tests.kit.reviews import serve
from tests.kit.rows import rows
from tests.kit.scrapes import scrape
from tests.kit.versioned_shops import GROUP, NAME, declare
from webop.admission.configurations.crd_conversions import choose_config

V1 = {
    "apiVersion": f"{GROUP}/v1",
    "kind": "Shop",
    "metadata": {"name": "one", "namespace": "ns", "uid": "1"},
    "spec": {"address": "host:81"},
}
V2 = {**V1, "apiVersion": f"{GROUP}/v2"}
BROKEN = {**V1, "metadata": {"name": "two", "namespace": "ns"}, "spec": {"address": 5}}


@pytest.fixture(autouse=True)
def converters() -> None:
    declare()


def build(*objects: Any, version: str = f"{GROUP}/v2", **changes: Any) -> dict[str, Any]:
    request = {"uid": "u", "desiredAPIVersion": version, "objects": [*objects], **changes}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request}


async def post(review: Any) -> Any:
    async with serve(modules=[]) as site:
        return await site.post(review, "/convert")


async def test_objects_are_converted_without_a_cluster() -> None:
    answer = await post(build(V1, V2))
    assert answer.status_code == 200, answer.text
    response = answer.json()["response"]
    assert (response["uid"], response["result"]) == ("u", {"status": "Success"})
    first, second = response["convertedObjects"]
    assert first["spec"] == {"host": "host", "port": 81, "count": 1, "tags": {}}
    assert first["metadata"] == V1["metadata"]
    assert second["spec"] == V1["spec"]


class Tree(webop.Struct):
    size: int
    free: Any = None


@webop.resource(GROUP, "v1", kind="Oak", stored=False)
class OakV1(webop.Model):
    spec: Tree


@webop.resource(GROUP, "v2", kind="Oak")
class OakV2(webop.Model):
    spec: Tree


def shrink(new: OakV2) -> OakV1:
    if new.spec.size == 13:
        raise ValueError("not 13")
    return OakV1(spec=new.spec)


@rows("size", [1, 13])
@rows("depth", [90, 110, 126, 150, 600, 4_500])
async def test_a_deep_object_breaks_no_list_of_its_kind(depth: int, size: int) -> None:
    registry = webop.OperatorRegistry()
    webop.on.convert(OakV1, to=OakV2, registry=registry)(lambda old: OakV2(spec=old.spec))
    webop.on.convert(OakV2, to=OakV1, registry=registry)(shrink)
    free = '[{},{"a":' * depth + "1" + "}]" * depth
    spec = f'"spec":{{"size":{size},"free":{free}}}'
    oak = f'{{"apiVersion":"{GROUP}/v2","kind":"Oak","metadata":{{"name":"a"}},{spec}}}'
    async with serve(modules=[], registry=registry) as site:
        for version in ("v1", "v2"):
            review = json.dumps(build("oak", version=f"{GROUP}/{version}"))
            answer = await site.http.post("/convert", content=review.replace('"oak"', oak))
            assert answer.status_code == 200, answer.text
            oak = answer.text.partition('"convertedObjects":[')[2][:-3]
            assert spec in oak
            is_kept = version == "v1" and (size == 13 or depth == 110)  # as pydantic cannot read it
            assert ("kept.webop.dev" in oak) == is_kept


WRONG: list[tuple[Any, str]] = [
    ({**build(), "apiVersion": "apiextensions.k8s.io/v1beta1"}, "conversionReviewVersions"),
    ({**build(), "request": None}, "request must be an object"),
    (build(uid=5), "request.uid must be a string"),
    (build(uid=""), "request.uid must be a string"),
    (build(desiredAPIVersion=None), "request.desiredAPIVersion must be"),
    (build(objects={}), "request.objects must be a list"),
    (build(5), "request.objects[0] must be an object"),
    (build(V1, {**V1, "kind": None}), "request.objects[1].kind must be a string"),
    (build({**V1, "apiVersion": 1}), "request.objects[0].apiVersion must be a string"),
    (build({**V1, "metadata": []}), "request.objects[0].metadata must be an object"),
    (build({**V1, "metadata": {"annotations": [1]}}), "and so must its annotations"),
    (build({**V1, "apiVersion": "other/v1"}), "must be of the group"),
    *((build(V1, version=text), "must be of the group") for text in ("v1", "/", "x" * 5000)),
]
UNKNOWN = [
    build({**V1, "kind": "Other"}),
    build({**V1, "apiVersion": f"{GROUP}/v9"}),
    build(V1, version=f"{GROUP}/v9"),
    build(V1, version=f"{GROUP}/"),
]


async def test_reviews_that_are_wrong_are_refused_and_others_fail_with_a_reason() -> None:
    async with serve(modules=[]) as site:
        for review, text in WRONG:
            answer = await site.post(review, "/convert")
            assert answer.status_code == 400
            assert text in answer.json()["message"]
            assert len(answer.text) < 1000
        for review in UNKNOWN:
            answer = await site.post(review, "/convert")
            message = answer.json()["response"]["result"]["message"]
            assert "the operator has no function for it" in message


async def test_a_handler_can_have_the_same_path() -> None:
    webop.on.validate("pods", id="convert")(lambda **_: None)
    answer = await post(build(V1))
    assert answer.json()["response"]["result"] == {"status": "Success"}


async def test_an_operator_without_a_server_cannot_convert() -> None:
    with pytest.raises(webop.ConfigurationError, match=f"There are converters .{NAME}., but no"):
        await webop.operator(clusterwide=True, standalone=True)


async def test_the_calls_of_each_converter_are_in_the_metrics() -> None:
    async with serve(settings=build_settings()) as site:
        before = await scrape(site.http)
        for review in (build(V1, V1), build(V1, BROKEN), build(V1, version=f"{GROUP}/v1alpha1")):
            await site.post(review, "/convert")
        after = await scrape(site.http)
    total = "webop_handler_calls_total"
    for versions, outcome, count in (
        ("v1-v2", "success", 4),
        ("v1-v2", "failure", 1),
        ("v2-v1alpha1", "success", 1),
        ("v2-v1alpha1", "failure", 0),
        ("v1alpha1-v2", "success", 0),
    ):
        labels = {"handler": f"{NAME}/{versions}", "type": "conversion"}
        assert before.get(total, **labels, outcome=outcome) == 0
        assert after.get(total, **labels, outcome=outcome) == count
    labels = {"handler": f"{NAME}/v1-v2", "type": "conversion"}
    assert after.get("webop_handler_duration_seconds_count", **labels) == 5
    rejected = {"webhook": "convert", "reason": "error"}
    assert after.get("webop_webhook_rejections_total", **rejected) == 0


URL, OTHER = "https://host/convert", "https://other/convert"


def write(url: str, bundle: str = "a", version: str = "v1") -> dict[str, Any]:
    config = {"url": url, "caBundle": bundle}
    webhook = {"clientConfig": config, "conversionReviewVersions": [version]}
    return {"strategy": "Webhook", "webhook": webhook}


@rows(
    ("present", "is_agreed", "is_written"),
    [
        ({"strategy": "None"}, True, True),
        ({"strategy": "None"}, False, False),
        ({}, True, True),
        (write(URL), True, False),
        (write(URL), False, False),
        (write(URL, "b"), True, True),
        (write(URL, "b"), False, True),
        (write(URL, version="v1beta1"), False, True),
        (write(OTHER), True, True),
        (write(OTHER), False, False),
    ],
)
def test_the_definition_is_written_when_it_differs_and_replicas_agree(
    present: Any, is_agreed: bool, is_written: bool
) -> None:
    wanted = {"url": URL, "caBundle": "a"}
    found = choose_config(present, wanted, is_agreed=is_agreed)
    assert found == (wanted if is_written else None)
