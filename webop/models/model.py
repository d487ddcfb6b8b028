"""Base classes of models, and the kinds that they are for.

Any pydantic class with the fields ``apiVersion`` and ``kind`` can stand for a kind; these base
classes save its author some lines.
"""

from __future__ import annotations

import datetime as dt
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Final, Literal, Self, TypeGuard, TypeVar, get_args

import pydantic
from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticUndefined

from webop.errors import ConfigurationError
from webop.models.annotations import build, check_fields
from webop.objects.fields import find_attribute
from webop.objects.names import LABEL
from webop.objects.resources import (
    Resource,
    Selector,
    guess_plural,
    parse_selector,
    select_objects,
)

C = TypeVar("C", bound=pydantic.BaseModel)

_is_group = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+").fullmatch
_is_kind = re.compile(r"[A-Za-z]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?").fullmatch
_is_name = LABEL.fullmatch


RESERVED: Final = frozenset(
    {"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function"}
    | {"if", "import", "let", "loop", "package", "namespace", "return", "var", "void", "while"}
)


class Struct(pydantic.BaseModel):
    """A part of an object: fields in snake_case here are in camelCase in Kubernetes.

    The docstring of a field, or ``Field(description=…)``, becomes its description in the schema.

    ::

        class DatabaseSpec(webop.Struct):
            storage_class: str = "standard"
            '''The class of the volumes; "storageClass" in manifests.'''
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        serialize_by_alias=True,
        url_preserve_empty_path=True,  # "https://a" must not be written as "https://a/"
        defer_build=True,  # resource() builds; the import of webop must not
    )


class OneOf(Struct):
    """A union as Kubernetes writes it: of the fields of the class, exactly one must be set.

    ::

        class Source(webop.OneOf):
            git: GitSource | None = None
            image: ImageSource | None = None
    """

    @pydantic.model_validator(mode="after")
    def _check_that_one_is_set(self) -> Self:
        found = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(found) != 1:
            names = ", ".join(_list_aliases(type(self)))
            raise ValueError(f"exactly one must be set of {names}; got {len(found)}")
        return self

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse fields that are always set."""
        super().__pydantic_init_subclass__(**kwargs)
        for name, info in cls.model_fields.items():
            if info.is_required() or info.default is not None:
                raise ConfigurationError(
                    f"{cls.__qualname__}.{name} must be optional, with None as its default: of the "
                    "fields of a webop.OneOf, exactly one is set."
                )


def _list_aliases(model: type[pydantic.BaseModel]) -> list[str]:
    return [info.alias or name for name, info in model.model_fields.items()]


def escape(name: str) -> str:
    """Return the name of a field in CEL, in which some words are reserved."""
    if name in RESERVED:
        return f"__{name}__"
    for text, escaped in (("__", "underscores"), (".", "dot"), ("-", "dash"), ("/", "slash")):
        name = name.replace(text, f"__{escaped}__")
    return name


def build_rules(model: type[pydantic.BaseModel]) -> list[dict[str, str]]:
    """Return the rules that follow from the base class."""
    if not issubclass(model, OneOf):
        return []
    fields = _list_aliases(model)
    terms = ", ".join(f"has(self.{escape(name)})" for name in fields)
    message = f"exactly one must be set of {', '.join(fields)}"
    return [{"rule": f"[{terms}].exists_one(x, x)", "message": message}]


class Metadata(Struct):
    """The metadata of an object (meta/v1 ObjectMeta); other fields of it are kept as they are."""

    model_config = ConfigDict(extra="allow")

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: dt.datetime | None = None
    deletion_timestamp: dt.datetime | None = None
    finalizers: list[str] = Field(default_factory=list)
    owner_references: list[dict[str, Any]] = Field(default_factory=list)


class Model(Struct):
    """The base of models of kinds; :func:`resource` says which kind.

    ::

        @webop.resource("example.com", "v1")
        class Database(webop.Model):
            spec: DatabaseSpec
            status: DatabaseStatus | None = None
    """

    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Field(default_factory=Metadata)


for _base in (Struct, OneOf, Model):  # only now: to read the source of a class is slow
    _base.model_config["use_attribute_docstrings"] = True


@dataclass(frozen=True, slots=True)
class Column:
    """A column of ``kubectl get``.

    Args:
        path: a JSON path, such as ".spec.size".
        type: "string", "integer", "number", "boolean" or "date"; by default, that of the field.
        priority: above 0, the column is shown by ``-o wide`` only.
        description: of the column.
        format: such as "int64"; by default, that of the type.
    """

    path: str
    type: Literal["string", "integer", "number", "boolean", "date"] | None = None
    priority: int = 0
    description: str | None = None
    format: str | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """The fields for ``kubectl scale`` and autoscalers: JSON paths."""

    replicas: str = ".spec.replicas"
    status: str = ".status.replicas"
    selector: str | None = None


