"""What a comparison of definitions calls compatible is so, for random schemas and values."""

from __future__ import annotations

import random
from typing import Any

from webop.models.crd_comparison import compare
from webop.models.structural import find_faults, fit

Json = dict[str, Any]

COUNT = 1500
OPEN = {"x-kubernetes-preserve-unknown-fields": True}
LIMITS: dict[str, Json] = {
    "integer": {"minimum": 3, "maximum": 3, "enum": [0, 3]},
    "number": {"minimum": 3, "maximum": 3},
    "string": {"maxLength": 1, "minLength": 1, "pattern": "^a", "enum": ["a", "abcd"]},
    "boolean": {},
    "object": OPEN,
    "array": {},
}


class Draw(random.Random):
    def schema(self, depth: int = 0) -> Json:
        kind = self.choice(["integer", "number", "string", "boolean", "", "object", "array"])
        if not kind or (depth == 2 and kind in ("object", "array")):
            return {**OPEN, "nullable": True}
        found: Json = {"type": kind}
        if kind == "array":
            found["items"] = self.schema(depth + 1)
        elif kind == "object" and self.random() < 0.4:
            found["additionalProperties"] = self.schema(depth + 1)
        elif kind == "object":
            names = self.sample("abc", self.randint(0, 2))
            found["properties"] = {name: self.schema(depth + 1) for name in names}
            found["required"] = names[: self.randint(0, 1)]
        return self.limit(found)

    def limit(self, schema: Json) -> Json:
        """Add some limits, or nothing."""
        more = {**LIMITS[schema["type"]], "nullable": True}
        if "additionalProperties" in schema:
            more.pop(*OPEN)
        return schema | {key: more[key] for key in more if self.random() < 0.2}

    def change(self, schema: Json, depth: int = 0) -> Json:
        """Return a schema that differs in a place: in a keyword, or in a part."""
        found, how = dict(schema), self.random()
        parts = [key for key in ("items", "additionalProperties") if key in schema]
        if how < 0.2 or "type" not in schema:
            return self.schema(depth)
        if how < 0.4:
            return self.limit(found)
        if how < 0.5:
            return {k: v for k, v in found.items() if k in ("type", "properties", *parts)}
        if how < 0.6 and schema["type"] == "object":
            return {k: v for k, v in found.items() if k not in parts} | OPEN
        if "properties" in schema:
            name = self.choice("abc")
            part = schema["properties"].get(name, {"type": "string"})
            found["properties"] = {**schema["properties"], name: self.change(part, depth + 1)}
        for key in parts:
            found[key] = self.change(schema[key], depth + 1)
        return found

    def value(self, schema: Json, depth: int = 0) -> Any:
        """Return a value that often fits."""
        kind = schema.get("type") if self.random() < 0.95 else None
        if kind == "array" or (kind is None and depth < 3 and self.random() < 0.2):
            return [
                self.value(schema.get("items", {}), depth + 1)
                for _ in range(self.choice("12") == "1")
            ]
        if kind == "object" or (kind is None and depth < 3 and self.random() < 0.4):
            rest = schema.get("additionalProperties", {})
            known = dict.fromkeys("abc", rest) | schema.get("properties", {})
            return {
                n: self.value(part, depth + 1) for n, part in known.items() if self.random() < 0.6
            }
        return self.choice([None, True, 0, 3, 7, 2.5, "", "a", "abcd"])


def build_definition(schema: Json) -> Json:
    root = {"type": "object", "properties": {"x": schema}}
    version = {"name": "v1", "served": True, "schema": {"openAPIV3Schema": root}}
    names = {"plural": "things", "kind": "Thing"}
    return {"spec": {"group": "g", "scope": "Cluster", "names": names, "versions": [version]}}


def test_values_stay_valid_and_whole_after_a_change_that_is_called_compatible() -> None:
    draw, count = Draw(1), 0
    for _ in range(COUNT):
        old = draw.schema()
        new = draw.change(old)
        if old == new or compare(build_definition(old), build_definition(new)):
            continue
        before, after = ({"properties": {"x": each}} for each in (old, new))
        for _ in range(10):
            stored = fit({"x": draw.value(old)}, before)
            if not [*find_faults(stored, before)]:
                count += 1
                assert not [*find_faults(stored, after)], (old, new)
                assert fit(stored, after) == stored, (old, new)
    assert count > COUNT / 2


def test_a_rule_about_changes_breaks_no_stored_object() -> None:
    def build(*rules: str) -> Json:
        spec = {"type": "integer", "x-kubernetes-validations": [{"rule": one} for one in rules]}
        schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
        version = {"name": "v1", "served": True, "storage": True, "schema": schema}
        names = {"kind": "A", "plural": "as"}
        return {"spec": {"group": "b.c", "scope": "", "names": names, "versions": [version]}}

    assert compare(build(), build("self >= oldSelf")) == []
    for rule in ("self > 3", "self > 3 || self > oldSelf"):
        assert compare(build(), build(rule)) == [f"v1: spec: a new rule, {rule!r}"]
