"""What is decoded, and what is refused before it takes time and memory."""

from __future__ import annotations

import asyncio
import copy
import json
import time
import tracemalloc
from typing import Any

import orjson
import pytest

from tests.kit.rows import rows
from webop.errors import ReviewError
from webop.servers.decoding import decode_review, find_request
from webop.servers.limits import Hosting

_SIZE = 7 * 1024 * 1024


_LIMIT = Hosting().gate.share


def decode(body: bytes) -> object:
    """Decode a review while there are no others."""
    return asyncio.run(decode_review(body, lambda _: None, _LIMIT, {}))


def fill(unit: bytes) -> bytes:
    """Return a review of the largest size, full of one thing."""
    return b'{"x":[' + unit * (_SIZE // len(unit)) + b"0]}"


@rows(
    "unit",
    [
        *(b"[],", b"{},", b'{"a":{}},', b'"ab",', b"1,", b"1.5,", b"[" * 240 + b"]" * 240 + b","),
        *(b'{"":"\\\\"},', b'{"\\"{":0},'),
    ],
)
def test_a_text_that_would_take_many_times_its_size_is_refused_at_once(unit: bytes) -> None:
    body = fill(unit)
    orjson.loads(fill(unit)[: len(unit) * 10 + 6] + b"0]}")  # the test is about JSON
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(
        ReviewError, match=r"takes about \d+ bytes of memory; the limit is 67108864 bytes"
    ) as caught:
        decode(body)
    seconds = time.process_time() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.status == 413
    assert seconds < 1  # it takes a tenth of that, decoding up to five seconds
    assert peak < 3 * len(body)


@rows(
    "text",
    [
        json.dumps([{"a": "b"}] * 30_000),
        '\\",' * 300_000,
        "a" * 7_000_000,
    ],
)
def test_large_texts_in_strings_are_no_problem(text: str) -> None:
    assert decode(json.dumps({"x": text}).encode()) == {"x": text}


def test_the_largest_of_usual_reviews_is_decoded() -> None:
    managed: dict[str, dict[str, str]] = {f"f:field-{i}": {} for i in range(50_000)}
    data = {f"key-{i}": "value" for i in range(40_000)}
    body = {"metadata": {"managedFields": [{"fieldsV1": managed}]}, "data": data}
    review = {"object": body, "oldObject": body}
    text = json.dumps(review, separators=(",", ":")).encode()
    assert len(text) > 3_000_000
    assert decode(text) == review


@rows("opener", ["[", '{"a":'])
def test_the_depth_is_limited_to_what_recursive_handlers_can_walk(opener: str) -> None:
    def build(depth: int) -> bytes:
        closer = "]" if opener == "[" else "}"
        return f'{{"x":{opener * (depth - 1)}0{closer * (depth - 1)}}}'.encode()

    deepest = decode(build(254))
    assert copy.deepcopy(deepest) == deepest
    for depth in (255, 1000, 100_000):
        with pytest.raises(ReviewError, match="nested deeper than 254 levels"):
            decode(build(depth))


def nest(depth: int) -> bytes:
    return b"[" * depth + b"0" + b"]" * depth


@rows(
    "value",
    [
        b"[" + b"0," * 210_000 + b"0]",
        b"[" + b"0," * 700_000 + b"0]",
        b"[" + b"[]," * 200_000 + b"0]",
        nest(300),
        nest(9_000),
        b"[" + nest(400) + b"," + b'["]\\"[",{"a":[]}],' * 100 + b"0]",
    ],
)
def test_what_is_stored_already_can_be_changed(value: bytes) -> None:
    body = b'{"request":{"object":{"f":[],"x":%b},"oldObject":{"f":["a"],"x":%b}}}' % (value, value)
    review: Any = decode(body)
    assert review["request"]["object"]["f"] == []
    orjson.dumps(review)


@rows(
    ("value", "reason"),
    [
        (b"[" + b"[]," * 210_000 + b"0]", r"The object takes about \d+ bytes of memory"),
        (nest(300), "nested deeper than 254 levels"),
        (nest(9_000), "nested deeper than 254 levels"),
    ],
)
@rows("old", [b"null", b"{}"])
def test_what_could_not_be_changed_again_is_refused(value: bytes, reason: str, old: bytes) -> None:
    with pytest.raises(ReviewError, match=reason) as caught:
        decode(b'{"request":{"object":{"x":%b},"oldObject":%b}}' % (value, old))
    assert caught.value.status == 413
    decode(b'{"request":{"object":null,"oldObject":{"x":%b}}}' % value)  # a deletion


@rows(
    ("old", "new"),
    [
        (b'{"status":%b,"spec":{}}', b'{"status":%b,"spec":%b}'),
        (b'{"spec":%b}', b'{"spec":[%b,%b]}'),
        (b'{"spec":%b}', b'{"spec":%b,"same":%b}'),
    ],
)
def test_deep_values_do_not_hide_others_from_handlers(old: bytes, new: bytes) -> None:
    stored, added = nest(300), nest(260).replace(b"0", b'"forbidden"')
    states = new % (stored, added), old % stored
    with pytest.raises(ReviewError, match="nested deeper than 254 levels"):
        decode(b'{"request":{"object":%b,"oldObject":%b}}' % states)
    moved = nest(300)
    with pytest.raises(ReviewError, match="nested deeper than 254 levels"):
        decode(b'{"request":{"object":{"b":%b},"oldObject":{"a":%b}}}' % (moved, moved))


def test_a_deep_value_cannot_be_changed_where_handlers_do_not_see_it() -> None:
    stored = nest(300)
    changed = stored.replace(b"0", b"1")
    with pytest.raises(ReviewError, match="nested deeper than 254 levels"):
        decode(b'{"request":{"object":{"x":%b},"oldObject":{"x":%b}}}' % (changed, stored))


def test_the_managed_fields_of_a_deep_object_can_change() -> None:
    def build(manager: bytes) -> bytes:
        fields = b'{"f:x":' * 260 + b'{"f:%b":{}}' % manager + b"}" * 260
        return b'{"metadata":{"managedFields":[{"fieldsV1":%b}]},"x":%b}' % (fields, nest(300))

    review = decode(b'{"request":{"object":%b,"oldObject":%b}}' % (build(b"a"), build(b"b")))
    assert review


_HEAD = b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"a-1","x":'


@rows(
    ("head", "found"),
    [
        (_HEAD, ("admission.k8s.io/v1", "a-1")),
        (_HEAD.replace(b"/v1", b"/v1beta1"), ("admission.k8s.io/v1beta1", "a-1")),
        (_HEAD.replace(b":", b" : ").replace(b"{", b"\n{ "), ("admission.k8s.io/v1", "a-1")),
        (
            _HEAD.replace(b'{"kind":"AdmissionReview",', b"{").replace(
                b'"request"', b'"kind":"AdmissionReview","request"'
            ),
            ("admission.k8s.io/v1", "a-1"),
        ),
        (_HEAD.replace(b'"uid"', b'"object":{"uid"'), None),
        (_HEAD.replace(b"a-1", b"a\\u002d1"), None),
        (_HEAD.replace(b"a-1", b"a" * 101), None),
        (_HEAD.replace(b"/v1", b"/v2"), None),
        (b" " * 512, None),
    ],
)
def test_the_uid_is_found_only_where_api_servers_write_it(
    head: bytes, found: tuple[str, str] | None
) -> None:
    assert find_request(head) == found
