"""Find classes in annotations, and check their fields at import; errors name class and field.

Pydantic's own errors name at best the type. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast, get_args

import pydantic
from pydantic import AliasChoices, ConfigDict
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation
from pydantic.fields import FieldInfo
from pydantic_core import SchemaError

from webop.errors import ConfigurationError

Model = type[pydantic.BaseModel]


def is_alias(annotation: Any) -> bool:
    """Return whether an annotation was made by ``type X = …``, or by its backport."""
    return type(annotation).__name__ == "TypeAliasType"


def iterate_classes(annotation: Any, known: set[Any] | None = None) -> Iterator[Model]:
    """Yield the pydantic classes in an annotation, without those in their fields."""
    known = set() if known is None else known  # a type can contain itself
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        yield annotation
    elif is_alias(annotation):
        if annotation not in known:
            known.add(annotation)
            yield from iterate_classes(annotation.__value__, known)
    else:
        for part in get_args(annotation):
            yield from iterate_classes(part, known)


def _iterate_fields(
    annotation: Any, known: set[Model] | None = None
) -> Iterator[tuple[Model, str, FieldInfo]]:
    """Yield all fields of the classes in an annotation, the innermost first."""
    known = set() if known is None else known
    for model in iterate_classes(annotation):
        if model not in known:
            known.add(model)
            for name, info in model.model_fields.items():
                yield from _iterate_fields(info.annotation, known)
                yield model, name, info


def build(annotation: Any, rebuild: Callable[[], object]) -> None:
    """Build the validators of a type; an error about it names the class and the field."""
    try:
        rebuild()
    except Exception as exc:
        fields = _iterate_fields(annotation)
        found = (
            f"{each.__qualname__}.{name}" for each, name, info in fields if _fails(each, info, exc)
        )
        place = next(found, getattr(annotation, "__qualname__", repr(annotation)))
        raise ConfigurationError(f"{place}: {_explain(exc)}") from exc


def _fails(owner: Model, info: FieldInfo, exc: Exception) -> bool:
    """Return whether a field is the one that causes an error."""
    if isinstance(exc, PydanticUndefinedAnnotation):
        return bool(re.search(rf"\b{re.escape(str(exc.name))}\b", repr(info.annotation)))
    config = ConfigDict(**{**owner.model_config, "defer_build": False})
    try:
        pydantic.create_model("_", __config__=config, field=(cast("Any", info.annotation), info))
    except Exception:  # noqa: BLE001 - pydantic raises many; validators of users, any
        return True
    return False


def _explain(exc: Exception) -> str:
    lines = [line for line in str(getattr(exc, "message", exc)).splitlines() if line.strip()]
    text = lines[-1 if isinstance(exc, SchemaError) else 0] if lines else repr(exc)
    if isinstance(exc, PydanticUndefinedAnnotation):
        return f"{text}. Define or import it before the class of the kind."
    if isinstance(exc, PydanticSchemaGenerationError):
        return f"{text.partition('. ')[0]}. Use a type with a form in JSON, or a pydantic class."
    return text


def check_fields(model: Model) -> None:
    """Check that what is read of an object is written under the same name, or it would be lost."""
    for owner, name, info in _iterate_fields(model):
        place = f"{owner.__qualname__}.{name}"
        if info.exclude:
            raise ConfigurationError(
                f"{place} has exclude=True: it would be read, but never written, and objects would "
                "lose it. Remove exclude=, or use a pydantic.PrivateAttr for what objects do not "
                "have."
            )
        read: Any = info.validation_alias or name
        if isinstance(read, AliasChoices):
            read = read.choices[0]
        written = info.serialization_alias or name
        if read != written:
            raise ConfigurationError(
                f"{place} is read as {read!r}, but written as {written!r}: objects would lose it. "
                "Use alias= for both."
            )


@cache
def has_conditions(model: Model) -> bool:
    """Return whether the status of a model has conditions."""
    info = model.model_fields.get("status")
    statuses = [] if info is None else iterate_classes(info.annotation)
    fields = [each.model_fields.get("conditions") for each in statuses]
    kinds = (each for field in fields if field for each in iterate_classes(field.annotation))
    return any(getattr(each, "has_conditions", False) for each in kinds)
