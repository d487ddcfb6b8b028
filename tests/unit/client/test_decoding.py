"""Objects as large and as deep as users can create them keep nothing else waiting."""

from __future__ import annotations

import asyncio

import pytest

from webop.client.http.failed_requests import parse_attempt
from webop.client.watch_events import parse_event

ATTEMPT = parse_attempt("GET", "/apis/example.com/v1/widgets", {"watch": "true"})


@pytest.mark.parametrize("depth", [300, 5000])
async def test_a_large_deep_object_does_not_hold_the_event_loop(depth: int) -> None:
    many = b"[" * 250 + b"[[[[[[0]]]]]]," * 20_000 + b"0" + b"]" * 250
    text = b'{"metadata":{"name":"%b"},"deep":%b,"many":%b,"end":1}'
    deep = b"[" * depth + b"0" + b"]" * depth
    large, small = (text % values for values in ((b"large", deep, many), (b"small", b"0", b"0")))
    seen: list[str] = []

    async def parse(value: bytes) -> None:
        _, raw, _ = await parse_event(b'{"type":"ADDED","object":%b}' % value, ATTEMPT)
        seen.append(raw["metadata"]["name"])
        assert raw["end"] == 1

    await asyncio.gather(parse(large), parse(small))
    assert seen == ["small", "large"]