@dataclass(frozen=True, kw_only=True)
class Definition:
    """The kind of a model, and what its CustomResourceDefinition says besides the schema."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    scope: Literal["Namespaced", "Cluster"] = "Namespaced"
    columns: Mapping[str, Column] = field(default_factory=dict)
    scale: Scale | None = None
    selectable: tuple[str, ...] = ()
    stored: bool = True
    served: bool = True
    deprecated: str | bool = False
    status_subresource: bool = True
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def api_version(self) -> str:
        """The value of ``apiVersion`` of the objects."""
        return f"{self.group}/{self.version}"

    @property
    def name(self) -> str:
        """The name of the CustomResourceDefinition."""
        return f"{self.plural}.{self.group}"

    def __str__(self) -> str:
        return f"{self.plural}.{self.version}.{self.group}"


_defined: Final[dict[tuple[str, str, str], type[pydantic.BaseModel]]] = {}
_DEFINITION = "__webop_definition__"


def resource(  # noqa: PLR0913 - as many as a definition has
    group: str,
    version: str,
    *,
    kind: str | None = None,
    plural: str | None = None,
    singular: str | None = None,
    short_names: Collection[str] = (),
    categories: Collection[str] = (),
    scope: Literal["Namespaced", "Cluster"] = "Namespaced",
    columns: Mapping[str, str | Column] | None = None,
    scale: Scale | None = None,
    selectable: Collection[str] = (),
    stored: bool = True,
    served: bool = True,
    deprecated: str | bool = False,
    status_subresource: bool = True,
    annotations: Mapping[str, str] | None = None,
) -> Callable[[type[C]], type[C]]:
    """Make a class the model of a kind: for decorators, the client, and ``webop crd``.

    ::

        @webop.resource("example.com", "v1", columns={"Size": ".spec.size"})
        class Database(webop.Model):
            spec: DatabaseSpec

    See docs/howto/models.md and docs/howto/crds.md.

    Args:
        group: the API group, such as "example.com".
        version: the version of the API, such as "v1" or "v1beta1".
        kind: the kind as in manifests; by default, the name of the class.
        plural: the name in URLs; by default, derived from the kind: "databases".
        singular: the singular name; by default, the kind in lowercase.
        short_names: short names for kubectl, such as "db".
        categories: groups of kinds for kubectl, such as "all".
        scope: "Cluster" if the objects belong to no namespace.
        columns: the columns of ``kubectl get`` by their titles: JSON paths or :class:`Column`.
        scale: the fields for ``kubectl scale`` and autoscalers.
        selectable: JSON paths of fields for field selectors, such as ".spec.engine".
        stored: whether objects are stored in this version: exactly one version of a kind is.
        served: whether the API server offers this version.
        deprecated: whether the API server warns clients, or the text of the warning.
        status_subresource: whether the field ``status``, if there is one, is a subresource.
        annotations: annotations of the CustomResourceDefinition, such as those of Helm.

    Raises:
        ConfigurationError: the class cannot be a kind of Kubernetes; the message names the field.
    """

    def decorate(model: type[C]) -> type[C]:
        name = kind or model.__name__
        definition = Definition(
            group=group,
            version=version,
            kind=name,
            plural=plural or guess_plural(name),
            singular=singular or name.lower(),
            short_names=tuple(short_names),
            categories=tuple(categories),
            scope=scope,
            columns={
                title: Column(column) if isinstance(column, str) else column
                for title, column in (columns or {}).items()
            },
            scale=scale,
            selectable=tuple(selectable),
            stored=stored,
            served=served,
            deprecated=deprecated,
            status_subresource=status_subresource,
            annotations=dict(annotations or {}),
        )
        _check(definition, model)
        for attribute, value in (("api_version", definition.api_version), ("kind", name)):
            info = model.model_fields.get(attribute)
            if info is not None and info.default in ("", PydanticUndefined):
                info.default = value
        build(model, lambda: model.model_rebuild(force=True))
        check_fields(model)
        setattr(model, _DEFINITION, definition)
        _register(definition, model)
        return model

    return decorate


def _check(definition: Definition, model: object) -> None:
    if not (isinstance(model, type) and issubclass(model, pydantic.BaseModel)):
        raise ConfigurationError(
            f"@webop.resource() is for pydantic classes, such as a webop.Model, got {model!r}."
        )
    problems = [
        (_is_group(definition.group), "group", definition.group, "a name such as 'example.com'"),
        (_is_name(definition.version), "version", definition.version, "such as 'v1'"),
        (_is_kind(definition.kind), "kind", definition.kind, "letters and digits, 63 at most"),
        (_is_name(definition.plural), "plural", definition.plural, "lowercase letters and digits"),
        (_is_name(definition.singular), "singular", definition.singular, "a lowercase name"),
        (
            definition.scope in ("Namespaced", "Cluster"),
            *("scope", definition.scope, "'Namespaced' or 'Cluster'"),
        ),
    ]
    for is_right, name, value, wanted in problems:
        if not is_right:
            raise ConfigurationError(
                f"{name}= of {model.__qualname__} must be {wanted}, got {value!r}."
            )


def _register(definition: Definition, model: type[pydantic.BaseModel]) -> None:
    key = (definition.group, definition.plural, definition.version)
    former = _defined.get(key)
    if former is not None and _locate(former) != _locate(model):
        is_same = find_definition(former) == definition
        if not is_same or former.model_json_schema() != model.model_json_schema():
            raise ConfigurationError(
                f"Two models of {definition} differ: {_locate(former)} and {_locate(model)}. "
                "Define each version of a kind once, and import it elsewhere."
            )
    _defined[key] = model


def _locate(model: type) -> str:
    return f"{model.__module__}.{model.__qualname__}"


def list_models() -> list[type[pydantic.BaseModel]]:
    """Return all classes that were decorated with :func:`resource`, in their order."""
    return [*_defined.values()]


def list_versions(model: type[pydantic.BaseModel]) -> list[type[pydantic.BaseModel]]:
    """Return the models of all versions of a kind."""
    definition = find_definition(model)
    if definition is None:
        return [model]
    return [
        each
        for each in list_models()
        if (found := find_definition(each)) and found.name == definition.name
    ]


def find_definition(model: type[pydantic.BaseModel]) -> Definition | None:
    """Return what :func:`resource` says of a class; None for others."""
    found: Definition | None = model.__dict__.get(_DEFINITION)
    return found


def advise_creation(selector: Selector) -> str:
    """Return the command that creates the kind of a selector, if a model is for it; else ""."""
    for model in list_models():
        one = find_definition(model)
        file = getattr(sys.modules.get(model.__module__), "__file__", None)
        if one is None or file is None:
            continue
        names = one.group, one.version, one.plural, one.kind, one.singular
        if selector.check(Resource(*names, frozenset(one.short_names))):
            return f" Create it: webop crd apply {shlex.quote(file)}"
    return ""


def is_model(value: object) -> TypeGuard[type[pydantic.BaseModel]]:
    """Return whether a value is a class that stands for a kind."""
    return (
        isinstance(value, type)
        and issubclass(value, pydantic.BaseModel)
        and (find_definition(value) is not None or _find_default(value, "kind") is not None)
    )


def find_class(
    parts: Sequence[Any], keywords: Mapping[str, Any]
) -> type[pydantic.BaseModel] | None:
    """Return the class that a decorator names instead of a kind; None if it names a kind.

    Raises:
        TypeError: it names both.
    """
    classes = [
        each for each in parts if isinstance(each, type) and issubclass(each, pydantic.BaseModel)
    ]
    if not classes:
        return None
    if len(parts) > 1 or any(value is not None for value in keywords.values()):
        raise TypeError(
            f"{classes[0].__qualname__} says of which kind it is: name no kind beside it."
        )
    return classes[0]


def build_selector(model: type[pydantic.BaseModel]) -> Selector:
    """Return the selector of the kind of a class, for decorators and the client.

    Raises:
        ConfigurationError: the class does not say of which kind it is.
        TypeError: it is not a class of pydantic.
    """
    if not issubclass(model, pydantic.BaseModel):
        raise TypeError(f"A kind must be a name or a class of pydantic, got {model!r}.")
    definition = find_definition(model)
    if definition is not None:
        group, version, plural = definition.group, definition.version, definition.plural
        return Selector(group=group, version=version, plural=plural)
    api_version, kind = _find_default(model, "apiVersion"), _find_default(model, "kind")
    if not (api_version and kind):
        raise ConfigurationError(
            f"{model.__qualname__} does not say of which kind it is: decorate it with "
            "@webop.resource(GROUP, VERSION), or give its fields apiVersion and kind a default."
        )
    return select_objects(api_version, kind)


def select_kind(kind: str | tuple[str, ...] | type[pydantic.BaseModel]) -> Selector:
    """Return the selector of a kind outside of decorators: by its class, or by its name.

    Names are as in the client: "deployments.apps", "example.com/v1/databases".

    Raises:
        ConfigurationError: the class does not say of which kind it is.
        TypeError: this is no name of a kind.
    """
    if isinstance(kind, type):
        return build_selector(kind)
    return parse_selector(*(kind.split("/") if isinstance(kind, str) else kind))


def _find_default(model: type[pydantic.BaseModel], alias: str) -> str | None:
    """Return the default of a field, or the only value that it can have."""
    name = find_attribute(model, alias)
    if name is None:
        return None
    info = model.model_fields[name]
    values = get_args(info.annotation)
    default = values[0] if info.default is PydanticUndefined and values else info.default
    return default if isinstance(default, str) and default else None


def split_optional(annotation: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether it was there."""
    options = get_args(annotation)
    others = [option for option in options if option is not NoneType]
    if NoneType in options and len(others) == 1:
        return others[0], True
    return annotation, NoneType in options
