"""Shards: hashes, ranges, selectors."""

from __future__ import annotations

import pytest

from webop.objects.shards import (
    build_shard_selector,
    find_shard,
    format_shards,
    parse_shards,
)


# FNV-1a, 64 bits (draft-eastlake-fnv, appendix): the top six bits.
@pytest.mark.parametrize(
    ("text", "digest"),
    [
        ("", 0xCBF29CE484222325),
        ("a", 0xAF63DC4C8601EC8C),
        ("b", 0xAF63DF4C8601F1A5),
        ("foobar", 0x85944171F73967E8),
    ],
)
def test_the_shard_is_the_top_of_the_hash(text: str, digest: int) -> None:
    assert find_shard(text) == digest >> 58


@pytest.mark.parametrize(
    ("shards", "text"),
    [
        ([], ""),
        ([5], "5"),
        ([2, 0, 1], "0-2"),
        ([0, 2, 3, 63], "0,2-3,63"),
        (range(64), "0-63"),
    ],
)
def test_shards_as_text(shards: list[int], text: str) -> None:
    assert format_shards(shards) == text
    assert parse_shards(text) == frozenset(shards)


@pytest.mark.parametrize(
    ("field", "shards", "ranges"),
    [
        ("uid", range(32), [("0x0000000000000000", "0x8000000000000000")]),
        (
            "namespace",
            [0, 63],
            [
                ("0x0000000000000000", "0x0400000000000000"),
                ("0xfc00000000000000", "0x10000000000000000"),
            ],
        ),
        ("uid", range(64), []),
    ],
)
def test_the_selector_of_shards(
    field: str, shards: list[int], ranges: list[tuple[str, str]]
) -> None:
    each = (f"shardRange(object.metadata.{field}, '{begin}', '{end}')" for begin, end in ranges)
    assert build_shard_selector(field, list(shards)) == " || ".join(each)
