"""The structural schema of a pydantic class (Kubernetes: "Specifying a structural schema").

Pure. Flow: pydantic's own JSON schema → :func:`build_schema`, which rewrites what Kubernetes says
in another way, and refuses what it cannot say: the message names the field and offers what to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn

import pydantic
from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticSerializationError, PydanticUndefined, core_schema

from webop.errors import ConfigurationError
from webop.models.definitions import find_definition
from webop.models.fitting import FORM
from webop.models.keywords import (
    EMBEDDED,
    INT_OR_STRING,
    LIST_KEYS,
    LIST_TYPE,
    MAP_TYPE,
    PRESERVE,
    RULES,
)
from webop.models.model import build_rules, escape
from webop.models.patterns import FORMATS, adapt_pattern, build_url
from webop.models.structural import find_faults

Schema = dict[str, Any]

_UNSUPPORTED = "x-webop-unsupported"
_RULES_OF_CLASS = "x-webop-rules"
_KEYS = "x-webop-keys"
_KEPT: tuple[str, ...] = (
    *("type", "description", "default", "enum", "pattern", "format", "multipleOf"),
    *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"),
    *("minProperties", "maxProperties", "required", "properties", "items", "nullable"),
)
_CHECKED_FORMATS: Final = frozenset(
    {"date-time", "date", "uuid", "ipv4", "ipv6", "uri", "email", "byte", "int32", "int64"}
    | {"float", "double", "hostname", "cidr", "mac"}
)
# API servers accept all lists in strings with a format; in strings without one, they accept none.
_NO_LIST: Final = {"minItems": 1, "maxItems": 0}
_INTEGER_OR_STRING: Final = {
    INT_OR_STRING: True,
    "anyOf": [{"type": "integer"}, {"type": "string"}],  # without it, API servers accept 1e9 + 0.5
}
_LIMITS: Final = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_LENGTHS: Final = {
    "array": {"minLength": "minItems", "maxLength": "maxItems"},
    "object": {"minLength": "minProperties", "maxLength": "maxProperties"},
}
# Each is about one of both types only.
_LIMITS_OF_INT_OR_STRING: Final = frozenset(
    {"pattern", "minLength", "maxLength", "minimum", "maximum"}
    | {"exclusiveMinimum", "exclusiveMaximum"}
)
_TYPES_OF_MARKERS: Final = {LIST_TYPE: "array", MAP_TYPE: "object", EMBEDDED: "object"}
_FORMATS_OF_NO_KEYS: Final = frozenset({"date", "date-time", "ipv6"})
_PATTERN_OF_INTEGERS: Final = "^(0|-?[1-9][0-9]{0,17})$"
_ADVICE: Final = {
    "tuple": "a tuple has a type for each place. Use a list, or a class with named fields",
    "decimal": "a Decimal can be a number or a string. Use float, or "
    'Annotated[str, webop.models.CEL("isQuantity(self)")]',
    "bytes": "bytes have no form in JSON. Use a str of Base64, which is checked with "
    "Field(json_schema_extra={'format': 'byte'})",
    "timedelta": "a timedelta is an ISO 8601 duration, which Kubernetes does not check. Use int "
    'seconds, or a str with a pattern, such as r"^([0-9]+(s|m|h))+$"',
    "time": "Kubernetes has no format of times without a date. Use a str with a pattern",
    "json": "a JSON text in a field cannot be checked. Use dict[str, Any], or str",
    "union": "Kubernetes knows no union of these types. Use int | str, a webop.models.OneOf with "
    "one optional field for each form, or Any",
    "recursion": "the class contains itself, and schemas of Kubernetes have no references. Use "
    "dict[str, Any] at some depth",
    "secret": "a secret is written as asterisks. Use str, or the name of a Secret",
    "mixed": "an enum must have values of one type",
    "nothing": "JSON has no form for this type. Use another one, or a pydantic.PrivateAttr for "
    "what objects do not have",
    "default": "the default does not fit the type, has no form in JSON, or is a datetime without "
    "tzinfo=; API servers refuse it. Use another default",
    "moment": "Kubernetes cannot compare times with these limits, or with the present. Use "
    "datetime, and a webop.models.CEL rule for limits",
    "naive": "Kubernetes has no times without a time zone. Use pydantic.AwareDatetime, or a str "
    "with a pattern",
    "strip": "API servers check the limits of a text with its spaces. Leave out strip_whitespace=, "
    "and use a pattern",
    "step": "API servers cannot check a multiple_of= of floats. Use int, in a smaller unit",
    "python": "API servers cannot check this type of Python. Use a str with a pattern, or Any",
    "untyped": "API servers check keys and rules only of values with a type. Use another type than "
    "Any for the values, or str without limits for the keys, and no webop.models.CEL",
    "keys": "API servers cannot check keys of this type. Use str, int, an enum, a Literal, UUID or "
    "IPv4Address",
    "items": "items of Unique() must have one type, other than float, and cannot be None",
    "alike": "the classes of the union have different types of this field. Rename one, or use a "
    "webop.models.OneOf with a field for each class",
    "tagged": "a default in a class of a union would be set for the others, too. Use None as the "
    "default, or a webop.models.OneOf",
    "marker": "Unique() and ListKeys() are for lists, Embedded() is for objects, Atomic() for both"
    ". Leave it out, or change the type",
}


# The last one would import code that users name in their objects.
_LOCAL_TYPES: Final[Any] = (pydantic.NewPath, pydantic.SocketPath, pydantic.ImportString)
_LOCAL_CHECKS: Final = [TypeAdapter(kind).core_schema["function"] for kind in _LOCAL_TYPES]
_anything: Final = TypeAdapter[Any](Any, config={"ser_json_inf_nan": "constants"})


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, with defaults of factories, and marks on what has no schema."""

    def build_schema_type_to_method(self) -> dict[Any, Callable[[Any], JsonSchemaValue]]:
        """Return what generates the schema of each type, or marks it."""
        methods = super().build_schema_type_to_method()
        return {kind: partial(self._generate, method) for kind, method in methods.items()}

    def _generate(self, method: Callable[[Any], JsonSchemaValue], schema: Any) -> JsonSchemaValue:
        found = _find_unsupported(schema)
        return method(schema) if found is None else {_UNSUPPORTED: found}

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        """Return the schema of a type, or mark it if its values name files or code beside it."""
        is_local = schema.get("function") in _LOCAL_CHECKS
        return {_UNSUPPORTED: "python"} if is_local else super().generate_inner(schema)

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        """Return the default, also of a factory that always makes the same."""
        factory = schema.get("default_factory")
        if factory is None or schema.get("default_factory_takes_data"):
            return super().get_default_value(schema)
        is_model = isinstance(factory, type) and issubclass(factory, pydantic.BaseModel)
        if not (is_model or factory in (list, dict, set, frozenset)):
            return PydanticUndefined
        try:
            return factory()  # type: ignore[call-arg]
        except pydantic.ValidationError:  # the class has required fields
            return PydanticUndefined

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Return the schema with its default, if there is one."""
        default = self.get_default_value(schema)
        if default is PydanticUndefined:
            return self.generate_inner(schema["schema"])
        try:
            self.encode_default(default)
        except PydanticSerializationError:
            return {_UNSUPPORTED: "default"}
        return super().default_schema(schema)

    def handle_invalid_for_json_schema(
        self,
        schema: Any,  # noqa: ARG002
        error_info: str,  # noqa: ARG002
    ) -> JsonSchemaValue:
        """Mark what has no form in JSON, such as a callable."""
        return {_UNSUPPORTED: "nothing"}

    def encode_default(self, dft: Any) -> Any:
        """Return a default as the API server gets it: without fields that are None."""
        if isinstance(dft, (set, frozenset)):
            dft = sorted(dft, key=str)
        return _anything.dump_python(dft, exclude_none=True, **FORM)

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of a class, with the rules that follow from its base."""
        found = super().model_schema(schema)
        if rules := build_rules(schema["cls"]):
            found[_RULES_OF_CLASS] = rules
        return found

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """Return the schema of a map, with that of its keys."""
        found = super().dict_schema(schema)
        if patterns := found.pop("patternProperties", None):
            (found["additionalProperties"],) = patterns.values()
        if "keys_schema" in schema:
            found[_KEYS] = self.generate_inner(schema["keys_schema"])
        return found

    def url_schema(self, schema: core_schema.UrlSchema) -> JsonSchemaValue:
        """Return the schema of URLs that pydantic accepts."""
        needs_host = schema.get("host_required", False)
        pattern = build_url(schema.get("allowed_schemes"), needs_host=needs_host)
        return {**super().url_schema(schema), "pattern": pattern}


