"""Definitions of kinds, by :func:`webop.models.resource`, and the classes that stand for them.

Decorators, the client and settings ask here whether a value is a class. There is none before
somebody has imported pydantic; this module does not.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeGuard, get_args

from webop.errors import ConfigurationError
from webop.objects.fields import find_attribute
from webop.objects.resources import Resource, Selector, parse_selector, select_objects

if TYPE_CHECKING:
    from pydantic import BaseModel
    from typing_extensions import TypeIs

    from webop.models.arguments import Argument


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

    def __post_init__(self) -> None:
        """Refuse what API servers refuse."""
        if not self.path.startswith("."):
            raise ConfigurationError(
                f"The path of a column begins with a dot, such as '.spec.size', got {self.path!r}."
            )


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


_defined: Final[dict[tuple[str, str, str], type[BaseModel]]] = {}
_DEFINITION = "__webop_definition__"
_FILE = "__webop_file__"


def register(definition: Definition, model: type[BaseModel]) -> None:
    """Remember the class of a version of a kind.

    Raises:
        ConfigurationError: another class says something else of it.
    """
    setattr(model, _DEFINITION, definition)
    # Of now: another file can later be imported by the same name.
    setattr(model, _FILE, getattr(sys.modules.get(model.__module__), "__file__", None))
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


def list_models() -> list[type[BaseModel]]:
    """Return all classes that were decorated with :func:`resource`, in their order."""
    return [*_defined.values()]


def list_versions(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the models of all versions of a kind."""
    definition = find_definition(model)
    if definition is None:
        return [model]
    return [
        each
        for each in list_models()
        if (found := find_definition(each)) and found.name == definition.name
    ]


def find_definition(model: type[BaseModel]) -> Definition | None:
    """Return what :func:`resource` says of a class; None for others."""
    found: Definition | None = model.__dict__.get(_DEFINITION)
    return found


def find_file(model: type[BaseModel]) -> str | None:
    """Return the file that has decorated a class with :func:`resource`."""
    found: str | None = model.__dict__.get(_FILE)
    return found


def advise_creation(selector: Selector) -> str:
    """Return the command that creates the kind of a selector, if a model is for it; else ""."""
    for model in list_models():
        one = find_definition(model)
        file = find_file(model)
        if one is None or file is None:
            continue
        names = one.group, one.version, one.plural, one.kind, one.singular
        if selector.check(Resource(*names, frozenset(one.short_names))):
            return f" Create it: webop crd apply {shlex.quote(file)}"
    return ""


def is_class(value: object) -> TypeIs[type[BaseModel]]:
    """Return whether a value is a class of pydantic."""
    main = sys.modules.get("pydantic.main")
    return main is not None and isinstance(value, type) and issubclass(value, main.BaseModel)


def is_instance(value: object) -> TypeIs[BaseModel]:
    """Return whether a value is an object of a class of pydantic."""
    return is_class(type(value))


def is_model(value: object) -> TypeGuard[type[BaseModel]]:
    """Return whether a value is a class that stands for a kind."""
    return is_class(value) and (
        find_definition(value) is not None or _find_default(value, "kind") is not None
    )


def find_arguments(
    fn: Callable[..., Any], model: type[BaseModel] | None, *, has_field: bool = False
) -> tuple[Argument, ...]:
    """Return the arguments of a handler that are models; see :mod:`webop.models.arguments`."""
    if "pydantic.main" not in sys.modules:
        return ()
    from webop.models.arguments import parse_arguments  # noqa: PLC0415 - it imports pydantic

    return parse_arguments(fn, model, has_field=has_field)


def find_class(parts: Sequence[Any], keywords: Mapping[str, Any]) -> type[BaseModel] | None:
    """Return the class that a decorator names instead of a kind; None if it names a kind."""
    classes = [each for each in parts if is_class(each)]
    if not classes:
        return None
    if len(parts) > 1 or any(value is not None for value in keywords.values()):
        raise TypeError(
            f"{classes[0].__qualname__} says of which kind it is: name no kind beside it."
        )
    return classes[0]


def build_selector(model: type[BaseModel]) -> Selector:
    """Return the selector of the kind of a class, for decorators and the client.

    Raises:
        ConfigurationError: the class does not say of which kind it is.
        TypeError: it is not a class of pydantic.
    """
    if not is_class(model):
        raise TypeError(f"A kind must be a name or a class of pydantic, got {model!r}.")
    definition = find_definition(model)
    if definition is not None:
        group, version, plural = definition.group, definition.version, definition.plural
        return Selector(group=group, version=version, plural=plural)
    api_version, kind = _find_default(model, "apiVersion"), _find_default(model, "kind")
    if not (api_version and kind):
        raise ConfigurationError(
            f"{model.__qualname__} does not say of which kind it is: decorate it with "
            "@webop.models.resource(GROUP, VERSION), or give its fields apiVersion and kind a "
            "default."
        )
    return select_objects(api_version, kind)


def select_kind(kind: str | tuple[str, ...] | type[BaseModel]) -> Selector:
    """Return the selector of a kind outside of decorators: by its class, or by its name.

    Names are as in the client: "deployments.apps", "example.com/v1/databases".
    """
    if isinstance(kind, type):
        return build_selector(kind)
    return parse_selector(*(kind.split("/") if isinstance(kind, str) else kind))


def _find_default(model: type[BaseModel], alias: str) -> str | None:
    """Return the default of a field, or the only value that it can have."""
    name = find_attribute(model, alias)
    if name is None:
        return None
    info = model.model_fields[name]
    values = get_args(info.annotation)
    default = values[0] if info.is_required() and values else info.get_default()
    return default if isinstance(default, str) and default else None


def split_optional(annotation: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether it was there."""
    options = get_args(annotation)
    others = [option for option in options if option is not NoneType]
    if NoneType in options and len(others) == 1:
        return others[0], True
    return annotation, NoneType in options
