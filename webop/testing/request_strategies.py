"""Requests about objects of a model, for property tests: strategies of hypothesis.

Objects of random values rarely meet the limits of a rule. So some values become the constants of
the rule and of the handler, or their neighbours; and a changed object mostly resembles the old one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

import pydantic
from hypothesis import strategies as st

from webop.errors import MisfitError
from webop.models.fitting import fit
from webop.objects.fields import Json, clone
from webop.objects.typed_values import is_number
from webop.testing.object_strategies import generate

Strategy = st.SearchStrategy[Any]

_LONGEST = 300  # of texts whose length is a constant
_METADATA = {"name", "namespace", "labels", "annotations"}
_find_numbers = re.compile(r"(?<![\w.])\d+(?:\.\d+)?").findall
_find_texts = re.compile(r"'([^'\\]*)'|\"([^\"\\]*)\"").findall


class Attempt(NamedTuple):
    """A request: a creation has no old object, a deletion has no new one."""

    operation: str
    old: Json | None
    new: Json | None


def build_attempts(objects: Strategy, operations: Collection[str]) -> Strategy:
    """Return a strategy for requests about objects."""

    @st.composite
    def build(draw: st.DrawFn) -> Attempt:
        operation = draw(st.sampled_from(sorted(operations)))
        body = _prepare(draw(objects))
        if operation == "CREATE":
            return Attempt(operation, None, body)
        if operation == "DELETE":
            return Attempt(operation, body, None)
        new = _mix(draw, body, _prepare(draw(objects)))
        new["metadata"]["name"] = body["metadata"]["name"]
        return Attempt(operation, body, new)

    return build()


def generate_near(model: type[pydantic.BaseModel], constants: Collection[Any]) -> Strategy:
    """Return a strategy for objects of a model, some of whose values are these constants."""

    @st.composite
    def build(draw: st.DrawFn) -> Json:
        body: Json = draw(generate(model))
        changed: Json = clone(body)
        for parent, key in list(_list_leaves(changed)):
            same = [one for one in constants if type(one) is type(parent[key])]
            is_changed: bool = bool(same) and draw(st.booleans())
            if is_changed:
                parent[key] = draw(st.sampled_from(same))
        try:
            fit(model, changed)
        except MisfitError:
            return body
        return changed

    return build()


def collect_constants(cel: str, fn: Callable[..., Any]) -> list[Any]:
    """Return the constants of an expression and of a function, with their neighbours."""
    numbers: list[Any] = [float(one) if "." in one else int(one) for one in _find_numbers(cel)]
    texts: list[Any] = [one or other for one, other in _find_texts(cel)]
    code = getattr(inspect.unwrap(fn), "__code__", None)
    for value in () if code is None else _flatten(code.co_consts):
        if is_number(value):
            numbers.append(value)
        elif isinstance(value, str):
            texts.append(value)
    near = [number + step for number in numbers for step in (0, -1, 1)]
    near += [float(number) for number in near]
    lengths = [number for number in near if isinstance(number, int) and 0 <= number <= _LONGEST]
    made = [*near, *texts, *("x" * length for length in lengths)]
    return [*{(type(one), one): one for one in made}.values()]


def _flatten(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple | frozenset):
            yield from _flatten(value)
        else:
            yield value


def _prepare(body: Json) -> Json:
    """Return an object as users send it; without finalizers, so that it can be deleted."""
    metadata = {key: value for key, value in body["metadata"].items() if key in _METADATA}
    return {**clone(body), "metadata": clone(metadata)}


def _list_leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the places of all texts and numbers outside of the metadata."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, dict | list):
            if key != "metadata":
                yield from _list_leaves(item)
        elif key not in ("apiVersion", "kind"):
            yield value, key


def _mix(draw: st.DrawFn, old: Json, other: Json) -> Json:
    """Return an object that has some fields of another one; the simplest is the old one."""
    mixed: Json = {}
    for key in [*old, *(key for key in other if key not in old)]:
        if key in old and key in other and isinstance(old[key], dict):
            is_map = isinstance(other[key], dict)
            mixed[key] = _mix(draw, old[key], other[key]) if is_map else other[key]
        elif draw(st.booleans()):
            if key in other:
                mixed[key] = clone(other[key])
        elif key in old:
            mixed[key] = clone(old[key])
    return mixed