def _find_unsupported(schema: Mapping[str, Any]) -> str | None:
    """Return why Kubernetes has no schema for a type of pydantic: a key of the advice."""
    match schema:
        case {"type": "tuple", "items_schema": [_], "variadic_item_index": 0}:
            return None
        case {"type": "tuple" | "decimal" | "bytes" | "timedelta" | "time" | "json" as kind}:
            return str(kind)
        case {"type": "datetime", "tz_constraint": "naive"}:
            return "naive"
        case {"type": "date" | "datetime"} if schema.keys() & {"gt", "ge", "lt", "le", "now_op"}:
            return "moment"
        case {"type": "complex"} | {"custom_error_type": "is_hashable"}:
            return "python"
        case {"type": "str", "strip_whitespace": True}:
            return "strip"
        case {"type": "dict", "keys_schema": {"type": "literal", "expected": [*values]}}:
            # Keys are texts in JSON: pydantic does not find numbers among them.
            return None if all(isinstance(value, str) for value in values) else "keys"
    return None


def find_values(schema: Mapping[str, Any]) -> list[Any]:
    """Return the values of an enum, without null; for other schemas, nothing."""
    parts = (schema, *schema.get("allOf", ()))  # null is refused in a plain enum
    return [value for part in parts for value in part.get("enum", ()) if value is not None]


