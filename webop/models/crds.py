"""CustomResourceDefinitions of models (Kubernetes API, apiextensions/v1). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pydantic

from webop.errors import ConfigurationError
from webop.models.definitions import Column, Definition
from webop.models.schema import Schema, build_schema, find_part
from webop.models.versions import find_hub, get_definition
from webop.objects.resources import is_protected

_is_plain = re.compile(r"(\.[A-Za-z_]\w*)+").fullmatch
_APPROVAL: Final = "api-approved.kubernetes.io"
_COLUMN_TYPES = ("string", "integer", "number", "boolean")


def build_crds(models: Iterable[type[pydantic.BaseModel]]) -> list[dict[str, Any]]:
    """Build one CustomResourceDefinition for each kind, with all its versions.

    Args:
        models: classes that were decorated with ``webop.models.resource``.

    Raises:
        ConfigurationError: a class cannot be a kind of Kubernetes, or the versions of a kind
            contradict each other; the message names them.
    """
    kinds: dict[str, list[type[pydantic.BaseModel]]] = {}
    for model in models:
        kinds.setdefault(get_definition(model).name, []).append(model)
    return [_build_crd(versions) for versions in kinds.values()]


def get_storage_version(definition: dict[str, Any]) -> str:
    """Return the version that a CustomResourceDefinition stores objects in."""
    (stored,) = (each["name"] for each in definition["spec"]["versions"] if each["storage"])
    return str(stored)


def is_converted(definition: dict[str, Any]) -> bool:
    """Return whether API servers ask an operator to convert objects of a definition."""
    return (definition["spec"].get("conversion") or {}).get("strategy") == "Webhook"


def _build_crd(models: Sequence[type[pydantic.BaseModel]]) -> dict[str, Any]:
    definitions = [get_definition(model) for model in models]
    first = definitions[-1]
    _check_versions(definitions)
    names = {
        "plural": first.plural,
        "singular": first.singular,
        "kind": first.kind,
        "listKind": f"{first.kind}List",
        "shortNames": _join(each.short_names for each in definitions),
        "categories": _join(each.categories for each in definitions),
    }
    annotations = dict(item for each in definitions for item in each.annotations.items())
    if is_protected(first.group) and _APPROVAL not in annotations:
        raise ConfigurationError(
            f"API servers refuse definitions in the group {first.group!r} without the annotation "
            f"{_APPROVAL}. Choose a domain of yours, or pass annotations= to "
            f"@webop.models.resource() of {models[-1].__qualname__}."
        )
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": _drop_empty({"name": first.name, "annotations": annotations}),
        "spec": {
            "group": first.group,
            "names": _drop_empty(names),
            "scope": first.scope,
            "versions": [_build_version(model) for model in models],
        },
    }


def _drop_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value or value is False}


def _join(lists: Iterable[Sequence[str]]) -> list[str]:
    return [*dict.fromkeys(name for names in lists for name in names)]


def _check_versions(definitions: Sequence[Definition]) -> None:
    name = definitions[0].name
    for attribute in ("kind", "singular", "scope"):
        values = [getattr(each, attribute) for each in definitions]
        if len({*values}) > 1:
            found = ", ".join(
                f"{each.version}: {value!r}"
                for each, value in zip(definitions, values, strict=True)
            )
            raise ConfigurationError(f"The versions of {name} differ in {attribute}= ({found}).")
    find_hub(definitions)


def _build_version(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    definition, schema = get_definition(model), build_schema(model)
    warning, scale = definition.deprecated, definition.scale
    columns = definition.columns.items()
    subresources: dict[str, Any] = {}
    if "status" in schema["properties"] and definition.status_subresource:
        subresources["status"] = {}
    if scale is not None:
        paths = {
            "specReplicasPath": scale.replicas,
            "statusReplicasPath": scale.status,
            "labelSelectorPath": scale.selector,
        }
        subresources["scale"] = {
            key: _check_path(path, schema, model) for key, path in paths.items() if path
        }
    version = {
        "name": definition.version,
        "served": definition.served,
        "storage": definition.stored,
        "deprecated": bool(warning) or None,
        "deprecationWarning": warning if isinstance(warning, str) else None,
        "additionalPrinterColumns": [_build_column(*each, schema, model) for each in columns],
        "selectableFields": [
            {"jsonPath": _check_path(path, schema, model)} for path in definition.selectable
        ],
        "subresources": subresources,
    }
    return {**_drop_empty(version), "schema": {"openAPIV3Schema": schema}}


def _build_column(
    title: str, column: Column, schema: Schema, model: type[pydantic.BaseModel]
) -> dict[str, Any]:
    if _is_plain(column.path) and not column.path.startswith(".metadata."):
        _check_path(column.path, schema, model)
    fields = {
        "name": title,
        "type": column.type or _find_type(column.path, schema),
        "jsonPath": column.path,
        "description": column.description,
        "format": column.format,
        "priority": column.priority,
    }
    return _drop_empty(fields)


def _find_type(path: str, schema: Schema) -> str:
    """Return the type of a column: that of its field; "string" if it is not a plain one."""
    if path == ".metadata.creationTimestamp":
        return "date"
    part = find_part(schema, [name for name in path.split(".") if name]) or {}
    if part.get("format") in ("date", "date-time"):
        return "date"
    kind = part.get("type")
    return kind if kind in _COLUMN_TYPES else "string"


def _check_path(path: str, schema: Schema, model: type[pydantic.BaseModel]) -> str:
    if find_part(schema, [name for name in path.split(".") if name]) is None:
        raise ConfigurationError(
            f"{model.__qualname__} has no field {path!r}, which @webop.models.resource() names. "
            "Paths are those of JSON, such as '.spec.replicas'."
        )
    return path
