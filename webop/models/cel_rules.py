"""CEL rules of models, and markers for what types do not say (Kubernetes: "Validation rules").

::

    class Range(webop.models.Struct):
        low: int
        high: Annotated[int, webop.models.CEL("self >= oldSelf", message="must not decrease")]

    Range = webop.models.CEL("self.low <= self.high")(Range)  # or as a decorator of the class

The API server checks the rules; pydantic does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial, reduce
from operator import getitem
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import pydantic
from pydantic import Field, JsonValue
from pydantic.alias_generators import to_camel
from pydantic_core import core_schema as core
from pydantic_core import to_json, to_jsonable_python

from webop.errors import ConfigurationError
from webop.models.definitions import split_optional
from webop.models.fitting import NAMED_LIMIT
from webop.models.keywords import EMBEDDED, LIST_KEYS, LIST_TYPE, MAP_TYPE, PRESERVE, RULES
from webop.objects.fields import find_attribute

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

M = TypeVar("M", bound=type[pydantic.BaseModel])


@dataclass(frozen=True, slots=True)
class _Marker:
    """Adds keywords to the schema of an annotated field."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        return schema | self._build(schema)

    def _build(self, schema: JsonSchemaValue) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _CheckingMarker(_Marker):
    """Lets pydantic check, too, what the API server checks."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core.CoreSchema:
        return core.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _ClassMarker(_Marker):
    """Can also decorate a class: it adds the keywords to its schema."""

    def __call__(self, model: M) -> M:
        former: Any = model.model_config.get("json_schema_extra")

        def extend(schema: dict[str, JsonValue], cls: type[Any]) -> None:
            if callable(former):
                former(schema, cls)
            elif former:
                schema.update(former)
            schema.update(self._build(schema))

        model.model_config = {**model.model_config, "json_schema_extra": extend}
        return model


@dataclass(frozen=True, slots=True)
class CEL(_ClassMarker):
    """A rule that the API server checks: in an annotation of a field, or as a class decorator.

    Transition rules, with ``oldSelf``, are checked in updates only. API servers refuse rules that
    cost too much: give strings, lists and maps a maximal length; see
    docs/howto/rules.md#cel-in-the-schema.

    Args:
        rule: the expression, in which ``self`` is the field or the object.
        message: what users see if the rule is violated.
        message_expression: an expression that returns the message.
        reason: "FieldValueInvalid" (default), "FieldValueForbidden", "FieldValueRequired" or
            "FieldValueDuplicate".
        field_path: the field that the message is about, such as ".spec.size"; by default, that of
            the rule.
        optional_old_self: check a transition rule in creations, too; ``oldSelf`` is optional then.
    """

    rule: str
    message: str | None = None
    message_expression: str | None = None
    reason: str | None = None
    field_path: str | None = None
    optional_old_self: bool = False

    def __post_init__(self) -> None:
        if not self.rule.strip():
            raise ConfigurationError(f"A CEL rule must be an expression, got {self.rule!r}.")

    def _build(self, schema: JsonSchemaValue) -> dict[str, Any]:
        rule = {to_camel(name): value for name, value in asdict(self).items() if value}
        return {RULES: [*schema.get(RULES, ()), rule]}


@dataclass(frozen=True, slots=True, init=False)
class ListKeys(_CheckingMarker):
    """A list of objects that are identified by some of their fields, as containers by their name.

    Server-side apply merges such lists, and the API server refuses duplicates::

        ports: Annotated[list[Port], webop.models.ListKeys("name")]
    """

    keys: tuple[str, ...]

    def __init__(self, *keys: str) -> None:
        if not keys:
            raise ConfigurationError("ListKeys() needs the names of the fields in JSON.")
        object.__setattr__(self, "keys", keys)

    def _check(self, items: Any) -> Any:
        known = [repr([_read(item, key) for key in self.keys]) for item in items or ()]
        if len({*known}) < len(known):
            raise ValueError(f"items must differ in {', '.join(self.keys)}")
        return items

    def _build(self, schema: JsonSchemaValue) -> dict[str, Any]:  # noqa: ARG002
        return {LIST_TYPE: "map", LIST_KEYS: [*self.keys]}


def _read(item: Any, key: str) -> Any:
    """Return a field by its name in JSON."""
    if isinstance(item, pydantic.BaseModel):
        name = find_attribute(type(item), key)
        return None if name is None else getattr(item, name)
    return item.get(key) if isinstance(item, Mapping) else None


@dataclass(frozen=True, slots=True)
class Atomic(_ClassMarker):
    """A list, map or object that server-side apply replaces as a whole.

    In an annotation of a field, or as a class decorator: ``@webop.models.Atomic()``.
    """

    def _build(self, schema: JsonSchemaValue) -> dict[str, Any]:
        kinds = {part.get("type") for part in (schema, *schema.get("anyOf", ()))}
        return {LIST_TYPE if "array" in kinds else MAP_TYPE: "atomic"}


@dataclass(frozen=True, slots=True)
class Unique(_Marker):
    """A list in its order, without duplicates: ``Annotated[list[str], webop.models.Unique()]``.

    A ``set`` becomes the same in the schema, but has no order in Python.
    """

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core.CoreSchema:
        return core.no_info_before_validator_function(self._check, handler(source))

    def _check(self, items: Any) -> Any:
        if isinstance(items, (list, tuple)):
            # As they are written: so API servers compare them.
            plain = to_jsonable_python(items, by_alias=True, fallback=repr)
            if len({json.dumps(item, sort_keys=True) for item in plain}) < len(items):
                raise ValueError("items must be unique")
        return items

    def _build(self, schema: JsonSchemaValue) -> dict[str, Any]:  # noqa: ARG002
        return {LIST_TYPE: "set"}


@dataclass(frozen=True, slots=True)
class Nullable(_Marker):
    """An optional field in which null is stored: ``Annotated[X | None, Nullable()] = None``.

    Without it, the API server drops null where None is the default.
    """

    def _build(self, schema: JsonSchemaValue) -> dict[str, Any]:  # noqa: ARG002
        return {"nullable": True}


@dataclass(frozen=True, slots=True)
class _Integer(_CheckingMarker):
    """An integer of so many bits."""

    bits: int

    def _check(self, value: int) -> int:
        if not -(2 ** (self.bits - 1)) <= value < 2 ** (self.bits - 1):
            raise ValueError(f"must be an integer of {self.bits} bits")
        return value

    def _build(self, schema: JsonSchemaValue) -> dict[str, Any]:  # noqa: ARG002
        return {"format": f"int{self.bits}"}


Int32 = Annotated[int, _Integer(32)]
"""An integer of 32 bits: ``replicas: webop.models.Int32``."""
Int64 = Annotated[int, _Integer(64)]
"""An integer of 64 bits: ``bytes: webop.models.Int64``."""

_SIGN, _NUMBER = r"(\+|-)?", r"(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
_UNIT = rf"(([KMGTPE]i)|[numkMGTPE]|([eE]{_SIGN}{_NUMBER}))?"
Quantity = int | Annotated[str, Field(pattern=f"^{_SIGN}{_NUMBER}{_UNIT}$")]
"""An amount as Kubernetes writes it, such as 2, "500m" or "10Gi": ``size: Quantity``."""


@dataclass(frozen=True, slots=True)
class Embedded(_CheckingMarker):
    """A whole object inside of another one: ``Annotated[dict[str, Any], Embedded()]``.

    Its unknown fields are preserved; its ``apiVersion``, ``kind`` and ``metadata`` are checked.
    Leave it out for parts of objects, such as pod templates.
    """

    def _check(self, value: Any) -> Any:
        if value is not None and not (_read(value, "apiVersion") and _read(value, "kind")):
            raise ValueError(
                "must have apiVersion and kind; parts of objects, such as pod templates, need no "
                "webop.models.Embedded()"
            )
        return value

    def _build(self, schema: JsonSchemaValue) -> dict[str, Any]:  # noqa: ARG002
        return {EMBEDDED: True, PRESERVE: True}


@dataclass(frozen=True, slots=True)
class Schemaless:
    """A part of an object without its schema: ``Annotated[JobTemplateSpec, Schemaless()]``.

    For pod templates and other large classes. The API server stores any mapping there. webop checks
    it against the class, in which it keeps fields that the class does not know, such as those of a
    newer Kubernetes: :func:`webop.Children.apply` writes them, too. A number where the class has a
    string becomes a string: ``cpu: 2`` is ``"2"``. See docs/howto/models.md, "Built-in kinds".
    """

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core.CoreSchema:
        kind, _ = split_optional(source)
        if not (isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)):
            raise ConfigurationError(
                f"webop.models.Schemaless() is for a class of pydantic, got {source!r}. In a list, "
                "write list[Annotated[Container, webop.models.Schemaless()]]."
            )
        return core.no_info_wrap_validator_function(partial(_read_all, kind), handler(source))

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        found = handler.resolve_ref_schema(handler(core_schema))
        described = {"description": found["description"]} if "description" in found else {}
        return {"type": "object", PRESERVE: True, **described}


def _read_all(
    model: type[pydantic.BaseModel], value: Any, handler: core.ValidatorFunctionWrapHandler
) -> Any:
    """Return a mapping as a model, with the fields that it does not know."""
    if not isinstance(value, Mapping):
        return handler(value)
    plain = to_jsonable_python(value, by_alias=True, exclude_none=True)
    read: Any = model.model_validate_json
    read = partial(read, strict=True, extra="allow", by_alias=True, by_name=False)
    try:
        return read(to_json(plain))
    except pydantic.ValidationError as exc:
        if exc.error_count() > NAMED_LIMIT:
            raise
        errors = exc.errors(include_url=False, include_context=False)
    for error in errors:
        *path, key = error["loc"]
        if error["type"] == "string_type" and type(error["input"]) in (int, float):
            with suppress(LookupError, TypeError):  # a path into a union has names of types
                reduce(getitem, path, plain)[key] = to_json(error["input"]).decode()
    return read(to_json(plain))