def build_schema(model: type[pydantic.BaseModel]) -> Schema:
    """Build the structural schema of a class, or raise an error if it has none."""
    try:
        found = TypeAdapter(model).json_schema(mode="validation", schema_generator=_Generator)
    except (PydanticInvalidForJsonSchema, PydanticUserError) as exc:
        text = f"{model.__qualname__} has no JSON schema: {str(exc).splitlines()[0]}"
        raise ConfigurationError(text) from exc
    converter = _Converter(found.get("$defs", {}), model.__qualname__)
    schema = converter.convert(found, ())
    if find_definition(model) is not None or {"apiVersion", "kind"} <= schema["properties"].keys():
        schema = _complete_root(schema)
    return schema


def _complete_root(schema: Schema) -> Schema:
    """Return the schema of a whole object: Kubernetes knows the metadata itself."""
    own = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    root = {**schema, "properties": {**schema["properties"], **own}}
    if required := [name for name in root.pop("required", ()) if name not in own]:
        root["required"] = required
    return root


class _Converter:
    """Rewrites pydantic's JSON schema, with the classes that it refers to."""

    def __init__(self, definitions: Mapping[str, Any], owner: str) -> None:
        self._definitions = definitions
        self._owner = owner
        self._open: list[str] = []
        self._endless = 0  # how many lists and maps without a maximal length are around

    def convert(self, node: Schema, path: tuple[str, ...]) -> Schema:
        """Return the structural schema of a node."""
        if reference := node.get("$ref"):
            name = reference.rpartition("/")[2]
            if name in self._open:
                self._refuse(path, "recursion")
            self._open.append(name)
            try:
                return self.convert(_merge(self._definitions[name], node), path)
            finally:
                self._open.pop()
        if what := node.get(_UNSUPPORTED):
            self._refuse(path, what)
        if variants := node.get("anyOf") or node.get("oneOf"):
            rest = {k: v for k, v in node.items() if k not in ("anyOf", "oneOf", "discriminator")}
            return self._convert_union(variants, rest, node.get("discriminator"), path)
        if "allOf" in node:
            merged: Schema = {key: value for key, value in node.items() if key != "allOf"}
            for part in node["allOf"]:
                merged = _merge(part, merged)
            return self.convert(merged, path)
        return self._convert_plain(node, path)

    def _refuse(self, path: Sequence[str], what: str) -> NoReturn:
        """Raise an error with an advice, by its key or as it is."""
        place = ".".join((self._owner, *path)).replace(".[", "[")
        raise ConfigurationError(f"{place}: {_ADVICE.get(what, what)}.")

    def _convert_plain(self, node: Schema, path: tuple[str, ...]) -> Schema:
        node = _name_limits(node)
        if "const" in node:
            node = {**node, "enum": [node["const"]]}
        if "enum" in node:
            node = self._convert_enum(node, path)
        schema = {key: node[key] for key in _KEPT if key in node}
        schema |= {key: value for key, value in node.items() if key.startswith("x-kubernetes-")}
        schema |= self._build_rules(node, schema)
        kind = node.get("type")
        if any(kind not in (_TYPES_OF_MARKERS.get(key, kind), "any") for key in schema):
            self._refuse(path, "marker")
        if kind is None and INT_OR_STRING not in schema:
            schema |= {PRESERVE: True, "nullable": schema.get("default", "") is not None}
        if schema.get("default", "") is None:
            del schema["default"]  # the API server drops null, or keeps it: it is the same
        if kind == "null":
            self._refuse(path, "union")
        adders = {
            "object": self._add_properties,
            "array": self._add_items,
            "string": self._add_pattern,
            "integer": self._add_limits,
            "number": self._add_limits,
        }
        if add := adders.get(kind or ""):
            add(schema, node, path)
        if schema.get("multipleOf", 1) % 1 or ("multipleOf" in schema and kind != "integer"):
            self._refuse(path, "step")
        if RULES in schema and not _has_type(schema):
            self._refuse(path, "untyped")
        if "default" in schema and any(find_faults(schema["default"], schema)):
            self._refuse(path, "default")
        return _make_nullable(schema) if schema.get("nullable") else schema

    def _build_rules(self, node: Schema, schema: Schema) -> Schema:
        """Return what says the rules of a class; within endless lists, what costs nothing."""
        rules = node.get(_RULES_OF_CLASS)
        if rules and self._endless:
            return {"minProperties": 1, "maxProperties": 1}
        return {RULES: [*rules, *schema.get(RULES, ())]} if rules else {}

    def _convert_enum(self, node: Schema, path: tuple[str, ...]) -> Schema:
        values = node["enum"]
        kinds = {_name_type(value) for value in values if value is not None}
        if len(kinds) != 1:
            self._refuse(path, "mixed")
        found = {**node, "type": kinds.pop(), "enum": [v for v in values if v is not None]}
        return {**found, "nullable": True} if None in values else found

    def _add_properties(self, schema: Schema, node: Schema, path: tuple[str, ...]) -> None:
        properties = node.get("properties")
        more = node.get("additionalProperties", True if properties is None else None)
        keys = self.convert(node[_KEYS], (*path, "[key]")) if _KEYS in node else {}
        if names := find_values(keys):  # without the cost of a rule, but other keys are dropped
            properties, more = dict.fromkeys(map(str, names), {} if more is True else more), None
        if properties is not None:
            schema["properties"] = {
                name: self.convert(part, (*path, name)) for name, part in properties.items()
            }
            if more is not None and more is not False:
                schema[PRESERVE] = True
        elif isinstance(more, dict):
            is_endless = "maxProperties" not in node
            schema["additionalProperties"] = self._convert_inner(more, (*path, "[key]"), is_endless)
        else:
            schema[PRESERVE] = True
        if not names and (rule := self._build_key_rule(keys, path)):
            schema[RULES] = [*schema.get(RULES, ()), {"rule": rule}]
            if not _has_type(schema.get("additionalProperties", {})):
                self._refuse(path, "untyped")

    def _build_key_rule(self, keys: Schema, path: tuple[str, ...]) -> str:
        """Return a rule for the keys of a map; nothing if all keys are right."""
        kind, pattern = keys.get("type", "string"), keys.get("pattern")
        if kind not in ("string", "integer") or keys.get("format") in _FORMATS_OF_NO_KEYS:
            self._refuse(path, "keys")
        value, names = "key.size()", ("minLength", "maxLength")
        if kind == "integer":
            pattern, value, names = _PATTERN_OF_INTEGERS, "int(key)", ("minimum", "maximum")
        terms = [f"key.matches({json.dumps(pattern, ensure_ascii=False)})"] if pattern else []
        for name, sign in zip(names, (">", "<"), strict=True):
            if name in keys:
                equal = "" if keys.get(f"exclusive{name.capitalize()}") else "="
                terms.append(f"{value} {sign}{equal} {keys[name]}")
        if "multipleOf" in keys:
            terms.append(f"int(key) % {keys['multipleOf']} == 0")
        return f"self.all(key, {' && '.join(terms)})" if terms else ""

    def _add_items(self, schema: Schema, node: Schema, path: tuple[str, ...]) -> None:
        if "prefixItems" in node:
            self._refuse(path, "tuple")
        is_endless = "maxItems" not in node
        items = self._convert_inner(node.get("items", {}), (*path, "[]"), is_endless)
        schema["items"] = items
        if schema.get(LIST_TYPE) == "set":
            self._make_atomic(items, path)
        if node.get("uniqueItems") and LIST_TYPE not in schema:
            is_scalar = items.get("type") in ("string", "integer", "number", "boolean")
            schema[LIST_TYPE] = "set" if is_scalar else "atomic"
        for key in schema.get(LIST_KEYS, ()):
            part = items.get("properties", {}).get(key)
            if part is None or (key not in items.get("required", ()) and "default" not in part):
                what = "a field of the items, in JSON, that is required or has a default"
                self._refuse(path, f"ListKeys({key!r}) must name {what}")

    def _make_atomic(self, items: Schema, path: tuple[str, ...]) -> None:
        """Make an item of a set atomic: Kubernetes requires that."""
        kind = items.get("type")
        if items.get("nullable") or kind == "number":
            self._refuse(path, "items")
        if kind == "integer":  # any rule makes API servers refuse 1.0, which they would store as 1
            items[RULES] = [*items.get(RULES, ()), {"rule": "self == int(self)"}]
        if kind in ("object", "array"):
            items[MAP_TYPE if kind == "object" else LIST_TYPE] = "atomic"

    def _convert_inner(self, node: Schema, path: tuple[str, ...], is_endless: bool) -> Schema:  # noqa: FBT001
        self._endless += is_endless
        try:
            return self.convert(node, path)
        finally:
            self._endless -= is_endless

    def _add_limits(self, schema: Schema, node: Schema, path: tuple[str, ...]) -> None:  # noqa: ARG002
        """Write exclusive limits as OpenAPI 3.0 does."""
        for word, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if word in node:
                schema[limit], schema[word] = node[word], True
        if (step := node.get("multipleOf", 1)) != 1:
            # A rule, as API servers let great numbers with ".0" pass, which are no multiples.
            schema[RULES] = [*schema.get(RULES, ()), {"rule": f"self % {int(step)} == 0"}]

    def _add_pattern(self, schema: Schema, node: Schema, path: tuple[str, ...]) -> None:  # noqa: ARG002
        form = schema.get("format")
        if pattern := schema.get("pattern"):
            try:
                schema["pattern"] = adapt_pattern(pattern)
            except ValueError as exc:
                self._refuse(path, f"the pattern {pattern!r}: {exc}")
        if form == "password":
            self._refuse(path, "secret")
        if form in FORMATS:
            schema.setdefault("pattern", FORMATS[form])
            form = "uuid" if form.startswith("uuid") else form
        if form == "path":
            del schema["format"]
        elif form in _CHECKED_FORMATS:
            schema |= {"format": form, **_NO_LIST}
        elif form is not None:
            advice = "datetime, date, UUID, IPv4Address, IPv6Address, AnyUrl"
            text = f"Kubernetes does not check the format {form!r}. Use str with a pattern"
            self._refuse(path, f"{text}, or one of {advice}")

    def _convert_union(
        self,
        variants: Sequence[Schema],
        rest: Schema,
        discriminator: Mapping[str, Any] | None,
        path: tuple[str, ...],
    ) -> Schema:
        """Return the schema of an optional value, int | str, several enums, or a tagged union."""
        others = [part for part in variants if part.get("type") != "null"]
        is_nullable = len(others) < len(variants)
        if is_nullable:
            # Of None as the default, null is only another way to leave the field out.
            is_nullable = rest.get("nullable") or rest.get("default", "") is not None
        if discriminator is not None:
            schema = self._merge_tagged(others, rest, discriminator["propertyName"], path)
        elif len(others) == 1:
            schema = self.convert(_merge(others[0], rest), path)
        else:
            parts = [self.convert(part, path) for part in others]
            schema = self._merge_scalars(
                parts, self._convert_plain({**rest, "type": "any"}, path), path
            )
        return _make_nullable(schema) if is_nullable else schema

    def _merge_scalars(
        self, parts: Sequence[Schema], rest: Schema, path: tuple[str, ...]
    ) -> Schema:
        del rest["type"]
        kinds = {part.get("type") for part in parts}
        if all(part.keys() == {"type", "enum"} for part in parts) and len(kinds) == 1:
            values = [value for part in parts for value in part["enum"]]
            return {**rest, "type": kinds.pop(), "enum": [*dict.fromkeys(values)]}
        limits = {key: value for part in parts for key, value in part.items() if key != "type"}
        if kinds == {"integer", "string"} and limits.keys() <= _LIMITS_OF_INT_OR_STRING:
            return {**limits, **rest, **_INTEGER_OR_STRING}
        if kinds == {"integer", "number"} and not limits:
            return {**rest, "type": "number"}
        return self._refuse(path, "union")

    def _merge_tagged(
        self, variants: Sequence[Schema], rest: Schema, tag: str, path: tuple[str, ...]
    ) -> Schema:
        """Merge the classes of a discriminated union: all fields, and a rule for each class."""
        properties: dict[str, Schema] = {}
        rules: list[dict[str, str]] = []
        tags: list[Any] = []
        for variant in variants:
            part = self.convert(variant, path)
            fields = part.get("properties", {})
            own = fields[tag]["enum"]
            other = f"!(self.{escape(tag)} in {json.dumps(own)}) || "
            rules += [{**rule, "rule": f"{other}({rule['rule']})"} for rule in part.get(RULES, ())]
            tags += own
            for name, schema in fields.items():
                if name == tag:
                    continue
                if properties.setdefault(name, schema) != schema:
                    self._refuse((*path, name), "alike")
                if "default" in schema:
                    self._refuse((*path, name), "tagged")
            if needed := [name for name in part.get("required", ()) if name != tag]:
                terms = " && ".join(f"has(self.{escape(name)})" for name in needed)
                values = " or ".join(map(str, own))
                message = f"with {tag} {values}, {', '.join(needed)} must be set"
                rules.append({"rule": f"{other}({terms})", "message": message})
        first = {"type": _name_type(tags[0]), "enum": tags}
        found = self._convert_plain({**rest, "type": "object", "properties": {}}, path)
        found["properties"] = {tag: first, **properties}
        found["required"] = [tag]
        if rules:
            found[RULES] = [*found.get(RULES, ()), *rules]
        return found


