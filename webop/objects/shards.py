"""Shards: fixed ranges of the hashes of objects, which replicas divide among them. Pure.

The hash is that of the API server's own shard selectors (KEP-5866, "Server-side sharded list and
watch"; k8s.io/apimachinery/pkg/sharding): FNV-1a with 64 bits of the text; its top bits are the
shard. So a server with the feature gate ``ShardedListAndWatch`` can send each replica only its own
objects.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import Final

SHARDS: Final = 64
"""A constant, so that an object keeps its shard when the number of replicas changes."""

_SHIFT: Final = 64 - (SHARDS - 1).bit_length()
_OFFSET: Final = 0xCBF29CE484222325
_PRIME: Final = 0x100000001B3
_MASK: Final = 0xFFFFFFFFFFFFFFFF


def find_shard(text: str) -> int:
    """Return the shard of a uid or of a namespace, from 0 to 63."""
    found = _OFFSET
    for byte in text.encode():
        found = (found ^ byte) * _PRIME & _MASK
    return found >> _SHIFT


def build_shard_selector(field: str, shards: Collection[int]) -> str:
    """Return the ``shardSelector`` of requests for these shards; empty if they are all."""
    if len({*shards}) == SHARDS:
        return ""
    ranges = (
        f"shardRange(object.metadata.{field}, '0x{first << _SHIFT:016x}', "
        f"'0x{(last + 1) << _SHIFT:016x}')"
        for first, last in _list_ranges(shards)
    )
    return " || ".join(ranges)


def format_shards(shards: Iterable[int]) -> str:
    """Return shards as text, such as "0-20,33"; empty for none."""
    ranges = _list_ranges(shards)
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def parse_shards(text: str) -> frozenset[int]:
    """Return the shards of a text as :func:`format_shards` makes it, or raise a ValueError."""
    found = set[int]()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers = int(first), int(last or first)
        if not 0 <= numbers[0] <= numbers[1] < SHARDS:
            raise ValueError(f"shards are numbers from 0 to {SHARDS - 1}, got {text[:50]!r}")
        found.update(range(numbers[0], numbers[1] + 1))
    return frozenset(found)


def _list_ranges(shards: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last one of each range of neighbours."""
    places = enumerate(sorted({*shards}))
    for _, group in itertools.groupby(places, lambda pair: pair[1] - pair[0]):
        found = [shard for _, shard in group]
        yield found[0], found[-1]
