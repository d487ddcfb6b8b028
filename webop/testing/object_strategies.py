"""Objects of models for property tests: strategies of hypothesis from structural schemas.

Rules in CEL are not followed, except those of ``webop.models.OneOf``; the models refuse what does
not fit.
"""

from __future__ import annotations

import re
from typing import Any

import pydantic
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st

from webop.errors import MisfitError
from webop.models.definitions import find_definition
from webop.models.fitting import fit
from webop.models.keywords import INT_OR_STRING, LIST_KEYS, LIST_TYPE, RULES
from webop.models.patterns import FORMATS
from webop.models.schema import Schema, build_schema, find_values

Strategy = st.SearchStrategy[Any]

_find_choice = re.compile(r"\[(.*)\]\.exists_one\(x, x\)").fullmatch
_find_names = re.compile(r"has\(self\.(\w+)\)").findall
_LARGEST = 2**53 - 1  # also as a float of other JSON decoders
_METADATA = {
    "uid": "5d6f4a3e-0000-4000-8000-000000000000",
    "resourceVersion": "1",
    "generation": 1,
    "creationTimestamp": "2026-01-01T00:00:00Z",
}

_words = st.text("abcxyz", min_size=1, max_size=3)
_texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
_integers = st.integers(-_LARGEST, _LARGEST)
_json = st.recursive(
    st.booleans() | _integers | _texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_words, inner, max_size=2),
    max_leaves=4,
)
_FORMATS: dict[str, Strategy] = {
    "date-time": st.datetimes().map(lambda moment: f"{moment.isoformat(timespec='seconds')}Z"),
    "date": st.dates().map(lambda day: day.isoformat()),
    "uuid": st.uuids().map(str),
    "ipv4": st.ip_addresses(v=4).map(str),
    "ipv6": st.ip_addresses(v=6).map(str),
    "email": _words.map(lambda word: f"{word}@example.com"),
    "byte": st.sampled_from(["", "YQ==", "YWI=", "YWJj"]),
}


def build_settings(examples: int) -> settings:
    """Return how properties are checked: nothing is kept, and only the smallest failure counts."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=[*HealthCheck],
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
    )


def generate(model: type[pydantic.BaseModel]) -> Strategy:
    """Return a strategy for objects of a model, as API servers have them."""
    schema, definition = build_schema(model), find_definition(model)
    assert definition is not None  # noqa: S101 - for the type checker
    head = {"apiVersion": definition.api_version, "kind": definition.kind}
    fields = {k: v for k, v in schema["properties"].items() if k not in (*head, "metadata")}
    content = build_strategy({**schema, "properties": fields})
    place = {} if definition.scope == "Cluster" else {"namespace": st.just("default")}
    metadata = st.fixed_dictionaries(
        {"name": st.sampled_from(["one", "two"]), **place},
        optional={
            "labels": st.dictionaries(_words, _words, min_size=1, max_size=2),
            "annotations": st.dictionaries(_words, _words, min_size=1, max_size=2),
            "finalizers": st.just(["example.com/finalizer"]),
        },
    )

    @st.composite
    def build(draw: st.DrawFn) -> dict[str, Any]:
        body = {**head, "metadata": {**_METADATA, **draw(metadata)}, **draw(content)}
        try:
            fit(model, body)
        except MisfitError:
            assume(condition=False)
        return body

    return build()


def build_strategy(schema: Schema) -> Strategy:
    """Return a strategy for values of a schema."""
    found = _build_plain(schema)
    return st.none() | found if schema.get("nullable") else found


def _build_plain(schema: Schema) -> Strategy:
    if values := find_values(schema):
        return st.sampled_from(values)
    if schema.get(INT_OR_STRING):
        return _integers | _texts
    builders = {
        "object": _build_object,
        "array": _build_list,
        "string": _build_string,
        "boolean": lambda _: st.booleans(),
        "integer": _build_integer,
        "number": _build_number,
    }
    builder = builders.get(schema.get("type", ""))
    return _json if builder is None else builder(schema)


def _build_integer(schema: Schema) -> Strategy:
    step = schema.get("multipleOf", 1)
    bound = 2**31 - 1 if schema.get("format") == "int32" else _LARGEST
    low, high = int(schema.get("minimum", -bound)), int(schema.get("maximum", bound))
    low += int(schema.get("exclusiveMinimum", False))
    high -= int(schema.get("exclusiveMaximum", False))
    high = max(high, low + step)
    return st.integers(-(-low // step), high // step).map(lambda number: number * step)


def _build_number(schema: Schema) -> Strategy:
    return st.floats(
        schema.get("minimum", -1e9),
        schema.get("maximum", 1e9),
        exclude_min=schema.get("exclusiveMinimum", False),
        exclude_max=schema.get("exclusiveMaximum", False),
        allow_nan=False,
    )


def _build_object(schema: Schema) -> Strategy:
    properties = schema.get("properties")
    if properties is None:
        more = schema.get("additionalProperties")
        values = build_strategy(more) if isinstance(more, dict) else _json
        low, high = schema.get("minProperties", 0), schema.get("maxProperties")
        high = max(low, 3) if high is None else min(high, max(low, 3))
        return st.dictionaries(_words, values, min_size=low, max_size=high)
    needed = set(schema.get("required", ()))
    built = {name: build_strategy(part) for name, part in properties.items()}
    for rule in schema.get(RULES, ()):
        if found := _find_choice(rule["rule"]):
            names = [name for name in _find_names(found[1]) if name in built]
            chosen = [st.fixed_dictionaries({name: built[name]}) for name in names]
            return st.one_of(chosen)
    required = {name: part for name, part in built.items() if name in needed}
    optional = {name: part for name, part in built.items() if name not in needed}
    return st.fixed_dictionaries(required, optional=optional)


def _build_list(schema: Schema) -> Strategy:
    items = schema.get("items", {})
    keys = schema.get(LIST_KEYS)
    unique: Any = None
    if keys:
        defaults = {key: items["properties"][key].get("default") for key in keys}
        unique = lambda item: tuple(item.get(key, defaults[key]) for key in keys)  # noqa: E731
    elif schema.get(LIST_TYPE) == "set":
        unique = repr
    low, high = schema.get("minItems", 0), schema.get("maxItems")
    high = max(low, 3) if high is None else min(high, max(low, 3))
    return st.lists(build_strategy(items), min_size=low, max_size=high, unique_by=unique)


def _build_string(schema: Schema) -> Strategy:
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    form, pattern = schema.get("format", ""), schema.get("pattern")
    if form in _FORMATS and pattern == FORMATS.get(form):
        return _FORMATS[form]
    if pattern:
        texts = st.from_regex(pattern, alphabet=st.characters(codec="utf-8"))
        return texts.filter(lambda text: low <= len(text) <= (len(text) if high is None else high))
    limit = max(low, 8) if high is None else min(high, max(low, 8))
    characters = st.characters(codec="utf-8", exclude_categories=["Cs"])
    return st.text(characters, min_size=low, max_size=limit)