def _merge(inner: Schema, outer: Schema) -> Schema:
    """Return a schema with the keywords of the place that refers to it, which win."""
    more = {key: value for key, value in outer.items() if key != "$ref"}
    merged = {**inner, **more}
    if RULES in inner and RULES in more and inner[RULES] != more[RULES]:
        merged[RULES] = [*inner[RULES], *more[RULES]]
    return merged


def _make_nullable(schema: Schema) -> Schema:
    """Return a schema that allows null; API servers never find it in an enum of the same level."""
    rest = {key: value for key, value in schema.items() if key != "enum"}
    enum = {"allOf": [{"enum": schema["enum"]}]} if "enum" in schema else {}
    return {**rest, **enum, "nullable": True}


def _name_limits(node: Schema) -> Schema:
    """Return a schema with the names of limits that pydantic forgets behind validators."""
    names = _LIMITS | _LENGTHS.get(node.get("type", ""), {})
    return {names.get(key, key): value for key, value in node.items()}


def _has_type(schema: Schema) -> bool:
    """Return whether API servers know the type of a value; else they refuse rules about it."""
    inner = schema.get("items", schema.get("additionalProperties"))
    return _has_type(inner) if inner is not None else bool({"type", INT_OR_STRING} & schema.keys())


def _name_type(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return names.get(type(value), "object")


def find_part(schema: Schema, path: Sequence[str]) -> Schema | None:
    """Return the schema of a field; an empty one for unknown fields that are kept, or else None."""
    for name in path:
        if name in schema.get("properties", {}):
            schema = schema["properties"][name]
        elif isinstance(schema.get("additionalProperties"), dict):
            schema = schema["additionalProperties"]
        else:
            return {} if schema.get(PRESERVE) else None
    return schema
