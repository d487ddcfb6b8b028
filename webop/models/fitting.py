"""Objects to models and back. Pure.

An object is validated as JSON, strictly: "5" is no integer, as for the API server.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson

from webop.errors import MisfitError
from webop.models.definitions import is_instance
from webop.objects.body import get_raw
from webop.objects.field_errors import build_causes, is_validation_error, summarize
from webop.objects.fields import unwrap_mapping

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter
    from pydantic.fields import FieldInfo

T = TypeVar("T")

# Computed fields are not in the schema: they are for Python only.
FORM: Final[dict[str, Any]] = {"mode": "json", "by_alias": True, "exclude_computed_fields": True}

NAMED_LIMIT: Final = 1000  # errors; to list many more of a hostile object would hold the event loop


@cache
def build_adapter(annotation: Any) -> TypeAdapter[Any]:
    """Return the adapter of a type, built at first use."""
    from pydantic import TypeAdapter  # noqa: PLC0415 - operators without models need none

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
        text = orjson.dumps(get_raw(value), default=unwrap_mapping)
    except TypeError as exc:
        raise MisfitError(f"{path or 'The object'}: {exc}.") from exc
    try:
        adapter = build_adapter(annotation)  # type: ignore[arg-type]  # all types have a hash
        found: T = adapter.validate_json(text, strict=True, by_alias=True, by_name=False)
    except Exception as exc:
        place = path or "the object"
        if not is_validation_error(exc):  # of a validator of the user
            failure = f"{place}: a validator failed: {type(exc).__name__}: {exc}"
            raise MisfitError(failure) from exc
        if (count := exc.error_count()) > NAMED_LIMIT:
            raise MisfitError(f"{place}: {count} values do not fit, too many to name.") from exc
        errors = exc.errors(include_url=False, include_context=False)
        causes = build_causes(errors, path, names_values=True)
        raise MisfitError(summarize(causes, len(errors)), causes) from exc
    return found


def dump(model: BaseModel, *, is_whole: bool = False) -> dict[str, Any]:
    """Return a model as an object for the API server: whole, or without fields that are None."""
    dumped = model.model_dump(**FORM, exclude_none=not is_whole)
    found: dict[str, Any] = _refine(model, dumped)
    return found


def dump_set(model: BaseModel) -> dict[str, Any]:
    """Return what a model says, for server-side apply, and its kind.

    At every depth, a model says the fields that were set, and those that differ from the default,
    such as a list to which something was added.
    """
    whole = dump(model)
    said: dict[str, Any] = _refine(model, whole, only_said=True)
    return {"apiVersion": whole.get("apiVersion"), "kind": whole.get("kind"), **said}


def dump_status(model: BaseModel) -> dict[str, Any]:
    """Return the status that a handler has returned: what it says. None removes a field."""
    content: dict[str, Any] = _refine(model, dump(model, is_whole=True), only_said=True)
    is_whole = {"metadata", "status"} <= {*type(model).model_fields}
    return (content.get("status") or {}) if is_whole else content


def _refine(value: Any, dumped: Any, *, only_said: bool = False) -> Any:
    """Return a dumped value with its sets sorted: their order differs from process to process.

    With ``only_said``, it lacks the fields that its models do not say.
    """
    if getattr(value, "__pydantic_root_model__", False):
        return _refine(value.root, dumped, only_said=only_said)
    if isinstance(value, (set, frozenset)):
        return sorted(dumped, key=str)
    if isinstance(value, (list, tuple)) and isinstance(dumped, list):
        pairs = zip(value, dumped, strict=True)
        return [_refine(item, part, only_said=only_said) for item, part in pairs]
    if not isinstance(dumped, dict):
        return dumped
    inner: dict[str, Any] = {}
    silent: set[str] = set()
    if is_instance(value):
        if value.model_config.get("extra") != "allow":  # then pydantic does not write them
            dumped = {**(value.model_extra or {}), **dumped}
        for name, info in type(value).model_fields.items():
            key, item = info.serialization_alias or info.alias or name, getattr(value, name)
            inner[key] = item
            if only_said and name not in value.model_fields_set and _is_default(item, info):
                silent.add(key)
    elif isinstance(value, dict):
        inner = {str(key): item for key, item in value.items()}
    return {
        key: _refine(inner.get(key), part, only_said=only_said)
        for key, part in dumped.items()
        if key not in silent
    }


def _is_default(value: Any, info: FieldInfo) -> bool:
    if info.default_factory_takes_validated_data:
        return True  # only what was set is known
    return bool(value == info.get_default(call_default_factory=True))
