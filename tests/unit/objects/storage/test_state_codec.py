"""JSON texts of the stored state."""

from __future__ import annotations

import json
import logging
from types import MappingProxyType
from typing import Any

import pytest

from webop.objects.body import Body
from webop.objects.storage.codec import decode, encode
from webop.objects.storage.progress import AnnotationsProgressStorage


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [None, True, 1.5, 'x"']}, '{"b":1,"a":[null,true,1.5,"x\\""]}'),
        ({"x": "é"}, '{"x":"é"}'),
        ({"x": MappingProxyType({"y": {"b", "a"}})}, '{"x":{"y":["a","b"]}}'),
        ({"x": 2**70}, '{"x":1180591620717411303424}'),
    ],
)
def test_texts_are_compact_and_keep_the_order(value: Any, text: str) -> None:
    assert encode(value) == text


def test_texts_with_broken_characters_survive() -> None:
    record = {"message": "no file named \udcff"}

    assert decode(encode(record)) == record
    assert encode(record).isascii()


def test_texts_of_kopf_are_read() -> None:
    value = {"spec": {"x": "é", "y": 1e16}}

    assert decode(json.dumps(value, separators=(",", ":")) + "\n") == value
    assert json.loads(encode(value)) == value


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '"text"', "1", pytest.param("[" * 100_000, id="deep"), 5]
)
def test_a_text_that_is_not_readable_is_nothing_and_logged_with_its_place(
    text: Any, caplog: pytest.LogCaptureFixture
) -> None:
    body = Body({"kind": "Sample", "metadata": {"name": "ex", "annotations": {"x/y": text}}})
    with caplog.at_level(logging.WARNING):
        assert AnnotationsProgressStorage(prefix="x").fetch(key="y", body=body) is None

    assert "Ignored the damaged state in the annotation x/y of Sample ex: not a " in caplog.text


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="object cannot be stored"):
        encode({"x": object()})
