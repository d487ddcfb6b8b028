"""Find differences between the objects of two clusters, except for expected ones."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from bench.wild.model import Explanation

_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?")
_EPOCH = 1.7e9  # numbers above are seconds since 1970
# Values that the API server assigns, and its records of writes.
_ASSIGNED = {"resourceVersion", "managedFields", "generation", "observedGeneration"}
_ASSIGNED |= {"clusterIP", "clusterIPs", "nodePort", "healthCheckNodePort"}
_ABSENT = "(absent)"


class Difference(NamedTuple):
    """A place where the objects differ."""

    place: str
    kopf: Any
    webop: Any


def normalise(objects: Iterable[dict[str, Any]], random: Iterable[str] = ()) -> dict[str, Any]:
    """Return the objects by kind and name, without values that differ between clusters.

    Args:
        objects: the objects as the API server returns them.
        random: patterns of texts that the operator generates at random.
    """
    patterns = [(_UID, "<uid>"), (_TIME, "<time>")]
    patterns += [(re.compile(text), "<random>") for text in random]
    by_name: dict[str, list[Any]] = {}
    for item in objects:
        meta = item["metadata"]
        group = item["apiVersion"].rpartition("/")[0]
        kind = f"{item['kind']}.{group}" if group else item["kind"]
        name = "/".join(part for part in (meta.get("namespace"), meta["name"]) if part)
        by_name.setdefault(_replace(f"{kind} {name}", patterns), []).append(_clean(item, patterns))
    return {
        f"{name} #{number}" if len(same) > 1 else name: item
        for name, same in sorted(by_name.items())
        for number, item in enumerate(sorted(same, key=json.dumps), 1)
    }


def find_differences(kopf: dict[str, Any], webop: dict[str, Any]) -> list[Difference]:
    """Return the places where two sets of normalised objects differ."""
    return [
        Difference(f"{name}: {'.'.join(path) or 'object'}", *values)
        for name in sorted({*kopf, *webop})
        for path, *values in _walk((), kopf.get(name, _ABSENT), webop.get(name, _ABSENT))
    ]


def explain(difference: Difference, explanations: Iterable[Explanation]) -> str | None:
    """Return the explanation of a difference, if there is one."""
    for explanation in explanations:
        if fnmatch.fnmatchcase(difference.place, explanation.differences):
            return explanation.because
    return None


def _clean(value: Any, patterns: list[tuple[re.Pattern[str], str]]) -> Any:
    if isinstance(value, dict):
        return {
            _replace(key, patterns): _clean(item, patterns)
            for key, item in sorted(value.items())
            if key not in _ASSIGNED
        }
    if isinstance(value, list):
        return [_clean(item, patterns) for item in value]
    if isinstance(value, str):
        if value[:1] in {"{", "["}:  # state in annotations is JSON
            try:
                return _clean(json.loads(value), patterns)
            except ValueError:
                pass
        return _replace(value, patterns)
    if isinstance(value, int | float) and value > _EPOCH:
        return "<time>"
    return value


def _replace(text: str, patterns: list[tuple[re.Pattern[str], str]]) -> str:
    for pattern, word in patterns:
        text = pattern.sub(word, text)
    return text


def _walk(
    path: tuple[str, ...], one: Any, other: Any
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from _walk((*path, key), one.get(key, _ABSENT), other.get(key, _ABSENT))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from _walk((*path, str(number)), *pair)
    elif one != other:
        yield path, one, other
