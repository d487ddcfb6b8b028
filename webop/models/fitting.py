"""Objects to models and back. Pure.

An object is validated as JSON, strictly: "5" is no integer, as for the API server.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import orjson
import pydantic
from pydantic import TypeAdapter

from webop.errors import MisfitError
from webop.objects.field_errors import build_causes, summarize

T = TypeVar("T")

_NAMED_LIMIT = 1000  # errors; to list many more of a hostile object would hold the event loop


@cache
def build_adapter(annotation: Any) -> TypeAdapter[Any]:
    """Return the adapter of a type, built at first use."""
    return TypeAdapter(annotation)


def fit(annotation: type[T] | Any, value: Any, path: str = "") -> T:
    """Return a part of an object as its model.

    Args:
        annotation: the class, or another type that contains classes.
        value: the part, as from JSON.
        path: of the part in the object, for messages.

    Raises:
        MisfitError: it does not fit; the message names the fields.
    """
    try:
        text = orjson.dumps(value, default=_unwrap)
    except TypeError as exc:
        raise MisfitError(f"{path or 'The object'}: {exc}.") from exc
    try:
        adapter = build_adapter(annotation)  # type: ignore[arg-type]  # all types have a hash
        found: T = adapter.validate_json(text, strict=True, by_alias=True, by_name=False)
    except pydantic.ValidationError as exc:
        if (count := exc.error_count()) > _NAMED_LIMIT:
            place = path or "the object"
            raise MisfitError(f"{place}: {count} values do not fit, too many to name.") from exc
        errors = exc.errors(include_url=False, include_context=False, include_input=False)
        causes = build_causes(errors, path)
        raise MisfitError(summarize(causes, len(errors)), causes) from exc
    return found


def _unwrap(value: Any) -> Any:
    """Return the mapping behind a view of an object."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def dump(model: pydantic.BaseModel) -> dict[str, Any]:
    """Return a model as an object for the API server, without fields that are None."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def dump_set(model: pydantic.BaseModel) -> dict[str, Any]:
    """Return the fields of a model that were set, for server-side apply, and its kind and name."""
    content = model.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    whole = dump(model)
    return {"apiVersion": whole.get("apiVersion"), "kind": whole.get("kind"), **content}


def dump_status(model: pydantic.BaseModel) -> dict[str, Any]:
    """Return the status that a handler has returned; None removes fields, as in a merge patch."""
    content = model.model_dump(mode="json", by_alias=True)
    is_whole = {"metadata", "status"} <= content.keys()
    return (content["status"] or {}) if is_whole else content
