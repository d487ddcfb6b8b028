"""What is decoded, and what is refused before it takes time and memory."""

from __future__ import annotations

import contextlib
import copy
import json
import time
import tracemalloc

import orjson
import pytest

from webop.errors import ReviewError
from webop.servers.decoding import decode_review

_SIZE = 7 * 1024 * 1024


def decode(body: bytes) -> object:
    """Decode a review that nobody refuses for its memory."""
    return decode_review(body, lambda _: None)


def fill(unit: bytes) -> bytes:
    """Return a review of the largest size, full of one thing."""
    return b'{"x":[' + unit * (_SIZE // len(unit)) + b"0]}"


@pytest.mark.parametrize(
    "unit",
    [
        *(b"[],", b"{},", b'{"a":{}},', b'"ab",', b"1,", b"1.5,", b"[" * 240 + b"]" * 240 + b","),
        *(b'"\\",\\\\",', b'",,,,,,,",', b'{"":"\\\\"},', b'{"\\"{":0},'),
    ],
)
def test_a_text_that_would_take_many_times_its_size_is_refused_at_once(unit: bytes) -> None:
    body = fill(unit)
    orjson.loads(fill(unit)[: len(unit) * 10 + 6] + b"0]}")  # the test is about JSON
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(ReviewError, match="more than 400000 values") as caught:
        decode(body)
    seconds = time.process_time() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.status == 413
    assert seconds < 1  # it takes a tenth of that, decoding up to five seconds
    assert peak < 3 * len(body)


@pytest.mark.parametrize(
    "text",
    [
        "," * _SIZE,
        "[]," * 1_000_000,
        json.dumps([{"a": "b"}] * 300_000),
        '"' * 3_000_000,
        "\\" * 3_000_000,
        '\\",' * 1_000_000,
    ],
)
def test_brackets_and_commas_in_strings_do_not_count(text: str) -> None:
    assert decode(json.dumps({"x": text}).encode()) == {"x": text}


def test_the_largest_of_usual_reviews_is_decoded() -> None:
    managed: dict[str, dict[str, str]] = {f"f:field-{i}": {} for i in range(50_000)}
    data = {f"key-{i}": "value" for i in range(40_000)}
    body = {"metadata": {"managedFields": [{"fieldsV1": managed}]}, "data": data}
    review = {"object": body, "oldObject": body}
    text = json.dumps(review, separators=(",", ":")).encode()
    assert len(text) > 3_000_000
    assert decode(text) == review


@pytest.mark.parametrize("opener", ["[", '{"a":'])
def test_the_depth_is_limited_to_what_recursive_handlers_can_walk(opener: str) -> None:
    def nest(depth: int) -> bytes:
        closer = "]" if opener == "[" else "}"
        return f'{{"x":{opener * (depth - 1)}0{closer * (depth - 1)}}}'.encode()

    deepest = decode(nest(254))
    assert copy.deepcopy(deepest) == deepest
    for depth in (255, 500, 1000):
        with pytest.raises(ReviewError, match="nested deeper than 254 levels"):
            decode(nest(depth))
    with pytest.raises(ReviewError, match="not valid JSON"):
        decode(nest(100_000))


@pytest.mark.parametrize("number", [b"1" * 1_000_000, b"0." + b"1" * 1_000_000, b"-" * 1_000_000])
def test_long_numbers_are_read_or_refused_quickly(number: bytes) -> None:
    started = time.process_time()
    with contextlib.suppress(ReviewError):
        decode(b'{"x":[' + b",".join([number] * 7) + b"]}")
    assert time.process_time() - started < 1


@pytest.mark.parametrize("unit", [b"[],", b"{},", b'{"":0},', b"[0],", b"1.5,", b'"%d":{},'])
def test_what_takes_more_than_ten_times_its_text_counts_for_more(unit: bytes) -> None:
    if b"%d" in unit:
        body = b'{"x":{' + b"".join(unit % i for i in range(20_000)) + b'"":0}}'
    else:
        body = b'{"x":[' + unit * 20_000 + b"0]}"
    held = [len(body)]
    tracemalloc.start()
    review = decode_review(body, held.append)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert review
    assert size < 10 * sum(held)
    assert sum(held) <= 10 * len(body)
