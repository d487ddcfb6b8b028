"""Base classes of models, and :func:`resource`, which says of which kind a class is.

Any pydantic class with the fields ``apiVersion`` and ``kind`` can stand for a kind; these base
classes save its author some lines.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal, Self, TypeVar

import pydantic
from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticUndefined

from webop.errors import ConfigurationError
from webop.models.annotations import build, check_fields
from webop.models.definitions import Column, Definition, Scale, is_class, register
from webop.objects.names import LABEL
from webop.objects.resources import guess_plural

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

        class DatabaseSpec(webop.models.Struct):
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

        class Source(webop.models.OneOf):
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
                    "fields of a webop.models.OneOf, exactly one is set."
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

        @webop.models.resource("example.com", "v1")
        class Database(webop.models.Model):
            spec: DatabaseSpec
            status: DatabaseStatus | None = None
    """

    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Field(default_factory=Metadata)


for _base in (Struct, OneOf, Model):  # only now: to read the source of a class is slow
    _base.model_config["use_attribute_docstrings"] = True


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

        @webop.models.resource("example.com", "v1", columns={"Size": ".spec.size"})
        class Database(webop.models.Model):
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
        register(definition, model)
        return model

    return decorate


def _check(definition: Definition, model: object) -> None:
    if not is_class(model):
        raise ConfigurationError(
            "@webop.models.resource() is for pydantic classes, such as a webop.models.Model, got "
            f"{model!r}."
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
